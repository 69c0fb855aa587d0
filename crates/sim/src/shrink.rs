//! Makes failing lists of steps short: greedily drops steps, then operations of batches.

use kvfs_store::Op;

use crate::ops::Step;
use crate::store_check::Failure;

/// Runs that one shrinking may take.
const RUNS_MAX: usize = 600;

/// Runs steps on a fresh subject and gives the failure, if they still fail.
pub type Fails<'a> = &'a dyn Fn(&[Step]) -> Option<Failure>;

/// A shorter list that fails (perhaps in another way), and its failure.
pub fn shrink(mut steps: Vec<Step>, failure: Failure, fails: Fails<'_>) -> (Vec<Step>, Failure) {
    steps.truncate(failure.step + 1);
    let mut shrinker = Shrinker { steps, failure, fails, runs_left: RUNS_MAX };
    shrinker.drop_steps();
    shrinker.drop_ops();
    shrinker.drop_steps();
    (shrinker.steps, shrinker.failure)
}

struct Shrinker<'a> {
    steps: Vec<Step>,
    failure: Failure,
    fails: Fails<'a>,
    runs_left: usize,
}

impl Shrinker<'_> {
    /// Takes `candidate` if it fails.
    fn accept(&mut self, mut candidate: Vec<Step>) -> bool {
        if self.runs_left == 0 {
            return false;
        }
        self.runs_left -= 1;
        let Some(failure) = (self.fails)(&candidate) else { return false };
        candidate.truncate(failure.step + 1);
        self.steps = candidate;
        self.failure = failure;
        true
    }

    /// Drops stretches of steps, long ones first.
    fn drop_steps(&mut self) {
        let mut count = self.steps.len().div_ceil(2);
        while count > 0 {
            let mut at = 0;
            while at < self.steps.len() {
                let end = (at + count).min(self.steps.len());
                let mut candidate = self.steps.clone();
                candidate.drain(at..end);
                if !self.accept(candidate) {
                    at += count;
                }
            }
            count /= 2;
        }
    }

    /// Drops single operations of batches.
    fn drop_ops(&mut self) {
        let mut at = 0;
        while at < self.steps.len() {
            let mut index = 0;
            while let Some(candidate) = without_op(&self.steps, at, index) {
                if !self.accept(candidate) {
                    index += 1;
                }
            }
            at += 1;
        }
    }
}

/// `steps` without operation `index` of the batch at `at`; `None` when there is no such operation,
/// or no other.
fn without_op(steps: &[Step], at: usize, index: usize) -> Option<Vec<Step>> {
    let (Step::Apply { ops, .. } | Step::TxnApply { ops, .. }) = steps.get(at)? else { return None };
    if index >= ops.len() || ops.len() == 1 {
        return None;
    }
    let mut fewer: Vec<Op> = ops.clone();
    fewer.remove(index);
    let mut candidate = steps.to_vec();
    if let Step::Apply { ops, .. } | Step::TxnApply { ops, .. } = &mut candidate[at] {
        *ops = fewer;
    }
    Some(candidate)
}
