//! What is read while ranges are deleted in pages: the state from before.
//!
//! Thread safety: shared by all threads; readers hold a lock while they read. Invariant: half of a batch is
//! never read: a batch that failed in the middle leaves the state from before, or none to be read.

use std::sync::Arc;

use kvfs_locks::{RwLock, class};
use kvfs_store::{Result, StoreError};

enum State<S> {
    /// No batch is under way.
    Newest,
    /// That from before it.
    Before(Arc<S>),
    /// A batch failed in the middle that had given up the state from before.
    Torn,
}

/// See the module.
pub(crate) struct Held<S>(RwLock<State<S>, class::EngineHeld>);

impl<S> Held<S> {
    pub(crate) fn new() -> Self {
        Self(RwLock::new(State::Newest))
    }

    /// From now on `snapshot` is read.
    pub(crate) fn hold(&self, snapshot: S) {
        *self.0.write() = State::Before(Arc::new(snapshot));
    }

    /// Does the `work` behind [`Self::hold`]. It may call what it is given, after which readers wait for its
    /// end, and no state is held.
    ///
    /// # Errors
    /// Those of the work.
    pub(crate) fn until_done(&self, work: impl FnOnce(&mut dyn FnMut()) -> Result<()>) -> Result<()> {
        let mut barrier = None;
        let done = work(&mut || **barrier.get_or_insert_with(|| self.0.write()) = State::Torn);
        match (&done, barrier) {
            // What was given up stays so.
            (Err(_), _) => {}
            (Ok(()), Some(mut state)) => *state = State::Newest,
            (Ok(()), None) => *self.0.write() = State::Newest,
        }
        done
    }

    /// Reads at the state that is held, if one is. No page is deleted meanwhile where there is none.
    ///
    /// # Errors
    /// Those of `read`; there is no whole state.
    pub(crate) fn read<T>(&self, read: impl FnOnce(Option<&Arc<S>>) -> Result<T>) -> Result<T> {
        match &*self.0.read() {
            State::Newest => read(None),
            State::Before(snapshot) => read(Some(snapshot)),
            State::Torn => Err(StoreError::Failed {
                reason: "a batch failed that deletes a long range; the next mount ends it".into(),
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed() -> Result<()> {
        Err(StoreError::io("writing", std::io::Error::other("it is told to fail")))
    }

    /// What is read: a state that is held, 0 for the newest one, or nothing.
    fn seen(held: &Held<u32>) -> Option<u32> {
        held.read(|at| Ok(at.map_or(0, |at| **at))).ok()
    }

    #[test]
    fn what_is_read_is_whole_however_a_batch_in_pages_ends() {
        let held = Held::new();
        assert_eq!(seen(&held), Some(0));
        held.hold(1);
        assert_eq!(seen(&held), Some(1));
        held.until_done(|_| Ok(())).unwrap();
        assert_eq!(seen(&held), Some(0));
        held.hold(2);
        held.until_done(|give_up| {
            give_up();
            Ok(())
        })
        .unwrap();
        assert_eq!(seen(&held), Some(0));
        held.hold(3);
        held.until_done(|_| failed()).unwrap_err();
        assert_eq!(seen(&held), Some(3), "the state from before stays");
        held.hold(4);
        held.until_done(|give_up| {
            give_up();
            give_up();
            failed()
        })
        .unwrap_err();
        assert_eq!(seen(&held), None, "half of a batch is not read");
    }
}
