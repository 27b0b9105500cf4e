//! What offline-inbox's fold reads and writes.

use async_trait::async_trait;
use tidings_domain::state::{Checkpoint, DeviceRegister, InboxHead, InboxRow, UserConvRegister};
use tidings_domain::{Conversation, DeviceId, Position, Uid};

use super::keys::Key;
use super::values::{CheckpointCell, LowestPosition, Value};
use super::{EmbeddedStore, RegisterWrite, decode};
use crate::Error;
use crate::port::{CheckpointWrites, InboxStore};

pub(super) fn uid_key(uid: &Uid) -> Key {
    Key::default().text(uid.as_str())
}

pub(super) fn device_key(uid: &Uid, device: &DeviceId) -> Vec<u8> {
    uid_key(uid).text(device.as_str()).finish()
}

fn user_conv_key(uid: &Uid, conversation: &Conversation) -> Vec<u8> {
    uid_key(uid).text(conversation.as_str()).finish()
}

fn dlq_intent_key(partition: u32, id: &str) -> Vec<u8> {
    Key::default().u32(partition).text(id).finish()
}

impl EmbeddedStore {
    /// The number of the row that `off` caused, not above `bound` (seq:I3). Offsets ascend with the numbers of a stream,
    /// and the row wanted is one of the newest: so from the top, step by step, until the offsets are lower.
    fn find_row(&self, uid: &Uid, off: Position, bound: u64) -> Result<Option<u64>, Error> {
        const OPERATION: &str = "find_rows";
        let mut range = uid_key(uid).number_range(0, bound);
        loop {
            let Some((key, value)) = self.tables().inbox.last(OPERATION, &range)? else {
                return Ok(None);
            };
            let row: InboxRow = decode(OPERATION, value)?;
            if row.off <= off {
                return Ok((row.off == off).then_some(row.seq));
            }
            range.1 = key.to_vec();
        }
    }
}

#[async_trait]
impl InboxStore for EmbeddedStore {
    async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, Error> {
        let key = Key::default().u32(partition).finish();
        let cell: Option<CheckpointCell> = self.tables().ckpt.get_value("checkpoint", &key)?;
        Ok(cell.map(|cell| cell.checkpoint))
    }

    async fn write_checkpoint(&self, partition: u32, checkpoint: &Checkpoint, pos: Position) -> Result<(), Error> {
        let cell = CheckpointCell {
            pos,
            checkpoint: checkpoint.clone(),
        };
        let write = RegisterWrite {
            table: &self.tables().ckpt,
            key: Key::default().u32(partition).finish(),
            value: cell.encode(),
        };
        self.raise_registers("write_checkpoint", &self.inner.inbox_registers, vec![write])
    }

    async fn inbox_heads(&self, uids: &[Uid]) -> Result<Vec<Option<InboxHead>>, Error> {
        let table = &self.tables().inbox_head;
        uids.iter()
            .map(|uid| table.get_value("inbox_heads", &uid_key(uid).finish()))
            .collect()
    }

    async fn find_rows(&self, wanted: &[(Uid, Position, u64)]) -> Result<Vec<Option<u64>>, Error> {
        wanted
            .iter()
            .map(|(uid, off, bound)| self.find_row(uid, *off, *bound))
            .collect()
    }

    async fn write_rows(&self, rows: &[(Uid, InboxRow)]) -> Result<(), Error> {
        // One atomic commit: no reader sees a higher number without the lower ones of the call.
        self.insert_all(
            "write_rows",
            rows.iter()
                .map(|(uid, row)| (&self.tables().inbox, uid_key(uid).u64(row.seq).finish(), row.encode())),
        )
    }

    async fn device_registers(&self, devices: &[(Uid, DeviceId)]) -> Result<Vec<Option<DeviceRegister>>, Error> {
        let table = &self.tables().device;
        devices
            .iter()
            .map(|(uid, device)| table.get_value("device_registers", &device_key(uid, device)))
            .collect()
    }

    async fn user_conv_registers(&self, convs: &[(Uid, Conversation)]) -> Result<Vec<Option<UserConvRegister>>, Error> {
        let table = &self.tables().user_conv;
        convs
            .iter()
            .map(|(uid, conversation)| table.get_value("user_conv_registers", &user_conv_key(uid, conversation)))
            .collect()
    }

    async fn dlq_intents(&self, partition: u32, ids: &[String]) -> Result<Vec<Option<Position>>, Error> {
        let table = &self.tables().dlq_intent;
        ids.iter()
            .map(|id| {
                let stored: Option<LowestPosition> = table.get_value("dlq_intents", &dlq_intent_key(partition, id))?;
                Ok(stored.map(|lowest| lowest.0))
            })
            .collect()
    }

    async fn write_dlq_intents(&self, partition: u32, intents: &[(String, Position)]) -> Result<(), Error> {
        let writes = intents
            .iter()
            .map(|(id, position)| RegisterWrite {
                table: &self.tables().dlq_intent,
                key: dlq_intent_key(partition, id),
                value: LowestPosition(*position).encode(),
            })
            .collect();
        self.raise_registers("write_dlq_intents", &self.inner.inbox_registers, writes)
    }

    async fn write_registers(&self, writes: &CheckpointWrites) -> Result<(), Error> {
        let tables = self.tables();
        let devices = writes.devices.iter().map(|((uid, device), register)| RegisterWrite {
            table: &tables.device,
            key: device_key(uid, device),
            value: register.encode(),
        });
        let user_convs = writes
            .user_convs
            .iter()
            .map(|((uid, conversation), register)| RegisterWrite {
                table: &tables.user_conv,
                key: user_conv_key(uid, conversation),
                value: register.encode(),
            });
        let heads = writes.heads.iter().map(|(uid, head)| RegisterWrite {
            table: &tables.inbox_head,
            key: uid_key(uid).finish(),
            value: head.encode(),
        });
        let all = devices.chain(user_convs).chain(heads).collect();
        self.raise_registers("write_registers", &self.inner.inbox_registers, all)
    }
}
