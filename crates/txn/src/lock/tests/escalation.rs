//! Many locks become one; memory is counted.

use super::*;
use crate::DoomReason;

fn options(names_max: usize) -> LockOptions {
    LockOptions { names_max, ..LockOptions::default() }
}

fn names(fixture: &Fixture) -> Vec<String> {
    fixture.admission.list().iter().map(|info| format!("{} {}", info.name, info.mode)).collect()
}

fn lock_entries(fixture: &Fixture, owner: &LockOwner, from: u32, to: u32) {
    for n in from..to {
        fixture.lock(owner, &[Want::exclusive(entry(1, format!("{n:05}").as_bytes()))]).unwrap();
    }
}

#[test]
fn beyond_the_bound_entries_of_a_directory_become_one_lock() {
    let fixture = Fixture::with(options(100));
    let one = fixture.begin(1);
    lock_entries(&fixture, &one, 0, 90);
    assert_eq!(names(&fixture).len(), 90);
    let bytes = fixture.admission.bytes();
    lock_entries(&fixture, &one, 90, 130);
    assert_eq!(names(&fixture), ["all entries of directory 1 exclusive"]);
    assert!(fixture.admission.bytes() < bytes / 10, "{} of {bytes}", fixture.admission.bytes());
    assert_eq!(fixture.admission.transactions()[0].names_count, 1);
    assert!(fixture.main(&[Want::shared(entry(1, b"other"))]).is_err());
    fixture.main(&[Want::shared(entry(2, b"other"))]).unwrap();
    drop(one);
    assert!(fixture.is_idle());
}

#[test]
fn no_escalation_against_the_locks_of_others() {
    let fixture = Fixture::with(options(100));
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&two, &[Want::shared(entry(1, b"theirs"))]).unwrap();
    lock_entries(&fixture, &one, 0, 200);
    assert_eq!(fixture.admission.transactions()[0].names_count, 200);
    two.end();
    lock_entries(&fixture, &one, 200, 220);
    assert_eq!(names(&fixture), ["all entries of directory 1 exclusive"]);
}

#[test]
fn shared_locks_escalate_to_a_shared_one() {
    let fixture = Fixture::with(options(64));
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    fixture.lock(&two, &[Want::shared(blocks(1, 2))]).unwrap();
    for n in 0..100 {
        fixture.lock(&one, &[Want::shared(blocks(2 * n, 2 * n + 1))]).unwrap();
    }
    assert_eq!(names(&fixture), ["all blocks of inode 9 shared", "blocks 1..2 of inode 9 shared"]);
    fixture.main(&[Want::shared(LockName::file(9))]).unwrap();
}

#[test]
fn a_file_written_from_front_to_back_is_one_lock() {
    let fixture = Fixture::new();
    let one = fixture.begin(1);
    for n in 0..1000 {
        fixture.lock(&one, &[Want::exclusive(blocks(n * 32, n * 32 + 32))]).unwrap();
    }
    assert_eq!(names(&fixture), ["blocks 0..32000 of inode 9 exclusive"]);
    assert!(fixture.admission.bytes() < 1000, "{}", fixture.admission.bytes());
}

#[test]
fn who_takes_more_locks_than_there_is_memory_is_doomed() {
    let fixture = Fixture::with(LockOptions { bytes_max: 50_000, ..LockOptions::default() });
    let (one, two) = (fixture.begin(1), fixture.begin(2));
    let mut refused = None;
    for n in 0..1000_u32 {
        let name = n.to_string();
        if let Err(Refused::Doomed(doom)) =
            fixture.lock(&one, &[Want::exclusive(entry(u64::from(n), name.as_bytes()))])
        {
            refused = Some((n, doom.reason));
            break;
        }
    }
    let (count, reason) = refused.unwrap();
    assert_eq!(reason, DoomReason::LockMemory);
    assert!(count > 100, "{count} locks in 50 kB");
    assert_eq!(fixture.admission.bytes(), 0);
    lock_entries(&fixture, &two, 0, 10);
}
