//! Random store operations: what they are, how often each occurs, and how they print.

use std::fmt;
use std::ops::Range;

use bytes::Bytes;
use kvfs_store::{BLOCK_BYTES, Durability, ExtentKind, Isolation, KeyRange, Op, Records};

use crate::spaces::{SPACES, SpaceIndex};

pub use crate::generate::generate;

/// Snapshots, cursors and transactions that a run holds at the same time, each.
pub const SLOTS: usize = 4;

/// What answers a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reader {
    /// The store itself.
    Store,
    /// The snapshot in a slot; the step does nothing when the slot is empty.
    Snapshot(usize),
    /// The transaction in a slot; as above.
    Txn(usize),
}

/// One move of a cursor.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Move {
    /// To the first entry at or after the key.
    Seek(Bytes),
    /// To the last entry at or before the key.
    SeekBack(Bytes),
    /// To the first entry.
    First,
    /// To the last entry.
    Last,
    /// One entry forward.
    Next,
    /// One entry back.
    Prev,
}

/// One step of a run. Keyspaces are indices into [`SPACES`], also inside of [`Op`]s.
#[expect(missing_docs, reason = "the variants' docs name their fields")]
#[derive(Clone, PartialEq, Eq)]
pub enum Step {
    /// Applies a batch.
    Apply { ops: Vec<Op>, durability: Durability },
    /// Syncs up to the newest position.
    Sync,
    /// Puts a snapshot into `slot`, in place of what is there.
    SnapshotCreate { slot: usize },
    /// Empties `slot`.
    SnapshotDrop { slot: usize },
    /// Gives the newest position the name of `slot`, unless it is taken.
    NamedCreate { slot: usize },
    /// Takes the name of `slot` away, if it is there.
    NamedDelete { slot: usize },
    /// Compares the list of named snapshots, and all content of the one of `slot`.
    NamedCompare { slot: usize },
    /// Reads one key.
    Get { reader: Reader, space: SpaceIndex, key: Bytes },
    /// Reads several keys at one position.
    MultiGet { reader: Reader, space: SpaceIndex, keys: Vec<Bytes> },
    /// Puts a cursor into `slot`, in place of what is there.
    CursorOpen { slot: usize, reader: Reader, space: SpaceIndex, range: KeyRange },
    /// Moves the cursor in `slot`, comparing its entry after each move.
    CursorMove { slot: usize, moves: Vec<Move> },
    /// Reads consecutive blocks.
    ReadBlocks { reader: Reader, space: SpaceIndex, prefix: Bytes, first: u64, count: usize },
    /// Looks for data or a hole.
    NextExtent { reader: Reader, space: SpaceIndex, prefix: Bytes, blocks: Range<u64>, kind: ExtentKind },
    /// Compares all content.
    Compare { reader: Reader },
    /// Begins a transaction in `slot`; the one that is there is dropped.
    TxnBegin { slot: usize, isolation: Isolation },
    /// Applies a batch privately.
    TxnApply { slot: usize, ops: Vec<Op> },
    /// Asks whether others changed `records` since the transaction's snapshot.
    TxnChanged { slot: usize, space: SpaceIndex, records: Records },
    /// Compares the net write sets.
    TxnChanges { slot: usize },
    /// Does what can be done before the commit.
    TxnPrepare { slot: usize },
    /// Checkpoints, and in every other slot lets go and resumes.
    TxnCheckpoint { slot: usize },
    /// Forks a transaction with a checkpoint, the next one from `slot` on, and puts the fork into the slot
    /// behind it, in place of what is there.
    TxnFork { slot: usize },
    /// Compares what a fork, the next one from `slot` on, began with and what it has changed since, and
    /// whether what it came of has changed `records` since.
    TxnForkCompare { slot: usize, space: SpaceIndex, records: Records },
    /// Commits, and so empties `slot`.
    TxnCommit { slot: usize, durability: Durability },
    /// Aborts, and so empties `slot`.
    TxnAbort { slot: usize },
    /// Closes the store cleanly and opens it again.
    Reopen,
    /// Cuts the power and opens what is left.
    Crash,
    /// Moves what is in memory to runs.
    Flush,
    /// Runs compaction until nothing is to be done.
    Compact,
}

/// How often each kind of step occurs, relative to the others.
#[expect(missing_docs, reason = "each field is named after its step")]
#[derive(Debug, Clone)]
pub struct StepWeights {
    pub apply: u32,
    pub sync: u32,
    pub snapshot_create: u32,
    pub snapshot_drop: u32,
    pub named_create: u32,
    pub named_delete: u32,
    pub named_compare: u32,
    pub get: u32,
    pub multi_get: u32,
    pub cursor_open: u32,
    pub cursor_move: u32,
    pub read_blocks: u32,
    pub next_extent: u32,
    pub compare: u32,
    pub txn_begin: u32,
    pub txn_apply: u32,
    pub txn_changed: u32,
    pub txn_changes: u32,
    pub txn_prepare: u32,
    pub txn_checkpoint: u32,
    pub txn_fork: u32,
    pub txn_fork_compare: u32,
    pub txn_commit: u32,
    pub txn_abort: u32,
    pub reopen: u32,
    pub crash: u32,
    pub flush: u32,
    pub compact: u32,
}

/// How often each kind of operation occurs in a batch, relative to the others.
#[expect(missing_docs, reason = "each field is named after its operation")]
#[derive(Debug, Clone)]
pub struct OpWeights {
    pub put: u32,
    pub delete: u32,
    pub delete_range: u32,
    pub merge: u32,
    pub put_blocks: u32,
    pub patch_block: u32,
}

/// What a generated run looks like.
#[derive(Debug, Clone)]
pub struct Profile {
    /// Number of steps.
    pub steps: usize,
    /// Kinds of steps.
    pub step_weights: StepWeights,
    /// Kinds of operations.
    pub op_weights: OpWeights,
    /// Most operations in a batch.
    pub batch_ops_max: usize,
    /// Most blocks in one `put_blocks`.
    pub put_blocks_max: usize,
    /// Longest value of a tuple, but for a few (bytes).
    pub value_len_max: usize,
    /// One batch in so many is synced by itself.
    pub synced_one_in: u32,
    /// One key or value in so many is long.
    pub long_one_in: u32,
    /// Blocks come with wishes how to compress them.
    pub wishes: bool,
}

impl Default for Profile {
    fn default() -> Self {
        let step_weights = StepWeights {
            apply: 40,
            sync: 2,
            snapshot_create: 3,
            snapshot_drop: 3,
            named_create: 2,
            named_delete: 2,
            named_compare: 3,
            get: 10,
            multi_get: 4,
            cursor_open: 4,
            cursor_move: 12,
            read_blocks: 6,
            next_extent: 6,
            compare: 1,
            txn_begin: 4,
            txn_apply: 16,
            txn_changed: 4,
            txn_changes: 2,
            txn_prepare: 2,
            txn_checkpoint: 2,
            txn_fork: 2,
            txn_fork_compare: 4,
            txn_commit: 3,
            txn_abort: 1,
            reopen: 1,
            crash: 0,
            flush: 2,
            compact: 1,
        };
        Self {
            steps: 400,
            step_weights,
            op_weights: OpWeights {
                put: 10,
                delete: 4,
                delete_range: 1,
                merge: 6,
                put_blocks: 5,
                patch_block: 5,
            },
            batch_ops_max: 8,
            put_blocks_max: 12,
            value_len_max: 40,
            synced_one_in: 10,
            long_one_in: 60,
            wishes: false,
        }
    }
}

/// Bytes as text where they are text, else in hexadecimal; long ones cut.
struct Short<'a>(&'a [u8]);

impl fmt::Display for Short<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN_BYTES: usize = 40;
        let shown = &self.0[..self.0.len().min(SHOWN_BYTES)];
        if shown.iter().all(u8::is_ascii_graphic) {
            write!(f, "\"{}\"", shown.escape_ascii())?;
        } else {
            write!(f, "x")?;
            shown.iter().try_for_each(|byte| write!(f, "{byte:02x}"))?;
        }
        if self.0.len() > SHOWN_BYTES {
            write!(f, "…({} bytes)", self.0.len())?;
        }
        Ok(())
    }
}

/// Bytes in the form that failure reports use.
pub fn short(bytes: &[u8]) -> impl fmt::Display {
    Short(bytes).to_string()
}

fn space_name(space: SpaceIndex) -> &'static str {
    SPACES[space as usize].name
}

/// One operation of a batch, for people.
fn write_op(f: &mut fmt::Formatter<'_>, op: &Op) -> fmt::Result {
    write!(f, "{}.", space_name(op.keyspace().0))?;
    match op {
        Op::Put { key, value, .. } => write!(f, "put({}, {})", Short(key), Short(value)),
        Op::Delete { key, .. } => write!(f, "delete({})", Short(key)),
        Op::DeleteRange { start, end, .. } => write!(f, "delete_range({}, {})", Short(start), Short(end)),
        Op::Merge { key, operand, .. } => write!(f, "merge({}, {})", Short(key), Short(operand)),
        Op::PutBlocks { prefix, first, data, .. } => {
            write!(f, "put_blocks({}, {first}, {} blocks", Short(prefix), data.len() / BLOCK_BYTES)?;
            write!(f, " beginning {})", Short(&data[..data.len().min(12)]))
        }
        Op::PatchBlock { prefix, block, offset, data, .. } => {
            write!(f, "patch_block({}, {block}, at {offset}, {} bytes", Short(prefix), data.len())?;
            write!(f, " beginning {})", Short(&data[..data.len().min(12)]))
        }
    }
}

fn write_ops(f: &mut fmt::Formatter<'_>, ops: &[Op]) -> fmt::Result {
    ops.iter().try_for_each(|op| {
        write!(f, "\n        ")?;
        write_op(f, op)
    })
}

impl fmt::Debug for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apply { ops, durability } => {
                write!(f, "apply {durability:?}")?;
                write_ops(f, ops)
            }
            Self::TxnBegin { slot, isolation } => write!(f, "txn_begin {slot} {isolation:?}"),
            Self::TxnApply { slot, ops } => {
                write!(f, "txn_apply {slot}")?;
                write_ops(f, ops)
            }
            Self::TxnChanged { slot, space, records } => {
                write!(f, "txn_changed {slot} {} {records:?}", space_name(*space))
            }
            Self::TxnChanges { slot } => write!(f, "txn_changes {slot}"),
            Self::TxnPrepare { slot } => write!(f, "txn_prepare {slot}"),
            Self::TxnCheckpoint { slot } => write!(f, "txn_checkpoint {slot}"),
            Self::TxnFork { slot } => write!(f, "txn_fork {slot}"),
            Self::TxnForkCompare { slot, space, records } => {
                write!(f, "txn_fork_compare {slot} {} {records:?}", space_name(*space))
            }
            Self::TxnCommit { slot, durability } => write!(f, "txn_commit {slot} {durability:?}"),
            Self::TxnAbort { slot } => write!(f, "txn_abort {slot}"),
            Self::Get { reader, space, key } => {
                write!(f, "get {reader:?} {} {}", space_name(*space), Short(key))
            }
            Self::MultiGet { reader, space, keys } => {
                write!(f, "multi_get {reader:?} {}", space_name(*space))?;
                keys.iter().try_for_each(|key| write!(f, " {}", Short(key)))
            }
            Self::CursorOpen { slot, reader, space, range } => {
                write!(f, "cursor_open {slot} {reader:?} {} [{}, ", space_name(*space), Short(&range.start))?;
                match &range.end {
                    Some(end) => write!(f, "{})", Short(end)),
                    None => write!(f, "end)"),
                }
            }
            Self::CursorMove { slot, moves } => {
                write!(f, "cursor_move {slot}")?;
                moves.iter().try_for_each(|step| match step {
                    Move::Seek(key) => write!(f, " seek({})", Short(key)),
                    Move::SeekBack(key) => write!(f, " seek_back({})", Short(key)),
                    other => write!(f, " {other:?}"),
                })
            }
            Self::ReadBlocks { reader, space, prefix, first, count } => {
                write!(f, "read_blocks {reader:?} {} {} {first} +{count}", space_name(*space), Short(prefix))
            }
            Self::NextExtent { reader, space, prefix, blocks, kind } => {
                write!(
                    f,
                    "next_extent {reader:?} {} {} {blocks:?} {kind:?}",
                    space_name(*space),
                    Short(prefix)
                )
            }
            Self::SnapshotCreate { slot } => write!(f, "snapshot_create {slot}"),
            Self::SnapshotDrop { slot } => write!(f, "snapshot_drop {slot}"),
            Self::NamedCreate { slot } => write!(f, "named_create {slot}"),
            Self::NamedDelete { slot } => write!(f, "named_delete {slot}"),
            Self::NamedCompare { slot } => write!(f, "named_compare {slot}"),
            Self::Compare { reader } => write!(f, "compare {reader:?}"),
            Self::Sync => write!(f, "sync"),
            Self::Reopen => write!(f, "reopen"),
            Self::Crash => write!(f, "crash"),
            Self::Flush => write!(f, "flush"),
            Self::Compact => write!(f, "compact"),
        }
    }
}
