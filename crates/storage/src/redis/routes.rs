//! The route registry: per user a hash device -> `gateway|boot_id|connection_id|epoch` and a sorted set device -> end of
//! the lease. Leases end by the clock of Redis, which is one for all gateways.

use std::time::Duration;

use async_trait::async_trait;
use redis::{Script, ScriptInvocation};
use tidings_domain::{DeviceId, Uid};

use super::RedisConnection;
use crate::Error;
use crate::port::{Registered, Route, RouteKey, Routes};

/// The registry in Redis.
#[derive(Debug, Clone)]
pub struct RedisRoutes {
    connection: RedisConnection,
    register: Script,
    heartbeat: Script,
    unregister: Script,
    lookup: Script,
}

impl RedisRoutes {
    /// The registry on `connection`.
    #[must_use]
    pub fn new(connection: RedisConnection) -> Self {
        Self {
            connection,
            register: Script::new(include_str!("lua/register.lua")),
            heartbeat: Script::new(include_str!("lua/heartbeat.lua")),
            unregister: Script::new(include_str!("lua/unregister.lua")),
            lookup: Script::new(include_str!("lua/lookup.lua")),
        }
    }

    /// A call of `script` on a user's keys.
    fn on<'a>(&self, script: &'a Script, uid: &Uid) -> ScriptInvocation<'a> {
        let mut call = script.prepare_invoke();
        call.key(self.connection.key("rt", uid.as_str()))
            .key(self.connection.key("rtz", uid.as_str()));
        call
    }
}

fn lease_millis(lease: Duration) -> u64 {
    // A lease is seconds to minutes; 0 would be no lease.
    u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).max(1)
}

fn parse_route(operation: &'static str, text: &str) -> Result<Route, Error> {
    let parts = text.rsplitn(4, '|').collect::<Vec<_>>();
    let route = match parts.as_slice() {
        [epoch, connection_id, boot_id, gateway] => {
            parse_numbers(boot_id, connection_id, epoch).map(|(boot_id, connection_id, epoch)| Route {
                gateway: (*gateway).to_owned(),
                boot_id,
                connection_id,
                epoch,
            })
        }
        _ => None,
    };
    route.ok_or_else(|| Error::Damaged {
        operation,
        reason: format!("`{text}` is no route"),
    })
}

fn parse_numbers(boot_id: &str, connection_id: &str, epoch: &str) -> Option<(u64, u64, u64)> {
    Some((boot_id.parse().ok()?, connection_id.parse().ok()?, epoch.parse().ok()?))
}

#[async_trait]
impl Routes for RedisRoutes {
    async fn register(
        &self,
        key: &RouteKey,
        gateway: &str,
        boot_id: u64,
        connection_id: u64,
        lease: Duration,
    ) -> Result<Registered, Error> {
        const OPERATION: &str = "register";
        let mut call = self.on(&self.register, &key.uid);
        call.arg(key.device.as_str())
            .arg(gateway)
            .arg(boot_id)
            .arg(connection_id)
            .arg(lease_millis(lease));
        let (epoch, replaced): (u64, String) = self.connection.call(OPERATION, &self.register, call).await?;
        let replaced = match replaced.as_str() {
            "" => None,
            text => Some(parse_route(OPERATION, text)?),
        };
        Ok(Registered { epoch, replaced })
    }

    async fn heartbeat(&self, routes: &[(RouteKey, Route)], lease: Duration) -> Result<Vec<bool>, Error> {
        let calls: Vec<_> = routes
            .iter()
            .map(|(key, route)| {
                let mut call = self.on(&self.heartbeat, &key.uid);
                call.arg(key.device.as_str())
                    .arg(route.boot_id)
                    .arg(route.connection_id)
                    .arg(lease_millis(lease));
                call
            })
            .collect();
        self.connection.call_all("heartbeat", &self.heartbeat, &calls).await
    }

    async fn unregister(&self, key: &RouteKey, boot_id: u64, connection_id: u64) -> Result<bool, Error> {
        let mut call = self.on(&self.unregister, &key.uid);
        call.arg(key.device.as_str()).arg(boot_id).arg(connection_id);
        self.connection.call("unregister", &self.unregister, call).await
    }

    async fn lookup(&self, uids: &[Uid]) -> Result<Vec<Vec<(DeviceId, Route)>>, Error> {
        const OPERATION: &str = "lookup";
        let calls: Vec<_> = uids.iter().map(|uid| self.on(&self.lookup, uid)).collect();
        let found: Vec<Vec<(String, String)>> = self.connection.call_all(OPERATION, &self.lookup, &calls).await?;
        let parse = |(device, route): (String, String)| {
            let device = DeviceId::parse(&device).map_err(|error| Error::Damaged {
                operation: OPERATION,
                reason: error.to_string(),
            })?;
            Ok((device, parse_route(OPERATION, &route)?))
        };
        found
            .into_iter()
            .map(|routes| routes.into_iter().map(parse).collect())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_route_comes_apart_from_the_right() {
        let route = parse_route("test", "[::1]:9090|7|8|9").expect("a route");
        assert_eq!(
            (route.gateway.as_str(), route.boot_id, route.connection_id, route.epoch),
            ("[::1]:9090", 7, 8, 9)
        );
        assert!(parse_route("test", "gw|x|8|9").is_err());
        assert!(parse_route("test", "gw").is_err());
    }
}
