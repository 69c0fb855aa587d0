//! What is in the way, and what only passes.

use std::cell::Cell;
use std::path::PathBuf;

use super::*;

/// What becomes of an unmount that is refused so many times, where each look finds what `found` says, and how
/// many pauses there were.
fn outcome(
    busy_times: usize,
    found: impl Fn(usize) -> String,
) -> (std::result::Result<(), (MountError, String)>, usize) {
    let (tries, pauses) = (Cell::new(0), Cell::new(0));
    let unmount = || match tries.replace(tries.get() + 1) {
        nth if nth < busy_times => Err(MountError::Busy { point: PathBuf::from("/m") }),
        _ => Ok(()),
    };
    let done = unmount_past_passing(unmount, || found(pauses.get()), || pauses.set(pauses.get() + 1));
    (done, pauses.get())
}

#[test]
fn unmount_tries_again_while_nothing_that_stays_is_in_the_way() {
    let nothing = |_| String::new();
    let passing = |nth: usize| format!("pid {nth}");
    let stays = |_| "pid 7".to_owned();
    assert!(matches!(outcome(0, nothing), (Ok(()), 0)));
    assert!(matches!(outcome(3, nothing), (Ok(()), 3)));
    assert!(matches!(outcome(3, passing), (Ok(()), 3)));
    let (refused, pauses) = outcome(usize::MAX, stays);
    assert!(matches!(refused, Err((MountError::Busy { .. }, found)) if found == "pid 7"));
    assert_eq!(pauses, 1, "what stays is told at the second look");
    let (refused, pauses) = outcome(usize::MAX, nothing);
    assert!(matches!(refused, Err((MountError::Busy { .. }, found)) if found.is_empty()));
    assert_eq!(pauses, PASSING_TRIES);
}
