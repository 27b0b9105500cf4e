//! The two folds that give every message its numbers (sequencing.md), as pure decisions.
//!
//! Numbers are derived from the log, never counted: whoever folds the same prefix of a partition decides the same, so a
//! crash, a rebalance or an owner that has been replaced without knowing it can repeat decisions but not change them.
//!
//! - **Stage 1**, [`router`]: `ingress` partition p, by conversation. Duplicate, rejected or accepted; `conv_seq`;
//!   recipients; outputs to `history` and `inbox`.
//! - **Stage 2**, [`inbox`]: `inbox` partition q, by user. Re-emission or fresh; `user_seq`; rows; outputs to `push`,
//!   and receipts back into `inbox`.
//!
//! Nothing here does I/O, reads a clock or draws a number. A service drives a fold batch by batch and only executes:
//!
//! ```text
//! while let Some(reads) = fold.next_reads(&batch, broker_now)? {   // quorum reads, in the order asked for
//!     fold.load(answers)?;
//! }
//! let plan = fold.decide(&batch)?;
//! // write plan (await every write before the next decide or checkpoint), emit its outputs in their order
//! // every 5 s or 5,000 records:
//! if let Some(checkpoint) = fold.checkpoint() {
//!     // write heads and registers, wait for acknowledgements in order, commit
//!     fold.checkpoint_committed();
//! }
//! ```
//!
//! A fold value is one *run*: the owner of one partition from start to end. It is dropped at revoke, at a producer error
//! and at a [`Stop`], and nothing of it is kept (seq:G6); the next run begins at the committed position.
//!
//! Where each rule lives:
//!
//! | rule | place |
//! |---|---|
//! | G1 pure outcome, recipients by interval | `router::outcome` |
//! | G2 one output per (source position, destination) | `router::outputs`, `inbox::receipts` |
//! | G3 outputs in source order | order of the plan's vectors; the service enqueues them so |
//! | G4 prev-link of a run | `chain` |
//! | G6 drop all state | by dropping the value |
//! | G7 stale guard | `guard`, called at the end of `next_reads` |
//! | R1 start, W | [`router::Start`] |
//! | R2 order of reads, R3, R4, R5, R7 | [`router::RouterFold`] |
//! | R10 window and its cap | `router::window`; eviction of conversations: `touched` |
//! | R6, R8, R8a, R9 | the service and the bus |
//! | I1 one cell of offset and V | [`inbox::InboxFold::new`]; the service writes it back before it seeks |
//! | I2 freshness, dead-letter replays, what cannot be decoded | `inbox::prepare` |
//! | I3 order of reads | `inbox::unread`; exact head: `inbox::user` |
//! | I4, I6, I8, I9 | [`inbox::InboxFold`] |
//! | I7 and the register rule | `inbox::receipts`, `inbox::registers` |
//! | I5, I8a/I8b order of writes | the service and the store |

mod chain;
mod first_seen;
mod guard;
pub mod inbox;
mod params;
mod record;
pub mod router;
mod stop;
mod touched;

pub use params::{FOLD_VERSION, Params, Partitions};
pub use record::{LogEntry, Output, RejectCause, Resolved, Undecodable};
pub use stop::Stop;
