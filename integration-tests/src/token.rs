//! Tokens as the gateway takes them: HS256 with `sub` and `exp`.

use anyhow::{Context, Result};
use jsonwebtoken::{EncodingKey, Header};
use serde::Serialize;
use tidings_domain::Uid;
use tidings_domain::clock::{Clock, SystemClock};

const VALID_S: i64 = 3_600;

#[derive(Serialize)]
struct Claims<'a> {
    sub: &'a str,
    exp: i64,
}

/// A token for `uid`, valid for an hour.
pub fn mint(secret: &str, uid: &Uid) -> Result<String> {
    let claims = Claims {
        sub: uid.as_str(),
        exp: SystemClock.now().get() / 1_000 + VALID_S,
    };
    let key = EncodingKey::from_secret(secret.as_bytes()).context("making a key of the secret")?;
    jsonwebtoken::encode(&Header::default(), &claims, &key).context("signing a token")
}
