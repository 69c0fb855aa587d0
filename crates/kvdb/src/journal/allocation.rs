//! How much of the area has its space: a part is allocated before the log enters it.
//!
//! Thread safety: data under the journal's lock. Invariant: no group is written behind [`Allocation::end`];
//! within a lap of the opening everything before it has its space.

use super::JournalArea;

/// Positions in the journal's stream that have space.
#[derive(Debug)]
pub(super) struct Allocation {
    area_len: u64,
    part_bytes: u64,
    /// Allocated without a gap from here on.
    start: u64,
    /// Up to here.
    end: u64,
    /// So many bytes from the start of the area on are known to be allocated.
    known: u64,
    /// The end was said to be near.
    said_near: bool,
}

impl Allocation {
    /// Of a log that goes on at `head`: what lies behind it is not known.
    pub(super) fn new(area: &JournalArea, head: u64) -> Self {
        Self {
            area_len: area.len,
            part_bytes: area.part_bytes,
            start: head,
            end: head,
            known: 0,
            said_near: false,
        }
    }

    /// Every group ends here at the latest.
    pub(super) fn end(&self) -> u64 {
        self.end
    }

    /// The next part of an area whose oldest group lies at `tail`; `None`: all of it is allocated up to
    /// there.
    pub(super) fn next_part(&self, tail: u64) -> Option<std::ops::Range<u64>> {
        let end = self.end.saturating_add(self.part_bytes).min(tail + self.area_len);
        (self.end < end).then_some(self.end..end)
    }

    /// The part up to `end` has been allocated.
    pub(super) fn extend_to(&mut self, end: u64) {
        let (from, to) = (self.end % self.area_len, (end - 1) % self.area_len + 1);
        if from <= self.known || to <= from {
            self.known = self.known.max(to);
        }
        // Behind a whole lap there is nothing new.
        self.end = if end - self.start >= self.area_len { u64::MAX } else { end };
        self.said_near = false;
    }

    /// The log begins anew at `head`.
    pub(super) fn restart(&mut self, head: u64) {
        if self.end != u64::MAX {
            (self.start, self.end, self.said_near) = (head, head + self.known, false);
        }
    }

    /// Whether the log, which ends at `log_end`, is close to the end, and a part can follow.
    pub(super) fn is_short(&self, log_end: u64, tail: u64) -> bool {
        self.end < log_end.saturating_add(self.part_bytes / 2) && self.next_part(tail).is_some()
    }

    /// Whether it has come there just now.
    pub(super) fn becomes_short(&mut self, log_end: u64, tail: u64) -> bool {
        self.is_short(log_end, tail) && !std::mem::replace(&mut self.said_near, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn area(len: u64) -> JournalArea {
        JournalArea { addr: 0, len, salt: 0, part_bytes: 16 << 20 }
    }

    #[test]
    fn allocation_of_a_whole_lap_is_complete_for_good() {
        let mut allocation = Allocation::new(&area(40 << 20), 8 << 20);
        assert_eq!(allocation.next_part(8 << 20), Some(8 << 20..24 << 20));
        allocation.extend_to(24 << 20);
        assert_eq!(
            allocation.next_part(0),
            Some(24 << 20..40 << 20),
            "no further than a lap behind the tail"
        );
        allocation.extend_to(40 << 20);
        assert_eq!(allocation.next_part(0), None);
        assert_eq!(allocation.next_part(8 << 20), Some(40 << 20..48 << 20));
        allocation.extend_to(48 << 20);
        assert_eq!((allocation.end(), allocation.next_part(48 << 20)), (u64::MAX, None));
        allocation.restart(80 << 20);
        assert_eq!(allocation.end(), u64::MAX);
    }

    #[test]
    fn allocation_of_a_log_that_begins_anew_is_what_it_had() {
        let mut allocation = Allocation::new(&area(64 << 20), 0);
        allocation.extend_to(16 << 20);
        allocation.restart(64 << 20);
        assert_eq!(allocation.end(), 80 << 20);
        let mut allocation = Allocation::new(&area(64 << 20), 8 << 20);
        allocation.extend_to(24 << 20);
        allocation.restart(64 << 20);
        assert_eq!(allocation.end(), 64 << 20, "what lies before the first part is not known");
    }

    #[test]
    fn allocation_near_its_end_says_so_once() {
        let mut allocation = Allocation::new(&area(64 << 20), 0);
        allocation.extend_to(16 << 20);
        assert!(!allocation.becomes_short(8 << 20, 0));
        assert!(allocation.becomes_short(9 << 20, 0));
        assert!(!allocation.becomes_short(10 << 20, 0));
        allocation.extend_to(32 << 20);
        assert!(allocation.becomes_short(25 << 20, 0));
    }
}
