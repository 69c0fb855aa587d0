//! Frames: `length: u32le ‖ postcard bytes`, bounded.
//!
//! A connection begins with [`Request::Hello`], whose answer tells whether both ends speak the same
//! version; so the variants of `Hello` and `Failed` stay the first.

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use kvfs_store::progress::{Step, Unit};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Longest frame either side accepts (bytes): a page of what a transaction changes fits.
const FRAME_LEN_MAX: usize = 8 << 20;

/// What the command asks of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    /// First of all: who asks.
    Hello {
        version: String,
    },
    Stats,
    Check,
    Begin(Begin),
    /// A descriptor of `/dev/fuse` follows, on which the sender has mounted the transaction's view.
    Attach {
        id: u64,
    },
    /// Where the view of a transaction is mounted.
    View {
        id: u64,
    },
    Commit {
        id: u64,
        durable: bool,
    },
    Abort {
        id: u64,
    },
    Transactions,
    /// One page of what a transaction changes; ask again with `from` increased while `more` is set.
    Diff {
        id: u64,
        from: u64,
        limit: u64,
    },
    /// One page of the locks of transactions that the peer may see; ask again behind `next` while there is one.
    Locks {
        after: Option<LockPlaceParts>,
    },
    Snapshot(SnapshotRequest),
    /// The store is about to be unmounted: refused while transactions are open, unless they may be aborted, or
    /// kept as branches.
    Leave {
        abort_open: bool,
        checkpoint_open: bool,
    },
    /// Answered with `Done` at once, and with the outcome when the store is closed; the connection then
    /// stays until the daemon has exited.
    AwaitClosed,
    Undo(UndoRequest),
    Branch(BranchRequest),
    /// Answered when everything that was acknowledged before is durable.
    Sync,
    /// How a keyspace is stored, by the words of the command line; `None`: only tell.
    Compression {
        keyspace: String,
        compression: Option<String>,
    },
    Zones,
    Quota(QuotaRequest),
}

/// What the zones of a store are used for.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ZoneLines {
    pub(crate) zone_bytes: u64,
    /// One for each zone; see [`crate::report::zones::code`].
    pub(crate) codes: Vec<u8>,
    /// Free zones that are held back.
    pub(crate) reserved: u64,
    /// By name.
    pub(crate) figures: Vec<(String, u64)>,
}

/// What is asked about quotas.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum QuotaRequest {
    /// Answered when everything has been counted.
    On,
    Off,
    Set(QuotaOwner, LimitChanges),
    Get(QuotaOwner),
    Report,
    /// Which directories belong to projects.
    ProjectTrees,
}

/// Whose quota.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum QuotaOwner {
    User(u32),
    Group(u32),
    Project(u32),
}

/// Limits to be set, or as they are; 0: none.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct LimitChanges {
    pub(crate) bytes_soft: Option<u64>,
    pub(crate) bytes_hard: Option<u64>,
    pub(crate) inodes_soft: Option<u64>,
    pub(crate) inodes_hard: Option<u64>,
    pub(crate) grace_seconds: Option<u64>,
}

/// What one user, group or project has.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct QuotaRow {
    pub(crate) owner: QuotaOwner,
    pub(crate) bytes: u64,
    pub(crate) inodes: u64,
    pub(crate) limits: LimitChanges,
    /// Until when the soft limit may be overstepped (seconds since 1970), if it is.
    pub(crate) bytes_until: Option<u64>,
    pub(crate) inodes_until: Option<u64>,
}

/// What is asked about committed transactions.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) enum UndoRequest {
    /// Those that can be taken back.
    List,
    /// One page of what taking one back would change, as [`Request::Diff`].
    Diff { id: u64, from: u64, limit: u64 },
    /// Whether anything is in the way: answered with `Done` or `Refused`.
    Check { id: u64 },
    /// Answered with `Restored` or `Refused`.
    TakeBack { id: u64 },
}

/// A committed transaction, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct CommittedLine {
    pub(crate) id: u64,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    pub(crate) label: String,
    /// Since 1970.
    pub(crate) committed: Duration,
    pub(crate) operations: u64,
    /// What its pre-images hold.
    pub(crate) bytes_kept: u64,
}

/// Something in the way of taking back a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ObstacleLine {
    pub(crate) change: ChangeLine,
    /// Without counts.
    pub(crate) by: Option<CommittedLine>,
}

/// What is asked about branches.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum BranchRequest {
    Create {
        name: String,
        /// With dirty pages of shared mappings.
        flush: bool,
    },
    List,
    /// Absolute path, as raw bytes.
    Mount {
        name: String,
        dir: Vec<u8>,
    },
    /// Unmounts it, if it is mounted; answered when it is checkpointed.
    Unmount {
        name: String,
    },
    /// Whatever was mounted here, as raw bytes, has been unmounted: answered when it is checkpointed.
    Settle {
        dir: Vec<u8>,
    },
    /// One page of what it changes, as [`Request::Diff`].
    Diff {
        name: String,
        from: u64,
        limit: u64,
    },
    Merge {
        name: String,
    },
    Delete {
        name: String,
    },
}

/// A branch, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct BranchLine {
    pub(crate) name: String,
    pub(crate) id: u64,
    pub(crate) uid: u32,
    /// Since 1970.
    pub(crate) created: Duration,
    /// Written in it (bytes).
    pub(crate) bytes: u64,
    /// Where it is mounted, as raw bytes; empty: nowhere.
    pub(crate) dir: Vec<u8>,
}

/// What is asked about named snapshots.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum SnapshotRequest {
    Create {
        name: String,
        /// With dirty pages of shared mappings.
        flush: bool,
    },
    Delete {
        name: String,
    },
    List,
    /// One page of what differs, as [`Request::Diff`]; no name: now.
    Diff {
        before: Option<String>,
        after: Option<String>,
        from: u64,
        limit: u64,
    },
    /// Everything, or what these paths lead to, from the root of the store.
    Restore {
        name: String,
        paths: Vec<String>,
    },
    /// About the stream from one snapshot (no name: from nothing) to another.
    Send {
        from: Option<String>,
        to: String,
    },
    /// The same, by the identity of the stream.
    SendAgain {
        stream: [u8; 16],
    },
    /// The next frames of a stream from `offset` on; ask again behind them until it is through.
    SendFrames {
        stream: [u8; 16],
        offset: u64,
    },
}

/// A named snapshot, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SnapshotLine {
    pub(crate) name: String,
    pub(crate) position: u64,
    /// Since 1970.
    pub(crate) created: Duration,
}

/// How to begin a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Begin {
    pub(crate) serializable: bool,
    pub(crate) timeout: Option<Duration>,
    pub(crate) nice: i32,
    /// What its owner calls it: a command, mostly.
    pub(crate) label: String,
    /// It ends with this connection at the latest. Else the daemon mounts its view.
    pub(crate) tied: bool,
}

/// A transaction, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct TxnLine {
    pub(crate) id: u64,
    pub(crate) serializable: bool,
    pub(crate) uid: u32,
    pub(crate) pid: u32,
    pub(crate) label: String,
    pub(crate) age: Duration,
    /// `open`, `committing`, or why it can't be committed any more.
    pub(crate) state: String,
    pub(crate) operations: u64,
    pub(crate) bytes_written: u64,
    pub(crate) locks: u64,
    /// Where its view is mounted, as raw bytes; empty: nowhere, or in namespaces of its own.
    pub(crate) view: Vec<u8>,
}

/// One change of a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ChangeLine {
    /// `+`, `-`, `~` or `>` (renamed).
    pub(crate) sign: char,
    /// `file`, `directory`, …, or `key`.
    pub(crate) kind: String,
    /// Path from the root of the store, or keyspace and key.
    pub(crate) place: Vec<u8>,
    /// Where it was before.
    pub(crate) from: Option<Vec<u8>>,
    /// Size now (bytes).
    pub(crate) bytes: Option<u64>,
}

/// Where a list of locks goes on, as `kvfs_fs::LockPlace::to_parts` gives it.
pub(crate) type LockPlaceParts = (u8, u64, u64, u64);

/// A page of locks.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct LockLines {
    pub(crate) locks: Vec<LockLine>,
    /// With the first page: transactions that can't go on. They hold nothing any more.
    pub(crate) doomed: Vec<DoomLine>,
    /// Where the next page begins.
    pub(crate) next: Option<LockPlaceParts>,
}

/// A lock, as listed.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LockLine {
    pub(crate) holder: PartyLine,
    /// What: a path or a key, where it is known.
    pub(crate) name: String,
    /// `shared`, `exclusive` or `increment`.
    pub(crate) mode: String,
    pub(crate) age: Duration,
    /// The first of those who wait for it.
    pub(crate) waiters: Vec<WaiterLine>,
    pub(crate) waiters_count: u64,
}

/// Somebody who waits for a lock.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct WaiterLine {
    pub(crate) waiter: PartyLine,
    pub(crate) name: String,
    pub(crate) mode: String,
    pub(crate) waited: Duration,
}

/// A transaction that can never commit.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct DoomLine {
    pub(crate) party: PartyLine,
    pub(crate) why: String,
}

/// Who holds or waits.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct PartyLine {
    /// `None`: the main line.
    pub(crate) txn: Option<u64>,
    /// Of the transaction's owner.
    pub(crate) uid: Option<u32>,
    /// 0: unknown.
    pub(crate) pid: u32,
    /// What the transaction's owner calls it.
    pub(crate) label: String,
    /// The transaction can't go on.
    pub(crate) is_doomed: bool,
}

/// What the daemon answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Response {
    Failed {
        code: u8,
        message: String,
    },
    /// To `Hello`: the store is open, and mounted here (raw bytes of the path).
    Serving {
        dir: Vec<u8>,
    },
    /// The store is being closed: [`Request::AwaitClosed`], then open it yourself.
    Closing,
    Done,
    Stats(Vec<(String, u64)>),
    Begun {
        id: u64,
        /// As in [`TxnLine`].
        view: Vec<u8>,
    },
    /// Why the transaction could not have been committed any more, if so.
    Aborted {
        doomed: Option<String>,
    },
    Transactions(Vec<TxnLine>),
    Diff {
        lines: Vec<ChangeLine>,
        more: bool,
    },
    Locks(LockLines),
    Snapshots {
        /// Since 1970, by the clock of who answers.
        now: Duration,
        lines: Vec<SnapshotLine>,
    },
    /// By which transaction, and how many of each.
    Restored {
        txn: u64,
        names: u64,
        inodes: u64,
        keys: u64,
    },
    /// A stream that can be asked for; `bytes_expected`: about its length, 0: unknown.
    Sending {
        stream: [u8; 16],
        from: Option<String>,
        to: String,
        bytes_expected: u64,
    },
    /// Frames; none while what comes before them is still being made.
    Frames {
        bytes: Blob,
        is_through: bool,
    },
    /// Findings of the checker (empty: clean) and what it looked at.
    Checked {
        findings: Vec<String>,
        counts: Vec<(String, u64)>,
    },
    /// Oldest first, and how many are kept for how long.
    Committed {
        /// Since 1970, by the clock of who answers.
        now: Duration,
        count_max: u64,
        age_max: Duration,
        lines: Vec<CommittedLine>,
    },
    /// The first of `count` obstacles.
    Refused {
        /// As in `Committed`.
        now: Duration,
        count: u64,
        lines: Vec<ObstacleLine>,
    },
    Quotas {
        /// Seconds since 1970, by the clock of who answers.
        now: u64,
        rows: Vec<QuotaRow>,
    },
    Branches {
        /// Since 1970, by the clock of who answers.
        now: Duration,
        lines: Vec<BranchLine>,
    },
    /// Names of the branches that open transactions have become.
    Kept(Vec<String>),
    Zones(ZoneLines),
    /// Where the branches are mounted that are durable, too, as raw bytes.
    Synced {
        branches: Vec<Vec<u8>>,
    },
    /// The answer takes longer; it is here, as `kvfs_store::progress::Step` says. The answer follows.
    Progress {
        stage: String,
        is_bytes: bool,
        done: u64,
        total: u64,
    },
    /// As it is now.
    Compression(String),
    /// Number and path of each tree, as raw bytes.
    ProjectTrees(Vec<(u32, Vec<u8>)>),
}

impl From<Step> for Response {
    fn from(step: Step) -> Self {
        let Step { stage, unit, done, total } = step;
        Self::Progress { stage: stage.to_owned(), is_bytes: unit == Unit::Bytes, done, total }
    }
}

/// Bytes that go as they are.
#[derive(Debug, Clone, Default)]
pub(crate) struct Blob(pub(crate) Vec<u8>);

impl Serialize for Blob {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_bytes(&self.0)
    }
}

impl<'de> Deserialize<'de> for Blob {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Whole;

        impl Visitor<'_> for Whole {
            type Value = Blob;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("bytes")
            }

            fn visit_bytes<E: serde::de::Error>(self, bytes: &[u8]) -> Result<Blob, E> {
                Ok(Blob(bytes.to_vec()))
            }
        }

        deserializer.deserialize_bytes(Whole)
    }
}

pub(crate) fn write_frame(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() > FRAME_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message is too long"));
    }
    let mut frame = Vec::with_capacity(4 + body.len());
    frame.extend_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(&body);
    stream.write_all(&frame)
}

/// The next frame, or `None` when the peer has closed the connection between frames.
pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    let first = loop {
        match stream.read(&mut len) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            read => break read?,
        }
    };
    if first == 0 {
        return Ok(None);
    }
    stream.read_exact(&mut len[first..])?;
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes is too long")));
    }
    // Grows with what arrives: a length alone makes nobody allocate.
    let mut body = Vec::new();
    if stream.take(len as u64).read_to_end(&mut body)? < len {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    postcard::from_bytes(&body).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_bad_ones_are_refused() {
        let mut wire = Vec::new();
        write_frame(&mut wire, &Request::Commit { id: 7, durable: true }).expect("writes");
        let back: Option<Request> = read_frame(&mut &wire[..]).expect("reads");
        assert!(matches!(back, Some(Request::Commit { id: 7, durable: true })));

        assert!(read_frame::<Request>(&mut &[][..]).expect("clean end").is_none());
        for cut in 1..wire.len() {
            assert!(read_frame::<Request>(&mut &wire[..cut]).is_err(), "cut off at {cut}");
        }
        assert!(read_frame::<Request>(&mut &u32::MAX.to_le_bytes()[..]).is_err(), "too long");
        assert!(read_frame::<Request>(&mut &[1, 0, 0, 0, 0xff][..]).is_err(), "no such request");
    }
}
