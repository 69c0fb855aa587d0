//! The inline threshold, changed while files are there.

use kvfs_fs::{
    FsError, INLINE_LEN_LIMIT, Isolation, NodeId, SetAttr, check, inline_len_max, set_inline_len_max,
};

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

fn blocks(setup: &Setup) -> u64 {
    check::check(&setup.store).unwrap().blocks
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|n| (n % 251) as u8 ^ seed).collect()
}

#[test]
fn another_inline_threshold_holds_for_what_is_written_from_then_on() {
    let mut setup = Setup::new(4096);
    let (old, large) = (bytes(3000, 1), bytes(8000, 2));
    let [a, b] = [setup.file(ROOT, "a"), setup.file(ROOT, "b")];
    setup.write_at(a, 0, &old).unwrap();
    setup.write_at(b, 0, &large).unwrap();
    assert_eq!(blocks(&setup), 2);

    set_inline_len_max(&setup.fs, 16 << 10).unwrap();
    let c = setup.file(ROOT, "c");
    setup.write_at(c, 0, &bytes(12_000, 3)).unwrap();
    assert_eq!(blocks(&setup), 2, "what is new lies in its row");
    setup.write_at(b, 100, b"changed").unwrap();
    assert_eq!(blocks(&setup), 2, "what has blocks keeps them");

    setup.reopen();
    assert_eq!(inline_len_max(&setup.fs), 16 << 10);
    set_inline_len_max(&setup.fs, 0).unwrap();
    let [a, b, c] =
        ["a", "b", "c"].map(|name| setup.lookup(&setup.caller, ROOT, name.as_bytes()).unwrap().node);
    assert_eq!(setup.read_all(a), old);
    assert_eq!(setup.read_all(c), bytes(12_000, 3));
    assert_eq!(blocks(&setup), 2, "what lies in rows stays there");
    setup.write_at(c, 11_999, b"x").unwrap();
    assert_eq!(blocks(&setup), 5, "until it is written");
    let mut expected = bytes(12_000, 3);
    expected[11_999] = b'x';
    assert_eq!(setup.read_all(c), expected);
    let mut expected = large;
    expected[100..107].copy_from_slice(b"changed");
    assert_eq!(setup.read_all(b), expected);
    setup.assert_sound("after changes of the threshold");
}

#[test]
fn a_file_in_its_row_that_is_cut_off_under_a_lower_threshold_shows_nothing_of_what_it_was() {
    let setup = Setup::new(64 << 10);
    let file = setup.file(ROOT, "file");
    setup.write_at(file, 0, &bytes(60_000, 1)).unwrap();
    set_inline_len_max(&setup.fs, 100).unwrap();
    let set_size = |size: u64| {
        let changes = SetAttr { size: Some(size), ..SetAttr::default() };
        setup.setattr(&setup.caller, file, &changes).unwrap();
    };
    set_size(5000);
    setup.assert_sound("cut off");
    set_size(60_000);
    let mut expected = bytes(60_000, 1);
    expected[5000..].fill(0);
    assert_eq!(setup.read_all(file), expected);
    setup.assert_sound("as long as before");
}

#[test]
fn open_transactions_write_by_the_threshold_of_now() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "file");
    setup.write_at(file, 0, &bytes(2000, 1)).unwrap();
    let view = begin(&setup, Isolation::Snapshot);
    set_inline_len_max(&setup.fs, 0).unwrap();
    let found = view.lookup(&setup.caller, ROOT, b"file").unwrap().node;
    view.write_at(found, 0, b"to blocks").unwrap();
    commit(&view).unwrap();
    assert_eq!(blocks(&setup), 1);
    assert_eq!(setup.read_all(file)[..9], *b"to blocks");
    assert_eq!(setup.read_all(file)[9..], bytes(2000, 1)[9..]);
    setup.assert_sound("after the commit");
}

#[test]
fn an_inline_threshold_is_bounded_and_of_the_main_line() {
    let setup = Setup::new(4096);
    assert!(matches!(set_inline_len_max(&setup.fs, INLINE_LEN_LIMIT + 1), Err(FsError::Invalid(_))));
    let view = begin(&setup, Isolation::Snapshot);
    set_inline_len_max(&view, 100).unwrap_err();
    assert_eq!(inline_len_max(&setup.fs), 4096);
}
