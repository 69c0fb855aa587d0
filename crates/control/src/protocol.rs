//! Frames: `length: u32le ‖ postcard bytes`, bounded.
//!
//! A connection begins with [`Request::Hello`], whose answer tells whether both ends speak the same
//! version; so the variants of `Hello` and `Failed` stay the first.
//!
//! Thread safety: values, and functions on a stream of the caller's.

#![expect(missing_docs, reason = "names and types say what the fields are, where nothing else is said")]

mod branches;

use std::fmt;
use std::io::{self, Read, Write};
use std::time::Duration;

use kvfs_store::progress::{Step, Unit};
use serde::de::{DeserializeOwned, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use kvfs_service::lines::{
    BranchLine, ChargeLines, CommittedLine, DefragPlanLine, DefragRequest, DefragmentedLine, DeviceLine,
    FactsLine, FindingLine, HealthLine, HeatLines, HeldLines, LockLines, LockPlaceParts, OperationLines,
    PlacementLine, QuotaRequest, QuotaRow, SelectionLine, SnapshotLine, TierRequest, TraceLine, TraceRequest,
    TxnLine, ZoneLines,
};
use kvfs_service::{ErrorKind, ServiceError};

pub use branches::BranchRequest;

/// Longest answer (bytes): some millions of findings of a check fit. What grows with ordinary use is told in
/// pages.
const ANSWER_LEN_MAX: usize = 1 << 30;

/// Longest request (bytes): what it is decoded to is not counted for its user.
const REQUEST_LEN_MAX: usize = 128 << 10;

/// What the command asks of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Request {
    /// First of all: the client.
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
    /// Answered with `Done`, and a descriptor of a mount of the transaction's view, for the sender to attach.
    Mount {
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
    /// One page of the locks of transactions that the peer may see; ask again behind `next` while there is
    /// one.
    Locks {
        after: Option<LockPlaceParts>,
    },
    Snapshot(SnapshotRequest),
    /// The store is about to be unmounted: refused while transactions are open, unless they may be aborted,
    /// or kept as branches.
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
    /// Makes the store larger; `None`: as far as there is room.
    Grow {
        bytes: Option<u64>,
    },
    /// Empties partly used zones; ends early when the connection does.
    Defrag(DefragRequest),
    /// Whether the store and its device work. Answered at once, whatever else is going on.
    Health,
    /// Ends the daemon of a store that is served without a mount; answered before it has ended.
    End,
    /// Counts and latencies of operations by kind.
    Operations,
    /// From now on operations are told of as they end: ask for them by `TraceNext`, on this connection.
    Trace(TraceRequest),
    /// Answered with `Traced` when there is something, or after a moment; with `Closing` when there is no
    /// more.
    TraceNext,
    /// The devices of the store; answered with `Devices`, but for an addition.
    Tier(TierRequest),
    /// What the threads of the daemon hold and wait for in memory. Answered at once, whatever hangs.
    HeldLocks,
    /// Paths from the root, as raw bytes: all of them go, with all that is below, or none. Answered with
    /// `Removed`.
    RemoveTrees {
        paths: Vec<Vec<u8>>,
    },
    /// Paths from the root, as raw bytes: what is at one of them is cloned to the other, with all that is
    /// below. Answered with `Cloned`.
    CloneTree {
        source: Vec<u8>,
        target: Vec<u8>,
    },
    /// How much content of a file lies in its row (bytes), and how much from now on. Answered with `Inline`.
    Inline {
        change: Option<u32>,
    },
    /// What memory is charged, and where in the code it was.
    Charges,
    /// Options of a remount that are not the kernel's: all are applied, or all refused. `is_check`: nothing
    /// is changed.
    Remount {
        options: Vec<String>,
        is_check: bool,
    },
}

/// What is asked about committed transactions.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum UndoRequest {
    /// Those that can be taken back.
    List,
    /// One page of what taking one back would change, as [`Request::Diff`].
    Diff { id: u64, from: u64, limit: u64 },
    /// Whether anything is in the way: answered with `Done` or `Refused`.
    Check { id: u64, selection: SelectionLine },
    /// Answered with `Restored` or `Refused`.
    TakeBack { id: u64, selection: SelectionLine },
}

/// Something in the way of taking back a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ObstacleLine {
    pub change: ChangeLine,
    /// Without counts.
    pub by: Option<CommittedLine>,
}

/// What is asked about named snapshots.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum SnapshotRequest {
    Create {
        name: String,
        /// With dirty pages of shared mappings.
        flush: bool,
        /// For root and the store's owner alone.
        private: bool,
    },
    /// For root and the store's owner alone, or for all users.
    SetPrivate {
        name: String,
        private: bool,
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

/// How to begin a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Begin {
    pub serializable: bool,
    pub timeout: Option<Duration>,
    /// It may go without an operation for so long; `None`: as the mount says, `Duration::MAX`: for ever.
    pub idle_max: Option<Duration>,
    pub nice: i32,
    /// What its owner calls it: a command, mostly.
    pub label: String,
    /// It ends with this connection at the latest. Else the daemon mounts its view.
    pub tied: bool,
}

impl From<Begin> for kvfs_service::Begin {
    fn from(begin: Begin) -> Self {
        let Begin { serializable, timeout, idle_max, nice, label, tied } = begin;
        Self { serializable, timeout, idle_max, nice, label, tied, needs_files: true }
    }
}

/// One change of a transaction.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct ChangeLine {
    /// `+`, `-`, `~` or `>` (renamed).
    pub sign: char,
    /// `file`, `directory`, …, or `key`.
    pub kind: String,
    /// Path from the root of the store; or keyspace, a slash, and key.
    pub place: Vec<u8>,
    pub keyspace: Option<String>,
    /// Where it was before.
    pub from: Option<Vec<u8>>,
    /// Size now (bytes).
    pub bytes: Option<u64>,
    pub before: Option<FactsLine>,
    pub after: Option<FactsLine>,
}

/// What the daemon answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Response {
    Failed {
        code: u8,
        message: String,
    },
    /// To `Hello`: the store is open, and mounted here, where it shows this source (raw bytes of both paths).
    Serving {
        dir: Vec<u8>,
        source: Vec<u8>,
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
    /// To `Commit`: whether it has changed anything, and can be taken back.
    TxnCommitted {
        has_changes: bool,
        is_kept: bool,
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
        /// Since 1970, by the clock of the process that answers.
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
    /// By which transaction, how many trees, and whether it can be taken back.
    Removed {
        txn: u64,
        trees: u64,
        is_kept: bool,
    },
    /// By which transaction, how many names, how many bytes of files that are kept once, and whether it can
    /// be taken back.
    Cloned {
        txn: u64,
        names: u64,
        bytes: u64,
        is_kept: bool,
    },
    /// Bytes.
    Inline(u32),
    /// A stream that can be asked for; `bytes_expected`: about its length, 0: unknown; `has_clones`: it may
    /// have references.
    Sending {
        stream: [u8; 16],
        from: Option<String>,
        to: String,
        bytes_expected: u64,
        has_clones: bool,
    },
    /// Frames; none while what comes before them is still being made.
    Frames {
        bytes: Blob,
        is_through: bool,
    },
    /// Findings of the checker (empty: clean) and what it looked at.
    Checked {
        findings: Vec<FindingLine>,
        counts: Vec<(String, u64)>,
    },
    /// Oldest first, and how many are kept for how long.
    Committed {
        /// Since 1970, by the clock of the process that answers.
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
        /// Seconds since 1970, by the clock of the process that answers.
        now: u64,
        rows: Vec<QuotaRow>,
    },
    Branches {
        /// Since 1970, by the clock of the process that answers.
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
    /// How much the store may take (bytes); `behind`: the file system below has only so much.
    Grown {
        before: u64,
        after: u64,
        behind: Option<u64>,
    },
    Health(HealthLine),
    DefragPlan(DefragPlanLine),
    Defragmented(DefragmentedLine),
    Operations(OperationLines),
    /// Operations that have ended, and how many were lost behind them because they were not asked for in
    /// time.
    Traced {
        lines: Vec<TraceLine>,
        lost: u64,
    },
    Devices(Vec<DeviceLine>),
    /// Its number.
    DeviceAdded(u32),
    Placement(PlacementLine),
    HeldLocks(HeldLines),
    Heat(HeatLines),
    Charges(ChargeLines),
}

/// Kinds of errors by their numbers, of which the first is 1. Other versions know these numbers.
const KINDS: [ErrorKind; 10] = ErrorKind::ALL;

impl Response {
    /// Why a request was not carried out.
    pub(crate) fn failed(error: &ServiceError) -> Self {
        let place = KINDS.into_iter().position(|kind| kind == error.kind()).unwrap_or(0);
        Self::Failed { code: place as u8 + 1, message: error.to_string() }
    }

    /// The answer, or the error that it tells of.
    pub(crate) fn or_failure(self) -> kvfs_service::Result<Self> {
        match self {
            Self::Failed { code, message } => {
                let kind = KINDS.get(usize::from(code).wrapping_sub(1)).copied();
                Err(ServiceError::new(kind.unwrap_or(ErrorKind::Failed), message))
            }
            answer => Ok(answer),
        }
    }
}

impl From<Step> for Response {
    fn from(step: Step) -> Self {
        let Step { stage, unit, done, total } = step;
        Self::Progress { stage: stage.to_owned(), is_bytes: unit == Unit::Bytes, done, total }
    }
}

/// Bytes that go as they are.
#[derive(Debug, Clone, Default)]
pub struct Blob(pub Vec<u8>);

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
    stream.write_all(&frame(message)?)
}

/// As [`write_frame`], for what the daemon reads with [`read_request`].
pub(crate) fn write_request(stream: &mut impl Write, request: &Request) -> io::Result<()> {
    let frame = frame(request)?;
    if frame.len() > REQUEST_LEN_MAX {
        let message = "the request is too long: give fewer paths at a time";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    stream.write_all(&frame)
}

pub(crate) fn frame(message: &impl Serialize) -> io::Result<Vec<u8>> {
    let body = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if body.len() > ANSWER_LEN_MAX {
        let message = format!("{} bytes are too long for an answer", body.len());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    Ok([&(body.len() as u32).to_le_bytes()[..], &body].concat())
}

/// The next frame, or `None` when the peer has closed the connection between frames.
pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    read_frame_within(stream, ANSWER_LEN_MAX)
}

/// As [`read_frame`], for requests.
pub(crate) fn read_request(stream: &mut impl Read) -> io::Result<Option<Request>> {
    read_frame_within(stream, REQUEST_LEN_MAX)
}

/// As [`read_frame`], of at most so many bytes.
pub(crate) fn read_frame_within<T: DeserializeOwned>(
    stream: &mut impl Read,
    len_max: usize,
) -> io::Result<Option<T>> {
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
    if len > len_max {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes is too long")));
    }
    // Grows with what arrives: a length alone allocates nothing.
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

    #[test]
    fn failure_comes_back_as_the_error_that_it_was() {
        for kind in KINDS {
            let told = Response::failed(&ServiceError::new(kind, "why"));
            let error = told.or_failure().expect_err("is a failure");
            assert_eq!((error.kind(), &*error.to_string()), (kind, "why"));
        }
        for code in [0, 11, 255] {
            let odd = Response::Failed { code, message: String::new() };
            assert_eq!(odd.or_failure().expect_err("is a failure").kind(), ErrorKind::Failed);
        }
        assert!(matches!(Response::Done.or_failure(), Ok(Response::Done)));
    }

    #[test]
    fn request_beyond_its_length_is_neither_sent_nor_read() {
        let long = Request::Compression { keyspace: "k".repeat(REQUEST_LEN_MAX), compression: None };
        assert!(write_request(&mut Vec::new(), &long).is_err());
        let mut wire = Vec::new();
        write_frame(&mut wire, &long).expect("as an answer it would fit");
        assert!(read_request(&mut &wire[..]).is_err());
    }
}
