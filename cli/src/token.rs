//! Tokens: HS256 JWTs with `sub` and `exp`, as the gateway verifies them.

use std::time::Duration;

use anyhow::{Context as _, ensure};
use jsonwebtoken::{EncodingKey, Header};
use serde::Serialize;
use tidings_domain::Uid;
use tidings_domain::clock::{Clock, SystemClock};

/// The claims of a token.
#[derive(Debug, Serialize)]
struct Claims<'a> {
    sub: &'a str,
    /// Seconds since the epoch.
    exp: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    role: Option<&'a str>,
}

/// `tidings token`
#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// The user the token is for.
    uid: String,
    /// Secret shared with the gateway (`gateway.hs256_secret`).
    #[arg(long, env = "TIDINGS__GATEWAY__HS256_SECRET", hide_env_values = true)]
    secret: Option<String>,
    /// Take the secret of the `tidings dev` that uses this directory.
    #[arg(long, conflicts_with = "secret")]
    data_dir: Option<std::path::PathBuf>,
    /// How long the token is valid.
    #[arg(long, default_value_t = 24 * 3600)]
    ttl_s: u64,
    /// A role beside that of a user.
    #[arg(long, value_parser = ["service"])]
    role: Option<String>,
}

/// Prints a token.
pub(crate) fn run(args: &TokenArgs) -> anyhow::Result<()> {
    let secret = match (&args.secret, &args.data_dir) {
        (Some(secret), _) => secret.clone(),
        (None, Some(data_dir)) => crate::dev::Instance::load(data_dir)?.secret,
        (None, None) => anyhow::bail!(
            "no secret: give --secret, or set TIDINGS__GATEWAY__HS256_SECRET, or --data-dir of a running `tidings dev`"
        ),
    };
    let uid = Uid::parse(&args.uid)?;
    println!(
        "{}",
        mint(&secret, &uid, Duration::from_secs(args.ttl_s), args.role.as_deref())?
    );
    Ok(())
}

/// Makes a token for `uid`.
pub(crate) fn mint(secret: &str, uid: &Uid, ttl: Duration, role: Option<&str>) -> anyhow::Result<String> {
    ensure!(!secret.is_empty(), "the secret is empty");
    let expires = SystemClock.now().plus(ttl).get() / 1000;
    let claims = Claims {
        sub: uid.as_str(),
        exp: u64::try_from(expires).context("the clock is before 1970")?,
        role,
    };
    let key = EncodingKey::from_secret(secret.as_bytes()).context("the secret cannot be used as a key")?;
    jsonwebtoken::encode(&Header::default(), &claims, &key).context("the token could not be signed")
}
