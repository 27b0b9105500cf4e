//! The JSON form of every frame, pinned by files. `UPDATE_GOLDEN=1` writes them anew: review the difference.

use std::collections::BTreeSet;
use std::path::PathBuf;

use tidings_proto::v1::client_frame::Frame as Client;
use tidings_proto::v1::server_frame::Frame as Server;
use tidings_proto::{json, v1};

use crate::samples;

fn file(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("tests/golden")
        .join(format!("{name}.json"))
}

/// Compares with the file, or writes it if asked to.
fn check(name: &str, text: &str) -> String {
    let path = file(name);
    let line = format!("{text}\n");
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(&path, &line).expect("the golden file can be written");
    }
    let golden = std::fs::read_to_string(&path)
        .unwrap_or_else(|error| panic!("{}: {error}; run with UPDATE_GOLDEN=1", path.display()));
    assert_eq!(golden, line, "{name}: the JSON form changed");
    golden
}

#[test]
fn every_client_frame_has_its_pinned_form() {
    for (name, frame) in samples::client() {
        let frame = v1::ClientFrame { frame: Some(frame) };
        let golden = check(&format!("client_{name}"), &json::encode_client(&frame));
        assert_eq!(json::decode_client(&golden), Ok(frame), "{name}");
    }
}

#[test]
fn every_server_frame_has_its_pinned_form() {
    for (name, frame) in samples::server() {
        let frame = v1::ServerFrame { frame: Some(frame) };
        let golden = check(&format!("server_{name}"), &json::encode_server(&frame));
        assert_eq!(json::decode_server(&golden), Ok(frame), "{name}");
    }
}

/// A new frame without a sample fails to compile here or fails the count.
#[test]
fn no_frame_is_without_a_sample() {
    let client: BTreeSet<u8> = samples::client()
        .iter()
        .map(|(_, frame)| match frame {
            Client::Connect(_) => 1,
            Client::Action(_) => 2,
            Client::Ack(_) => 3,
            Client::DeliveredAck(_) => 4,
            Client::ReadAck(_) => 5,
            Client::Read(_) => 6,
            Client::Sync(_) => 7,
            Client::History(_) => 8,
            Client::Ping(_) => 9,
        })
        .collect();
    assert_eq!(client.into_iter().collect::<Vec<_>>(), (1..=9).collect::<Vec<_>>());
    let server: BTreeSet<u8> = samples::server()
        .iter()
        .map(|(_, frame)| match frame {
            Server::Connected(_) => 1,
            Server::MsgAck(_) => 2,
            Server::Push(_) => 3,
            Server::SyncPage(_) => 4,
            Server::Head(_) => 5,
            Server::CursorReset(_) => 6,
            Server::Truncated(_) => 7,
            Server::Pong(_) => 8,
            Server::HistoryPage(_) => 9,
            Server::Error(_) => 10,
            Server::Closing(_) => 11,
        })
        .collect();
    assert_eq!(server.into_iter().collect::<Vec<_>>(), (1..=11).collect::<Vec<_>>());
}

/// No file is left over from a sample that is gone.
#[test]
fn every_golden_file_belongs_to_a_sample() {
    let expected: BTreeSet<String> = samples::client()
        .iter()
        .map(|(name, _)| format!("client_{name}.json"))
        .chain(samples::server().iter().map(|(name, _)| format!("server_{name}.json")))
        .collect();
    let found: BTreeSet<String> = std::fs::read_dir(file("x").parent().expect("has a parent"))
        .expect("the golden directory is there")
        .map(|entry| entry.expect("readable").file_name().to_string_lossy().into_owned())
        .collect();
    assert!(
        found.is_subset(&expected),
        "left over: {:?}",
        found.difference(&expected)
    );
}
