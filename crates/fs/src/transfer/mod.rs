//! Sending a snapshot as a stream of bytes, and receiving one into another store.
//!
//! Purpose: `kvfs snapshot send | kvfs snapshot receive`. A stream holds the raw records that lead from
//! nothing, or from another snapshot, to a snapshot, in frames that are checked one by one and all together;
//! its bytes depend on the two snapshots alone, so it can be broken off and gone on with at any frame.
//! docs/FORMAT.md draws it.
//!
//! The parts: `identity` tells which snapshot is which in any store, `changes` walks over what differs,
//! `references` finds out what of that clones share, and is the codec with `frame` and `record`, `send` joins
//! them; `framer` makes frames, also anew of records that were kept without; `reader` verifies, `receive`
//! takes a stream that has come in whole, as one transaction, with `pending` for what clones share.
//!
//! Thread safety: streams and readers belong to one thread each. A store that receives must not be used
//! otherwise meanwhile.
//!
//! Invariants:
//! * orphans belong to no state: they are neither sent nor compared, nor is what is stored under them;
//! * the file system's own records are local to each store, but for the owners of keyspaces;
//! * a received state and the name of its snapshot are one commit and what finishes it at the next opening.

mod changes;
mod error;
mod frame;
mod framer;
mod identity;
mod pending;
mod reader;
mod receive;
mod record;
mod references;
mod send;
mod tree;

#[cfg(test)]
mod tests;

pub(crate) use changes::{Stage, has_changed};
pub use error::{ReceiveError, StreamError};
pub use frame::{Begin, FRAME_HEADER_BYTES, PROLOGUE_BYTES, Prologue};
pub use framer::Reframer;
pub use identity::{SnapshotId, StreamId};
pub use reader::{Frame, StreamReader};
pub use receive::{Received, Receiver};
pub(crate) use receive::{drop_note, finish_receive, received_last, with_keyspace};
pub use references::{BlockReference, REFERENCE_BYTES};
pub use send::SendStream;
