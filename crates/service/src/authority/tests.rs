//! What users may ask that are neither root nor the store's owner: every operation is named.

use std::os::fd::OwnedFd;
use std::path::Path;

use kvfs_fs::TxnId;
use kvfs_fs::transfer::StreamId;
use kvfs_kv::{Access, KeyspaceOwner};

use super::*;
use crate::lines::{DefragRequest, LimitChanges, SelectionLine};
use crate::testing::{World, stranger};
use crate::transactions::Begin;

#[track_caller]
fn assert_master_only<T>(refused: Result<T>) {
    let error = refused.err().expect("is refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().starts_with("only root and the store's owner "), "{error}");
}

#[track_caller]
fn assert_server_only<T>(refused: Result<T>) {
    let error = refused.err().expect("is refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    assert!(error.to_string().starts_with("only root and the user that has mounted the store "), "{error}");
}

#[test]
fn every_user_may_ask_for_own_things_and_no_more() {
    let world = World::new(false);
    let (store, transactions, user) = (world.mounted(), &world.transactions, stranger());
    // Own things.
    let id = transactions.begin(&user, Begin { needs_files: true, ..Begin::default() }).expect("begins");
    assert_eq!(transactions.list(&user).len(), 1);
    assert!(transactions.diff(&user, id).is_ok() && transactions.locks(user.uid, None).is_ok());
    assert!(transactions.abort(&user, id).is_ok() && store.committed(&user).is_ok() && store.sync().is_ok());
    assert!(!store.stats(&user).is_empty() && store.health().failure.is_none());
    assert!(store.snapshots(&user).is_empty() && store.list_branches(&user).expect("are read").is_empty());
    // What is for root and the store's owner.
    let id = transactions.begin(&user, Begin::default()).expect("begins");
    let device = || OwnedFd::from(std::fs::File::open("/dev/null").expect("opens"));
    assert_master_only(transactions.begin(&user, Begin { nice: -1, ..Begin::default() }));
    assert_server_only(transactions.attach(&user, id, device()));
    assert_server_only(transactions.join(&user, id));
    assert_master_only(store.check(&user));
    assert_master_only(store.zones(&user));
    assert_server_only(store.grow(&user, None));
    assert_master_only(store.compression(&user, "k", None));
    assert_master_only(store.defrag_plan(&user, false));
    let request = DefragRequest { rewrite: false, bytes_per_second: 0, dry_run: false };
    assert_master_only(store.defragment(&user, request));
    assert_master_only(store.turn_quotas_on(&user, true));
    assert_master_only(store.turn_quotas_off(&user));
    let changes = LimitChanges {
        bytes_soft: None,
        bytes_hard: None,
        inodes_soft: None,
        inodes_hard: None,
        grace_seconds: None,
    };
    assert_master_only(store.set_quota(&user, QuotaOwner::User(user.uid), &changes));
    assert_master_only(store.quota(&user, QuotaOwner::User(0), false));
    assert_master_only(store.quota(&user, QuotaOwner::User(user.uid), true));
    assert_master_only(store.quota_report(&user, true));
    assert_master_only(store.project_trees(&user));
    assert_master_only(store.create_snapshot(&user, "s", false, false));
    assert_master_only(store.set_snapshot_private(&user, "s", true));
    assert_master_only(store.delete_snapshot(&user, "s"));
    assert_master_only(store.restore_snapshot(&user, "s", &[]));
    assert_master_only(store.offer_stream(&user, None, "s"));
    assert_master_only(store.offer_stream_again(&user, StreamId([0; 16])));
    assert_master_only(store.compare_snapshots(&user, None, None));
    assert_master_only(store.create_branch(&user, "b", (b"/", None), false));
    assert_master_only(store.mount_branch(&user, "b", Path::new("/")));
    assert_master_only(store.unmount_branch(&user, "b"));
    assert_master_only(store.settle_branch(&user, Path::new("/")));
    assert_master_only(store.branch_diff(&user, "b"));
    assert_master_only(store.merge_branch(&user, "b", None));
    assert_master_only(store.delete_branch(&user, "b"));
    // Another user's transaction.
    let own = Caller::own();
    let other = transactions.begin(&own, Begin::default()).expect("begins");
    let refused = [transactions.diff(&user, other).map(drop), transactions.abort(&user, other).map(drop)];
    assert!(refused.iter().all(|refused| matches!(refused, Err(ServiceError::NotYours { .. }))));
    let gone = store.take_back(&user, TxnId(other), SelectionLine::default());
    assert_eq!(gone.expect_err("is open").kind(), ErrorKind::Failed);
}

#[test]
fn owner_of_the_directory_is_master_of_what_is_stored_and_not_of_the_process_that_serves_it() {
    let owner_uid = Caller::own().uid + 2000;
    let world = World::owned_by(owner_uid, false);
    let (store, owner) = (world.mounted(), Caller::of_mount(owner_uid, 1));
    assert!([0, owner_uid, Caller::own().uid].into_iter().all(|uid| is_master(&world.fs, uid)));
    assert!(!is_master(&world.fs, stranger().uid));
    // What is stored.
    let keys = KeyspaceOwner { uid: stranger().uid, gid: 0, mode: 0o600 };
    world.fs.keys().make_keyspace("secret", keys).expect("is made");
    assert!(store.stats(&owner).iter().any(|(name, _)| name == "keyspace.secret.bytes"));
    assert!(owner.may_use_keys(&world.fs, &keys, Access::Write) && store.check(&owner).is_ok());
    store.create_snapshot(&owner, "mine", false, true).expect("is made");
    for (caller, shown) in [(&owner, 1), (&Caller::own(), 1), (&stranger(), 0)] {
        assert_eq!(store.snapshots(caller).len(), shown, "{caller:?}");
    }
    assert!(
        store.create_branch(&owner, "b", (b"/", None), false).is_ok()
            && store.turn_quotas_off(&owner).is_ok()
    );
    let urgent = Begin { nice: -1, ..Begin::default() };
    let id = world.transactions.begin(&owner, urgent).expect("is urgent");
    // What is the process's, and the transactions of others.
    assert_server_only(world.transactions.join(&owner, id));
    assert_server_only(store.mount_branch(&owner, "b", Path::new("/")));
    let other = world.transactions.begin(&stranger(), Begin::default()).expect("begins");
    let refused = world.transactions.abort(&owner, other);
    assert!(matches!(refused, Err(ServiceError::NotYours { .. })));
}
