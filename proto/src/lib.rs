//! The only contract between processes: frames, records, service calls.
//!
//! [`v1`] is generated from `tidings/v1/*.proto` at build time. [`record`] has the checked forms of the records and
//! [`validate`] those of a device's frames: what the rest of the suite works with, so that validation from wire to
//! domain happens at one place. [`wire`] and [`json`] are the two encodings of frames between devices and gateways.

mod code;
mod frame_error;
pub mod header;
pub mod json;
pub mod record;
pub mod rpc;
pub mod validate;
pub mod wire;

pub use frame_error::FrameError;

/// Generated code of package `tidings.v1`.
#[allow(missing_docs, clippy::all, clippy::pedantic, unreachable_pub)]
pub mod v1 {
    tonic::include_proto!("tidings.v1");
}
