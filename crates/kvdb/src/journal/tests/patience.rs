//! Tests of who waits for whom before a flush.

use std::time::Duration;

use crate::journal::patience::{HASTY_FLUSHES, Patience, WAIT_MAX};

const US: Duration = Duration::from_micros(1);

#[test]
fn a_flush_waits_for_those_that_the_last_one_let_go_for_twice_as_long_as_that_took() {
    let mut patience = Patience::default();
    assert_eq!(patience.wait(1, Duration::ZERO), None, "nobody is known");
    patience.note_flush(1000 * US, 100 * US, 1, 0);
    assert_eq!(patience.wait(1, 1001 * US), None, "a lone client");
    patience.note_flush(2000 * US, 100 * US, 1, 15);
    assert_eq!(patience.wait(15, 2001 * US), Some(199 * US));
    assert_eq!(patience.wait(16, 2001 * US), None, "all are there");
    assert_eq!(patience.wait(15, 2200 * US), None, "they had their time");
    patience.note_flush(3000 * US, Duration::from_secs(2), 16, 0);
    assert_eq!(patience.wait(1, 3000 * US), Some(WAIT_MAX), "the device may have stood still");
}

/// Flushes of 4 clients until the next one that waits.
fn count_hasty(patience: &mut Patience) -> u32 {
    let mut count = 0;
    while patience.wait(2, US).is_none() {
        patience.note_flush(Duration::ZERO, 100 * US, 2, 2);
        count += 1;
    }
    count
}

#[test]
fn after_waits_in_vain_ever_more_flushes_wait_for_nobody() {
    let mut patience = Patience::default();
    patience.note_flush(Duration::ZERO, 100 * US, 2, 2);
    let mut after_vain = || {
        patience.note_time_over(2);
        count_hasty(&mut patience)
    };
    let counts = [(); 7].map(|()| after_vain());
    assert_eq!(counts, [4, 8, 16, 32, 64, 64, 64]);
    assert_eq!((counts[0], counts[6]), (*HASTY_FLUSHES.start(), *HASTY_FLUSHES.end()));
    patience.note_flush(Duration::ZERO, 100 * US, 4, 0);
    assert!(patience.wait(2, US).is_some());
    patience.note_time_over(3);
    assert_eq!(count_hasty(&mut patience), 1, "three of four were worth it: only they do not wait again");
    patience.note_time_over(2);
    assert_eq!(count_hasty(&mut patience), 4, "all had come since");
}
