//! What any replica reads of streams, and what opening a device writes.

use async_trait::async_trait;
use tidings_domain::state::{DeviceOpen, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Uid};

use super::inbox_store::{device_key, uid_key};
use super::keys::KeyReader;
use super::values::Value;
use super::{EmbeddedStore, damaged, decode};
use crate::Error;
use crate::codec::Malformed;
use crate::port::InboxReader;

/// The number in a key (uid, seq).
fn seq_of(key: &[u8]) -> Result<u64, Malformed> {
    let mut reader = KeyReader::new(key);
    reader.text()?;
    reader.u64()
}

/// The conversation in a key (uid, conversation).
fn conversation_of(key: &[u8]) -> Result<Conversation, Malformed> {
    let mut reader = KeyReader::new(key);
    reader.text()?;
    Conversation::parse(&reader.text()?).map_err(|error| Malformed(error.to_string()))
}

impl EmbeddedStore {
    fn head(&self, operation: &'static str, uid: &Uid) -> Result<u64, Error> {
        let head: Option<InboxHead> = self.tables().inbox_head.get_value(operation, &uid_key(uid).finish())?;
        Ok(head.map_or(0, |head| head.seq))
    }
}

#[async_trait]
impl InboxReader for EmbeddedStore {
    async fn cursor_epoch(&self) -> Result<u64, Error> {
        Ok(self.inner.cursor_epoch)
    }

    async fn heads(&self, uids: &[Uid]) -> Result<Vec<u64>, Error> {
        uids.iter().map(|uid| self.head("heads", uid)).collect()
    }

    async fn rows_after(&self, uid: &Uid, after: u64, limit: usize) -> Result<Vec<InboxRow>, Error> {
        const OPERATION: &str = "rows_after";
        let Some(from) = after.checked_add(1) else {
            return Ok(Vec::new());
        };
        let range = uid_key(uid).number_range(from, u64::MAX);
        self.tables()
            .inbox
            .range(OPERATION, &range, limit)?
            .into_iter()
            .map(|(_, value)| decode(OPERATION, value))
            .collect()
    }

    async fn newest_row(&self, uid: &Uid, from: u64) -> Result<u64, Error> {
        const OPERATION: &str = "newest_row";
        // The rows of a stream lie side by side, so there is no need to probe.
        match self.tables().inbox.last(OPERATION, &uid_key(uid).range())? {
            Some((key, _)) => Ok(seq_of(&key).map_err(|error| damaged(OPERATION, error))?.max(from)),
            None => Ok(from),
        }
    }

    async fn floor(&self, uid: &Uid) -> Result<u64, Error> {
        const OPERATION: &str = "floor";
        let first = self.tables().inbox.range(OPERATION, &uid_key(uid).range(), 1)?;
        match first.first() {
            Some((key, _)) => {
                let oldest = seq_of(key).map_err(|error| damaged(OPERATION, error))?;
                Ok(oldest.saturating_sub(1))
            }
            None => self.head(OPERATION, uid),
        }
    }

    async fn device_open(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceOpen>, Error> {
        self.tables()
            .device_open
            .get_value("device_open", &device_key(uid, device))
    }

    async fn has_devices(&self, uid: &Uid) -> Result<bool, Error> {
        let first = self
            .tables()
            .device_open
            .range("has_devices", &uid_key(uid).range(), 1)?;
        Ok(!first.is_empty())
    }

    async fn write_device_open(&self, uid: &Uid, device: &DeviceId, open: DeviceOpen) -> Result<(), Error> {
        let row = (&self.tables().device_open, device_key(uid, device), open.encode());
        self.insert_all("write_device_open", [row])
    }

    async fn device_register(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceRegister>, Error> {
        self.tables()
            .device
            .get_value("device_register", &device_key(uid, device))
    }

    async fn user_convs(&self, uid: &Uid) -> Result<Vec<(Conversation, UserConvRegister)>, Error> {
        const OPERATION: &str = "user_convs";
        let mut registers = Vec::new();
        self.tables()
            .user_conv
            .scan(OPERATION, uid_key(uid).range(), |key, value| {
                let conversation = conversation_of(&key).map_err(|error| damaged(OPERATION, error))?;
                registers.push((conversation, decode(OPERATION, value)?));
                Ok(true)
            })?;
        Ok(registers)
    }
}
