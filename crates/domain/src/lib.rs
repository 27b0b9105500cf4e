//! Pure types and rules of Tidings: ids, log positions, idempotency keys, content hashes, the clock.
//!
//! Nothing here does I/O. Every id is checked where it enters (`Uid::parse` and friends), so that code further in
//! never sees a malformed one; the checks cite the row of `architecture.md` section 2 they come from.

pub mod clock;
mod content_hash;
mod conversation;

mod ids;
mod key;
mod position;
pub mod state;
mod watermark;

pub use content_hash::{ContentHash, ContentHasher};
pub use conversation::{Conversation, ConversationKind};
pub use ids::{DeviceId, IdError, MAX_NAME_BYTES, MsgId, OpId, Uid};
pub use key::{Action, DedupKey, DedupKeyHash};
pub use position::{LogEpoch, Position, SourcePartition, SourcePosition, Topic};
pub use watermark::Watermark;
