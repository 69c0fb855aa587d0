//! Notifications that wait to be sent, by the lock of the kernel that sending one waits for.
//!
//! Any process can make such a wait endless: one that lists a directory and copies the names to memory that
//! never comes (a page of a file system that does not answer) keeps the directory's lock until it is killed.
//! So two notifications that wait for the same lock are sent one after the other, and no other one waits
//! behind them.
//!
//! Thread safety: plain data. Invariants: at most one notification per lock is being sent; equal ones wait
//! as one, so there are never more than the kernel has names and nodes to be told of; with one sender the
//! order is that in which they came.

use std::collections::hash_map::{Entry, HashMap};
use std::collections::{HashSet, VecDeque};

use super::pending::{Kept, Looks};
use super::{Message, Notification, Outcome};

pub(super) type Done = Box<dyn FnOnce(Outcome) + Send>;

/// What waits for one notification.
#[derive(Default)]
struct Waiting {
    callbacks: Vec<Done>,
    kept: Option<Kept>,
}

impl Waiting {
    /// All that is to be called. What is kept goes first: before a caller that waits looks.
    fn into_callbacks(self) -> impl Iterator<Item = Done> {
        let dropped = self.kept.map(|kept| Box::new(move |_| drop(kept)) as Done);
        dropped.into_iter().chain(self.callbacks)
    }
}

/// Threads that send at once.
pub(super) const SENDERS_MAX: usize = 64;
/// Locks of a kind that they may wait for. Each user can hold those of every directory that is readable; what
/// waits for nothing always finds a sender.
const LOCKS_MAX: usize = SENDERS_MAX / 2 - 1;

/// What sending a notification waits for inside the kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum KernelLock {
    /// The lock of a directory.
    Directory(u64),
    /// Those of the pages of a node. A listing that the kernel has kept is a page, too.
    Pages(u64),
    /// Nothing.
    Nothing,
}

impl KernelLock {
    /// Number of its kind, of those that a process can hold.
    fn kind(self) -> Option<usize> {
        match self {
            Self::Directory(_) => Some(0),
            Self::Pages(_) => Some(1),
            Self::Nothing => None,
        }
    }
}

/// Of one lock.
struct Sending {
    /// How many had been begun before.
    number: u64,
    /// The notification has been waited for long enough.
    is_stalled: bool,
    /// Those that come after it.
    behind: VecDeque<Notification>,
}

#[derive(Default)]
pub(super) struct Queue {
    waiting: VecDeque<Notification>,
    /// Those that came when the senders waited for as many locks of their kind as they may.
    beyond: [VecDeque<Notification>; 2],
    sending: HashMap<KernelLock, Sending>,
    /// All that wait, and what waits for each.
    callbacks: HashMap<Notification, Waiting>,
    /// How many names of each directory wait. One counts as often as callers wait for it, since it may change
    /// as often as a caller likes.
    names: HashMap<u64, usize>,
    begun: u64,
    /// Of the thread that looks from time to time.
    pub(super) looks: Looks,
    pub(super) senders: usize,
    /// Senders that have nothing to do.
    pub(super) idle: usize,
    pub(super) has_ended: bool,
}

impl Queue {
    pub(super) fn len(&self) -> usize {
        self.callbacks.len()
    }

    /// Whether another sender would have something to do.
    pub(super) fn has_more(&self) -> bool {
        !self.waiting.is_empty() || (0..2).any(|kind| !self.beyond[kind].is_empty() && !self.is_full(kind))
    }

    /// How many have been begun to be sent.
    pub(super) fn begun(&self) -> u64 {
        self.begun
    }

    pub(super) fn push(&mut self, message: impl Into<Message>, done: Option<Done>) {
        let Message { notification, kept } = message.into();
        let lock = notification.kernel_lock();
        let more = match self.callbacks.entry(notification) {
            Entry::Occupied(same) => {
                let Waiting { callbacks, kept: kept_before } = same.into_mut();
                if let Some(mut kept) = kept {
                    if let Some(before) = kept_before.take() {
                        kept.take_over(before);
                    }
                    *kept_before = Some(kept);
                }
                let before = callbacks.len().max(1);
                callbacks.extend(done);
                callbacks.len().max(1) - before
            }
            Entry::Vacant(place) => {
                self.waiting.push_back(place.key().clone());
                place.insert(Waiting { callbacks: done.into_iter().collect(), kept });
                1
            }
        };
        if let KernelLock::Directory(directory) = lock {
            *self.names.entry(directory).or_default() += more;
        }
    }

    /// One that waited for `lock` was carried out. The next of those, which its sender has to send, too.
    pub(super) fn release(&mut self, lock: KernelLock) -> Option<(Notification, Vec<Done>)> {
        let mut behind = self.sending.remove(&lock)?.behind;
        let next = behind.pop_front()?;
        Some(self.begin(next, lock, behind))
    }

    /// The next one to be sent.
    pub(super) fn next(&mut self) -> Option<(Notification, Vec<Done>)> {
        for kind in 0..2 {
            while !self.beyond[kind].is_empty() && !self.is_full(kind) {
                let next = self.beyond[kind].pop_front().and_then(|next| self.begin_if_free(next));
                if next.is_some() {
                    return next;
                }
            }
        }
        while let Some(next) = self.waiting.pop_front() {
            let lock = next.kernel_lock();
            let full = lock.kind().filter(|kind| self.is_full(*kind) && !self.sending.contains_key(&lock));
            if let Some(kind) = full {
                self.beyond[kind].push_back(next);
                continue;
            }
            let next = self.begin_if_free(next);
            if next.is_some() {
                return next;
            }
        }
        None
    }

    fn begin_if_free(&mut self, next: Notification) -> Option<(Notification, Vec<Done>)> {
        let lock = next.kernel_lock();
        if let Some(sending) = self.sending.get_mut(&lock) {
            sending.behind.push_back(next);
            return None;
        }
        Some(self.begin(next, lock, VecDeque::new()))
    }

    fn begin(
        &mut self,
        next: Notification,
        lock: KernelLock,
        behind: VecDeque<Notification>,
    ) -> (Notification, Vec<Done>) {
        self.sending.insert(lock, Sending { number: self.begun, is_stalled: false, behind });
        self.begun += 1;
        let waiting = self.callbacks.remove(&next).unwrap_or_default();
        if let KernelLock::Directory(directory) = lock
            && let Entry::Occupied(mut names) = self.names.entry(directory)
        {
            *names.get_mut() -= waiting.callbacks.len().max(1);
            if *names.get() == 0 {
                names.remove();
            }
        }
        (next, waiting.into_callbacks().collect())
    }

    /// Whether the senders wait for as many locks of this kind as they may.
    fn is_full(&self, kind: usize) -> bool {
        self.sending.len() >= LOCKS_MAX
            && self.sending.keys().filter(|lock| lock.kind() == Some(kind)).count() >= LOCKS_MAX
    }

    /// Those that were begun among the first `number` and are still being sent: no caller waits any more for
    /// what comes behind them. Returns what did, to be called with [`Outcome::Late`]; what is to be sent
    /// stays.
    pub(super) fn give_up_on(&mut self, number: u64) -> Vec<Done> {
        let mut has_new = false;
        for sending in self.sending.values_mut().filter(|sending| sending.number < number) {
            has_new |= !std::mem::replace(&mut sending.is_stalled, true);
        }
        if has_new { self.take_stalled() } else { Vec::new() }
    }

    /// Takes out what waits for notifications that wait behind others for which no caller waits any more.
    fn take_stalled(&mut self) -> Vec<Done> {
        let held_up = [0, 1].map(|kind| self.is_held_up(kind));
        let Self { callbacks, sending, names, .. } = self;
        let is_stalled = |lock: KernelLock| {
            lock.kind().is_some_and(|kind| held_up[kind])
                || sending.get(&lock).is_some_and(|sending| sending.is_stalled)
        };
        let mut taken = Vec::new();
        for (notification, waiting) in callbacks {
            let lock = notification.kernel_lock();
            if !is_stalled(lock) {
                continue;
            }
            if let KernelLock::Directory(directory) = lock
                && let Some(count) = names.get_mut(&directory)
            {
                *count -= waiting.callbacks.len().max(1) - 1;
            }
            taken.append(&mut waiting.callbacks);
        }
        taken
    }

    /// Whether one that waits for `lock` would wait behind others for which no caller waits any more.
    pub(super) fn is_stalled(&self, lock: KernelLock) -> bool {
        if self.sending.get(&lock).is_some_and(|sending| sending.is_stalled) {
            return true;
        }
        lock.kind().is_some_and(|kind| self.is_held_up(kind))
    }

    /// Whether the senders wait for as many locks of this kind as they may, and no caller for any of those.
    fn is_held_up(&self, kind: usize) -> bool {
        let mut sending = self.sending.iter();
        self.is_full(kind) && sending.all(|(lock, sending)| sending.is_stalled || lock.kind() != Some(kind))
    }

    /// The directories of which names wait behind others for which no caller waits any more.
    fn stalled_directories(&self) -> HashSet<u64> {
        if self.is_held_up(0) {
            return self.names.keys().copied().collect();
        }
        let stalled = self.sending.iter().filter(|(_, sending)| sending.is_stalled);
        let directories = stalled.filter_map(|(lock, _)| match lock {
            KernelLock::Directory(directory) => Some(*directory),
            _ => None,
        });
        directories.filter(|directory| self.names.contains_key(directory)).collect()
    }

    /// Whether callers wait for what waits for `lock`.
    pub(super) fn is_awaited(&self, lock: KernelLock) -> bool {
        !self.is_stalled(lock)
    }

    pub(super) fn has_stalled(&self) -> bool {
        self.sending.values().any(|sending| sending.is_stalled)
    }

    /// Whether names of `directory` are still to be carried out, or are being.
    pub(super) fn has_names(&self, directory: u64) -> bool {
        let is_being_told = || self.sending.contains_key(&KernelLock::Directory(directory));
        !self.has_ended && (self.names.contains_key(&directory) || is_being_told())
    }

    /// Where more than `count_max` names wait behind others for which no caller waits any more: takes these
    /// out. Returns their directories, and what waits for them.
    pub(super) fn take_stalled_names(&mut self, count_max: usize) -> Option<(Vec<u64>, Vec<Done>)> {
        let stalled = self.stalled_directories();
        if stalled.iter().map(|directory| self.names[directory]).sum::<usize>() <= count_max {
            return None;
        }
        let is_taken = |one: &Notification| match one.kernel_lock() {
            KernelLock::Directory(directory) => stalled.contains(&directory),
            _ => false,
        };
        self.waiting.retain(|one| !is_taken(one));
        self.beyond[0].retain(|one| !is_taken(one));
        for directory in &stalled {
            self.names.remove(directory);
            if let Some(sending) = self.sending.get_mut(&KernelLock::Directory(*directory)) {
                sending.behind.clear();
            }
        }
        let taken = self.callbacks.extract_if(|one, _| is_taken(one));
        let callbacks = taken.flat_map(|(_, waiting)| waiting.into_callbacks()).collect();
        Some((stalled.into_iter().collect(), callbacks))
    }

    /// Takes out all that wait. Returns what waits for them.
    pub(super) fn take_all(&mut self) -> Vec<Done> {
        self.waiting.clear();
        self.beyond.iter_mut().for_each(VecDeque::clear);
        self.sending.values_mut().for_each(|sending| sending.behind.clear());
        self.names.clear();
        self.callbacks.drain().flat_map(|(_, waiting)| waiting.into_callbacks()).collect()
    }
}
