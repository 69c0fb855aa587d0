//! The rules, without a store. Those that need one are tested by the key-value socket's server.

use super::*;

const OWNER: KeyspaceOwner = KeyspaceOwner { uid: 1, gid: 10, mode: 0o640 };

fn user(uid: u32, groups: &[u32]) -> KeyspaceUser<'_> {
    KeyspaceUser { uid, gid: groups[0], groups, is_master: uid == 0 }
}

fn is_refused<T>(result: &Result<T, KvError>) -> bool {
    matches!(result, Err(KvError::NotPermitted(_)))
}

#[test]
fn mode_gives_rights_to_owner_group_and_others() {
    let may = |user: KeyspaceUser<'_>| [Access::Read, Access::Write].map(|access| user.may(&OWNER, access));
    assert_eq!(may(user(1, &[11])), [true, true]);
    assert_eq!(may(user(2, &[20, 10])), [true, false]);
    assert_eq!(may(user(3, &[30])), [false, false]);
    assert_eq!(may(user(0, &[0])), [true, true]);
    assert!(!user(3, &[30]).may_use(&OWNER) && user(2, &[10]).may_use(&OWNER));
}

#[test]
fn only_owner_and_master_drop_a_keyspace() {
    assert!(user(1, &[11]).may_drop(&OWNER).is_ok() && user(0, &[0]).may_drop(&OWNER).is_ok());
    assert!(is_refused(&user(2, &[10]).may_drop(&OWNER)), "the group's rights are not enough");
}

#[test]
fn owner_changes_mode_and_group_of_its_own_and_only_master_gives_away() {
    let change = |user: KeyspaceUser<'_>, change| user.changed(OWNER, change);
    let (to_uid, to_gid) = (
        |uid| OwnerChange { uid: Some(uid), ..OwnerChange::default() },
        |gid| OwnerChange { gid: Some(gid), ..OwnerChange::default() },
    );
    let to_mode = OwnerChange { mode: Some(0o600), ..OwnerChange::default() };
    let owner = user(1, &[11]);
    assert_eq!(change(owner, to_mode).ok(), Some(KeyspaceOwner { mode: 0o600, ..OWNER }));
    assert_eq!(change(owner, to_gid(11)).ok(), Some(KeyspaceOwner { gid: 11, ..OWNER }));
    assert!(change(owner, to_gid(10)).is_ok(), "the group that it has");
    assert!(change(owner, to_uid(1)).is_ok(), "the owner that it has");
    for refused in [change(owner, to_gid(30)), change(owner, to_uid(2)), change(user(2, &[10]), to_mode)] {
        assert!(is_refused(&refused));
    }
    assert_eq!(change(user(0, &[0]), to_uid(2)).ok(), Some(KeyspaceOwner { uid: 2, ..OWNER }));
}

#[test]
fn mode_with_other_bits_is_refused() {
    assert!(check_mode::<()>(0o664).is_ok());
    assert!([0o777, 0o1600, 0o100].into_iter().all(|mode| check_mode::<()>(mode).is_err()));
}
