//! Advisory locks: of whole files by open file (`flock`), of ranges by process or open file (`fcntl`).
//!
//! Thread safety: one lock for all tables; each wait sleeps on a condition of its own, and is called when the
//! owner that it waits for changes what is in its way, not by other changes. Invariants: two locks of
//! different owners that overlap are both shared; of one owner no two ranges overlap or touch with the same
//! kind; an owner that is bounded has as many as its user's share was taken for. What is refused has changed
//! nothing.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kvfs_fs::Waits;
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_socket::Share;
use rustix::io::Errno;

use crate::bounds::Bounds;
use crate::error::{Result, refuse};

/// Who has a lock, or waits for one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockOwner {
    /// All descriptors of a process together.
    Process(u64),
    /// An open file, whichever process uses it.
    File(u64),
}

/// A lock of a range of bytes, or the wish for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RangeLock {
    /// From, to; `u64::MAX`: as far as the file may ever grow.
    pub range: Range<u64>,
    /// No other has any lock there meanwhile.
    pub is_exclusive: bool,
}

impl RangeLock {
    fn meets(&self, other: &Self) -> bool {
        self.range.start < other.range.end
            && other.range.start < self.range.end
            && (self.is_exclusive || other.is_exclusive)
    }
}

/// Whether a lock that another one has is waited for.
pub(crate) enum Patience<'p> {
    None,
    /// Until these are over.
    Until(&'p Waits),
}

/// Ranges and whole files are locked independently of each other, as on Linux.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum LockSpace {
    Whole,
    Ranges,
}

type Place = (u64, LockSpace);

type Locks = Vec<(LockOwner, RangeLock)>;

#[derive(Debug, Default)]
struct Tables {
    held: HashMap<Place, Locks>,
    /// Of owners that are bounded: one for each of their locks.
    shares: HashMap<LockOwner, Share>,
    waiting: Vec<Waiting>,
    next_wait: u64,
}

/// A wait for a lock.
#[derive(Debug)]
struct Waiting {
    id: u64,
    owner: LockOwner,
    place: Place,
    wish: RangeLock,
    /// One that is in the way: until it changes that, there is nothing new to be found.
    behind: LockOwner,
    is_called: bool,
    changed: Arc<Condvar>,
}

/// The locks of a file system.
#[derive(Debug, Default)]
pub(crate) struct LockTable {
    tables: Mutex<Tables, class::PosixLocksTables>,
}

impl LockTable {
    /// Takes `lock` for `owner` in place of what it has there; waits for others as `patience` says.
    ///
    /// # Errors
    /// EAGAIN: another one has it; EDEADLK: it waits for this owner; EINTR: the wait was ended; ENOLCK: the
    /// user has too many.
    pub(crate) fn lock(
        &self,
        owner: LockOwner,
        place: Place,
        lock: &RangeLock,
        patience: &Patience<'_>,
        bounds: Option<&Bounds>,
    ) -> Result<()> {
        let mut tables = self.tables.lock();
        if place.1 == LockSpace::Whole {
            // A lock that is converted is given up first.
            tables.release_all(owner, place);
        }
        while let Some(behind) = tables.blocker(owner, place, lock) {
            let Patience::Until(waits) = patience else {
                return refuse(Errno::AGAIN, "another one has locked it");
            };
            if waits.are_over() {
                return refuse(Errno::INTR, "the process ends");
            }
            if tables.is_deadlock(owner, place, lock) {
                return refuse(Errno::DEADLK, "the one who has locked it waits for this one");
            }
            let (id, changed) = tables.begin_wait(owner, place, lock, behind);
            while !tables.is_called(id) && !waits.are_over() {
                changed.wait(&mut tables);
            }
            tables.waiting.retain(|waiting| waiting.id != id);
        }
        // A shared lock in the place of an exclusive one lets others in.
        tables.change(owner, place, &lock.range, Some(lock), bounds)
    }

    /// Waits that were told to end find out.
    pub(crate) fn look_again(&self) {
        // A thread that has looked at its flag and does not sleep yet has the lock.
        for waiting in &self.tables.lock().waiting {
            waiting.changed.notify_all();
        }
    }

    /// Gives up what `owner` has in `range`.
    ///
    /// # Errors
    /// ENOLCK: it would have more than before, on both sides of the range, and the user has too many.
    pub(crate) fn unlock(&self, owner: LockOwner, place: Place, range: &Range<u64>) -> Result<()> {
        self.tables.lock().change(owner, place, range, None, None)
    }

    /// Gives up all that `owner` has there.
    pub(crate) fn unlock_all(&self, owner: LockOwner, place: Place) {
        self.tables.lock().release_all(owner, place);
    }

    /// Whether `owner` has some there.
    pub(crate) fn has(&self, owner: LockOwner, place: Place) -> bool {
        self.tables.lock().held.get(&place).is_some_and(|held| held.iter().any(|(who, _)| *who == owner))
    }

    /// A lock that is in the way of `lock`, and whose.
    pub(crate) fn find(
        &self,
        owner: LockOwner,
        place: Place,
        lock: &RangeLock,
    ) -> Option<(LockOwner, RangeLock)> {
        self.tables.lock().in_the_way(owner, place, lock).next().cloned()
    }
}

impl Tables {
    fn in_the_way(
        &self,
        owner: LockOwner,
        place: Place,
        lock: &RangeLock,
    ) -> impl Iterator<Item = &(LockOwner, RangeLock)> {
        let held = self.held.get(&place).into_iter().flatten();
        held.filter(move |(who, held)| *who != owner && held.meets(lock))
    }

    /// An owner that is in the way.
    fn blocker(&self, owner: LockOwner, place: Place, lock: &RangeLock) -> Option<LockOwner> {
        self.in_the_way(owner, place, lock).next().map(|(who, _)| *who)
    }

    /// Begins a wait of `owner` behind another one; returns its number, and where it sleeps until it is
    /// called.
    fn begin_wait(
        &mut self,
        owner: LockOwner,
        place: Place,
        wish: &RangeLock,
        behind: LockOwner,
    ) -> (u64, Arc<Condvar>) {
        self.next_wait += 1;
        let (id, changed, wish) = (self.next_wait, Arc::<Condvar>::default(), wish.clone());
        let told = Arc::clone(&changed);
        self.waiting.push(Waiting { id, owner, place, wish, behind, is_called: false, changed: told });
        (id, changed)
    }

    fn is_called(&self, id: u64) -> bool {
        self.waiting.iter().any(|waiting| waiting.id == id && waiting.is_called)
    }

    /// `owner` has changed its locks in `range`: those that wait for it there look again.
    fn call(&mut self, owner: LockOwner, place: Place, range: &Range<u64>) {
        for waiting in &mut self.waiting {
            let wish = &waiting.wish.range;
            let meets = wish.start < range.end && range.start < wish.end;
            if meets && waiting.behind == owner && waiting.place == place {
                waiting.is_called = true;
                waiting.changed.notify_all();
            }
        }
    }

    /// Whether one in the way waits, perhaps by way of others, for `owner`. Waits of open files are none:
    /// another thread may release their locks.
    fn is_deadlock(&self, owner: LockOwner, place: Place, lock: &RangeLock) -> bool {
        let is_of_process = |owner: LockOwner| matches!(owner, LockOwner::Process(_));
        if !is_of_process(owner) {
            return false;
        }
        let mut seen: HashSet<LockOwner> = self.in_the_way(owner, place, lock).map(|(who, _)| *who).collect();
        let mut open: Vec<LockOwner> = seen.iter().copied().collect();
        while let Some(one) = open.pop() {
            if one == owner {
                return true;
            }
            let waits = self.waiting.iter().filter(|waiting| waiting.owner == one && is_of_process(one));
            for Waiting { place, wish, .. } in waits {
                let next = self.in_the_way(one, *place, wish).map(|(who, _)| *who);
                open.extend(next.filter(|who| seen.insert(*who)));
            }
        }
        false
    }

    /// `owner` gives up what it has in `range`, for `wish` if there is one. What comes more is counted.
    fn change(
        &mut self,
        owner: LockOwner,
        place: Place,
        range: &Range<u64>,
        wish: Option<&RangeLock>,
        bounds: Option<&Bounds>,
    ) -> Result<()> {
        let held = self.held.get(&place).map(Vec::as_slice).unwrap_or_default();
        let count = held.len();
        let mut left = without(held, owner, range);
        if let Some(lock) = wish {
            join(&mut left, owner, lock);
        }
        if left.len() > count {
            self.take(owner, left.len() - count, bounds)?;
        } else {
            self.give_back(owner, count - left.len());
        }
        if left.is_empty() {
            self.held.remove(&place);
        } else {
            self.held.insert(place, left);
        }
        self.call(owner, place, range);
        Ok(())
    }

    fn release_all(&mut self, owner: LockOwner, place: Place) {
        let Some(held) = self.held.get_mut(&place) else { return };
        let count = held.len();
        held.retain(|(who, _)| *who != owner);
        let released = count - held.len();
        if held.is_empty() {
            self.held.remove(&place);
        }
        self.give_back(owner, released);
        if released > 0 {
            self.call(owner, place, &(0..u64::MAX));
        }
    }

    fn take(&mut self, owner: LockOwner, count: usize, bounds: Option<&Bounds>) -> Result<()> {
        let known = self.shares.remove(&owner).or_else(|| bounds.and_then(Bounds::locks));
        let Some(mut share) = known else { return Ok(()) };
        let is_taken = share.grow(count);
        if share.amount() > 0 {
            self.shares.insert(owner, share);
        }
        if is_taken { Ok(()) } else { refuse(Errno::NOLCK, "too many locks of the user") }
    }

    fn give_back(&mut self, owner: LockOwner, count: usize) {
        if let Some(share) = self.shares.get_mut(&owner) {
            share.shrink(count);
            if share.amount() == 0 {
                self.shares.remove(&owner);
            }
        }
    }
}

/// What is held without what `owner` has in `range`.
fn without(held: &[(LockOwner, RangeLock)], owner: LockOwner, range: &Range<u64>) -> Locks {
    let mut left = Vec::with_capacity(held.len() + 1);
    for (who, lock) in held {
        if *who != owner || lock.range.end <= range.start || range.end <= lock.range.start {
            left.push((*who, lock.clone()));
            continue;
        }
        for part in [lock.range.start..range.start, range.end..lock.range.end] {
            if part.start < part.end {
                left.push((*who, RangeLock { range: part, ..lock.clone() }));
            }
        }
    }
    left
}

/// Adds a lock, as one with those of the same kind that it touches.
fn join(held: &mut Locks, owner: LockOwner, lock: &RangeLock) {
    let mut range = lock.range.clone();
    held.retain(|(who, other)| {
        let joins = *who == owner
            && other.is_exclusive == lock.is_exclusive
            && other.range.start <= range.end
            && range.start <= other.range.end;
        if joins {
            range = range.start.min(other.range.start)..range.end.max(other.range.end);
        }
        !joins
    });
    held.push((owner, RangeLock { range, ..lock.clone() }));
}

#[cfg(test)]
mod tests;
