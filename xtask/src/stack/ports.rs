//! Free ports that stay free.
//!
//! A node keeps its ports over restarts. While it is down its port must not become the source port of somebody's
//! outgoing connection, so ports are taken from below the range the kernel gives out by itself.

use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::net::{IpAddr, TcpListener};
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Below are the ports of well-known services.
const LOWEST: u16 = 15_000;
/// Looks before giving up: with even one port in ten free, failing by chance is out of the question.
const ATTEMPTS: usize = 500;

/// How long a port may stay taken by something that passes.
const RELEASE: Duration = Duration::from_secs(3);

/// `count` different ports, each free on every one of `addresses`.
pub fn free(count: usize, addresses: &[IpAddr]) -> Result<Vec<u16>> {
    let range = candidates(
        fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range")
            .ok()
            .as_deref(),
    );
    let mut ports = Vec::with_capacity(count);
    for _ in 0..ATTEMPTS {
        if ports.len() == count {
            return Ok(ports);
        }
        let port = random_in(&range);
        if !ports.contains(&port) && addresses.iter().all(|&address| is_free(address, port)) {
            ports.push(port);
        }
    }
    if ports.len() == count {
        return Ok(ports);
    }
    bail!(
        "no {count} free ports found in {}..{} on {addresses:?}",
        range.start,
        range.end
    )
}

/// True if one may listen on `address:port` now or within a moment: its holder may be just ending.
pub(super) fn becomes_free(address: IpAddr, port: u16) -> bool {
    let deadline = Instant::now() + RELEASE;
    while !is_free(address, port) {
        if Instant::now() >= deadline {
            return false;
        }
        thread::sleep(Duration::from_millis(50));
    }
    true
}

/// True if one may listen on `address:port` now.
pub fn is_free(address: IpAddr, port: u16) -> bool {
    TcpListener::bind((address, port)).is_ok()
}

fn candidates(local_port_range: Option<&str>) -> Range<u16> {
    let first_ephemeral = local_port_range
        .and_then(|text| text.split_whitespace().next()?.parse::<u16>().ok())
        // Linux' default.
        .unwrap_or(32_768);
    // A machine that gives out nearly all ports has no better place.
    if first_ephemeral < LOWEST + 1_000 {
        LOWEST..32_768
    } else {
        LOWEST..first_ephemeral
    }
}

fn random_in(range: &Range<u16>) -> u16 {
    // The hasher's keys are random per instance, which is random enough to spread ports.
    let random = RandomState::new().hash_one(range.start);
    let width = u64::from(range.end - range.start);
    range.start + u16::try_from(random % width).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::net::Ipv4Addr;

    use super::*;

    const LOOPBACK: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

    #[test]
    fn candidates_end_where_the_kernel_begins() {
        assert_eq!(candidates(Some("32768\t60999\n")), LOWEST..32_768);
        assert_eq!(candidates(Some("1024 65535")), LOWEST..32_768);
        assert_eq!(candidates(Some("20000 65535")), LOWEST..20_000);
        assert_eq!(candidates(None), LOWEST..32_768);
    }

    #[test]
    fn ports_are_different_and_can_be_bound() {
        let ports = free(20, &[LOOPBACK]).unwrap();
        assert_eq!(ports.iter().collect::<HashSet<_>>().len(), 20);
        assert!(ports.iter().all(|&port| (LOWEST..32_768).contains(&port)));
    }

    #[test]
    fn a_listening_port_is_not_free() {
        let listener = TcpListener::bind((LOOPBACK, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        assert!(!is_free(LOOPBACK, port));
        drop(listener);
    }
}
