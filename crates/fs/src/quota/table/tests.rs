use super::*;
use crate::quota::GRACE_SECONDS;

const USER: (QuotaKind, u32) = (QuotaKind::User, 7);

const EVERYTHING: QuotaCheck = QuotaCheck { owners: true, projects: true };

/// A user with a soft limit of 100 bytes.
fn accounts(is_counted: bool) -> Accounts {
    let accounts = Accounts::new(is_counted);
    accounts.limit(USER.0, USER.1, Limits { bytes_soft: 100, ..Limits::default() }, 0);
    accounts
}

fn change(bytes: i64) -> [Change; 1] {
    [Change { kind: USER.0, id: USER.1, usage: Usage { bytes, inodes: 0 } }]
}

fn until(accounts: &Accounts) -> Option<u64> {
    accounts.line(USER.0, USER.1).bytes_until
}

#[test]
fn what_is_given_back_leaves_no_time_of_grace() {
    let accounts = accounts(true);
    accounts.charge(&change(200), EVERYTHING, 1000).expect("is within the hard limit");
    assert_eq!(until(&accounts), Some(1000 + GRACE_SECONDS));
    accounts.refund(&change(200), &EndedGrace::default(), 1001);
    assert_eq!(until(&accounts), None);
    let late = 1002 + GRACE_SECONDS as i64;
    accounts.charge(&change(200), EVERYTHING, late).expect("the time of grace begins now");
}

#[test]
fn counting_again_begins_no_new_time_of_grace() {
    let accounts = accounts(false);
    accounts.set_since(USER.0, USER.1, Since { bytes: 500, inodes: 0 });
    // A user writes while the rest is counted.
    accounts.charge(&change(10), EVERYTHING, 1000).expect("is not counted yet");
    accounts.charge(&change(200), QuotaCheck::NONE, 1001).expect("is what was found");
    accounts.counted(1001);
    assert_eq!(until(&accounts), Some(500 + GRACE_SECONDS));
    assert!(matches!(
        accounts.charge(&change(1), EVERYTHING, 501 + GRACE_SECONDS as i64),
        Err(FsError::QuotaExceeded)
    ));
}

#[test]
fn a_removal_that_is_taken_back_begins_no_new_time_of_grace() {
    let accounts = accounts(true);
    accounts.charge(&change(200), EVERYTHING, 1000).expect("is within the hard limit");
    let late = 1001 + GRACE_SECONDS as i64;
    let ended = accounts.charge(&change(-150), EVERYTHING, late).expect("is less");
    assert_eq!(until(&accounts), None);
    accounts.refund(&change(-150), &ended, late);
    assert_eq!(until(&accounts), Some(1000 + GRACE_SECONDS));
    assert!(matches!(accounts.charge(&change(1), EVERYTHING, late), Err(FsError::QuotaExceeded)));
    // One that took place is another matter.
    accounts.charge(&change(-150), EVERYTHING, late).expect("is less");
    accounts.charge(&change(150), EVERYTHING, late + 1).expect("begins a time of grace");
    assert_eq!(until(&accounts), Some(late as u64 + 1 + GRACE_SECONDS));
}

#[test]
fn removal_that_ended_no_time_of_grace_brings_none_back() {
    let accounts = accounts(true);
    accounts.charge(&change(200), EVERYTHING, 1000).expect("is within the hard limit");
    accounts.charge(&change(-105), EVERYTHING, 1001).expect("is less");
    // Below the limit all the time until it is taken back, long after.
    let late = 1002 + GRACE_SECONDS as i64;
    let ended = accounts.charge(&change(-50), EVERYTHING, late).expect("is less");
    accounts.charge(&change(30), EVERYTHING, late).expect("is within the soft limit");
    accounts.refund(&change(-50), &ended, late);
    assert_eq!(until(&accounts), Some(late as u64 + GRACE_SECONDS));
    accounts.charge(&change(1), EVERYTHING, late + 1).expect("is within the time of grace");
}
