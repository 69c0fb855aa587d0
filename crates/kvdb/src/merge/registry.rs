//! Which runs are being merged, and whether a pass has all runs to itself. A claim lasts for one step, or for
//! a merge of all runs of a keyspace.
//!
//! Thread safety: shared by reference; one lock, held while a merge is chosen, never during its work.
//!
//! Invariants: no run is in two claims, as input or as output, nor is a lane. While a thread holds
//! [`Exclusive`] no other has a claim; while a thread waits for it no new claim is made, so those that are
//! there end, and it gets it.

use std::collections::BTreeSet;
use std::sync::Arc;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::Result;

use crate::merge::reclaim::ReclaimReason;
use crate::space::Lane;
use crate::version::{Run, RunId, bytes_of};

/// The merges under way.
#[derive(Default)]
struct State {
    /// Inputs and outputs of all claims.
    busy: BTreeSet<RunId>,
    /// See [`Registry::leave_out`].
    unread: BTreeSet<RunId>,
    /// One for each claim.
    lanes: BTreeSet<Lane>,
    /// Threads that wait until all claims have ended.
    waiting: usize,
    is_exclusive: bool,
    /// How often a pass has got all runs to itself, and which of these passes was the last to do all its
    /// work.
    passes: u64,
    pass_complete: u64,
    /// Why there was a pass that no caller waits for, and that has not done all its work.
    left_pass: Option<ReclaimReason>,
    /// Claims and passes that have ended.
    ends: u64,
}

impl State {
    fn claims(&self) -> usize {
        self.lanes.len()
    }

    /// Nothing is merged, and no pass has all runs, or waits for it.
    fn is_quiet(&self) -> bool {
        self.claims() == 0 && !self.is_exclusive && self.waiting == 0
    }

    /// Returns the first lane that is free.
    fn take(&mut self, runs: &[RunId]) -> Lane {
        debug_assert!(runs.iter().all(|run| !self.busy.contains(run)), "a run belongs to one merge");
        self.busy.extend(runs);
        let taken = self.lanes.len() as u32;
        let lane = (0..taken).map(Lane).find(|lane| !self.lanes.contains(lane)).unwrap_or(Lane(taken));
        self.lanes.insert(lane);
        lane
    }
}

/// See the module.
#[derive(Default)]
pub(crate) struct Registry {
    state: Mutex<State, class::KvdbMergeRegistryState>,
    ended: Condvar,
}

/// What the choice of a merge must heed.
pub(crate) struct Busy<'a> {
    runs: &'a BTreeSet<RunId>,
    unread: &'a BTreeSet<RunId>,
}

impl Busy<'_> {
    pub(crate) fn contains(&self, run: RunId) -> bool {
        self.runs.contains(&run)
    }

    /// See [`Registry::leave_out`].
    pub(crate) fn is_unread(&self, run: RunId) -> bool {
        self.unread.contains(&run)
    }

    /// Whether a merge may begin, or go on, with this run.
    pub(crate) fn leaves(&self, run: RunId) -> bool {
        !self.contains(run) && !self.is_unread(run)
    }
}

/// Runs that belong to one merge until this is dropped.
pub(crate) struct Claim<'a> {
    registry: &'a Registry,
    runs: Vec<RunId>,
    lane: Lane,
}

/// All runs belong to the holder until this is dropped.
pub(crate) struct Exclusive<'a> {
    registry: &'a Registry,
    pass: u64,
}

impl Claim<'_> {
    /// No other claim has it meanwhile.
    pub(crate) fn lane(&self) -> Lane {
        self.lane
    }
}

impl<'a> Exclusive<'a> {
    /// Goes on with a claim of these runs alone.
    pub(crate) fn narrow(self, runs: Vec<RunId>) -> Claim<'a> {
        // `self` is dropped behind the lock: until then nothing is claimed.
        let lane = self.registry.state.lock().take(&runs);
        Claim { registry: self.registry, runs, lane }
    }

    /// The holder has gone over all runs.
    pub(crate) fn complete(&self) {
        let mut state = self.registry.state.lock();
        state.pass_complete = self.pass;
        state.left_pass = None;
    }

    /// Whether a pass that came later than `passes` has done so since.
    pub(crate) fn is_needless(&self, passes: u64) -> bool {
        self.registry.state.lock().pass_complete > passes
    }
}

impl Registry {
    /// Claims the runs that `choose` returns, which are not busy, for what it returns beside them. `None`: it
    /// chose nothing, or a pass has all runs to itself, or waits for it. Never waits.
    pub(crate) fn claim<T>(
        &self,
        choose: impl FnOnce(&Busy<'_>) -> Result<Option<(Vec<RunId>, T)>>,
    ) -> Result<Option<(T, Claim<'_>)>> {
        let mut state = self.state.lock();
        if state.is_exclusive || state.waiting > 0 {
            return Ok(None);
        }
        let Some((runs, chosen)) = choose(&Busy { runs: &state.busy, unread: &state.unread })? else {
            return Ok(None);
        };
        let lane = state.take(&runs);
        drop(state);
        Ok(Some((chosen, Claim { registry: self, runs, lane })))
    }

    /// A merge of these runs has come to something that can't be read. Another one would come there, too: so
    /// none begins with any of them before the next opening.
    pub(crate) fn leave_out(&self, runs: &[RunId]) {
        self.state.lock().unread.extend(runs);
    }

    /// The largest stretch of neighbours without any that is left out.
    pub(crate) fn readable<'r>(&self, runs: &'r [Arc<Run>]) -> &'r [Arc<Run>] {
        let state = self.state.lock();
        let stretches = runs.split(|run| state.unread.contains(&run.id));
        stretches.max_by_key(|runs| bytes_of(runs)).unwrap_or_default()
    }

    /// Waits until all claims have ended; [`Registry::is_wanted`] asks them to. `tell` is called once a merge
    /// that looks there learns of it.
    pub(crate) fn exclusive(&self, tell: impl FnOnce()) -> Exclusive<'_> {
        let mut state = self.state.lock();
        if state.is_exclusive || state.claims() > 0 {
            state.waiting += 1;
            kvfs_locks::MutexGuard::unlocked(&mut state, tell);
            while state.is_exclusive || state.claims() > 0 {
                self.ended.wait(&mut state);
            }
            state.waiting -= 1;
        }
        state.is_exclusive = true;
        state.passes += 1;
        Exclusive { registry: self, pass: state.passes }
    }

    /// Whether merges are to end as soon as they can.
    pub(crate) fn is_wanted(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Merges under way.
    pub(crate) fn claims(&self) -> usize {
        self.state.lock().claims()
    }

    /// Whether no merge is under way, and no pass.
    pub(crate) fn is_quiet(&self) -> bool {
        self.state.lock().is_quiet()
    }

    /// Claims and passes that have ended so far: look at this, then for a merge, then [`Self::wait_for_end`].
    pub(crate) fn ends(&self) -> u64 {
        self.state.lock().ends
    }

    /// Waits until a claim or a pass has ended after the first `seen` ones; false: there is none that could.
    pub(crate) fn wait_for_end(&self, seen: u64) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.ends != seen {
                return true;
            }
            if state.is_quiet() {
                return false;
            }
            self.ended.wait(&mut state);
        }
    }

    /// Why there was a pass that no caller waits for, if it has left something to be done.
    pub(crate) fn left_pass(&self) -> Option<ReclaimReason> {
        self.state.lock().left_pass
    }

    /// See [`Self::left_pass`].
    pub(crate) fn leave_pass(&self, left: Option<ReclaimReason>) {
        self.state.lock().left_pass = left;
    }

    /// Passes that have begun so far.
    pub(crate) fn passes(&self) -> u64 {
        self.state.lock().passes
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        for run in &self.runs {
            state.busy.remove(run);
        }
        state.lanes.remove(&self.lane);
        state.ends += 1;
        drop(state);
        self.registry.ended.notify_all();
    }
}

impl Drop for Exclusive<'_> {
    fn drop(&mut self) {
        let mut state = self.registry.state.lock();
        state.is_exclusive = false;
        state.ends += 1;
        drop(state);
        self.registry.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim<'a>(registry: &'a Registry, runs: &[u64]) -> Option<Claim<'a>> {
        let runs: Vec<RunId> = runs.iter().map(|&run| RunId(run)).collect();
        let claimed = registry.claim(|busy| {
            let is_free = !runs.iter().any(|&run| busy.contains(run));
            Ok(is_free.then_some((runs, ())))
        });
        claimed.expect("does not fail").map(|((), claim)| claim)
    }

    #[test]
    fn a_run_belongs_to_one_merge_at_a_time() {
        let registry = Registry::default();
        let first = claim(&registry, &[1, 2]).expect("free");
        assert!(claim(&registry, &[2, 3]).is_none());
        let second = claim(&registry, &[3, 4]).expect("free");
        drop(first);
        assert!(claim(&registry, &[1, 2]).is_some());
        assert!(claim(&registry, &[4]).is_none());
        drop(second);
        assert_eq!(registry.claims(), 0);
    }

    #[test]
    fn each_merge_has_a_lane_of_its_own_and_the_first_that_is_free() {
        let registry = Registry::default();
        let first = claim(&registry, &[1]).expect("free");
        let second = claim(&registry, &[2]).expect("free");
        assert_eq!((first.lane(), second.lane()), (Lane(0), Lane(1)));
        drop(first);
        let third = claim(&registry, &[3]).expect("free");
        assert_eq!((second.lane(), third.lane()), (Lane(1), Lane(0)));
        drop((second, third));
        assert_eq!(registry.exclusive(|| ()).narrow(vec![RunId(1)]).lane(), Lane::FIRST);
    }

    #[test]
    fn exclusive_claim_waits_for_earlier_claims_and_precedes_later_ones() {
        let registry = Registry::default();
        let held = claim(&registry, &[1]).expect("free");
        let told = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let exclusive = registry.exclusive(|| told.store(true, std::sync::atomic::Ordering::Release));
                let is_alone = registry.claims() == 0 && claim(&registry, &[2]).is_none();
                drop(exclusive);
                is_alone
            });
            while !told.load(std::sync::atomic::Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(registry.is_wanted());
            assert!(claim(&registry, &[2]).is_none(), "nothing begins any more");
            drop(held);
            assert!(waiter.join().expect("ends"));
        });
        assert!(claim(&registry, &[2]).is_some());
        assert_eq!(registry.passes(), 1);
    }

    #[test]
    fn exclusive_claim_may_go_on_with_some_runs() {
        let registry = Registry::default();
        let claimed = registry.exclusive(|| ()).narrow(vec![RunId(1), RunId(2)]);
        assert!(claim(&registry, &[2]).is_none());
        assert!(claim(&registry, &[3]).is_some());
        drop(claimed);
        assert!(claim(&registry, &[1, 2]).is_some());
    }

    #[test]
    fn a_pass_is_needless_when_a_whole_one_began_after_it_was_asked_for() {
        let registry = Registry::default();
        let asked = registry.passes();
        assert!(!registry.exclusive(|| ()).is_needless(asked), "it ended before its work was done");
        let second = registry.exclusive(|| ());
        assert!(!second.is_needless(asked));
        second.complete();
        drop(second);
        assert!(registry.exclusive(|| ()).is_needless(asked));
        let asked = registry.passes();
        assert!(!registry.exclusive(|| ()).is_needless(asked));
    }
}
