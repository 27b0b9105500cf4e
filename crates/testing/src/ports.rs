//! The ports of the stores behind a script; a call is named as its method.

use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tidings_domain::state::{
    Checkpoint, ConvHead, DeviceOpen, DeviceRegister, InboxHead, InboxRow, Intent, MemberInterval, UserConvRegister,
};
use tidings_domain::{Conversation, DedupKey, DeviceId, MsgId, Position, Uid};
use tidings_storage::Error;
use tidings_storage::port::{
    CheckpointWrites, DeadLetterFilter, DeadLetterRow, DeadLetterState, DeadLetterStore, HistoryRow, HistoryStore,
    HotRead, HotWindow, InboxReader, InboxStore, LocatorRow, Registered, Route, RouteKey, RouterStore, Routes,
};

use crate::Faulty;

#[async_trait]
impl<S: RouterStore> RouterStore for Faulty<S> {
    async fn conv_heads(&self, conversations: &[Conversation]) -> Result<Vec<Option<ConvHead>>, Error> {
        self.script
            .run("conv_heads", self.inner.conv_heads(conversations))
            .await
    }

    async fn members(&self, conversations: &[Conversation]) -> Result<Vec<Vec<MemberInterval>>, Error> {
        self.script.run("members", self.inner.members(conversations)).await
    }

    async fn intents(&self, keys: &[DedupKey]) -> Result<Vec<Option<Intent>>, Error> {
        self.script.run("intents", self.inner.intents(keys)).await
    }

    async fn write_intents(&self, intents: &[(DedupKey, Intent)]) -> Result<(), Error> {
        self.script
            .run("write_intents", self.inner.write_intents(intents))
            .await
    }

    async fn write_members(&self, intervals: &[(Conversation, MemberInterval)]) -> Result<(), Error> {
        self.script
            .run("write_members", self.inner.write_members(intervals))
            .await
    }

    async fn write_conv_heads(&self, heads: &[(Conversation, ConvHead)]) -> Result<(), Error> {
        self.script
            .run("write_conv_heads", self.inner.write_conv_heads(heads))
            .await
    }
}

#[async_trait]
impl<S: InboxStore> InboxStore for Faulty<S> {
    async fn checkpoint(&self, partition: u32) -> Result<Option<Checkpoint>, Error> {
        self.script.run("checkpoint", self.inner.checkpoint(partition)).await
    }

    async fn write_checkpoint(&self, partition: u32, checkpoint: &Checkpoint, pos: Position) -> Result<(), Error> {
        self.script
            .run(
                "write_checkpoint",
                self.inner.write_checkpoint(partition, checkpoint, pos),
            )
            .await
    }

    async fn inbox_heads(&self, uids: &[Uid]) -> Result<Vec<Option<InboxHead>>, Error> {
        self.script.run("inbox_heads", self.inner.inbox_heads(uids)).await
    }

    async fn find_rows(&self, wanted: &[(Uid, Position, u64)]) -> Result<Vec<Option<u64>>, Error> {
        self.script.run("find_rows", self.inner.find_rows(wanted)).await
    }

    async fn write_rows(&self, rows: &[(Uid, InboxRow)]) -> Result<(), Error> {
        self.script.run("write_rows", self.inner.write_rows(rows)).await
    }

    async fn device_registers(&self, devices: &[(Uid, DeviceId)]) -> Result<Vec<Option<DeviceRegister>>, Error> {
        self.script
            .run("device_registers", self.inner.device_registers(devices))
            .await
    }

    async fn user_conv_registers(&self, convs: &[(Uid, Conversation)]) -> Result<Vec<Option<UserConvRegister>>, Error> {
        self.script
            .run("user_conv_registers", self.inner.user_conv_registers(convs))
            .await
    }

    async fn dlq_intents(&self, partition: u32, ids: &[String]) -> Result<Vec<Option<Position>>, Error> {
        self.script
            .run("dlq_intents", self.inner.dlq_intents(partition, ids))
            .await
    }

    async fn write_dlq_intents(&self, partition: u32, intents: &[(String, Position)]) -> Result<(), Error> {
        self.script
            .run("write_dlq_intents", self.inner.write_dlq_intents(partition, intents))
            .await
    }

    async fn write_registers(&self, writes: &CheckpointWrites) -> Result<(), Error> {
        self.script
            .run("write_registers", self.inner.write_registers(writes))
            .await
    }
}

#[async_trait]
impl<S: InboxReader> InboxReader for Faulty<S> {
    async fn cursor_epoch(&self) -> Result<u64, Error> {
        self.script.run("cursor_epoch", self.inner.cursor_epoch()).await
    }

    async fn heads(&self, uids: &[Uid]) -> Result<Vec<u64>, Error> {
        self.script.run("heads", self.inner.heads(uids)).await
    }

    async fn rows_after(&self, uid: &Uid, after: u64, limit: usize) -> Result<Vec<InboxRow>, Error> {
        self.script
            .run("rows_after", self.inner.rows_after(uid, after, limit))
            .await
    }

    async fn newest_row(&self, uid: &Uid, from: u64) -> Result<u64, Error> {
        self.script.run("newest_row", self.inner.newest_row(uid, from)).await
    }

    async fn floor(&self, uid: &Uid) -> Result<u64, Error> {
        self.script.run("floor", self.inner.floor(uid)).await
    }

    async fn device_open(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceOpen>, Error> {
        self.script
            .run("device_open", self.inner.device_open(uid, device))
            .await
    }

    async fn has_devices(&self, uid: &Uid) -> Result<bool, Error> {
        self.script.run("has_devices", self.inner.has_devices(uid)).await
    }

    async fn write_device_open(&self, uid: &Uid, device: &DeviceId, open: DeviceOpen) -> Result<(), Error> {
        self.script
            .run("write_device_open", self.inner.write_device_open(uid, device, open))
            .await
    }

    async fn device_register(&self, uid: &Uid, device: &DeviceId) -> Result<Option<DeviceRegister>, Error> {
        self.script
            .run("device_register", self.inner.device_register(uid, device))
            .await
    }

    async fn user_convs(&self, uid: &Uid) -> Result<Vec<(Conversation, UserConvRegister)>, Error> {
        self.script.run("user_convs", self.inner.user_convs(uid)).await
    }
}

#[async_trait]
impl<S: HotWindow> HotWindow for Faulty<S> {
    async fn append(&self, events: &[(Uid, u64, Bytes)]) -> Result<(), Error> {
        self.script.run("append_hot", self.inner.append(events)).await
    }

    async fn read(&self, uid: &Uid, after: u64, limit: usize) -> Result<HotRead, Error> {
        self.script.run("read_hot", self.inner.read(uid, after, limit)).await
    }
}

#[async_trait]
impl<S: Routes> Routes for Faulty<S> {
    async fn register(
        &self,
        key: &RouteKey,
        gateway: &str,
        boot_id: u64,
        connection_id: u64,
        lease: Duration,
    ) -> Result<Registered, Error> {
        self.script
            .run(
                "register",
                self.inner.register(key, gateway, boot_id, connection_id, lease),
            )
            .await
    }

    async fn heartbeat(&self, routes: &[(RouteKey, Route)], lease: Duration) -> Result<Vec<bool>, Error> {
        self.script.run("heartbeat", self.inner.heartbeat(routes, lease)).await
    }

    async fn unregister(&self, key: &RouteKey, boot_id: u64, connection_id: u64) -> Result<bool, Error> {
        self.script
            .run("unregister", self.inner.unregister(key, boot_id, connection_id))
            .await
    }

    async fn lookup(&self, uids: &[Uid]) -> Result<Vec<Vec<(DeviceId, Route)>>, Error> {
        self.script.run("lookup", self.inner.lookup(uids)).await
    }
}

#[async_trait]
impl<S: HistoryStore> HistoryStore for Faulty<S> {
    /// Rows are named `<conversation>#<conv_seq>`.
    async fn write_history(&self, rows: &[HistoryRow]) -> Vec<Result<(), Error>> {
        let name = |row: &HistoryRow| format!("{}#{}", row.conversation.as_str(), row.conv_seq);
        let write = async |rows: &[HistoryRow]| self.inner.write_history(rows).await;
        self.script.run_rows("write_history", rows, name, write).await
    }

    /// Rows are named `<conversation>#<conv_seq>`.
    async fn write_locators(&self, rows: &[LocatorRow]) -> Vec<Result<(), Error>> {
        let name = |row: &LocatorRow| format!("{}#{}", row.conversation.as_str(), row.conv_seq);
        let write = async |rows: &[LocatorRow]| self.inner.write_locators(rows).await;
        self.script.run_rows("write_locators", rows, name, write).await
    }

    async fn history_range(
        &self,
        conversation: &Conversation,
        from: u64,
        to: u64,
        limit: usize,
    ) -> Result<Vec<HistoryRow>, Error> {
        self.script
            .run("history_range", self.inner.history_range(conversation, from, to, limit))
            .await
    }

    async fn newest_conv_seq(&self, conversation: &Conversation) -> Result<u64, Error> {
        self.script
            .run("newest_conv_seq", self.inner.newest_conv_seq(conversation))
            .await
    }

    async fn locate(&self, msg_id: MsgId) -> Result<Vec<LocatorRow>, Error> {
        self.script.run("locate", self.inner.locate(msg_id)).await
    }
}

#[async_trait]
impl<S: DeadLetterStore> DeadLetterStore for Faulty<S> {
    /// Rows are named by their id.
    async fn take_in(&self, rows: &[DeadLetterRow]) -> Vec<Result<bool, Error>> {
        let name = |row: &DeadLetterRow| row.dlq_id.clone();
        let write = async |rows: &[DeadLetterRow]| self.inner.take_in(rows).await;
        self.script.run_rows("take_in", rows, name, write).await
    }

    async fn set_state(&self, dlq_id: &str, state: DeadLetterState) -> Result<bool, Error> {
        self.script.run("set_state", self.inner.set_state(dlq_id, state)).await
    }

    async fn get(&self, dlq_id: &str) -> Result<Option<DeadLetterRow>, Error> {
        self.script.run("get", self.inner.get(dlq_id)).await
    }

    async fn list(&self, filter: &DeadLetterFilter, limit: usize) -> Result<Vec<DeadLetterRow>, Error> {
        self.script.run("list", self.inner.list(filter, limit)).await
    }
}
