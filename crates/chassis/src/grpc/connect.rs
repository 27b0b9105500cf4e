//! Channels to other services.

use std::collections::BTreeSet;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures::future::BoxFuture;
use http::{HeaderValue, Request, Response, Uri};
use tidings_proto::rpc::{CallError, Channel};
use tokio::sync::mpsc;
use tonic::Status;
use tonic::body::Body;
use tonic::transport::channel::Change;
use tonic::transport::{self, Endpoint};
use tower::Service;
use tower::util::BoxCloneSyncService;

use super::Error;
use super::auth::{AUTHORIZATION, authorization};
use crate::config::InternalConfig;
use crate::tasks::Supervisor;

/// Calls that may wait inside a channel for a connection; more wait in the caller.
const QUEUED_CALLS: usize = 1024;

/// A channel over all addresses behind `targets` (`host:port` each), balanced per call.
///
/// The names are resolved at once and then every `internal.resolve_interval_ms`, in a supervised task that ends with
/// the last clone of the channel. A name that cannot be resolved keeps the addresses known so far; until one is known,
/// calls wait, at most for the response timeout. Must be called inside the runtime.
///
/// # Errors
/// No target, a target that is not `host:port`, or a token that cannot stand in a header.
pub fn connect(tasks: &Supervisor, config: &InternalConfig, targets: &[String]) -> Result<Channel, Error> {
    connect_with(tasks, config, targets, |target: Arc<str>| async move {
        Ok(tokio::net::lookup_host(&*target).await?.collect())
    })
}

/// A channel to one `host:port`, connected at the first call and again after each loss. Must be called inside the
/// runtime.
///
/// # Errors
/// A target that is not `host:port`, or a token that cannot stand in a header.
pub fn connect_one(config: &InternalConfig, target: &str) -> Result<Channel, Error> {
    let uri = target_uri(target)?;
    let channel = configured(Endpoint::from(uri), config)
        .buffer_size(QUEUED_CALLS)
        .connect_lazy();
    finished(channel, config, target)
}

pub(super) fn connect_with<L, F>(
    tasks: &Supervisor,
    config: &InternalConfig,
    targets: &[String],
    lookup: L,
) -> Result<Channel, Error>
where
    L: Fn(Arc<str>) -> F + Send + Sync + 'static,
    F: Future<Output = io::Result<Vec<SocketAddr>>> + Send,
{
    if targets.is_empty() {
        return Err(Error::NoTarget);
    }
    let mut names = Vec::with_capacity(targets.len());
    for target in targets {
        names.push((Arc::<str>::from(target.as_str()), target_uri(target)?));
    }
    let label = targets.join(",");
    let (channel, changes) = transport::Channel::balance_channel(QUEUED_CALLS);
    let channel = finished(channel, config, &label)?;
    let resolver = Resolver {
        names,
        config: config.clone(),
        known: BTreeSet::new(),
        failing: false,
        lookup,
    };
    let shutdown = tasks.shutdown.clone();
    tasks.spawn_finite(format!("resolve {label}"), async move {
        tokio::select! {
            () = shutdown.cancelled() => {}
            () = resolver.run(changes) => {}
        }
        Ok(())
    });
    Ok(channel)
}

/// Keeps a balanced channel in step with the name service.
struct Resolver<L> {
    names: Vec<(Arc<str>, Uri)>,
    config: InternalConfig,
    known: BTreeSet<SocketAddr>,
    failing: bool,
    lookup: L,
}

impl<L, F> Resolver<L>
where
    L: Fn(Arc<str>) -> F,
    F: Future<Output = io::Result<Vec<SocketAddr>>>,
{
    /// Runs until the channel is gone.
    async fn run(mut self, changes: mpsc::Sender<Change<SocketAddr, Endpoint>>) {
        loop {
            for change in self.resolve().await {
                if changes.send(change).await.is_err() {
                    return;
                }
            }
            tokio::select! {
                () = tokio::time::sleep(self.config.resolve_interval) => {}
                () = changes.closed() => return,
            }
        }
    }

    /// One look at all names; gives what changed.
    async fn resolve(&mut self) -> Vec<Change<SocketAddr, Endpoint>> {
        let mut found = BTreeSet::new();
        let mut changes = Vec::new();
        let mut failure = None;
        for (name, origin) in &self.names {
            // Bounded: a name service that hangs must not hide the other names for long.
            let looked_up = tokio::time::timeout(self.config.resolve_interval, (self.lookup)(Arc::clone(name)));
            match looked_up.await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                Ok(addresses) => {
                    for address in addresses {
                        if found.insert(address) && !self.known.contains(&address) {
                            changes.push(Change::Insert(address, self.endpoint(address, origin)));
                        }
                    }
                }
                Err(error) => failure = Some((Arc::clone(name), error)),
            }
        }
        match &failure {
            // With a part of the answer missing, an absent address proves nothing.
            Some((name, error)) => {
                if !self.failing {
                    tracing::warn!(target_name = &**name, %error, known = self.known.len(), "name cannot be resolved");
                }
                found.extend(&self.known);
            }
            None => {
                changes.extend(self.known.difference(&found).map(|gone| Change::Remove(*gone)));
            }
        }
        self.failing = failure.is_some();
        if !changes.is_empty() {
            tracing::debug!(addresses = ?found, "addresses changed");
        }
        self.known = found;
        changes
    }

    fn endpoint(&self, address: SocketAddr, origin: &Uri) -> Endpoint {
        // An address always makes a valid URI, so the fallback (resolve the name again) does not happen.
        let uri = format!("http://{address}")
            .parse::<Uri>()
            .unwrap_or_else(|_| origin.clone());
        configured(Endpoint::from(uri).origin(origin.clone()), &self.config)
    }
}

fn configured(endpoint: Endpoint, config: &InternalConfig) -> Endpoint {
    endpoint
        .connect_timeout(config.connect_timeout)
        .tcp_nodelay(true)
        .http2_keep_alive_interval(config.keepalive_interval)
        .keep_alive_timeout(config.keepalive_timeout)
        .keep_alive_while_idle(true)
}

fn finished(channel: transport::Channel, config: &InternalConfig, target: &str) -> Result<Channel, Error> {
    Ok(BoxCloneSyncService::new(Outgoing {
        channel,
        authorization: authorization(&config.shared_token)?,
        response_timeout: config.response_timeout,
        target: Arc::from(target),
    }))
}

fn target_uri(target: &str) -> Result<Uri, Error> {
    let bad = || Error::BadTarget {
        target: target.to_owned(),
    };
    let uri = format!("http://{target}").parse::<Uri>().map_err(|_| bad())?;
    let authority = uri.authority().map(http::uri::Authority::as_str);
    if authority != Some(target)
        || target.contains('@')
        || uri.port_u16().is_none()
        || uri.host().is_none_or(str::is_empty)
    {
        return Err(bad());
    }
    Ok(uri)
}

/// Puts the token on every call and bounds the wait for the response headers.
#[derive(Clone)]
struct Outgoing {
    channel: transport::Channel,
    authorization: Option<HeaderValue>,
    response_timeout: Duration,
    target: Arc<str>,
}

impl Service<Request<Body>> for Outgoing {
    type Response = Response<Body>;
    type Error = CallError;
    type Future = BoxFuture<'static, Result<Response<Body>, CallError>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), CallError>> {
        self.channel.poll_ready(context).map_err(CallError::new)
    }

    fn call(&mut self, mut request: Request<Body>) -> Self::Future {
        if let Some(value) = &self.authorization {
            request.headers_mut().insert(AUTHORIZATION, value.clone());
        }
        let response = self.channel.call(request);
        let timeout = self.response_timeout;
        let target = Arc::clone(&self.target);
        Box::pin(async move {
            match tokio::time::timeout(timeout, response).await {
                Ok(response) => response.map_err(CallError::new),
                Err(_) => Err(CallError::new(Status::unavailable(format!(
                    "{target} gave no answer in {} ms",
                    timeout.as_millis()
                )))),
            }
        })
    }
}
