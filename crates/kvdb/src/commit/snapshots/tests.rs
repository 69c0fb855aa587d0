use super::*;

#[test]
fn boundaries_are_the_live_pins_in_order() {
    let tracker = SnapshotTracker::new();
    assert_eq!((tracker.oldest(), tracker.boundaries()), (None, vec![]));
    let pins: Vec<_> = [7, 3, 7, 5].map(|seqno| tracker.pin(seqno)).into();
    assert_eq!((tracker.oldest(), tracker.count()), (Some(3), 4));
    assert_eq!(tracker.boundaries(), [3, 5, 7]);
    let copy = pins[1].clone();
    drop(pins);
    assert_eq!((tracker.boundaries(), copy.seqno()), (vec![3], 3));
    drop(copy);
    assert_eq!((tracker.count(), tracker.oldest()), (0, None));
}

#[test]
fn the_newest_pin_follows_the_watermark() {
    let (tracker, publisher) = (SnapshotTracker::new(), Publisher::new(4));
    let old = tracker.pin_newest(&publisher);
    publisher.begin(5, 3).publish().unwrap();
    let new = tracker.pin_newest(&publisher);
    assert_eq!((old.seqno(), new.seqno()), (4, 7));
}

/// A merge asks for boundaries; a pin taken afterwards is never below the watermark of that moment.
#[test]
fn later_pins_are_at_or_above_the_watermark_that_a_merge_saw() {
    let (tracker, publisher) = (SnapshotTracker::new(), Publisher::new(0));
    let newest_seen = parking_lot::Mutex::new((0, Vec::new()));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for base in 1..=5_000 {
                publisher.begin(base, 1).publish().unwrap();
            }
        });
        for _ in 0..2 {
            scope.spawn(|| {
                while publisher.visible() < 5_000 {
                    let (seen_before, _) = newest_seen.lock().clone();
                    let pin = tracker.pin_newest(&publisher);
                    assert!(pin.seqno() >= seen_before);
                    let mut seen = newest_seen.lock();
                    let visible = publisher.visible();
                    let boundaries = tracker.boundaries();
                    assert!(boundaries.contains(&pin.seqno()), "a live pin is a boundary");
                    *seen = (visible, boundaries);
                }
            });
        }
    });
    assert_eq!(tracker.count(), 0);
}
