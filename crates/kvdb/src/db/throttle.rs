//! How long a writer is held back, in proportion to what waits for flush and compaction.
//!
//! Hard stalls come from ignoring the debt until it hits a limit. Here each byte that is written
//! while memtables or runs pile up pays a share of what it costs the background threads, so the rate
//! of writers glides to the rate of the disk. Pure arithmetic, no clock, no lock.

use std::time::Duration;

/// Sealed memtables at which a writer waits for a flush: the bound on memory.
pub(crate) const SEALED_MAX: usize = 3;

/// One delay never exceeds this, so that an interactive caller is slowed, not stopped.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(50);

/// What piles up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Debt {
    /// Memtables that wait for their flush.
    pub(crate) sealed: usize,
    /// Bytes of runs beyond K in their size class.
    pub(crate) compaction_bytes: u64,
    /// Compaction debt from which on writers pay the full price (bytes).
    pub(crate) compaction_bytes_full: u64,
    /// What one flush thread has lately written (bytes each second); 0: not known yet.
    pub(crate) flush_rate: u64,
}

/// The delay for a writer that adds `bytes`.
pub(crate) fn delay(bytes: u64, debt: Debt) -> Duration {
    if debt.flush_rate == 0 {
        return Duration::ZERO;
    }
    // The first sealed table is normal: it is being flushed while the next one fills.
    let flush_share = debt.sealed.saturating_sub(1) as f64 / (SEALED_MAX - 1) as f64;
    let over = debt.compaction_bytes.saturating_sub(debt.compaction_bytes_full / 2);
    let compaction_share = (over as f64 / debt.compaction_bytes_full.max(1) as f64).min(1.0);
    let share = flush_share.min(1.0).max(compaction_share);
    let seconds = bytes as f64 / debt.flush_rate as f64 * share;
    Duration::from_secs_f64(seconds.min(DELAY_MAX.as_secs_f64()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn debt(sealed: usize, compaction_bytes: u64) -> Debt {
        Debt { sealed, compaction_bytes, compaction_bytes_full: 100 * MIB, flush_rate: 100 * MIB }
    }

    #[test]
    fn no_debt_no_delay() {
        assert_eq!(delay(MIB, debt(0, 0)), Duration::ZERO);
        assert_eq!(delay(MIB, debt(1, 40 * MIB)), Duration::ZERO);
        assert_eq!(delay(MIB, Debt { flush_rate: 0, ..debt(3, u64::MAX) }), Duration::ZERO);
    }

    #[test]
    fn the_delay_grows_with_the_debt_without_a_cliff() {
        let delays: Vec<_> = (0..=SEALED_MAX).map(|sealed| delay(MIB, debt(sealed, 0))).collect();
        assert!(delays.is_sorted());
        assert_eq!(delays[SEALED_MAX], Duration::from_millis(10), "the full price of 1 MiB at 100 MiB/s");
        let delays: Vec<_> = (0..20).map(|i| delay(MIB, debt(0, i * 10 * MIB))).collect();
        assert!(delays.is_sorted());
        assert!(delays.windows(2).all(|w| w[1].saturating_sub(w[0]) <= Duration::from_millis(1)));
    }

    #[test]
    fn one_delay_is_bounded() {
        assert_eq!(delay(u64::MAX, debt(SEALED_MAX, u64::MAX)), DELAY_MAX);
    }
}
