//! Who sees which counters, zones and settings of keyspaces.

use kvfs_kv::KeyspaceOwner;

use super::*;
use crate::testing::{TestEngine, World, assert_denied, stranger};

#[test]
fn counters_of_a_keyspace_are_shown_to_those_that_may_read_it() {
    let world = World::new(false);
    let owner = KeyspaceOwner { uid: Caller::own().uid, gid: 0, mode: 0o600 };
    world.fs.keys().make_keyspace("secret", owner).expect("is made");
    let shows = |caller: &Caller| {
        let stats = world.unmounted().stats(caller);
        assert!(stats.is_sorted() && stats.iter().any(|(name, _)| name == READ_ONLY_STAT));
        stats.iter().any(|(name, _)| name == "keyspace.secret.bytes")
    };
    assert!(shows(&Caller::own()) && shows(&Caller::of_mount(0, 1)) && !shows(&stranger()));
    world
        .fs
        .keys()
        .change_keyspace("secret", |owner| Ok(KeyspaceOwner { mode: 0o604, ..owner }))
        .expect("changes");
    assert!(shows(&stranger()));
    kvfs_fs::settled(|caller| world.fs.keys().drop_keyspace(caller, "secret", |_| Ok(())))
        .expect("is dropped");
    assert!(!shows(&stranger()), "the engine may keep the name");
    let (store, user) = (world.unmounted(), stranger());
    let shown = store.keyspaces_shown_to(&user);
    assert!(!shown("secret") && !shown("7") && shown("meta"), "only what is no user's is for all");
}

#[test]
fn failure_of_the_engine_is_a_counter_and_the_health() {
    let mut world = World::new(false);
    world.engine = TestEngine { failure: Some("no device".to_owned()), ..TestEngine::default() };
    let store = world.unmounted();
    assert_eq!(store.health().failure.as_deref(), Some("no device"));
    let failed = (FAILED_STAT.to_owned(), 1);
    assert!(store.stats(&stranger()).contains(&failed));
}

#[test]
fn zones_and_compression_are_for_root_and_the_owner() {
    let world = World::new(false);
    let (store, own) = (world.unmounted(), Caller::own());
    assert_denied(store.zones(&stranger()), "only root and the store's owner see the zones of the store");
    assert_eq!(store.zones(&own).expect("tells").zone_bytes, 8);
    let denied = "only root and the store's owner see and change how keyspaces are stored";
    assert_denied(store.compression(&stranger(), "k", None), denied);
    let missing = store.compression(&own, "k", None).expect_err("there is none");
    assert_eq!(missing.to_string(), "there is no keyspace \"k\"");
    world.fs.keys().make_keyspace("k", KeyspaceOwner { uid: own.uid, gid: 0, mode: 0o600 }).expect("is made");
    assert_eq!(store.compression(&own, "k", None).expect("tells"), "none");
    let bad = store.compression(&own, "k", Some("gold")).expect_err("is no compression");
    assert_eq!(bad.kind(), ErrorKind::Usage);
}
