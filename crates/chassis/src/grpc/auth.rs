//! The shared token of internal calls.

use http::HeaderValue;
use tonic::service::{Interceptor, InterceptorLayer};
use tonic::{Request, Status};

use super::Error;
use crate::config::Secret;

/// The metadata key.
pub(super) const AUTHORIZATION: &str = "authorization";

/// The value of `authorization` for a token, `None` if none is set.
pub(super) fn authorization(token: &Secret) -> Result<Option<HeaderValue>, Error> {
    let Some(token) = token.expose() else { return Ok(None) };
    let mut value = HeaderValue::from_str(&format!("Bearer {token}")).map_err(|_| Error::BadToken)?;
    value.set_sensitive(true);
    Ok(Some(value))
}

/// Server side: refuses calls without the configured token as `UNAUTHENTICATED`. Without a configured token it lets
/// every call through (single machine, tests).
#[derive(Clone, Debug)]
pub struct InternalAuth {
    expected: Option<HeaderValue>,
}

impl InternalAuth {
    /// Requires `token`, if it is set.
    ///
    /// # Errors
    /// [`Error::BadToken`].
    pub fn new(token: &Secret) -> Result<Self, Error> {
        Ok(Self {
            expected: authorization(token)?,
        })
    }

    /// As a layer for a whole server.
    pub fn layer(self) -> InterceptorLayer<Self> {
        InterceptorLayer::new(self)
    }
}

impl Interceptor for InternalAuth {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(expected) = &self.expected else {
            return Ok(request);
        };
        match request.metadata().get(AUTHORIZATION) {
            Some(given) if equal_in_constant_time(given.as_encoded_bytes(), expected.as_bytes()) => Ok(request),
            Some(_) => Err(Status::unauthenticated("internal token is wrong")),
            None => Err(Status::unauthenticated("internal token is missing")),
        }
    }
}

/// Takes as long for a nearly right token as for any other of its length.
fn equal_in_constant_time(left: &[u8], right: &[u8]) -> bool {
    left.len() == right.len() && left.iter().zip(right).fold(0, |differing, (l, r)| differing | (l ^ r)) == 0
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn request(authorization: Option<&'static str>) -> Request<()> {
        let mut request = Request::new(());
        if let Some(value) = authorization {
            request.metadata_mut().insert(AUTHORIZATION, value.parse().unwrap());
        }
        request
    }

    #[test]
    fn only_the_configured_token_passes() {
        let mut auth = InternalAuth::new(&Secret::new("s3cret")).unwrap();
        assert!(auth.call(request(Some("Bearer s3cret"))).is_ok());
        for wrong in [
            None,
            Some("Bearer s3cre"),
            Some("Bearer s3creT"),
            Some("s3cret"),
            Some("Bearer s3cret2"),
        ] {
            assert_eq!(
                auth.call(request(wrong)).unwrap_err().code(),
                Code::Unauthenticated,
                "{wrong:?}"
            );
        }
    }

    #[test]
    fn without_a_token_every_call_passes() {
        let mut auth = InternalAuth::new(&Secret::default()).unwrap();
        assert!(auth.call(request(None)).is_ok());
        assert!(auth.call(request(Some("Bearer x"))).is_ok());
    }

    #[test]
    fn a_token_that_cannot_be_sent_is_refused_and_never_printed() {
        assert!(matches!(InternalAuth::new(&Secret::new("a\nb")), Err(Error::BadToken)));
        let auth = InternalAuth::new(&Secret::new("s3cret")).unwrap();
        assert!(!format!("{auth:?}").contains("s3cret"));
    }
}
