use kvfs_store::clock::ManualClock;
use object_store::Error;

use super::*;

fn refused() -> Error {
    Error::PermissionDenied { path: "p".to_owned(), source: "<Code>ExpiredToken</Code>".into() }
}

fn broken() -> Error {
    Error::Generic { store: "S3", source: "connection reset".into() }
}

#[test]
fn outage_is_told_once_when_it_lasts_and_so_is_its_end() {
    let clock = Arc::new(ManualClock::at(Duration::ZERO));
    let health = Health::new("S3(b)".to_owned(), Some(Duration::from_mins(1)), Arc::clone(&clock) as _);
    assert_eq!(health.failed(Direction::Writes, &broken()), None, "it may be a moment");
    assert_eq!(health.answered(Direction::Writes), None, "it was one");
    assert_eq!(health.failed(Direction::Writes, &broken()), None);
    // Reads still work.
    assert_eq!(health.answered(Direction::Reads), None);
    clock.advance(Duration::from_secs(7));
    let told = health.failed(Direction::Writes, &refused()).unwrap();
    for words in ["S3(b)", "no write for 7 s", "ExpiredToken", "up to 60s each", "EIO", "credentials"] {
        assert!(told.contains(words), "{told}");
    }
    assert_eq!(health.failed(Direction::Writes, &refused()), None, "once");
    assert!(health.is_failing(Direction::Writes) && !health.is_failing(Direction::Reads));
    clock.advance(Duration::from_secs(10));
    let told = health.answered(Direction::Writes).unwrap();
    assert!(told.contains("takes writes again, after 17 s"), "{told}");
    assert_eq!((health.answered(Direction::Writes), health.outages()), (None, 1));
}

#[test]
fn outage_of_reads_says_what_is_still_read_and_for_how_long_others_wait() {
    let clock = Arc::new(ManualClock::at(Duration::ZERO));
    let health = Health::new("S3(b)".to_owned(), None, Arc::clone(&clock) as _);
    assert_eq!(health.failed(Direction::Reads, &broken()), None);
    clock.advance(TOLD_AFTER);
    let told = health.failed(Direction::Reads, &broken()).unwrap();
    for words in [
        "answered nothing for 5 s",
        "connection reset",
        "is cached is read",
        "as long as it takes",
        "network",
    ] {
        assert!(told.contains(words), "{told}");
    }
}
