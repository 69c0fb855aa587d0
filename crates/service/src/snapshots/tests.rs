//! Which users work with snapshots, and what a restore and a stream come to, without a front end.

use super::*;
use crate::comparisons::{Compared, Comparisons};
use crate::error::ErrorKind;
use crate::testing::{World, assert_denied, has_file, make_file, stranger};

const DENIED: &str = "only root and the store's owner make, delete, compare, restore and send snapshots";

#[test]
fn operation_on_snapshots_by_another_user_is_refused_and_the_list_is_not() {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    store.create_snapshot(&own, "monday", false, false).expect("is made");
    store.create_snapshot(&Caller::of_mount(0, 1), "secret", true, true).expect("is made");
    let other = stranger();
    assert_denied(store.create_snapshot(&other, "x", false, false), DENIED);
    assert_denied(store.set_snapshot_private(&other, "monday", true), DENIED);
    assert_denied(store.delete_snapshot(&other, "monday"), DENIED);
    assert_denied(store.restore_snapshot(&other, "monday", &[]), DENIED);
    assert_denied(store.offer_stream(&other, None, "monday"), DENIED);
    assert_denied(store.compare_snapshots(&other, Some("monday"), None), DENIED);
    let stream = store.offer_stream(&own, None, "monday").expect("is offered").stream;
    assert_denied(store.offer_stream_again(&other, stream), DENIED);
    assert_denied(Streams::default().frames(&store, &other, stream, 0, 1), DENIED);

    let names = |caller: &Caller| -> Vec<String> {
        store.snapshots(caller).into_iter().map(|line| line.name).collect()
    };
    assert_eq!(names(&other), ["monday"], "a private one is not shown");
    assert_eq!(names(&own), ["monday", "secret"]);
    let what = Compared::Snapshots(Some("monday".to_owned()), None);
    let begin = || store.compare_snapshots(&own, Some("monday"), None);
    let page = Comparisons::default().page(&own, what, (0, 10, 1000), begin).expect("is compared");
    assert_eq!(page, (Vec::new(), false));
}

#[test]
fn restore_on_either_kind_of_store_brings_back_what_was_there() {
    for is_mounted in [true, false] {
        let world = World::new(false);
        let store = if is_mounted { world.mounted() } else { world.unmounted() };
        make_file(&world.fs, "before", 0);
        store.create_snapshot(&Caller::own(), "monday", false, false).expect("is made");
        make_file(&world.fs, "after", 0);
        store.restore_snapshot(&Caller::own(), "monday", &[]).expect("is restored");
        assert!(has_file(&world.fs, "before") && !has_file(&world.fs, "after"));
        let missing = store.restore_snapshot(&Caller::own(), "tuesday", &[]).expect_err("there is none");
        assert_eq!(missing.kind(), ErrorKind::Failed);
    }
}

#[test]
fn stream_is_given_in_parts_and_goes_on_at_any_frame() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    make_file(&world.fs, "file", 0);
    store.create_snapshot(&own, "monday", false, false).expect("is made");
    let offer = store.offer_stream(&own, None, "monday").expect("is offered");
    let whole = Streams::default().frames(&store, &own, offer.stream, 0, usize::MAX).expect("is sent");
    assert!(whole.is_through);
    let (streams, mut parts) = (Streams::default(), Vec::new());
    loop {
        let part = streams.frames(&store, &own, offer.stream, parts.len() as u64, 1).expect("is sent");
        parts.extend(part.bytes);
        if part.is_through {
            break;
        }
        // As after a restart of the daemon.
        streams.forget(own.number);
    }
    assert_eq!(parts, whole.bytes);
    let wrong = streams.frames(&store, &own, offer.stream, 1, 1).expect_err("no frame begins there");
    assert_eq!(wrong.kind(), ErrorKind::Usage);
    let backwards = store.offer_stream(&own, Some("monday"), "monday").expect_err("leads nowhere");
    assert_eq!(backwards.kind(), ErrorKind::Usage);
}
