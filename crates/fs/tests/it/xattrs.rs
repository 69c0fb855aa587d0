//! How many extended attributes a file may have, and what is done with those of a file that has more.

use bytes::Bytes;
use kvfs_fs::{AclKind, FsError, NodeId, Result, XATTR_BYTES_MAX, XATTR_LEN_MAX, XattrMode};
use kvfs_store::{Batch, Durability, Isolation};

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
/// A list that lets a second user in.
const ACL: &[u8] =
    b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x07\0\xe8\x03\0\0\x04\0\x04\0\xff\xff\xff\xff\
    \x10\0\x07\0\xff\xff\xff\xff\x20\0\x04\0\xff\xff\xff\xff";

fn set(on: &Setup, node: NodeId, name: &str, value: &[u8]) -> Result<()> {
    on.setxattr(&on.caller, node, name.as_bytes(), value, XattrMode::Set)
}

fn remove(on: &Setup, node: NodeId, name: &str) -> Result<()> {
    on.removexattr(&on.caller, node, name.as_bytes())
}

fn list(on: &Setup, node: NodeId) -> Result<Vec<u8>> {
    on.listxattr(&on.caller, node)
}

/// A name of 200 bytes.
fn long(index: usize) -> String {
    format!("user.{index:0195}")
}

/// Sets attributes until one is refused; their number.
fn fill(on: &Setup, node: NodeId, first: usize, value: &[u8]) -> usize {
    for count in 0.. {
        match set(on, node, &long(first + count), value) {
            Ok(()) => {}
            Err(FsError::AttributesFull { .. }) => return count,
            Err(error) => panic!("{error}"),
        }
    }
    unreachable!()
}

#[test]
fn xattrs_of_a_file_are_bounded_and_always_listed() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "file");
    let count = fill(&main, file, 0, b"");
    assert_eq!(count, (XATTR_LEN_MAX - 49) / 201);
    let refused = set(&main, file, &long(count), b"").unwrap_err();
    assert_eq!(refused.errno(), 28, "ENOSPC, as other file systems say");
    // Access-control lists have room of their own.
    main.set_acl(&main.caller, file, AclKind::Access, ACL, false).unwrap();
    let listed = list(&main, file).unwrap();
    assert!(listed.len() <= XATTR_LEN_MAX);
    assert_eq!(listed.split(|&byte| byte == 0).count() - 1, count + 1);
    // What is there can be changed and removed; then there is room again, also after the file was forgotten.
    set(&main, file, &long(3), b"other").unwrap();
    remove(&main, file, &long(4)).unwrap();
    set(&main, file, &long(count), b"").unwrap();
    assert!(set(&main, file, &long(4), b"").is_err());
    let mut main = main;
    main.reopen();
    let file = main.lookup(&main.caller, ROOT, b"file").unwrap().node;
    assert!(set(&main, file, &long(4), b"").is_err());
    remove(&main, file, &long(5)).unwrap();
    set(&main, file, &long(4), b"").unwrap();
    main.assert_sound("after all");
}

#[test]
fn xattr_values_of_a_file_are_bounded_in_all() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "file");
    let value = vec![7; XATTR_LEN_MAX];
    let count = fill(&main, file, 0, &value);
    assert_eq!(count, XATTR_BYTES_MAX / (XATTR_LEN_MAX + 201));
    set(&main, file, &long(0), b"short").unwrap();
    set(&main, file, &long(count), &value).unwrap();
    assert!(set(&main, file, &long(0), &value).is_err());
    assert_eq!(main.getxattr(&main.caller, file, long(0).as_bytes()).unwrap().len(), 5);
}

#[test]
fn xattrs_beyond_the_bound_from_before_are_read_and_removed() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "file");
    set(&main, file, &long(0), b"value").unwrap();
    let keyspace = main.store.keyspaces().into_iter().find(|info| info.name == "xattr").unwrap().keyspace;
    let mut batch = Batch::new();
    for index in 1..400 {
        let key = [&file.0.to_be_bytes()[..], long(index).as_bytes()].concat();
        batch.put(keyspace, key, Bytes::from_static(b"value"));
    }
    main.store.apply(batch, Durability::Buffered).unwrap();
    let mut main = main;
    main.reopen();
    let file = main.lookup(&main.caller, ROOT, b"file").unwrap().node;
    assert!(matches!(list(&main, file), Err(FsError::AttributeTooLarge { .. })));
    assert_eq!(main.getxattr(&main.caller, file, long(399).as_bytes()).unwrap(), &b"value"[..]);
    assert!(set(&main, file, &long(400), b"").is_err());
    set(&main, file, &long(399), b"less").unwrap();
    set(&main, file, &long(399), b"a value as long as this one").unwrap();
    for index in 300..400 {
        remove(&main, file, &long(index)).unwrap();
    }
    assert_eq!(list(&main, file).unwrap().len(), 300 * 201);
    set(&main, file, &long(400), b"").unwrap();
}

#[test]
fn xattrs_of_transactions_with_old_snapshots_stay_within_the_bound() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "file");
    set(&main, file, &long(0), b"").unwrap();
    let late = begin(&main, Isolation::Snapshot);
    let early = begin(&main, Isolation::Snapshot);
    let of = |view: &Setup| view.lookup(&view.caller, ROOT, b"file").unwrap().node;
    let count = 1 + fill(&early, of(&early), 1, b"");
    commit(&early).unwrap();
    // The main line has counted the file before, and knows of what was committed.
    assert_eq!(fill(&main, file, 1000, b""), 0);
    // The snapshot shows a list with room, which is not what its commit would add to.
    let seen = of(&late);
    assert_eq!(list(&late, seen).unwrap().len(), 201);
    assert!(matches!(set(&late, seen, "user.b", b"2"), Err(FsError::Canceled(_))));
    assert_eq!(list(&main, file).unwrap().len(), count * 201);
    // A commit that takes one away leaves the count right.
    let view = begin(&main, Isolation::Snapshot);
    remove(&view, of(&view), &long(0)).unwrap();
    commit(&view).unwrap();
    assert_eq!(fill(&main, file, 2000, b""), 1);
}
