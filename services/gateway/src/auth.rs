//! Who connects: HS256 tokens.
//!
//! **Guarantee.** A session's uid is the `sub` of a token that was signed with the configured secret and had not
//! expired; at its `exp` the session ends (scenario B117) unless a newer token of the same uid came. The clock is the
//! gateway's, without leeway.

use std::net::IpAddr;

use jsonwebtoken::errors::ErrorKind;
use jsonwebtoken::{Algorithm, DecodingKey, Validation};
use serde::Deserialize;
use tidings_domain::clock::{Millis, SharedClock};
use tidings_domain::{IdError, Uid};
use tidings_proto::record::SenderRole;

use crate::config::GatewayConfig;

/// Who a connection speaks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// The user.
    pub uid: Uid,
    /// With which role.
    pub role: SenderRole,
    /// When the session must end; `None` for an anonymous one.
    pub expires: Option<Millis>,
}

/// Why a token proves nothing. The texts go to the client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// There is none.
    #[error("a token is needed, as `Authorization: Bearer` or in the connect frame")]
    Missing,
    /// Not a token, or of another kind.
    #[error("not an HS256 token with sub and exp")]
    Malformed,
    /// Signed with another secret.
    #[error("the signature is wrong")]
    Signature,
    /// It was valid once.
    #[error("expired at {0} ms since the epoch")]
    Expired(i64),
    /// The subject is no uid.
    #[error("sub: {0}")]
    Subject(IdError),
    /// A role this version does not know.
    #[error("role is not known; allowed is `service`, or none")]
    Role,
    /// A newer token within a session names somebody else.
    #[error("the token is for another uid than the session's")]
    OtherUid,
}

#[derive(Deserialize)]
struct Claims {
    sub: String,
    /// Seconds; some issuers write fractions.
    exp: f64,
    #[serde(default)]
    role: Option<String>,
}

/// Verifies tokens.
pub struct Authenticator {
    key: Option<DecodingKey>,
    validation: Validation,
    anonymous: bool,
    clock: SharedClock,
}

impl Authenticator {
    /// Verifies with the configured secret.
    #[must_use]
    pub fn new(config: &GatewayConfig, clock: SharedClock) -> Self {
        let mut validation = Validation::new(Algorithm::HS256);
        // The library reads the machine's clock; `exp` is checked here against ours.
        validation.validate_exp = false;
        validation.validate_aud = false;
        validation.set_required_spec_claims(&["exp", "sub"]);
        Self {
            // Only an empty secret is no key, and that is an unset one.
            key: config
                .hs256_secret
                .expose()
                .and_then(|secret| DecodingKey::from_secret(secret.as_bytes()).ok()),
            validation,
            anonymous: config.anonymous,
            clock,
        }
    }

    /// The identity that a token proves now.
    pub fn verify(&self, token: &str) -> Result<Identity, TokenError> {
        let key = self.key.as_ref().ok_or(TokenError::Signature)?;
        let claims = jsonwebtoken::decode::<Claims>(token, key, &self.validation)
            // Whatever else the library finds, now or in a later version: it is not a token of ours.
            .map_err(|error| {
                if matches!(error.kind(), ErrorKind::InvalidSignature) {
                    TokenError::Signature
                } else {
                    TokenError::Malformed
                }
            })?
            .claims;
        let expires = Millis(millis(claims.exp));
        if expires <= self.clock.now() {
            return Err(TokenError::Expired(expires.get()));
        }
        Ok(Identity {
            uid: Uid::parse(&claims.sub).map_err(TokenError::Subject)?,
            role: match claims.role.as_deref() {
                None => SenderRole::User,
                Some("service") => SenderRole::Service,
                Some(_) => return Err(TokenError::Role),
            },
            expires: Some(expires),
        })
    }

    /// The identity of a peer that only says who it is: in development, from the same machine.
    pub fn anonymous(&self, uid: &str, peer: IpAddr) -> Result<Identity, TokenError> {
        if !self.anonymous || !peer.is_loopback() {
            return Err(TokenError::Missing);
        }
        Ok(Identity {
            uid: Uid::parse(uid).map_err(TokenError::Subject)?,
            role: SenderRole::User,
            expires: None,
        })
    }
}

/// Seconds to milliseconds; what does not fit (and NaN) saturates.
#[expect(
    clippy::cast_possible_truncation,
    reason = "casts of floats saturate, which is what is wanted"
)]
fn millis(seconds: f64) -> i64 {
    (seconds * 1000.0) as i64
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use jsonwebtoken::{EncodingKey, Header};
    use tidings_chassis::Secret;
    use tidings_domain::clock::ManualClock;

    use super::*;
    use crate::config::Config;

    const NOW: i64 = 1_700_000_000_000;

    fn authenticator(anonymous: bool) -> Authenticator {
        let mut config = Config::defaults().gateway;
        config.hs256_secret = Secret::new("s3cret");
        config.anonymous = anonymous;
        Authenticator::new(&config, Arc::new(ManualClock::at(Millis(NOW))))
    }

    fn token(secret: &str, claims: &serde_json::Value) -> String {
        let key = EncodingKey::from_secret(secret.as_bytes()).expect("a key");
        jsonwebtoken::encode(&Header::default(), claims, &key).expect("signed")
    }

    #[test]
    fn a_good_token_names_uid_role_and_end() {
        let claims = serde_json::json!({"sub": "ann", "exp": NOW / 1000 + 60, "role": "service", "aud": "others"});
        let identity = authenticator(false).verify(&token("s3cret", &claims)).expect("valid");
        assert_eq!(identity.uid.as_str(), "ann");
        assert_eq!(identity.role, SenderRole::Service);
        assert_eq!(identity.expires, Some(Millis(NOW + 60_000)));
    }

    #[test]
    fn each_fault_has_its_own_refusal() {
        let exp = NOW / 1000 + 60;
        let refused = |secret: &str, claims: serde_json::Value| authenticator(false).verify(&token(secret, &claims));
        assert_eq!(
            refused("other", serde_json::json!({"sub": "ann", "exp": exp})),
            Err(TokenError::Signature)
        );
        assert_eq!(
            refused("s3cret", serde_json::json!({"sub": "ann", "exp": NOW / 1000})),
            Err(TokenError::Expired(NOW))
        );
        assert_eq!(
            refused("s3cret", serde_json::json!({"sub": "ann"})),
            Err(TokenError::Malformed)
        );
        assert_eq!(
            refused("s3cret", serde_json::json!({"exp": exp})),
            Err(TokenError::Malformed)
        );
        assert!(matches!(
            refused("s3cret", serde_json::json!({"sub": "a b", "exp": exp})),
            Err(TokenError::Subject(_))
        ));
        assert_eq!(
            refused("s3cret", serde_json::json!({"sub": "ann", "exp": exp, "role": "root"})),
            Err(TokenError::Role)
        );
        assert_eq!(authenticator(false).verify("no.token.this"), Err(TokenError::Malformed));
        // `alg: none` and other algorithms are not ours.
        let none = "eyJhbGciOiJub25lIn0.eyJzdWIiOiJhbm4iLCJleHAiOjQwMDAwMDAwMDB9.";
        assert_eq!(authenticator(false).verify(none), Err(TokenError::Malformed));
    }

    #[test]
    fn anonymous_only_if_allowed_and_from_this_machine() {
        let here: IpAddr = "127.0.0.1".parse().expect("an address");
        let there: IpAddr = "192.0.2.7".parse().expect("an address");
        assert_eq!(authenticator(false).anonymous("ann", here), Err(TokenError::Missing));
        assert_eq!(authenticator(true).anonymous("ann", there), Err(TokenError::Missing));
        assert_eq!(
            authenticator(true)
                .anonymous("ann", here)
                .expect("allowed")
                .uid
                .as_str(),
            "ann"
        );
    }
}
