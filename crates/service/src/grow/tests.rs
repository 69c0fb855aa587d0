//! Who makes a store larger, and how far, without an engine.

use super::*;
use crate::lines::DeviceLine;
use crate::testing::{TestEngine, World, assert_denied, stranger};

#[test]
fn store_of_several_devices_does_not_grow_and_says_what_to_do() {
    let mut world = World::new(false);
    let before = world.fs.store().space().capacity_bytes;
    world.engine = TestEngine { room: u64::MAX, ..TestEngine::default() };
    *world.engine.devices.lock() = vec![DeviceLine::default(); 2];
    let store = world.unmounted();
    for bytes in [None, before.checked_add(1)] {
        let refused = store.grow(&Caller::own(), bytes).expect_err("others lie behind it");
        assert!(
            refused.kind() == ErrorKind::Usage && refused.to_string().contains("kvfs tier add"),
            "{refused}"
        );
    }
    assert_eq!(store.grow(&Caller::own(), Some(before)).expect("changes nothing").after, before);
}

#[test]
fn store_grows_for_the_user_that_serves_it_only_and_within_a_block_device() {
    let mut world = World::new(false);
    let own = Caller::own();
    let before = world.fs.store().space().capacity_bytes;
    let room = before.saturating_add(1);
    world.engine = TestEngine { room, ..TestEngine::default() };
    let store = world.unmounted();
    let denied = "only root and the user that has mounted the store make it larger";
    assert_denied(store.grow(&stranger(), None), denied);
    let grown = store.grow(&own, None).expect("grows");
    assert_eq!(grown, Grown { before, after: room.max(before), behind: None });
    if let Some(less) = before.checked_sub(1) {
        let shrunk = store.grow(&own, Some(less)).expect_err("does not shrink");
        assert_eq!(shrunk.kind(), ErrorKind::Usage);
        world.engine = TestEngine { room: less, is_block_device: true, ..TestEngine::default() };
        let full = world.unmounted().grow(&own, Some(before)).expect_err("has no room");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        let none = world.unmounted().grow(&own, None).expect_err("has no room");
        assert_eq!(none.kind(), ErrorKind::NoSpace);
        assert!(full.to_string().contains("/dev/x"), "{full}");
    }
}
