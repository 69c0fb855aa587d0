//! How far a long piece of work is, for a caller that waits for it, and whether it still does.
//!
//! Purpose: work says what it does and how much of it is done, without knowing whether this is watched; the
//! caller that has it done may watch, and may give it up between two steps. In between lie the layers, whose
//! signatures need not know of it: as with the spans of a log, what runs on a thread belongs to the piece of
//! work that the thread does.
//!
//! Thread safety: all of it is about the calling thread. Invariants: without a watcher a call costs a look at
//! one thread-local value; a watcher is gone when [`watched`] returns, also by a panic. So is what
//! [`while_wanted`] asks.

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use crate::{Result, StoreError};

/// What is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unit {
    /// Names, keys, records.
    #[default]
    Items,
    /// Bytes.
    Bytes,
}

/// Where a piece of work is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Step {
    /// What is being done, such as "comparing names".
    pub stage: &'static str,
    /// Of what.
    pub unit: Unit,
    /// How much of it is done.
    pub done: u64,
    /// How much there is to do; 0: not known.
    pub total: u64,
}

type Watcher = Rc<dyn Fn(Step)>;
type Wanted = Rc<dyn Fn() -> bool>;

thread_local! {
    static WATCHER: RefCell<Option<Watcher>> = const { RefCell::new(None) };
    static WANTED: RefCell<Option<Wanted>> = const { RefCell::new(None) };
    static STEP: Cell<Step> = const { Cell::new(Step { stage: "", unit: Unit::Items, done: 0, total: 0 }) };
}

/// Gives the thread back to the watcher before.
struct Watch {
    before: Option<Watcher>,
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHER.set(self.before.take());
    }
}

/// Carries out `work`; `watcher` is called on this thread with each step of it, which may be often.
pub fn watched<T>(watcher: impl Fn(Step) + 'static, work: impl FnOnce() -> T) -> T {
    let _watch = Watch { before: WATCHER.replace(Some(Rc::new(watcher))) };
    work()
}

/// The work comes to another stage, of which nothing is done yet.
pub fn stage(stage: &'static str, unit: Unit, total: u64) {
    tell(|_| Step { stage, unit, done: 0, total });
}

/// So much more is done.
pub fn advance(by: u64) {
    tell(|step| Step { done: step.done.saturating_add(by), ..step });
}

/// Gives the thread back what was asked before.
struct Wants {
    before: Option<Wanted>,
}

impl Drop for Wants {
    fn drop(&mut self) {
        WANTED.set(self.before.take());
    }
}

/// Carries out `work`, which [`check_wanted`] lets go on as long as `is_wanted` says yes. It is asked often.
pub fn while_wanted<T>(is_wanted: impl Fn() -> bool + 'static, work: impl FnOnce() -> T) -> T {
    let _wants = Wants { before: WANTED.replace(Some(Rc::new(is_wanted))) };
    work()
}

/// Between two steps of work of which nothing stays when it is given up: whether it goes on.
///
/// # Errors
/// [`StoreError::GivenUp`].
pub fn check_wanted() -> Result<()> {
    let wanted = WANTED.with_borrow(Clone::clone);
    if wanted.is_none_or(|is_wanted| is_wanted()) { Ok(()) } else { Err(StoreError::GivenUp) }
}

fn tell(next: impl FnOnce(Step) -> Step) {
    let Some(watcher) = WATCHER.with_borrow(Clone::clone) else { return };
    let step = next(STEP.get());
    STEP.set(step);
    watcher(step);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_reach_the_watcher_of_the_thread_and_no_other() {
        stage("unseen", Unit::Items, 1);
        let seen = Rc::new(RefCell::new(Vec::new()));
        let note = Rc::clone(&seen);
        let answer = watched(
            move |step| note.borrow_mut().push((step.stage, step.done, step.total)),
            || {
                stage("reading", Unit::Bytes, 10);
                advance(4);
                watched(drop, || advance(1));
                std::thread::scope(|threads| {
                    threads.spawn(|| advance(1));
                });
                advance(6);
                7
            },
        );
        advance(1);
        assert_eq!(answer, 7);
        assert_eq!(*seen.borrow(), [("reading", 0, 10), ("reading", 4, 10), ("reading", 11, 10)]);
    }

    #[test]
    fn work_of_the_thread_is_given_up_as_soon_as_it_is_not_wanted() {
        let left = Cell::new(2);
        let is_wanted = move || left.replace(left.get() - 1) > 0;
        let steps = while_wanted(is_wanted, || (0..9).take_while(|_| check_wanted().is_ok()).count());
        assert_eq!(steps, 2);
        assert!(check_wanted().is_ok(), "nothing is asked any more");
        while_wanted(|| false, || assert!(matches!(check_wanted(), Err(StoreError::GivenUp))));
    }
}
