//! Who sees and changes which quotas, without a front end.

use super::*;
use crate::testing::{World, assert_denied, make_file, stranger};
use crate::transactions::Begin;

const NONE: LimitChanges = LimitChanges {
    bytes_soft: None,
    bytes_hard: None,
    inodes_soft: None,
    inodes_hard: None,
    grace_seconds: None,
};

#[test]
fn quota_of_others_is_refused_and_left_out_of_the_report() {
    let world = World::new(false);
    let (store, own, user) = (world.mounted(), Caller::own(), stranger());
    make_file(&world.fs, "file", user.uid);
    make_file(&world.fs, "other", user.uid + 1);
    store.turn_quotas_on(&own, false).expect("are on");
    let mine = QuotaOwner::User(user.uid);
    let changes = LimitChanges { inodes_hard: Some(7), ..NONE };
    store.set_quota(&own, mine, &changes).expect("is set");

    let row = store.quota(&user, mine, false).expect("is told");
    assert_eq!((row.inodes, row.limits.inodes_hard), (1, Some(7)));
    let of_others = "only root and the store's owner see other people's quotas";
    assert_denied(store.quota(&user, QuotaOwner::User(user.uid + 1), false), of_others);
    assert_denied(store.quota(&user, QuotaOwner::Group(user.uid), false), of_others);
    let report = store.quota_report(&user, false).expect("is told");
    assert!(report.iter().all(|row| matches!(row.owner, QuotaOwner::User(uid) if uid == user.uid)));
    assert!(report.len() == 1 && store.quota_report(&own, false).expect("is told").len() > 2);

    let change = "only root and the store's owner change quotas";
    assert_denied(store.set_quota(&user, mine, &changes), change);
    assert_denied(store.turn_quotas_off(&user), change);
    assert_denied(store.turn_quotas_on(&user, true), change);
    assert_denied(store.project_trees(&user), "only root and the store's owner list the trees of projects");
}

#[test]
fn exclusive_bytes_are_for_root_and_the_owner_of_the_store() {
    let owner = Caller::of_mount(Caller::own().uid + 2000, 1);
    let world = World::owned_by(owner.uid, false);
    let (store, user) = (world.mounted(), stranger());
    make_file(&world.fs, "file", user.uid);
    let refused = "only root and the store's owner see exclusive bytes";
    assert_denied(store.quota_report(&user, true), refused);
    let of_user = QuotaOwner::User(user.uid);
    for master in [Caller::own(), owner] {
        store.turn_quotas_on(&master, false).expect("are on");
        let row = store.quota(&master, of_user, true).expect("is told");
        assert_eq!((row.bytes, row.inodes, row.bytes_exclusive), (0, 1, Some(0)));
        let report = store.quota_report(&master, true).expect("is told");
        assert!(report.len() > 2 && report.iter().all(|row| row.bytes_exclusive.is_some()));
        assert_denied(store.quota(&user, of_user, true), refused);
        assert_denied(store.quota_report(&user, true), refused);
    }
    assert_eq!(store.quota(&user, of_user, false).expect("needs no count").inodes, 1);
    assert_eq!(store.quota_report(&user, false).expect("needs no count").len(), 1);
}

#[test]
fn owner_of_the_store_turns_quotas_on_and_aborts_no_transactions_of_others() {
    let owner = Caller::of_mount(Caller::own().uid + 2000, 1);
    let world = World::owned_by(owner.uid, false);
    let (store, user) = (world.mounted(), stranger());
    let id = world.transactions.begin(&user, Begin::default()).expect("begins");
    let denied = "only root and the user that has mounted the store abort the transactions of all users";
    assert_denied(store.turn_quotas_on(&owner, true), denied);
    assert!(world.transactions.abort(&user, id).is_ok(), "is still open");
    store.turn_quotas_on(&owner, false).expect("are on");
}

#[test]
fn open_transaction_or_branch_keeps_quotas_off() {
    let world = World::new(false);
    let (store, own) = (world.mounted(), Caller::own());
    world.transactions.begin(&own, Begin::default()).expect("begins");
    let open = store.turn_quotas_on(&own, false).expect_err("is refused");
    assert_eq!(open.kind(), ErrorKind::InUse);
    assert!(open.to_string().ends_with("commit or abort first, or use --abort-open"), "{open}");
    store.create_branch(&own, "try", (b"/", None), false).expect("is made");
    let branched = store.turn_quotas_on(&own, true).expect_err("is refused");
    assert_eq!(branched.to_string(), "what branches change is not counted; merge or delete them first: try");
    store.delete_branch(&own, "try").expect("is deleted");
    assert_eq!(store.quota_report(&own, false).expect_err("are off").kind(), ErrorKind::Failed);
    store.turn_quotas_on(&own, false).expect("are on");
    store.turn_quotas_on(&own, false).expect("are on already");
    store.turn_quotas_off(&own).expect("are off");
}
