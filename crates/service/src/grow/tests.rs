//! Who makes a store larger, and how far, without an engine.

use super::*;
use crate::testing::{World, assert_denied, stranger};

/// A device with so much room, which is a block device or none.
struct Device {
    room: u64,
    is_block_device: bool,
}

impl Growing for Device {
    fn room(&self) -> Result<u64> {
        Ok(self.room)
    }

    fn block_device(&self) -> Option<String> {
        self.is_block_device.then(|| "/dev/x".to_owned())
    }

    fn grow(&self, bytes: u64) -> Result<u64, StoreError> {
        Ok(bytes)
    }
}

#[test]
fn store_grows_for_master_only_and_within_a_block_device() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    let before = world.fs.store().space().capacity_bytes;
    let file = Device { room: before.saturating_add(1), is_block_device: false };
    assert_denied(store.grow(&stranger(), &file, None), "only root and the store's owner make it larger");
    let grown = store.grow(&own, &file, None).expect("grows");
    assert_eq!(grown, Grown { before, after: file.room.max(before), behind: None });
    if let Some(less) = before.checked_sub(1) {
        let shrunk = store.grow(&own, &file, Some(less)).expect_err("does not shrink");
        assert_eq!(shrunk.kind(), ErrorKind::Usage);
        let small = Device { room: less, is_block_device: true };
        let full = store.grow(&own, &small, Some(before)).expect_err("has no room");
        assert_eq!(full.kind(), ErrorKind::NoSpace);
        assert_eq!(store.grow(&own, &small, None).expect_err("has no room").kind(), ErrorKind::NoSpace);
    }
}
