//! What is removed from a full store gives its space back, also where removed files keep their rows until
//! their end: with quotas, and with attributes.

use std::sync::Arc;

use kvfs_device::MemoryDevice;
use kvfs_fs::{DetachedTrees, FsError, INLINE_LEN_LIMIT, MountOptions, NodeId, RenameMode, XattrMode};
use kvfs_kvdb::{Background, CreateOptions, Db};
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, KeyspaceKind, Store, StoreError};

use crate::detached::{remove, trees};
use crate::engine;
use crate::setup::Setup;

const ROOT: NodeId = NodeId::ROOT;
const CAPACITY_BYTES: u64 = 100 << 20;

/// Over the model, and over the engine.
fn setups() -> [Setup; 2] {
    let device = Arc::new(MemoryDevice::growable(0, CAPACITY_BYTES));
    let create = CreateOptions { zone_bytes: 256 << 10, ..CreateOptions::new(CAPACITY_BYTES, [7; 16]) };
    Db::create(Arc::clone(&device) as _, &create).unwrap();
    let db = engine::open(&device, 2 << 20, Background::Manual);
    let stores: [Arc<dyn Store>; 2] = [Arc::new(ModelStore::with_capacity_bytes(CAPACITY_BYTES)), db];
    stores.map(|store| Setup::with(store, INLINE_LEN_LIMIT, MountOptions::default()))
}

fn with_content(setup: &Setup, parent: NodeId, name: &str, len: usize) -> NodeId {
    let file = setup.file(parent, name);
    setup.write_at(file, 0, &vec![1; len]).unwrap();
    file
}

/// Rows of ever fewer bytes, until none fits.
fn fill(store: &dyn Store) {
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut number = 0_u64;
    for len in [16 << 10, 1 << 10, 100, 1] {
        loop {
            number += 1;
            let mut batch = Batch::new();
            batch.put(filler, number.reverse_bits().to_be_bytes().to_vec(), vec![number as u8; len]);
            match store.apply(batch, Durability::Buffered) {
                Ok(_) => {}
                Err(StoreError::Full) => break,
                Err(error) => panic!("filling: {error}"),
            }
        }
    }
}

fn detached_tree_goes(prepare: impl Fn(&Setup), equip: impl Fn(&Setup, NodeId)) {
    for setup in setups() {
        prepare(&setup);
        let top = setup.dir(ROOT, "tree");
        for number in 0..3000 {
            let file = with_content(&setup, top, &format!("{number}"), 1000);
            equip(&setup, file);
            setup.forget(file, 1);
        }
        fill(&*setup.store);
        let make = || setup.create(&setup.caller, ROOT, b"new", 0o644, true);
        assert!(matches!(make(), Err(FsError::NoSpace)), "it is full");
        remove(&setup, ROOT, "tree");
        while trees(&setup.fs) > 0 {
            let before = DetachedTrees::of(&setup.fs).stats().names_removed;
            setup.housekeep().unwrap();
            assert!(DetachedTrees::of(&setup.fs).stats().names_removed > before, "it goes on");
        }
        make().unwrap();
        setup.assert_sound("after the removal");
    }
}

#[test]
fn tree_of_small_files_on_a_full_store_with_quotas_goes_and_makes_room() {
    detached_tree_goes(|setup| setup.quotas().turn_on(&|_| {}).unwrap(), |_, _| ());
}

#[test]
fn tree_of_small_files_with_attributes_on_a_full_store_goes_and_makes_room() {
    let equip = |setup: &Setup, file| {
        setup.setxattr(&setup.caller, file, b"user.tag", b"1", XattrMode::Set).unwrap();
    };
    detached_tree_goes(|_| (), equip);
}

#[test]
fn files_with_the_longest_rows_are_removed_and_replaced_on_a_full_store() {
    for setup in setups() {
        setup.quotas().turn_on(&|_| {}).unwrap();
        let long = |kind: char, number: usize| format!("{number:02}{}", kind.to_string().repeat(250));
        for number in 0..20 {
            for kind in ['a', 'b', 'c'] {
                let file = with_content(&setup, ROOT, &long(kind, number), INLINE_LEN_LIMIT as usize - 36);
                setup.forget(file, 1);
            }
        }
        fill(&*setup.store);
        for number in 0..20 {
            setup.unlink(&setup.caller, ROOT, long('a', number).as_bytes()).unwrap();
            let (from, to) = (long('b', number), long('c', number));
            let (from, to) = (from.as_bytes(), to.as_bytes());
            setup.rename(&setup.caller, ROOT, from, ROOT, to, RenameMode::Replace).unwrap();
            setup.housekeep().unwrap();
        }
        setup.file(ROOT, "new");
        setup.assert_sound("after the removals");
    }
}
