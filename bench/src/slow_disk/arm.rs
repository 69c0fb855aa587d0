//! How long a hard disk takes: a model of one arm over a spinning surface.
//!
//! What goes on where the last request ended costs its transfer. A gap forward costs what it takes to pass
//! over it, at most a seek; everything else a seek, which is the mean of moving and of half a turn. Requests
//! are served in the order in which they come, reads and writes alike: there is no cache for writes and no
//! reordering in the disk. Its buffer is known by one thing: what goes on where the last request ended, and
//! comes soon behind it, is served as if it had come at once.
//!
//! Thread safety: plain data; times are those of any clock that does not go back.

use std::ops::Range;
use std::time::Duration;

/// What a disk is made of.
#[derive(Clone, Copy, Debug)]
pub struct Mechanics {
    /// To find another place.
    pub seek: Duration,
    /// Of transfers.
    pub bytes_per_second: u64,
}

/// As disks of 7,200 turns a minute are: 8 ms and 150 MB/s.
pub const HARD_DISK: Mechanics = Mechanics { seek: Duration::from_millis(8), bytes_per_second: 150_000_000 };

/// So long the disk goes on by itself behind a request.
const READ_AHEAD: Duration = Duration::from_millis(2);

impl Mechanics {
    pub(super) fn transfer(&self, bytes: u64) -> Duration {
        Duration::from_nanos((u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second)) as u64)
    }
}

/// See the module.
#[derive(Debug)]
pub struct Arm {
    mechanics: Mechanics,
    /// Where the last request ends.
    at: u64,
    /// When that is done.
    is_free_at: Duration,
}

impl Arm {
    /// At the beginning of the disk, and free.
    pub fn new(mechanics: Mechanics) -> Self {
        Self { mechanics, at: 0, is_free_at: Duration::ZERO }
    }

    /// When a request that comes now is done.
    pub fn serve(&mut self, now: Duration, bytes: &Range<u64>) -> Duration {
        let seek = self.mechanics.seek;
        let gap = bytes.start.checked_sub(self.at).map_or(seek, |gap| self.mechanics.transfer(gap).min(seek));
        self.at = bytes.end;
        let goes_on = gap.is_zero() && now <= self.is_free_at + READ_AHEAD;
        let begin = if goes_on { self.is_free_at } else { self.is_free_at.max(now) };
        self.is_free_at = begin + gap + self.mechanics.transfer(bytes.end - bytes.start);
        self.is_free_at
    }

    /// When everything is done that has come so far.
    pub fn done_at(&self) -> Duration {
        self.is_free_at
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);
    const BYTES_OF_MS: u64 = 150_000;

    #[test]
    fn requests_in_a_row_cost_their_transfer_alone() {
        let mut arm = Arm::new(HARD_DISK);
        assert_eq!(arm.serve(10 * MS, &(0..BYTES_OF_MS)), 11 * MS);
        let mut next = 0;
        let mut serve_next = |now| {
            next += BYTES_OF_MS;
            arm.serve(now, &(next..next + BYTES_OF_MS))
        };
        assert_eq!(serve_next(10 * MS), 12 * MS, "behind the first one");
        assert_eq!(serve_next(13 * MS), 13 * MS, "it has gone on");
        assert_eq!(serve_next(18 * MS), 19 * MS, "it has not gone on so far");
    }

    #[test]
    fn another_place_costs_a_seek_and_a_short_gap_forward_what_lies_in_it() {
        let mut arm = Arm::new(HARD_DISK);
        assert_eq!(arm.serve(Duration::ZERO, &(1 << 40..(1 << 40) + BYTES_OF_MS)), 9 * MS);
        assert_eq!(arm.serve(9 * MS, &(0..0)), 17 * MS, "back");
        assert_eq!(arm.serve(17 * MS, &(2 * BYTES_OF_MS..3 * BYTES_OF_MS)), 20 * MS, "a gap of 2 ms");
        assert_eq!(arm.done_at(), 20 * MS);
    }
}
