//! Who adds and removes devices, and what ends the waiting, without an engine.

use super::*;
use crate::testing::{World, assert_denied, stranger};

fn new_device() -> NewDeviceLine {
    NewDeviceLine { path: b"/dev/x".to_vec(), is_slow: true, size_bytes: None, force: false }
}

#[test]
fn devices_come_and_go_for_root_and_the_user_that_has_mounted_the_store() {
    let world = World::new(false);
    let (tiers, own) = (Tiers::of(&world.unmounted()), Caller::own());
    let denied = |what: &str| format!("only root and the user that has mounted the store {what}");
    assert_denied(tiers.devices(&stranger()), "only root and the store's owner see its devices");
    assert_denied(tiers.add_device(&stranger(), &new_device()), &denied("add devices to it"));
    let id = tiers.add_device(&own, &new_device()).expect("adds");
    assert_denied(tiers.drain_devices(&stranger(), &[id], true), &denied("drain its devices"));
    assert_denied(tiers.refill_device(&stranger(), id), &denied("fill its devices"));
    assert_denied(tiers.remove_device(&stranger(), id), &denied("remove its devices"));
    assert_eq!(tiers.devices(&own).expect("lists").len(), 1);
    tiers.remove_device(&own, id).expect("drains and removes");
    assert!(tiers.devices(&own).expect("lists").is_empty());
    let error = tiers.remove_device(&own, 7).expect_err("there is none");
    assert_eq!(error.kind(), ErrorKind::Usage);
}

#[test]
fn placement_is_changed_by_root_and_the_user_that_has_mounted_the_store() {
    let world = World::new(false);
    let (tiers, own) = (Tiers::of(&world.unmounted()), Caller::own());
    assert_denied(
        tiers.placement(&stranger(), Some(("static", false))),
        "only root and the user that has mounted the store change how it places content",
    );
    assert_denied(
        tiers.placement(&stranger(), None),
        "only root and the store's owner see how it places content",
    );
    assert_eq!(tiers.placement(&own, Some(("static", true))).expect("changes").policy, "static");
    assert_eq!(tiers.placement(&own, None).expect("tells").policy, "static");
}

#[test]
fn heat_is_shown_to_root_and_the_owner_in_a_bounded_number_of_cells() {
    let world = World::new(false);
    let (tiers, own) = (Tiers::of(&world.unmounted()), Caller::own());
    assert_denied(
        tiers.heat(&stranger(), 1),
        "only root and the store's owner see what is hot on its devices",
    );
    let bits = |cells| tiers.heat(&own, cells).expect("tells").hot_from;
    assert_eq!([bits(0), bits(4096), bits(u32::MAX)], [0, 12, 16]);
    world.defrag.stop();
    assert_eq!(tiers.heat(&own, 1).expect_err("is being closed").kind(), ErrorKind::NotMounted);
}

#[test]
fn what_can_not_be_emptied_stays_and_the_drain_can_be_taken_back() {
    let world = World::new(false);
    let (tiers, own) = (Tiers::of(&world.unmounted()), Caller::own());
    let id = tiers.add_device(&own, &new_device()).expect("adds");
    let lines = tiers.drain_devices(&own, &[id], false).expect("begins");
    assert!(lines[0].drain.is_some() && !lines[0].is_empty(), "it is not waited for");
    // The store is to be closed.
    world.defrag.stop();
    let error = tiers.remove_device(&own, id).expect_err("is not waited for");
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains("in the background"), "{error}");
    tiers.refill_device(&own, id).expect("fills");
    assert_eq!(tiers.devices(&own).expect("lists")[0].drain, None);
}
