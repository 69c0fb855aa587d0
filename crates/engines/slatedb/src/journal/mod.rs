//! The journal on a local disk: batches are durable there before object storage has them.
//!
//! Purpose: a sync costs one write to a disk instead of one to object storage. The promise: what was synced
//! outlives the process and a loss of power, and is in the store again when this machine opens it; who reads
//! the store elsewhere sees it when object storage has it, which is within the commit interval while that
//! answers. If another machine takes the store over before that, it is not there; the journal is then
//! refused, and never applied to what others have written since (`opening.rs`).
//!
//! Batches wait in memory until a sync, or what they take, asks for a write; those that object storage gets
//! meanwhile are never written. One thread writes for all that wait. A journal that has failed to write is
//! used no more: from then on a sync waits for object storage.
//!
//! Thread safety: shared; one short lock, which is not held while the disk is written. Invariants: records
//! stand in the order of batches, without a gap but of what object storage has; a file goes when object
//! storage has all of it.

mod files;
mod opening;
mod record;

use std::collections::VecDeque;
use std::io;
use std::path::{Path, PathBuf};

use kvfs_locks::{Condvar, Mutex, class};

use files::{Finished, Set, Writer};

pub(crate) use opening::{OpenJournal, begin, end, expect_applied, expect_here, find};
pub(crate) use record::Record;

/// Where it lies, and whether one is written.
#[derive(Debug, Clone)]
pub struct JournalOptions {
    /// A directory, which is made if it is not there; what an earlier opening has left in it is brought into
    /// the store in any case.
    pub dir: PathBuf,
    /// Syncs wait for the local disk alone.
    pub is_written: bool,
}

struct State {
    /// Not written yet.
    queue: VecDeque<Record>,
    queue_bytes: u64,
    /// `None`: a thread writes with it.
    writer: Option<Writer>,
    /// The lowest sequence number that is written, or being written, and not synced.
    unsynced: Option<u64>,
    /// Everything up to this sequence number is in object storage.
    stored: u64,
    finished: VecDeque<Finished>,
    /// Sequence number of the last record, or of what the store had before.
    last: u64,
    /// Of the file that is appended to.
    file_bytes: u64,
    has_failed: bool,
    syncs: u64,
}

impl State {
    /// Whether nothing up to this sequence number is in memory alone.
    fn is_durable(&self, sequence: u64) -> bool {
        let is_behind = |first: Option<u64>| first.is_none_or(|first| first > sequence);
        self.stored >= sequence
            || is_behind(self.unsynced) && is_behind(self.queue.front().map(|record| record.sequence))
    }
}

/// What a write is for.
#[derive(Clone, Copy)]
enum Purpose {
    /// Everything up to this sequence number is to be durable.
    Sync(u64),
    /// Less is to be in memory.
    Room,
}

/// See the module.
pub(crate) struct Journal {
    dir: PathBuf,
    opening: u64,
    /// That may wait in memory (bytes).
    queue_bytes_max: u64,
    state: Mutex<State, class::EngineSlatedbJournal>,
    /// The writer is back, or more is in object storage.
    changed: Condvar,
}

impl Journal {
    /// Behind what the store has up to the sequence number `last`.
    fn new(dir: &Path, writer: Writer, last: u64, queue_bytes_max: u64) -> Self {
        let opening = writer.opening();
        let state = State {
            queue: VecDeque::new(),
            queue_bytes: 0,
            file_bytes: writer.bytes(),
            writer: Some(writer),
            unsynced: None,
            stored: 0,
            last,
            finished: VecDeque::new(),
            has_failed: false,
            syncs: 0,
        };
        Self {
            dir: dir.to_owned(),
            opening,
            queue_bytes_max,
            state: Mutex::new(state),
            changed: Condvar::default(),
        }
    }

    /// For messages.
    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    /// Removes its files, all of which object storage has.
    fn remove(&self) {
        // What stays is found at the next opening.
        let sets = Set::find(&self.dir).unwrap_or_default();
        sets.iter().filter(|set| set.opening == self.opening).for_each(Set::remove);
    }

    /// A batch is about to be committed. The caller holds the order lock.
    pub(crate) fn append(&self, mut record: Record) {
        let mut state = self.state.lock();
        record.previous = std::mem::replace(&mut state.last, record.sequence);
        if !state.has_failed {
            state.queue_bytes += record.bytes() as u64;
            state.queue.push_back(record);
        }
    }

    /// The batch was not committed, and the store has failed. The caller still holds the order lock.
    pub(crate) fn take_back(&self, sequence: u64) {
        let mut state = self.state.lock();
        state.queue.pop_back_if(|record| record.sequence == sequence);
        state.has_failed = true;
    }

    /// Syncs wait for object storage.
    pub(crate) fn has_failed(&self) -> bool {
        self.state.lock().has_failed
    }

    /// Returns when everything up to this sequence number is durable here or in object storage; false: this
    /// can't be told, the journal has failed.
    pub(crate) fn sync(&self, sequence: u64) -> bool {
        self.write(Purpose::Sync(sequence))
    }

    /// Returns when there is room for more in memory.
    pub(crate) fn make_room(&self) {
        self.write(Purpose::Room);
    }

    fn write(&self, purpose: Purpose) -> bool {
        let mut state = self.state.lock();
        loop {
            let is_met = match purpose {
                Purpose::Sync(sequence) => state.is_durable(sequence),
                Purpose::Room => state.queue_bytes <= self.queue_bytes_max,
            };
            if is_met || state.has_failed {
                return is_met;
            }
            let Some(mut writer) = state.writer.take() else {
                self.changed.wait(&mut state);
                continue;
            };
            let records = std::mem::take(&mut state.queue);
            state.queue_bytes = 0;
            state.unsynced = state.unsynced.or(records.front().map(|record| record.sequence));
            drop(state);
            let is_sync = matches!(purpose, Purpose::Sync(_));
            let written = writer.append(records, is_sync);
            state = self.state.lock();
            state.file_bytes = writer.bytes();
            state.writer = Some(writer);
            match written {
                Ok(finished) => {
                    state.finished.extend(finished);
                    if is_sync {
                        state.unsynced = None;
                        state.syncs += 1;
                    }
                }
                Err(error) => self.fail(&mut state, &error),
            }
            self.changed.notify_all();
        }
    }

    fn fail(&self, state: &mut State, error: &io::Error) {
        tracing::error!(
            dir = %self.dir.display(), %error,
            "the journal on the local disk can't be written: until the next mount a sync waits for object storage"
        );
        state.has_failed = true;
        (state.queue, state.queue_bytes) = (VecDeque::new(), 0);
    }

    /// Everything up to this sequence number is in object storage.
    pub(crate) fn stored(&self, sequence: u64) {
        let mut gone = Vec::new();
        {
            let mut state = self.state.lock();
            state.stored = sequence;
            while state.queue.front().is_some_and(|record| record.sequence <= sequence)
                && let Some(record) = state.queue.pop_front()
            {
                state.queue_bytes -= record.bytes() as u64;
            }
            // What a failed one holds is there for the next opening, as far as it goes.
            while state.finished.front().is_some_and(|finished| finished.last <= sequence) {
                gone.extend(state.finished.pop_front());
            }
            self.changed.notify_all();
        }
        for finished in gone {
            files::remove(&finished.path);
        }
    }

    /// Figures: of its files (bytes), and how often it was synced.
    pub(crate) fn figures(&self) -> (u64, u64) {
        let state = self.state.lock();
        let finished: u64 = state.finished.iter().map(|finished| finished.bytes).sum();
        (finished + state.file_bytes, state.syncs)
    }
}

#[cfg(test)]
mod tests;
