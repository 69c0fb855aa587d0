//! Users' keyspaces: batches, and whose they are.

use bytes::Bytes;
use kvfs_fs::{FsError, KeyChange, KeyspaceOwner};
use kvfs_store::{Isolation, KEY_LEN_MAX, KeyRange, Keyspace};

use crate::setup::Setup;
use crate::views::{begin, commit};

const OWNER: KeyspaceOwner = KeyspaceOwner { uid: 7, gid: 8, mode: 0o640 };

/// No key is greater.
static LAST: [u8; KEY_LEN_MAX] = [0xff; KEY_LEN_MAX];

fn put(key: &'static [u8], value: &'static str) -> KeyChange {
    KeyChange::Put { key: Bytes::from_static(key), value: value.into() }
}

fn keys(view: &Setup, keyspace: Keyspace) -> Vec<Vec<u8>> {
    let mut cursor = view.key_cursor(&view.caller, keyspace, KeyRange::all()).unwrap();
    let mut found = Vec::new();
    cursor.next().unwrap();
    while let Some((key, _)) = cursor.entry() {
        found.push(key.to_vec());
        cursor.next().unwrap();
    }
    found
}

#[test]
fn a_keyspace_keeps_its_owner() {
    let mut setup = Setup::new(4096);
    assert_eq!(setup.keyspace("tags").unwrap(), None);
    let (made, is_new) = setup.make_keyspace("tags", OWNER).unwrap();
    assert!(is_new && made.owner == OWNER);
    let other = KeyspaceOwner { uid: 1, ..OWNER };
    assert_eq!(setup.make_keyspace("tags", other).unwrap(), (made, false), "it has one already");
    setup.make_keyspace("other", other).unwrap();
    let kept = |owner: KeyspaceOwner| Ok::<_, FsError>(KeyspaceOwner { mode: 0o600, ..owner });
    setup.change_keyspace("tags", kept).unwrap();
    assert!(matches!(setup.change_keyspace("none", kept), Err(FsError::NotFound)));
    setup.reopen();
    let names: Vec<_> =
        setup.keyspaces().unwrap().into_iter().map(|(name, entry)| (name, entry.owner)).collect();
    let tags = KeyspaceOwner { mode: 0o600, ..OWNER };
    assert_eq!(names, [("other".to_owned(), other), ("tags".to_owned(), tags)]);
    setup.assert_sound("keyspaces are no damage");
    for name in ["meta", "", "a\nb", &"n".repeat(256)] {
        assert!(matches!(setup.make_keyspace(name, OWNER), Err(FsError::Invalid(_))), "{name}");
    }
}

#[test]
fn a_keyspace_without_a_record_is_nobodys() {
    let setup = Setup::new(4096);
    setup.store.open_keyspace("old", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let entry = setup.keyspace("old").unwrap().unwrap();
    assert!(!entry.owner.allows(7, &[8], 4) && entry.owner.mode == 0);
}

#[test]
fn batches_of_keys_are_whole_in_every_view() {
    let setup = Setup::new(4096);
    let (a, b) = (setup.make_keyspace("a", OWNER).unwrap().0, setup.make_keyspace("b", OWNER).unwrap().0);
    let (a, b) = (a.keyspace, b.keyspace);
    let changes = vec![(a, put(b"1", "x")), (b, put(b"1", "y")), (a, put(&LAST, "z")), (a, put(b"1", "w"))];
    setup.keys_apply(&setup.caller, changes).unwrap();
    assert_eq!(setup.key_get(&setup.caller, a, b"1").unwrap().unwrap(), "w");
    assert_eq!(keys(&setup, a).len(), 2);

    let view = begin(&setup, Isolation::Serializable);
    let range = KeyChange::DeleteRange(KeyRange { start: Bytes::from_static(b"0"), end: None });
    view.keys_apply(
        &view.caller,
        vec![(a, range), (a, put(b"2", "v")), (b, KeyChange::Delete { key: "1".into() })],
    )
    .unwrap();
    let wanted = [Bytes::from_static(b"2"), Bytes::from_static(b"1")];
    let got = view.key_multi_get(&view.caller, a, &wanted, 10).unwrap();
    assert_eq!(got, [Some("v".into()), None]);
    assert!(matches!(view.key_multi_get(&view.caller, a, &wanted, 0), Err(FsError::Invalid(_))));
    assert_eq!((keys(&setup, a).len(), keys(&setup, b).len()), (2, 1), "nobody else sees it");
    commit(&view).unwrap();
    assert_eq!((keys(&setup, a), keys(&setup, b).len()), (vec![b"2".to_vec()], 0), "the last key went, too");
}
