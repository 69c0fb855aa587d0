//! Who adds and removes devices, and what ends the waiting, without an engine.

use super::*;
use crate::testing::{World, assert_denied, stranger};

fn new_device() -> NewDeviceLine {
    NewDeviceLine { path: b"/dev/x".to_vec(), is_slow: true, size_bytes: None, force: false }
}

#[test]
fn devices_come_and_go_for_root_and_the_user_that_has_mounted_the_store() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    let denied = |what: &str| format!("only root and the user that has mounted the store {what}");
    assert_denied(store.devices(&stranger()), "only root and the store's owner see its devices");
    assert_denied(store.add_device(&stranger(), &new_device()), &denied("add devices to it"));
    let id = store.add_device(&own, &new_device()).expect("adds");
    assert_denied(store.drain_device(&stranger(), id, true), &denied("drain its devices"));
    assert_denied(store.refill_device(&stranger(), id), &denied("fill its devices"));
    assert_denied(store.remove_device(&stranger(), id), &denied("remove its devices"));
    assert_eq!(store.devices(&own).expect("lists").len(), 1);
    store.remove_device(&own, id).expect("drains and removes");
    assert!(store.devices(&own).expect("lists").is_empty());
    let error = store.remove_device(&own, 7).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn placement_is_changed_by_root_and_the_user_that_has_mounted_the_store() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    assert_denied(
        store.placement(&stranger(), Some(("static", false))),
        "only root and the user that has mounted the store change how it places content",
    );
    assert_denied(
        store.placement(&stranger(), None),
        "only root and the store's owner see how it places content",
    );
    assert_eq!(store.placement(&own, Some(("static", true))).expect("changes").policy, "static");
    assert_eq!(store.placement(&own, None).expect("tells").policy, "static");
}

#[test]
fn what_can_not_be_emptied_stays_and_the_drain_can_be_taken_back() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    let id = store.add_device(&own, &new_device()).expect("adds");
    let lines = store.drain_device(&own, id, false).expect("begins");
    assert!(lines[0].drain.is_some() && !lines[0].is_empty(), "it is not waited for");
    // The store is to be closed.
    world.defrag.stop();
    let error = store.remove_device(&own, id).expect_err("is not waited for");
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("in the background"), "{error}");
    store.refill_device(&own, id).expect("fills");
    assert_eq!(store.devices(&own).expect("lists")[0].drain, None);
}
