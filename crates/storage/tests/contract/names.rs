//! Names for the suites.

use tidings_domain::{DeviceId, Uid};

pub(crate) fn uid(name: &str) -> Uid {
    Uid::parse(name).expect("a uid")
}

pub(crate) fn device(name: &str) -> DeviceId {
    DeviceId::parse(name).expect("a device id")
}
