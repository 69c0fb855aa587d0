//! Users' keyspaces: batches, and owners.

use std::cell::Cell;

use bytes::Bytes;
use kvfs_fs::{DiffKind, FsError};
use kvfs_kv::{KeyChange, KeyspaceOwner};
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
    let mut cursor = view.keys().cursor(&view.caller, keyspace, KeyRange::all()).unwrap();
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
    assert_eq!(setup.keys().keyspace("tags").unwrap(), None);
    let (made, is_new) = setup.keys().make_keyspace("tags", OWNER).unwrap();
    assert!(is_new && made.owner == OWNER);
    let other = KeyspaceOwner { uid: 1, ..OWNER };
    assert_eq!(setup.keys().make_keyspace("tags", other).unwrap(), (made, false), "it has one already");
    setup.keys().make_keyspace("other", other).unwrap();
    let kept = |owner: KeyspaceOwner| Ok::<_, FsError>(KeyspaceOwner { mode: 0o600, ..owner });
    setup.keys().change_keyspace("tags", kept).unwrap();
    assert!(matches!(setup.keys().change_keyspace("none", kept), Err(FsError::NotFound)));
    setup.reopen();
    let names: Vec<_> =
        setup.keys().keyspaces().unwrap().into_iter().map(|(name, entry)| (name, entry.owner)).collect();
    let tags = KeyspaceOwner { mode: 0o600, ..OWNER };
    assert_eq!(names, [("other".to_owned(), other), ("tags".to_owned(), tags)]);
    setup.assert_sound("keyspaces are no damage");
    for name in ["meta", "", "a\nb", &"n".repeat(256)] {
        assert!(matches!(setup.keys().make_keyspace(name, OWNER), Err(FsError::Invalid(_))), "{name}");
    }
}

#[test]
fn keyspace_without_a_record_has_no_owner() {
    let setup = Setup::new(4096);
    let old = setup.store.open_keyspace("old", kvfs_store::KeyspaceKind::Tuple, None).unwrap();
    let mut batch = kvfs_store::Batch::new();
    batch.put(old, "a", "1");
    setup.store.apply(batch, kvfs_store::Durability::Buffered).unwrap();
    let entry = setup.keys().keyspace("old").unwrap().unwrap();
    assert!(!entry.owner.allows(7, &[8], 4) && entry.owner.mode == 0);
}

#[test]
fn batches_of_keys_are_whole_in_every_view() {
    let setup = Setup::new(4096);
    let (a, b) = (
        setup.keys().make_keyspace("a", OWNER).unwrap().0,
        setup.keys().make_keyspace("b", OWNER).unwrap().0,
    );
    let (a, b) = (a.keyspace, b.keyspace);
    let changes = vec![(a, put(b"1", "x")), (b, put(b"1", "y")), (a, put(&LAST, "z")), (a, put(b"1", "w"))];
    setup.keys().apply(&setup.caller, changes).unwrap();
    assert_eq!(setup.keys().get(&setup.caller, a, b"1").unwrap().unwrap(), "w");
    assert_eq!(keys(&setup, a).len(), 2);

    let view = begin(&setup, Isolation::Serializable);
    let range = KeyChange::DeleteRange(KeyRange { start: Bytes::from_static(b"0"), end: None });
    view.keys()
        .apply(
            &view.caller,
            vec![(a, range), (a, put(b"2", "v")), (b, KeyChange::Delete { key: "1".into() })],
        )
        .unwrap();
    let wanted = [Bytes::from_static(b"2"), Bytes::from_static(b"1")];
    let got = view.keys().multi_get(&view.caller, a, &wanted, 10).unwrap();
    assert_eq!(got, [Some("v".into()), None]);
    assert!(matches!(view.keys().multi_get(&view.caller, a, &wanted, 0), Err(FsError::Invalid(_))));
    assert_eq!((keys(&setup, a).len(), keys(&setup, b).len()), (2, 1), "no other view sees it");
    commit(&view).unwrap();
    assert_eq!((keys(&setup, a), keys(&setup, b).len()), (vec![b"2".to_vec()], 0), "the last key went, too");
}

#[test]
fn keyspace_that_is_dropped_is_gone_with_its_keys_and_a_snapshot_keeps_both() {
    let mut setup = Setup::new(4096);
    let tags = setup.keys().make_keyspace("tags", OWNER).unwrap().0.keyspace;
    setup.keys().apply(&setup.caller, vec![(tags, put(b"a", "1")), (tags, put(b"b", "2"))]).unwrap();
    let then = setup.fs.view_of(setup.store.snapshot().unwrap()).unwrap();
    let refused = setup.keys().drop_keyspace(&setup.caller, "tags", |_| Err(FsError::NotPermitted("no")));
    assert!(matches!(refused, Err(FsError::NotPermitted(_))));
    setup.keys().drop_keyspace(&setup.caller, "tags", |_| Ok(())).unwrap();
    assert_eq!(setup.keys().keyspaces().unwrap(), []);
    assert!(matches!(setup.keys().drop_keyspace(&setup.caller, "tags", |_| Ok(())), Err(FsError::NotFound)));
    // The snapshot has them, for users that both owners admit.
    let (seen, owners) = then.keys().readable_keyspace("tags").unwrap().unwrap();
    assert_eq!(then.keys().get(&setup.caller, seen, b"a").unwrap().unwrap(), "1");
    assert_eq!(owners, [OWNER]);
    let other = KeyspaceOwner { uid: OWNER.uid + 1, ..OWNER };
    let again = setup.keys().make_keyspace("tags", other).unwrap().0;
    assert_eq!(setup.keys().get(&setup.caller, again.keyspace, b"a").unwrap(), None);
    assert_eq!(then.keys().readable_keyspace("tags").unwrap().unwrap().1, [other, OWNER]);
    assert_eq!(then.keys().keyspaces_then().unwrap()[0].1.owner, OWNER);
    setup.keys().drop_keyspace(&setup.caller, "tags", |_| Ok(())).unwrap();
    drop(then);
    setup.reopen();
    assert_eq!(setup.keys().keyspaces().unwrap(), []);
    setup.assert_sound("dropped");
}

#[test]
fn write_whose_keyspace_is_dropped_before_its_latch_looks_it_up_again() {
    let mut setup = Setup::new(4096);
    let other = KeyspaceOwner { uid: OWNER.uid + 1, ..OWNER };
    let drop_keyspace = || setup.keys().drop_keyspace(&setup.caller, "tags", |_| Ok(())).map(drop);
    let looks = Cell::new(0);
    // The first look is followed by a drop.
    let find = |owner| -> Result<_, FsError> {
        let tags = setup.keys().make_keyspace("tags", owner)?.0;
        if looks.replace(looks.get() + 1) == 0 {
            drop_keyspace()?;
        }
        Ok((tags.owner == owner).then_some(tags.keyspace))
    };
    let apply =
        || setup.keys().apply_found(&setup.caller, || Ok(vec![(find(OWNER)?.unwrap(), put(b"a", "1"))]));
    apply().unwrap().unwrap_or_else(|error: FsError| panic!("{error}"));
    assert_eq!(looks.get(), 2);
    let made = setup.keys().keyspace("tags").unwrap().unwrap();
    assert_eq!((made.owner, keys(&setup, made.keyspace)), (OWNER, vec![b"a".to_vec()]));

    // What another user has made of the name meanwhile is not touched.
    looks.set(0);
    let find_own = || {
        let found = find(OWNER)?;
        if looks.get() == 1 {
            let theirs = setup.keys().make_keyspace("tags", other)?.0.keyspace;
            setup.keys().apply(&setup.caller, vec![(theirs, put(b"a", "2"))])?;
        }
        Ok::<_, FsError>(found)
    };
    let (_, existed) = setup.keys().set_found(&setup.caller, find_own, b"a", None).unwrap().unwrap();
    assert!(!existed && looks.get() == 2);
    assert_eq!(keys(&setup, made.keyspace), [b"a".to_vec()]);
    setup.reopen();
    assert_eq!(setup.keys().keyspace("tags").unwrap().unwrap().owner, other);
}

#[test]
fn comparison_tells_a_writer_that_may_not_read_nothing_of_keys() {
    let main = Setup::new(4096);
    let open = KeyspaceOwner { mode: 0o662, ..OWNER };
    let tags = main.keys().make_keyspace("tags", open).unwrap().0.keyspace;
    let own = main.keys().make_keyspace("own", KeyspaceOwner { uid: 9, ..OWNER }).unwrap().0.keyspace;
    // Its name begins as that of a keyspace that may be read.
    let below = main.keys().make_keyspace("own/tags", open).unwrap().0.keyspace;
    main.keys()
        .apply(
            &main.caller,
            vec![
                (tags, put(b"old", "secret")),
                (tags, put(b"gone", "secret")),
                (below, put(b"old", "secret")),
            ],
        )
        .unwrap();
    let view = begin(&main, Isolation::Snapshot);
    let changes = vec![
        (tags, put(b"old", "new")),
        (tags, put(b"new", "new")),
        (tags, KeyChange::Delete { key: "gone".into() }),
        (own, put(b"mine", "new")),
        (below, put(b"old", "new")),
    ];
    view.keys().apply(&view.caller, changes).unwrap();
    let all = kvfs_fs::diff(&view.fs).unwrap();
    let mut shown = all.clone();
    kvfs_fs::hide_unreadable(&view.fs, &mut shown, |owner| owner.allows(9, &[], 4)).unwrap();
    assert_eq!(shown.len(), 5);
    for (line, all) in shown.iter().zip(&all) {
        if line.keyspace.as_deref() == Some("own") {
            assert_eq!(line, all);
            continue;
        }
        // Whether a key was there is not told of those that are put.
        assert_ne!(line.kind, DiffKind::Added);
        assert_eq!((line.bytes, &line.before, &line.after), (None, &None, &None), "{line:?}");
        assert!(all.before.is_some() || all.after.is_some());
    }
}
