//! A file system with one file, `plain`, and names beginning with `blocked`, whose lookups wait until the
//! test opens the gate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::operations::{Operation, OperationKind, Recorder, Target};
use kvfs_fuse::abi::Attr;
use kvfs_fuse::dispatch::{
    AttributeChange, Attributes, Data, Entry, OpenArgs, Opened, Parked, ReadArgs, SessionRecorder, WriteArgs,
    Written,
};
use kvfs_fuse::{Errno, Operations, Reply, RequestContext};
use parking_lot::{Condvar, Mutex};

const PATIENCE: Duration = Duration::from_secs(20);
const PLAIN: u64 = 2;
const BLOCKED: u64 = 3;

#[derive(Default)]
pub(crate) struct State {
    pub(crate) waiting: Vec<Parked<Entry>>,
    pub(crate) parked_total: usize,
    pub(crate) cancelled: usize,
    pub(crate) ended: bool,
    content: Vec<u8>,
    /// Data of the last write, kept as it came.
    pub(crate) written: Option<Bytes>,
    pub(crate) forgotten: Vec<(u64, u64)>,
    /// A reply that is kept, to be answered from elsewhere.
    pub(crate) kept: Option<Reply<()>>,
}

/// What was reported of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Reported {
    pub(crate) kind: OperationKind,
    pub(crate) inode: u64,
    pub(crate) name: Vec<u8>,
    pub(crate) bytes: u64,
    pub(crate) errno: i32,
    pub(crate) has_waited: bool,
}

/// Keeps what is reported.
#[derive(Debug, Default)]
pub(crate) struct Reports(Mutex<Vec<Reported>>);

impl Reports {
    pub(crate) fn take(&self) -> Vec<Reported> {
        std::mem::take(&mut self.0.lock())
    }
}

impl Recorder for Reports {
    fn now(&self) -> Duration {
        Duration::ZERO
    }

    fn record(&self, operation: &Operation<'_>) {
        let (inode, name) = match operation.target {
            Target::Inode { inode, name } => (inode, name),
            _ => (0, &b""[..]),
        };
        let &Operation { kind, bytes, errno, has_waited, .. } = operation;
        self.0.lock().push(Reported { kind, inode, name: name.to_vec(), bytes, errno, has_waited });
    }

    fn wants_target(&self, _: Duration) -> bool {
        true
    }
}

#[derive(Default)]
struct Shared {
    reports: Arc<Reports>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The file system, and the test's handle to it.
#[derive(Clone, Default)]
pub(crate) struct Gate {
    shared: Arc<Shared>,
}

fn attr(node: u64, size: usize) -> Attr {
    let mode = if node == 1 { 0o040_755 } else { 0o100_644 };
    Attr { ino: node, size: size as u64, mode, nlink: 1, blksize: 4096, ..Attr::default() }
}

impl Gate {
    pub(crate) fn reports(&self) -> &Reports {
        &self.shared.reports
    }

    pub(crate) fn state(&self) -> parking_lot::MutexGuard<'_, State> {
        self.shared.state.lock()
    }

    /// Waits until `condition` holds.
    pub(crate) fn wait_until(&self, what: &str, condition: impl Fn(&State) -> bool) {
        let mut state = self.state();
        while !condition(&state) {
            let timed_out = self.shared.changed.wait_for(&mut state, PATIENCE).timed_out();
            assert!(!timed_out || condition(&state), "never happened: {what}");
        }
    }

    /// Answers all waiting lookups; returns how many were still to be answered.
    pub(crate) fn open_gate(&self) -> usize {
        let waiting = std::mem::take(&mut self.state().waiting);
        let resumed: Vec<_> = waiting.into_iter().filter_map(Parked::resume).collect();
        let count = resumed.len();
        for reply in resumed {
            reply.ok(Self::entry(BLOCKED, 0));
        }
        count
    }

    fn entry(node: u64, size: usize) -> Entry {
        Entry { node, attr: attr(node, size), ..Entry::default() }
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state());
        self.shared.changed.notify_all();
    }
}

impl Operations for Gate {
    fn recorder(&self) -> Option<SessionRecorder> {
        Some(SessionRecorder { recorder: Arc::clone(&self.shared.reports) as Arc<dyn Recorder>, txn: 0 })
    }

    fn destroy(&self) {
        self.change(|state| state.ended = true);
    }

    fn lookup(&self, _cx: &RequestContext, _parent: u64, name: &[u8], reply: Reply<Entry>) {
        if name == b"plain" {
            let size = self.state().content.len();
            reply.ok(Self::entry(PLAIN, size));
        } else if name == b"panic" {
            panic!("as the test asked for");
        } else if name == b"dropped" {
            drop(reply);
        } else if name.starts_with(b"blocked") {
            let gate = self.clone();
            let parked = reply.park(move || gate.change(|state| state.cancelled += 1));
            self.change(|state| {
                state.parked_total += 1;
                state.waiting.extend(parked);
            });
        } else {
            reply.error(Errno::NOENT);
        }
    }

    fn forget(&self, node: u64, lookups: u64) {
        self.change(|state| state.forgotten.push((node, lookups)));
    }

    fn getattr(&self, _cx: &RequestContext, node: u64, _fh: Option<u64>, reply: Reply<Attributes>) {
        let size = if node == PLAIN { self.state().content.len() } else { 0 };
        reply.ok(Attributes { attr: attr(node, size), timeout: Duration::ZERO });
    }

    fn setattr(&self, cx: &RequestContext, node: u64, change: &AttributeChange, reply: Reply<Attributes>) {
        if let Some(size) = change.size {
            self.change(|state| state.content.resize(size as usize, 0));
        }
        self.getattr(cx, node, None, reply);
    }

    fn open(&self, _cx: &RequestContext, _node: u64, _args: OpenArgs, reply: Reply<Opened>) {
        reply.ok(Opened::default());
    }

    fn read(&self, _cx: &RequestContext, _node: u64, args: ReadArgs, reply: Reply<Data>) {
        let state = self.state();
        let start = (args.offset as usize).min(state.content.len());
        let end = (start + args.size as usize).min(state.content.len());
        reply.slice(&state.content[start..end]);
    }

    fn write(&self, _cx: &RequestContext, _node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        let (start, len) = (args.offset as usize, data.len());
        self.change(|state| {
            let end = state.content.len().max(start + len);
            state.content.resize(end, 0);
            state.content[start..start + len].copy_from_slice(&data);
            state.written = Some(data);
        });
        reply.ok(Written(len as u32));
    }

    fn fsync(&self, _cx: &RequestContext, _node: u64, _fh: u64, _datasync: bool, reply: Reply<()>) {
        self.change(|state| state.kept = Some(reply));
    }
}
