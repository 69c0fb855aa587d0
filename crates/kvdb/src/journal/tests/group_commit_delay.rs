//! Tests of which clients a flush waits for.

use std::time::Duration;

use crate::journal::group_commit_delay::{GroupCommitDelay, SKIPS, WAIT_MAX};

const US: Duration = Duration::from_micros(1);

#[test]
fn a_flush_waits_for_those_that_the_last_one_let_go_for_twice_as_long_as_that_took() {
    let mut delay = GroupCommitDelay::default();
    assert_eq!(delay.wait(1, Duration::ZERO), None, "no client is known");
    delay.note_flush(1000 * US, 100 * US, 1, 0);
    assert_eq!(delay.wait(1, 1001 * US), None, "a lone client");
    delay.note_flush(2000 * US, 100 * US, 1, 15);
    assert_eq!(delay.wait(15, 2001 * US), Some(199 * US));
    assert_eq!(delay.wait(16, 2001 * US), None, "all are there");
    assert_eq!(delay.wait(15, 2200 * US), None, "they had their time");
    delay.note_flush(3000 * US, Duration::from_secs(2), 16, 0);
    assert_eq!(delay.wait(1, 3000 * US), Some(WAIT_MAX), "the device may have stood still");
}

/// Flushes of 4 clients until the next one that waits.
fn count_skips(delay: &mut GroupCommitDelay) -> u32 {
    let mut count = 0;
    while delay.wait(2, US).is_none() {
        delay.note_flush(Duration::ZERO, 100 * US, 2, 2);
        count += 1;
    }
    count
}

#[test]
fn flushes_after_waits_in_vain_skip_ever_more_waits() {
    let mut delay = GroupCommitDelay::default();
    delay.note_flush(Duration::ZERO, 100 * US, 2, 2);
    let mut after_vain = || {
        delay.note_time_over(2);
        count_skips(&mut delay)
    };
    let counts = [(); 7].map(|()| after_vain());
    assert_eq!(counts, [4, 8, 16, 32, 64, 64, 64]);
    assert_eq!((counts[0], counts[6]), (*SKIPS.start(), *SKIPS.end()));
    delay.note_flush(Duration::ZERO, 100 * US, 4, 0);
    assert!(delay.wait(2, US).is_some());
    delay.note_time_over(3);
    assert_eq!(count_skips(&mut delay), 1, "three of four were worth it: only they do not wait again");
    delay.note_time_over(2);
    assert_eq!(count_skips(&mut delay), 4, "all had come since");
}
