//! How long a writer is held back, in proportion to what waits for flush and compaction.
//!
//! Hard stalls come from ignoring the debt until it hits a limit. Here each byte that is written while
//! memtables or runs pile up pays a share of what it costs the background threads, so the rate of writers
//! glides to the rate of the disk; and more than that, before the limit is reached. So it is with space,
//! while some is made. Pure arithmetic, no clock, no lock.

use std::time::Duration;

/// Sealed memtables beyond which there are no more: the bound on memory, with the active one.
pub(crate) const SEALED_MAX: usize = 3;

/// One delay never exceeds this, so that an interactive caller is slowed, not stopped.
pub(crate) const DELAY_MAX: Duration = Duration::from_millis(150);

/// Unflushed tables that cost nothing: one is being flushed while the next one fills.
const TABLES_FREE: f64 = 2.0;

/// The most that a byte costs, in times of its flush: writers almost stand when memory ends.
const PRICE_MAX: f64 = 32.0;

/// The most that a byte costs because of merges: what is not merged makes reads slower, and nothing fail.
const COMPACTION_PRICE_MAX: f64 = 2.0;

/// What flushes are taken to get through before the first one was measured (bytes each second).
const FLUSH_RATE_UNKNOWN: u64 = 100 << 20;

/// What piles up.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Debt {
    /// In the active memtable, and those that wait for their flush.
    pub(crate) unflushed_bytes: u64,
    /// Size of a full one.
    pub(crate) table_bytes: u64,
    /// Bytes of runs beyond K in their size class.
    pub(crate) compaction_bytes: u64,
    /// Compaction debt from which on writers pay the full price (bytes).
    pub(crate) compaction_bytes_full: u64,
    /// What one flush thread has lately written (bytes each second); 0: not known yet.
    pub(crate) flush_rate: u64,
    /// How much of the space is gone in which zones are emptied, from 0 to 1, while they are.
    pub(crate) shortage: f64,
}

/// Slower flushes than this make space no dearer (bytes each second).
const SPACE_RATE_MIN: u64 = 32 << 20;

/// Whether writers pay for a debt of merges. (Below half of what makes the full price they don't.)
pub(crate) fn is_charged(compaction_bytes: u64, compaction_bytes_full: u64) -> bool {
    compaction_bytes > compaction_bytes_full / 2
}

/// What a byte costs, in times of its flush.
fn price(debt: Debt) -> f64 {
    // Between two and three tables up to the rate of flushes, in the fourth far below it.
    let tables = debt.unflushed_bytes as f64 / debt.table_bytes.max(1) as f64;
    let over = (tables - TABLES_FREE).max(0.0);
    let steep = (over - 1.0).max(0.0);
    let flush_price = over.min(1.0) + steep * steep * (PRICE_MAX - 1.0);
    let over = debt.compaction_bytes.saturating_sub(debt.compaction_bytes_full / 2);
    let compaction_price = over as f64 / debt.compaction_bytes_full.max(1) as f64;
    flush_price.min(PRICE_MAX).max(compaction_price.min(COMPACTION_PRICE_MAX))
}

/// What a byte costs while zones are emptied: that is the faster the more space is left for it.
fn space_price(shortage: f64) -> f64 {
    shortage * shortage * PRICE_MAX
}

/// How much time of all writers together one that adds `bytes` takes.
pub(crate) fn cost(bytes: u64, debt: Debt) -> Duration {
    let flush_rate = if debt.flush_rate == 0 { FLUSH_RATE_UNKNOWN } else { debt.flush_rate };
    let seconds = bytes as f64 / flush_rate as f64 * price(debt);
    // Small flushes are slow ones, and say nothing of how fast space is made.
    let space_rate = flush_rate.max(SPACE_RATE_MIN);
    let seconds = seconds.max(bytes as f64 / space_rate as f64 * space_price(debt.shortage));
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn debt(tables_percent: u64, compaction_bytes: u64) -> Debt {
        Debt {
            unflushed_bytes: tables_percent * 64 * MIB / 100,
            table_bytes: 64 * MIB,
            compaction_bytes,
            compaction_bytes_full: 100 * MIB,
            flush_rate: 100 * MIB,
            shortage: 0.0,
        }
    }

    #[test]
    fn no_debt_no_cost() {
        assert_eq!(cost(MIB, debt(0, 0)), Duration::ZERO);
        assert_eq!(cost(MIB, debt(200, 40 * MIB)), Duration::ZERO);
        assert_eq!(cost(MIB, Debt { flush_rate: 0, ..debt(300, 0) }), Duration::from_millis(10), "a guess");
        assert!(!is_charged(50 * MIB, 100 * MIB) && is_charged(60 * MIB, 100 * MIB));
    }

    #[test]
    fn the_cost_grows_with_the_debt_without_a_cliff() {
        let costs: Vec<_> = (0..=420).map(|percent| cost(MIB, debt(percent, 0))).collect();
        assert!(costs.is_sorted());
        assert_eq!(costs[300], Duration::from_millis(10), "the rate of flushes: 1 MiB at 100 MiB/s");
        assert_eq!(costs[350], Duration::from_micros(87_500));
        assert_eq!(costs[400], Duration::from_millis(320));
        assert_eq!(costs[420], costs[400]);
        assert!(costs.windows(2).all(|w| w[1].saturating_sub(w[0]) <= Duration::from_millis(7)));
        let costs: Vec<_> = (0..100).map(|i| cost(MIB, debt(0, i * 10 * MIB))).collect();
        assert!(costs.is_sorted());
        assert!(costs.windows(2).all(|w| w[1].saturating_sub(w[0]) <= Duration::from_millis(1)));
        assert_eq!(costs[99], Duration::from_millis(20));
    }

    #[test]
    fn writers_slow_down_while_space_is_made() {
        let short = |percent| Debt { shortage: f64::from(percent) / 100.0, ..debt(0, 0) };
        let costs: Vec<_> = (0..=100).map(|percent| cost(MIB, short(percent))).collect();
        assert!(costs.is_sorted());
        assert_eq!(
            (costs[0], costs[50], costs[100]),
            (Duration::ZERO, Duration::from_millis(80), Duration::from_millis(320))
        );
    }

    #[test]
    fn absurd_debts_cost_no_more_than_time_holds() {
        assert_eq!(cost(u64::MAX, Debt { flush_rate: 1, ..debt(400, u64::MAX) }), Duration::MAX);
    }

    /// Writers that would go on at once, flushes of one table at a time: the fourth table never fills, unless
    /// flushes become ten times slower than they were.
    #[test]
    fn writers_settle_below_the_limit_of_memory() {
        for slowdown in [1.0, 0.5, 0.2, 0.1] {
            let table = (64 * MIB) as f64;
            let (rate, step_bytes) = ((100 * MIB) as f64 * slowdown, 64 << 10);
            let (mut unflushed, mut flushed, mut most) = (0.0_f64, 0.0, 0.0_f64);
            for _ in 0..200_000 {
                let debt = Debt { unflushed_bytes: unflushed as u64, ..debt(0, 0) };
                // Writing itself takes time, too: 400 MiB each second.
                let seconds = cost(step_bytes, debt).as_secs_f64() + step_bytes as f64 / (400 * MIB) as f64;
                unflushed += step_bytes as f64;
                most = most.max(unflushed);
                if unflushed >= table {
                    flushed += seconds * rate;
                }
                if flushed >= table {
                    (unflushed, flushed) = (unflushed - table, 0.0);
                }
            }
            assert!(most < 4.0 * table, "{most} bytes at {slowdown} of the usual rate");
        }
    }
}
