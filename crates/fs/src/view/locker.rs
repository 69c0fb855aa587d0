//! How the operations of a view begin: they find their nodes, and take names.
//!
//! Thread safety: any number of threads; a plain value of references. Invariants: a view that is over, or
//! whose nodes are behind the store, gives no node; all names are taken or none; an operation that changes
//! something keeps its transaction from being frozen until it is done; what a view that locks its reads knows
//! of a node is read again under the first lock on it (`verify`).

use std::ops::Deref;
use std::sync::Arc;

use kvfs_locks::class;
use kvfs_store::clock::Clock;
use kvfs_txn::{Admission, Guard, LockName, Mode, Party, Want};

use super::authors::{Author, Authors};
use super::commit::Phase;
use super::idle::OpenViews;
use super::processes::Processes;
use super::untold::{ChangedNames, UntoldNames};
use super::{Origin, Renewal};
use crate::fair_lock::ReadGuard;
use crate::namespace::attribute_wants;
use crate::node::{DirectoryPart, NameChange, Node, NodeTable, Pin};
use crate::schema::Keyspaces;
use crate::{Caller, FileSystem, FileType, FsError, NodeId, Result};

/// Pins the nodes of operations, takes their latches, and inside of a transaction their locks.
#[derive(Clone, Copy)]
pub(crate) struct Locker<'v> {
    pub(super) origin: &'v Origin,
    pub(super) nodes: &'v NodeTable,
    pub(super) keyspaces: Keyspaces,
    admission: &'v Admission,
    /// The main line's operations are noted while one is open.
    open: &'v OpenViews,
    authors: &'v Authors,
    processes: &'v Processes,
    untold: &'v Arc<UntoldNames>,
    pub(super) clock: &'v dyn Clock,
    is_read_only: bool,
    follows: bool,
}

/// A pinned directory. Derefs to its special part.
pub(crate) struct PinnedDirectory(Arc<Node>);

impl Deref for PinnedDirectory {
    type Target = DirectoryPart;

    fn deref(&self) -> &DirectoryPart {
        match &self.0.directory {
            Some(directory) => directory,
            None => unreachable!("checked when it was pinned"),
        }
    }
}

/// The names that an operation has taken. Latches are given back on drop; a transaction's locks stay.
pub(crate) struct Names<'v> {
    pub(super) locker: Locker<'v>,
    /// Entries that are being changed are not kept by name. Ends before the latches are given back.
    changes: Vec<NameChange<'v>>,
    guard: Guard<'v>,
    /// Of an operation on the main line while a transaction is open.
    author: Option<Author>,
    beside: Option<Beside>,
    /// Keeps the transaction from being frozen while the operation is under way.
    _admitted: Option<ReadGuard<'v, Phase, class::FsViewCommitPhase>>,
}

/// Of an operation on the main line beside its kernel: the names that it changes, and where to note them.
struct Beside {
    changed: Arc<ChangedNames>,
    names: Vec<(u64, Box<[u8]>)>,
}

impl Beside {
    fn new(changed: &Arc<ChangedNames>, wants: &[Want<'_>]) -> Self {
        let names = changed_entries(wants).map(|(directory, name)| (directory, Box::from(name)));
        Self { changed: Arc::clone(changed), names: names.collect() }
    }
}

/// The entry that an operation holds exclusively, because it changes it.
fn changed_entry<'w>(want: &Want<'w>) -> Option<(u64, &'w [u8])> {
    match (want.name, want.mode) {
        (LockName::Entry { directory, name }, Mode::Exclusive) => Some((directory, name)),
        _ => None,
    }
}

/// All of these.
fn changed_entries<'w>(wants: &'w [Want<'w>]) -> impl Iterator<Item = (u64, &'w [u8])> {
    wants.iter().filter_map(changed_entry)
}

impl Names<'_> {
    /// Takes further names, found by reading under those that are held.
    pub(crate) fn try_extend(&mut self, wants: &[Want<'_>]) -> Result<()> {
        let origin = self.locker.origin;
        self.guard.try_extend(wants, |want| origin.is_shared(&want.name))?;
        self.locker.note_changes(&mut self.changes, wants);
        if let Some(author) = &mut self.author {
            author.extend(wants);
        }
        self.locker.verify(wants)
    }

    /// Whether a transaction's lock is in the way of one of these names, which are held. Waits for none.
    pub(crate) fn meets_locks(&self, wants: &[Want<'_>]) -> bool {
        self.guard.meets_locks(wants)
    }
}

impl Drop for Names<'_> {
    fn drop(&mut self) {
        // Before the latches are given back: what comes next is another operation's.
        if let Some(author) = self.author.take() {
            self.locker.authors.note(author, self.locker.origin.position().0);
        }
        if let Some(Beside { changed, names }) = self.beside.take() {
            changed.note(self.locker.untold, &names);
        }
    }
}

impl FileSystem {
    /// What operations of this view begin with.
    pub(crate) fn locker(&self) -> Locker<'_> {
        Locker {
            origin: &self.origin,
            nodes: &self.nodes,
            keyspaces: self.keyspaces,
            admission: &self.shared.admission,
            open: &self.shared.open,
            authors: &self.shared.authors,
            processes: &self.shared.processes,
            untold: &self.shared.untold,
            clock: &*self.shared.clock,
            is_read_only: self.options.read_only,
            follows: self.follows,
        }
    }
}

impl<'v> Locker<'v> {
    /// Whether setting what is set already changes nothing. In a transaction it is an update: the row may be
    /// another one by now.
    pub(crate) fn may_skip_equal(&self) -> bool {
        self.origin.is_main()
    }

    /// Refuses changes of a mount or a view that is read-only.
    pub(crate) fn check_writable(&self) -> Result<()> {
        let is_snapshot = matches!(self.origin, Origin::Snapshot(_));
        if self.is_read_only || is_snapshot { Err(FsError::ReadOnly) } else { Ok(()) }
    }

    /// Whether others than the front end that asks move the ends of files.
    pub(crate) fn are_ends_shared(&self) -> bool {
        self.nodes.are_ends_shared()
    }

    /// Refuses what is asked of a view that is over, or whose nodes are behind the store.
    pub(crate) fn check(&self) -> Result<()> {
        if let Some(reason) = self.nodes.failure() {
            return Err(FsError::corrupt("the mounted state", reason));
        }
        self.origin.check_alive()
    }

    /// A node that the view knows.
    pub(crate) fn pin(&self, node: NodeId) -> Result<Pin<'v>> {
        self.check()?;
        let pin = self.nodes.get(node.0).ok_or(FsError::Stale(node.0))?;
        if self.follows {
            let &Self { origin, nodes, keyspaces, .. } = self;
            Renewal { origin, nodes, keyspaces }.renew(&pin)?;
        }
        Ok(pin)
    }

    /// The node, which must be a directory.
    pub(crate) fn pin_directory(&self, node: NodeId) -> Result<(Pin<'v>, PinnedDirectory)> {
        let pin = self.pin(node)?;
        if pin.directory.is_none() {
            return Err(FsError::NotDirectory);
        }
        let directory = PinnedDirectory(Arc::clone(&pin));
        Ok((pin, directory))
    }

    /// The node, which must be a regular file.
    pub(crate) fn pin_file(&self, node: NodeId) -> Result<Pin<'v>> {
        let node = self.pin(node)?;
        match node.kind {
            FileType::Regular => Ok(node),
            FileType::Directory => Err(FsError::IsDirectory),
            _ => Err(FsError::Invalid("not a regular file")),
        }
    }

    /// Takes all names or none, for an operation that changes something.
    pub(crate) fn latch(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'v>> {
        self.latch_in(caller, wants, Phase::Open, Party::Main { pid: caller.pid })
    }

    /// As [`Self::latch`], for a write of file content: it is admitted until the view has been committed,
    /// because the kernel writes dirty pages out during the commit.
    pub(crate) fn latch_to_write(
        &self,
        caller: &Caller,
        wants: &[Want<'_>],
        is_writeback: bool,
    ) -> Result<Names<'v>> {
        let pid = caller.pid;
        let on_main = if is_writeback { Party::Launder { pid } } else { Party::Main { pid } };
        self.latch_in(caller, wants, Phase::Frozen, on_main)
    }

    fn latch_in(
        &self,
        caller: &Caller,
        wants: &[Want<'_>],
        phase_max: Phase,
        on_main: Party<'v>,
    ) -> Result<Names<'v>> {
        self.verify_root(caller)?;
        let again = caller.ticket.as_ref();
        let origin = self.origin;
        let (party, admitted) = match origin {
            Origin::Txn(view) => {
                let party = view.locks.as_ref().map_or(Party::Reader, |locks| Party::Txn(locks));
                (party, Some(view.admit(phase_max)?))
            }
            Origin::Main(_) => (on_main, None),
            Origin::Snapshot(_) => return Err(FsError::ReadOnly),
        };
        let is_noted = origin.is_main() && self.open.len() > 0;
        if is_noted {
            self.processes.see(caller.pid, self.clock.monotonic());
        }
        let is_by_names = caller.goes_by_names && origin.is_main();
        let operation = || self.untold.operation(caller.pid, changed_entries(wants));
        // What was refused a moment ago comes before transactions that have come since.
        let is_first = is_by_names && again.is_none();
        let kept = is_first.then(|| self.admission.kept_places(operation)).flatten();
        let again = again.or(kept.as_ref());
        let guard = self.admission.try_acquire(party, wants, |want| origin.is_shared(&want.name), again)?;
        let author = is_noted.then(|| Author::new(caller.pid, origin.position().0, wants));
        let beside = caller.changed_names.as_ref().filter(|_| origin.is_main());
        let beside = beside.map(|changed| Beside::new(changed, wants));
        let changes = Vec::new();
        let mut names = Names { locker: *self, changes, guard, author, beside, _admitted: admitted };
        self.note_changes(&mut names.changes, wants);
        if is_by_names && changed_entries(wants).any(|(directory, name)| self.untold.has(directory, name)) {
            // The kernel looks at the names again once, and not a second time.
            let changed = wants.iter().filter(|want| changed_entry(want).is_some());
            names.guard.keep_places(operation(), changed);
            return Err(FsError::NameChanged);
        }
        self.verify(wants)?;
        Ok(names)
    }

    /// Takes all names or none, for an operation that only reads: others' operations wait, but no
    /// transaction does, unless this is one that locks what it reads.
    pub(crate) fn latch_to_read(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'v>> {
        self.verify_root(caller)?;
        self.latch_to_read_below(caller, wants)
    }

    fn latch_to_read_below(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<Names<'v>> {
        let again = caller.ticket.as_ref();
        let origin = self.origin;
        let (party, locks_them) = match origin {
            Origin::Txn(view) if origin.locks_reads() => {
                view.locks.as_ref().map_or((Party::Reader, false), |locks| (Party::Txn(locks), true))
            }
            _ => (Party::Reader, false),
        };
        let lock = |want: &Want<'_>| locks_them && origin.is_shared(&want.name);
        let guard = self.admission.try_acquire(party, wants, lock, again)?;
        let changes = Vec::new();
        let names = Names { locker: *self, changes, guard, author: None, beside: None, _admitted: None };
        self.verify(wants)?;
        Ok(names)
    }

    /// Entries that an operation holds exclusively, because it changes them, are not kept by name meanwhile.
    fn note_changes(&self, changes: &mut Vec<NameChange<'v>>, wants: &[Want<'_>]) {
        changes.extend(
            changed_entries(wants).filter_map(|(directory, name)| self.nodes.change_name(directory, name)),
        );
    }

    /// Locks what is about to be read, in a view that does. Keeps no latch.
    pub(crate) fn lock_read(&self, caller: &Caller, wants: &[Want<'_>]) -> Result<()> {
        if self.origin.locks_reads() { self.latch_to_read(caller, wants).map(drop) } else { Ok(()) }
    }

    /// The root is known without having been looked up, so before anything else.
    fn verify_root(&self, caller: &Caller) -> Result<()> {
        if !self.origin.locks_reads() || self.is_verified(NodeId::ROOT) {
            return Ok(());
        }
        self.latch_to_read_below(caller, &attribute_wants(NodeId::ROOT.0)).map(drop)
    }

    /// Takes a lock that a user asks for. Keeps no latch.
    pub(super) fn lock_by_user(&self, caller: &Caller, name: LockName<'_>, is_exclusive: bool) -> Result<()> {
        let view = self.origin.txn().ok_or(OUTSIDE)?;
        let _admitted = view.admit(Phase::Open)?;
        let mode = if is_exclusive { Mode::Exclusive } else { Mode::Shared };
        if !self.origin.is_shared(&name) {
            return Ok(());
        }
        let again = caller.ticket.as_ref();
        Ok(self.admission.try_lock(view.lock_owner()?, &[Want { name, mode }], again)?)
    }
}

/// What a lock by a user is refused with outside of a transaction.
pub(super) const OUTSIDE: FsError =
    FsError::Invalid("a lock is held by a transaction: begin one, and name it");
