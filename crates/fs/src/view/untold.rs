//! Names that commits and front ends beside the kernel have changed, and of which the kernel behind the main
//! line has yet to be told.
//!
//! Purpose: a kernel decides by the names that it knows: whose file a name leads to, whether it may be
//! removed or replaced, and which of its inodes is moved. A request that was on its way while such a change
//! appeared, or waited for it, would be carried out on what is there now. So a change of such a name is
//! refused ([`FsError::NameChanged`]), and the kernel looks the name up again: from then on it knows.
//!
//! Kept by directory: the kernel is told the names of a directory one after the other, and no name of one is
//! known to have been told before all that were queued are. Names of a change that is yet to be queued stay
//! then, and those of later ones. Where there are too many names, all of a directory count; where there
//! are too many directories of which the kernel is never told, all names of all directories do.
//!
//! Thread safety: any number of threads. Invariants: a name is here before an operation of the main line can
//! hold it after the change, and not before the change can be read; it goes when the kernel has been told, or
//! has looked it up since, and never because there are too many.
//!
//! [`FsError::NameChanged`]: crate::FsError::NameChanged

#[cfg(test)]
mod tests;

use std::collections::HashSet;
use std::collections::hash_map::{Entry, HashMap};
use std::hash::{BuildHasher, Hash, Hasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::Clock;

use super::Invalidations;
use crate::{FileSystem, NodeId};

/// A directory, and the hash of a name in it.
type HashedName = (u64, u64);

/// Names that are kept, in all directories.
const NAMES_MAX: usize = 1 << 16;

/// Names of directories all of whose names are untold that are known to have been looked up, twice.
const LOOKED_UP_MAX: usize = 1 << 15;

/// Directories that are kept one by one although the kernel is never told of them.
const KEPT_MAX: usize = 1 << 12;

/// Stands for all directories, once more than that would be kept. No directory has this number.
const ALL: u64 = 0;

/// Names that a change adds at a time.
const PART_LEN: usize = 4096;

/// As long as that a kernel may keep a name, so it has forgotten what it was not told.
const NAME_LIFE_MAX: Duration = Duration::from_hours(24);

/// See the module. Names are kept as hashes: one that is taken for another is looked up in vain.
pub struct UntoldNames {
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    state: Mutex<State, class::FsViewUntoldState>,
    /// Number of directories, to be looked at without the lock.
    len: AtomicUsize,
    /// Number of the next change: a commit, or an operation of another front end.
    next: AtomicU64,
}

#[derive(Default)]
struct State {
    directories: HashMap<u64, Directory>,
    /// Their names, where not all are untold.
    len: usize,
    /// Names of the others that the kernel has looked up: before which change. The newer ones come first.
    looked_up: [HashMap<u64, u64>; 2],
    /// When the first directory was kept for long enough, at the earliest.
    expires: Option<Duration>,
}

/// By default all of its names are untold.
#[derive(Default)]
struct Directory {
    /// The newest change of each; `None`: all names are untold.
    names: Option<HashMap<u64, u64>>,
    /// The newest change of any.
    change: u64,
    /// Numbers of the [`Telling`]s that go on.
    tellings: Vec<u64>,
    /// Names that only changes before this one concern have gone.
    told_before: u64,
    /// The kernel is never told of some.
    kept_until: Option<Duration>,
}

/// What was changed, and of which the kernel is being told until this is dropped.
#[must_use = "the kernel is taken to have been told when it is dropped"]
pub struct Telling {
    untold: Arc<UntoldNames>,
    /// That of the first change.
    number: u64,
    directories: HashSet<u64>,
}

/// Names that operations of a caller beside the kernel may have changed on the main line
/// ([`crate::Caller::changed_names`]): they are untold until the caller has told the kernel.
#[derive(Debug, Default)]
pub struct ChangedNames(Mutex<Option<Telling>, class::FsViewUntoldChanged>);

impl ChangedNames {
    /// To be ended when the kernel has been told, whatever came of the operations. `None`: no name was
    /// changed.
    pub fn take(&self) -> Option<Telling> {
        self.0.lock().take()
    }

    /// An operation has come to its end, and still holds these names.
    pub(super) fn note(&self, untold: &Arc<UntoldNames>, names: &[(u64, Box<[u8]>)]) {
        if names.is_empty() {
            return;
        }
        let names = names.iter().map(|(directory, name)| (NodeId(*directory), &**name));
        // An operation that waits for a lock comes more than once.
        let telling = match self.take() {
            Some(mut telling) => {
                telling.add(untold.next_number(), names);
                telling
            }
            None => untold.begin_names(names),
        };
        *self.0.lock() = Some(telling);
    }
}

/// Of the main line; `None`: `fs` is a view.
pub fn untold_names(fs: &FileSystem) -> Option<Arc<UntoldNames>> {
    fs.origin.is_main().then(|| Arc::clone(&fs.shared.untold))
}

impl Directory {
    fn has(&self, name: u64, looked_up: &[HashMap<u64, u64>; 2]) -> bool {
        match &self.names {
            Some(names) => names.contains_key(&name),
            None => !looked_up.iter().any(|names| names.get(&name).is_some_and(|next| *next > self.change)),
        }
    }

    /// The kernel has been told the names that changes before `number` concern. Returns how many go.
    fn end_before(&mut self, number: u64) -> usize {
        let Some(names) = self.names.as_mut().filter(|_| self.told_before < number) else { return 0 };
        self.told_before = number;
        let before = names.len();
        names.retain(|_, change| *change >= number);
        before - names.len()
    }
}

impl State {
    fn add(&mut self, (directory, name): HashedName, change: u64) {
        let none = || Directory { names: Some(HashMap::new()), ..Directory::default() };
        let untold = self.directories.entry(directory).or_insert_with(none);
        untold.change = untold.change.max(change);
        let Some(names) = &mut untold.names else { return };
        match names.entry(name) {
            Entry::Occupied(mut known) => *known.get_mut() = change.max(*known.get()),
            Entry::Vacant(place) => {
                place.insert(change);
                self.len += 1;
            }
        }
    }

    /// Where there are too many names, all of the directories that have the most are untold.
    fn bound(&mut self) {
        if self.len <= NAMES_MAX {
            return;
        }
        let kept = self.directories.iter().filter_map(|(directory, untold)| {
            let names = untold.names.as_ref()?;
            Some((names.len(), *directory))
        });
        let mut kept: Vec<_> = kept.collect();
        kept.sort_unstable();
        // Half of them, so that the next one is not met soon.
        while let Some((_, largest)) = kept.pop().filter(|_| self.len > NAMES_MAX / 2) {
            self.add_all(largest);
        }
    }

    /// All names of `directory` are untold. False: none was.
    fn add_all(&mut self, directory: u64) -> bool {
        let Some(untold) = self.directories.get_mut(&directory) else { return false };
        self.len -= untold.names.take().map_or(0, |names| names.len());
        true
    }

    /// Where too many directories are kept, all are, for as long as the last of these.
    fn bound_kept(&mut self) {
        let kept = self.directories.iter().filter(|(_, untold)| untold.kept_until.is_some());
        let kept: Vec<u64> = kept.map(|(directory, _)| *directory).collect();
        if kept.len() <= KEPT_MAX {
            return;
        }
        let mut all = Directory::default();
        for directory in kept {
            let Some(untold) = self.directories.get_mut(&directory) else { continue };
            all.change = all.change.max(untold.change);
            all.kept_until = all.kept_until.max(untold.kept_until.take());
            // Its names that wait are among all, for longer than a kernel may keep what was before them.
            self.end(directory, false);
        }
        self.directories.insert(ALL, all);
    }

    fn begin_telling(&mut self, directory: u64, number: u64) {
        if let Some(untold) = self.directories.get_mut(&directory) {
            untold.tellings.push(number);
        }
    }

    /// Unless names of `directory` still wait: those that were queued have been told.
    fn end(&mut self, directory: u64, waits: bool) {
        let Entry::Occupied(mut untold) = self.directories.entry(directory) else { return };
        if waits || untold.get().kept_until.is_some() {
            return;
        }
        self.len -= match untold.get().tellings.iter().min().copied() {
            Some(oldest) => untold.get_mut().end_before(oldest),
            None => untold.remove().names.map_or(0, |names| names.len()),
        };
    }
}

impl UntoldNames {
    pub(crate) fn new(clock: Arc<dyn Clock>) -> Self {
        Self {
            hasher: RandomState::new(),
            clock,
            state: Mutex::default(),
            len: AtomicUsize::new(0),
            next: AtomicU64::new(0),
        }
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock();
        let changed = change(&mut state);
        self.len.store(state.directories.len(), Ordering::SeqCst);
        changed
    }

    fn hash(&self, directory: u64, name: &[u8]) -> u64 {
        self.hasher.hash_one((directory, name))
    }

    /// What an operation of process `pid` that changes `names` is called from one try to the next.
    pub(super) fn operation<'n>(&self, pid: u32, names: impl Iterator<Item = (u64, &'n [u8])>) -> u64 {
        let mut hasher = self.hasher.build_hasher();
        pid.hash(&mut hasher);
        names.for_each(|name| name.hash(&mut hasher));
        hasher.finish()
    }

    fn next_number(&self) -> u64 {
        self.next.fetch_add(1, Ordering::SeqCst)
    }

    /// From now on the names in `changes` are untold. Before the locks of the commit go.
    pub(crate) fn begin(self: &Arc<Self>, changes: &Invalidations) -> Telling {
        let names = changes.entries.iter().chain(&changes.moved);
        let mut telling = self.begin_names(names.map(|(directory, name)| (*directory, &**name)));
        if let Some(many) = &changes.many {
            telling.add_all(many.directories());
        }
        telling
    }

    fn begin_names<'n>(self: &Arc<Self>, names: impl Iterator<Item = (NodeId, &'n [u8])>) -> Telling {
        let number = self.next_number();
        let mut telling = Telling { untold: Arc::clone(self), number, directories: HashSet::new() };
        telling.add(number, names);
        telling
    }

    /// Whether the kernel may know of this name what was before.
    pub(crate) fn has(&self, directory: u64, name: &[u8]) -> bool {
        if self.len.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let name = self.hash(directory, name);
        let State { directories, looked_up, .. } = &*self.state.lock();
        let mut untold = [directory, ALL].into_iter().filter_map(|directory| directories.get(&directory));
        untold.any(|untold| untold.has(name, looked_up))
    }

    /// Before the kernel's look for a name begins. What it finds is to be told to [`Self::end_lookup`].
    pub(crate) fn begin_lookup(&self) -> Option<u64> {
        (self.len.load(Ordering::SeqCst) > 0).then(|| self.next.load(Ordering::SeqCst))
    }

    /// The kernel is answered what a name is, by a look that began before the change `next` and those behind
    /// it.
    pub(crate) fn end_lookup(&self, next: u64, directory: NodeId, name: &[u8]) {
        let name = self.hash(directory.0, name);
        let State { directories, len, looked_up, .. } = &mut *self.state.lock();
        let are_all_untold =
            |directory| directories.get(&directory).is_some_and(|untold| untold.names.is_none());
        if are_all_untold(directory.0) || are_all_untold(ALL) {
            if looked_up[0].len() >= LOOKED_UP_MAX {
                looked_up[1] = std::mem::take(&mut looked_up[0]);
            }
            looked_up[0].insert(name, next);
        }
        if let Some(names) = directories.get_mut(&directory.0).and_then(|untold| untold.names.as_mut())
            && let Entry::Occupied(known) = names.entry(name)
            && *known.get() < next
        {
            known.remove();
            *len -= 1;
        }
    }

    /// The kernel has been told all names of `directory` that were queued. The caller keeps others from
    /// being queued meanwhile.
    pub fn told(&self, directory: u64) {
        self.change(|state| state.end(directory, false));
    }

    /// The kernel is not told the names of these directories that wait: all of theirs are untold until what
    /// is returned has ended.
    pub fn give_up(self: &Arc<Self>, mut directories: Vec<u64>) -> Telling {
        let number = self.next_number();
        self.change(|state| {
            directories.retain(|directory| state.add_all(*directory));
            for directory in &directories {
                state.begin_telling(*directory, number);
            }
        });
        Telling { untold: Arc::clone(self), number, directories: directories.into_iter().collect() }
    }

    /// Ends what was kept for long enough ([`Telling::keep`]). `waits`: see [`Telling::end`].
    pub fn expire(&self, waits: impl Fn(u64) -> bool) {
        let now = self.clock.monotonic();
        self.change(|state| {
            if state.expires.is_none_or(|expires| expires > now) {
                return;
            }
            let mut expired = Vec::new();
            for (directory, untold) in &mut state.directories {
                if untold.kept_until.take_if(|until| *until <= now).is_some() {
                    expired.push(*directory);
                }
            }
            state.expires = state.directories.values().filter_map(|untold| untold.kept_until).min();
            for directory in expired {
                state.end(directory, waits(directory));
            }
        });
    }

    /// The kernel forgets all: its connection has ended.
    pub fn forget_all(&self) {
        self.change(|state| {
            let directories: Vec<u64> = state.directories.keys().copied().collect();
            for directory in directories {
                state.directories.entry(directory).and_modify(|untold| untold.kept_until = None);
                state.end(directory, false);
            }
        });
    }
}

impl Telling {
    /// Names of the change `number` are untold, too.
    fn add<'n>(&mut self, number: u64, names: impl Iterator<Item = (NodeId, &'n [u8])>) {
        let untold = Arc::clone(&self.untold);
        let hashed = |(directory, name): (NodeId, &[u8])| (directory.0, untold.hash(directory.0, name));
        let mut names = names.map(hashed).peekable();
        while names.peek().is_some() {
            let part: Vec<HashedName> = names.by_ref().take(PART_LEN).collect();
            untold.change(|state| {
                for name in part {
                    state.add(name, number);
                    if self.directories.insert(name.0) {
                        state.begin_telling(name.0, self.number);
                    }
                }
                state.bound();
            });
        }
    }

    /// All names of these are untold, too.
    fn add_all(&mut self, directories: impl Iterator<Item = NodeId>) {
        let untold = Arc::clone(&self.untold);
        untold.change(|state| {
            for NodeId(directory) in directories {
                let all = state.directories.entry(directory).or_default();
                all.change = all.change.max(self.number);
                state.add_all(directory);
                if self.directories.insert(directory) {
                    state.begin_telling(directory, self.number);
                }
            }
        });
    }

    /// The names were queued. `waits`: whether some of a directory still are, or are being told;
    /// [`UntoldNames::told`] ends these. The caller keeps that from changing meanwhile.
    pub fn end(mut self, waits: impl Fn(u64) -> bool) {
        self.take_end(waits, None);
    }

    /// The kernel was not told, and may never be: the names are untold for as long as a kernel may keep one,
    /// but for those that it looks up.
    pub fn keep(mut self) {
        let until = self.untold.clock.monotonic().saturating_add(NAME_LIFE_MAX);
        self.take_end(|_| true, Some(until));
    }

    fn take_end(&mut self, waits: impl Fn(u64) -> bool, kept_until: Option<Duration>) {
        let directories = std::mem::take(&mut self.directories);
        if directories.is_empty() {
            return;
        }
        self.untold.change(|state| {
            for directory in directories {
                let Some(untold) = state.directories.get_mut(&directory) else { continue };
                untold.tellings.retain(|number| *number != self.number);
                untold.kept_until = untold.kept_until.max(kept_until);
                state.end(directory, waits(directory));
            }
            state.expires = state.expires.or(kept_until);
            if kept_until.is_some() {
                state.bound_kept();
            }
        });
    }
}

impl Drop for Telling {
    fn drop(&mut self) {
        self.take_end(|_| false, None);
    }
}

impl std::fmt::Debug for UntoldNames {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let directories = self.len.load(Ordering::SeqCst);
        f.debug_struct("UntoldNames").field("directories", &directories).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for Telling {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let directories = self.directories.len();
        f.debug_struct("Telling").field("directories", &directories).finish_non_exhaustive()
    }
}
