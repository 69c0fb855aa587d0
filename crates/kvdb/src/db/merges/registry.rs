//! Which runs are being merged, and who has all runs to himself.
//!
//! Thread safety: shared by reference; one lock, held while a merge is chosen, never during its work.
//!
//! Invariants: no run is in two claims, as input or as output, nor is a lane. While somebody holds [`Exclusive`] nobody else has a
//! claim; while somebody waits for it no new claim is made, so those that are there end, and he gets it.

use std::collections::BTreeSet;

use kvfs_store::Result;
use parking_lot::{Condvar, Mutex};

use super::reclaim::Leisure;
use crate::version::RunId;
use crate::zone::Lane;

/// The merges under way.
#[derive(Default)]
struct State {
    /// Inputs and outputs of all claims.
    busy: BTreeSet<RunId>,
    /// One for each claim.
    lanes: BTreeSet<Lane>,
    claims_large: usize,
    /// Who waits until all claims have ended.
    waiting: usize,
    is_exclusive: bool,
    /// How often somebody has got all runs to himself, and which of these passes was the last to do all its work.
    passes: u64,
    pass_complete: u64,
    /// Why there was a pass that nobody waits for, and that has not done all its work.
    left_pass: Option<Leisure>,
    /// Claims and passes that have ended.
    ends: u64,
}

impl State {
    fn claims(&self) -> usize {
        self.lanes.len()
    }

    /// Returns the first lane that nobody has.
    fn take(&mut self, runs: &[RunId], is_large: bool) -> Lane {
        debug_assert!(runs.iter().all(|run| !self.busy.contains(run)), "a run belongs to one merge");
        self.busy.extend(runs);
        self.claims_large += usize::from(is_large);
        let taken = self.lanes.len() as u32;
        let lane = (0..taken).map(Lane).find(|lane| !self.lanes.contains(lane)).unwrap_or(Lane(taken));
        self.lanes.insert(lane);
        lane
    }
}

/// See the module.
pub(crate) struct Registry {
    state: Mutex<State>,
    ended: Condvar,
    /// Large merges that may run at once: one less than there are threads, so that small ones need not wait.
    large_max: usize,
}

/// What those who choose a merge must heed.
pub(super) struct Busy<'a> {
    runs: &'a BTreeSet<RunId>,
    /// Whether a large one may begin.
    pub(super) large_may_begin: bool,
}

impl Busy<'_> {
    pub(super) fn contains(&self, run: RunId) -> bool {
        self.runs.contains(&run)
    }
}

/// Runs that belong to one merge until this is dropped.
pub(super) struct Claim<'a> {
    registry: &'a Registry,
    runs: Vec<RunId>,
    is_large: bool,
    lane: Lane,
}

/// All runs belong to the holder until this is dropped.
pub(super) struct Exclusive<'a> {
    registry: &'a Registry,
    pass: u64,
}

impl Claim<'_> {
    /// Nobody else has it meanwhile.
    pub(super) fn lane(&self) -> Lane {
        self.lane
    }
}

impl<'a> Exclusive<'a> {
    /// Goes on with a claim of these runs alone, for a large merge.
    pub(super) fn narrow(self, runs: Vec<RunId>) -> Claim<'a> {
        // `self` is dropped behind the lock: until then nobody claims anything.
        let lane = self.registry.state.lock().take(&runs, true);
        Claim { registry: self.registry, runs, is_large: true, lane }
    }

    /// The holder has gone over all runs.
    pub(super) fn complete(&self) {
        let mut state = self.registry.state.lock();
        state.pass_complete = self.pass;
        state.left_pass = None;
    }

    /// Whether somebody who came later than `passes` has done so since.
    pub(super) fn is_needless(&self, passes: u64) -> bool {
        self.registry.state.lock().pass_complete > passes
    }
}

impl Registry {
    /// For so many threads that merge.
    pub(crate) fn new(threads: usize) -> Self {
        let large_max = threads.saturating_sub(1).max(1);
        Self { state: Mutex::default(), ended: Condvar::new(), large_max }
    }

    /// Claims what `choose` returns: runs that are not busy, and whether the merge is a large one. `None`: it chose
    /// nothing, or somebody has all runs to himself, or waits for it. Never waits.
    pub(super) fn claim<T>(
        &self,
        choose: impl FnOnce(&Busy<'_>) -> Result<Option<(T, Vec<RunId>, bool)>>,
    ) -> Result<Option<(T, Claim<'_>)>> {
        let mut state = self.state.lock();
        if state.is_exclusive || state.waiting > 0 {
            return Ok(None);
        }
        let large_may_begin = state.claims_large < self.large_max;
        let Some((chosen, runs, is_large)) = choose(&Busy { runs: &state.busy, large_may_begin })? else {
            return Ok(None);
        };
        let lane = state.take(&runs, is_large);
        drop(state);
        Ok(Some((chosen, Claim { registry: self, runs, is_large, lane })))
    }

    /// Waits until all claims have ended; [`Registry::is_wanted`] asks them to. `tell` is called once somebody who
    /// looks there learns of it.
    pub(super) fn exclusive(&self, tell: impl FnOnce()) -> Exclusive<'_> {
        let mut state = self.state.lock();
        if state.is_exclusive || state.claims() > 0 {
            state.waiting += 1;
            parking_lot::MutexGuard::unlocked(&mut state, tell);
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
    pub(super) fn is_wanted(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Merges under way.
    pub(crate) fn claims(&self) -> usize {
        self.state.lock().claims()
    }

    /// Claims and passes that have ended so far: look at this, then for a merge, then [`Self::wait_for_end`].
    pub(super) fn ends(&self) -> u64 {
        self.state.lock().ends
    }

    /// Waits until a claim or a pass has ended after the first `seen` ones; false: there is none that could.
    pub(super) fn wait_for_end(&self, seen: u64) -> bool {
        let mut state = self.state.lock();
        loop {
            if state.ends != seen {
                return true;
            }
            if state.claims() == 0 && !state.is_exclusive && state.waiting == 0 {
                return false;
            }
            self.ended.wait(&mut state);
        }
    }

    /// Why there was a pass that nobody waits for, if it has left something to be done.
    pub(crate) fn left_pass(&self) -> Option<Leisure> {
        self.state.lock().left_pass
    }

    /// See [`Self::left_pass`].
    pub(super) fn leave_pass(&self, left: Option<Leisure>) {
        self.state.lock().left_pass = left;
    }

    /// Passes that have begun so far.
    pub(super) fn passes(&self) -> u64 {
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
        state.claims_large -= usize::from(self.is_large);
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

    fn claim<'a>(registry: &'a Registry, runs: &[u64], is_large: bool) -> Option<Claim<'a>> {
        let runs: Vec<RunId> = runs.iter().map(|&run| RunId(run)).collect();
        let claimed = registry.claim(|busy| {
            let is_free = !runs.iter().any(|&run| busy.contains(run)) && (!is_large || busy.large_may_begin);
            Ok(is_free.then_some(((), runs, is_large)))
        });
        claimed.expect("does not fail").map(|((), claim)| claim)
    }

    #[test]
    fn a_run_belongs_to_one_merge_at_a_time() {
        let registry = Registry::new(4);
        let first = claim(&registry, &[1, 2], false).expect("free");
        assert!(claim(&registry, &[2, 3], false).is_none());
        let second = claim(&registry, &[3, 4], false).expect("free");
        drop(first);
        assert!(claim(&registry, &[1, 2], false).is_some());
        assert!(claim(&registry, &[4], false).is_none());
        drop(second);
        assert_eq!(registry.claims(), 0);
    }

    #[test]
    fn each_merge_has_a_lane_of_its_own_and_the_first_that_is_free() {
        let registry = Registry::new(4);
        let first = claim(&registry, &[1], false).expect("free");
        let second = claim(&registry, &[2], false).expect("free");
        assert_eq!((first.lane(), second.lane()), (Lane(0), Lane(1)));
        drop(first);
        let third = claim(&registry, &[3], false).expect("free");
        assert_eq!((second.lane(), third.lane()), (Lane(1), Lane(0)));
        drop((second, third));
        assert_eq!(registry.exclusive(|| ()).narrow(vec![RunId(1)]).lane(), Lane::FIRST);
    }

    #[test]
    fn one_thread_is_left_for_small_merges() {
        let registry = Registry::new(2);
        let large = claim(&registry, &[1], true).expect("the first");
        assert!(claim(&registry, &[2], true).is_none());
        assert!(claim(&registry, &[2], false).is_some());
        drop(large);
        assert!(claim(&registry, &[2], true).is_some());
        let alone = Registry::new(1);
        assert!(claim(&alone, &[1], true).is_some(), "a single thread does everything");
    }

    #[test]
    fn who_wants_all_runs_waits_for_those_who_have_some_and_nobody_comes_before_him() {
        let registry = Registry::new(4);
        let held = claim(&registry, &[1], false).expect("free");
        let told = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                let exclusive = registry.exclusive(|| told.store(true, std::sync::atomic::Ordering::Release));
                let is_alone = registry.claims() == 0 && claim(&registry, &[2], false).is_none();
                drop(exclusive);
                is_alone
            });
            while !told.load(std::sync::atomic::Ordering::Acquire) {
                std::thread::yield_now();
            }
            assert!(registry.is_wanted());
            assert!(claim(&registry, &[2], false).is_none(), "nothing begins any more");
            drop(held);
            assert!(waiter.join().expect("ends"));
        });
        assert!(claim(&registry, &[2], false).is_some());
        assert_eq!(registry.passes(), 1);
    }

    #[test]
    fn who_has_all_runs_may_go_on_with_some() {
        let registry = Registry::new(2);
        let claimed = registry.exclusive(|| ()).narrow(vec![RunId(1), RunId(2)]);
        assert!(claim(&registry, &[2], false).is_none());
        assert!(claim(&registry, &[3], true).is_none(), "it counts as a large one");
        assert!(claim(&registry, &[3], false).is_some());
        drop(claimed);
        assert!(claim(&registry, &[1, 2], true).is_some());
    }

    #[test]
    fn a_pass_is_needless_when_a_whole_one_began_after_it_was_asked_for() {
        let registry = Registry::new(4);
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
