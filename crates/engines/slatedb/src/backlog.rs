//! What was written and is in memory alone: writers are let in while it is within its bound.
//!
//! Purpose: `SlateDB` holds writers up in the middle of a write, where one that gives up does not know
//! whether it has written. Here it waits before that. The bound is as `SlateDB` counts, about: what is in no
//! table, and what is not durable once more, since the log has a copy.
//!
//! Thread safety: one short lock. Invariant: a batch counts until the tables, and the log, have it, and at
//! most 64 KiB of its neighbours.

use std::collections::VecDeque;

use kvfs_locks::{Mutex, class};

/// Batches are counted together until they come to so much (bytes).
const GROUP_BYTES: u64 = 64 << 10;

/// What an entry takes beside key and value (bytes).
const ENTRY_BYTES: u64 = 32;

/// Batches that were counted together.
struct Group {
    /// Of the last one.
    sequence: u64,
    /// Of all batches up to this one (bytes).
    end: u64,
}

#[derive(Default)]
struct Written {
    groups: VecDeque<Group>,
    /// Up to the group before the first one, and of all (bytes).
    begin: u64,
    end: u64,
}

/// See the module.
pub(crate) struct Backlog {
    bytes_max: u64,
    written: Mutex<Written, class::EngineSlatedbBacklog>,
}

impl Backlog {
    pub(crate) fn new(bytes_max: u64) -> Self {
        Self { bytes_max, written: Mutex::default() }
    }

    pub(crate) fn bytes_max(&self) -> u64 {
        self.bytes_max
    }

    /// What a batch counts for that has so many entries, with so many bytes of keys and values.
    pub(crate) fn weight(entries: usize, bytes: usize) -> u64 {
        bytes as u64 + entries as u64 * ENTRY_BYTES
    }

    /// A batch was written.
    pub(crate) fn add(&self, sequence: u64, bytes: u64) {
        let mut written = self.written.lock();
        let last_begin = written.groups.iter().rev().nth(1).map_or(written.begin, |group| group.end);
        written.end += bytes;
        let end = written.end;
        match written.groups.back_mut().filter(|last| last.end - last_begin < GROUP_BYTES) {
            Some(last) => *last = Group { sequence, end },
            None => written.groups.push_back(Group { sequence, end }),
        }
    }

    /// Whether another batch may come, where so much is durable and in tables.
    pub(crate) fn has_room(&self, durable: u64, in_tables: u64) -> bool {
        let mut written = self.written.lock();
        while let Some(first) = written.groups.front()
            && first.sequence <= in_tables
        {
            written.begin = first.end;
            written.groups.pop_front();
        }
        let volatile = written.groups.partition_point(|group| group.sequence <= durable);
        let durable = volatile.checked_sub(1).map_or(written.begin, |last| written.groups[last].end);
        (written.end - written.begin) + (written.end - durable) < self.bytes_max
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_count_twice_until_durable_and_once_until_in_tables() {
        let backlog = Backlog::new(4 * GROUP_BYTES);
        assert!(backlog.has_room(0, 0));
        (1..=2).for_each(|sequence| backlog.add(sequence, GROUP_BYTES));
        assert!(!backlog.has_room(0, 0), "two groups, twice");
        assert!(backlog.has_room(1, 0));
        (3..=4).for_each(|sequence| backlog.add(sequence, GROUP_BYTES));
        assert!(!backlog.has_room(4, 0), "four groups");
        assert!(backlog.has_room(4, 1));
        assert!(backlog.has_room(4, 4));
        // Small ones count from the first to the last.
        (5..100).for_each(|sequence| backlog.add(sequence, 1));
        assert!(backlog.written.lock().groups.len() <= 2);
        assert!(backlog.has_room(99, 4) && backlog.has_room(99, 99));
        assert_eq!(backlog.written.lock().groups.len(), 0);
    }
}
