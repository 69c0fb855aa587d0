//! Content that is changed beside a kernel, which writes its pages back whole.

use std::ops::Range;
use std::sync::{Arc, Mutex};

use bytes::Bytes;
use kvfs_fs::{
    Caller, ContentObserver, ContentWatcher, FallocateMode, NodeId, SetAttr, WriteFlags, watch_content,
    write_pages,
};
use kvfs_store::Isolation;

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const LEN: usize = 6000;

/// The kernel writes the pages of all of a file, as it knows it, while these bytes were changed beside it.
fn writes_back(setup: &Setup, file: NodeId, from: usize, changed: &[Range<u64>]) {
    let data = Bytes::from(vec![b'p'; LEN - from]);
    let flags = WriteFlags { is_writeback: true, ..WriteFlags::default() };
    let find = |_| changed.to_vec();
    let written = write_pages(&setup.fs, &setup.caller, file, from as u64, data, flags, &find).unwrap();
    assert_eq!(written.bytes, (LEN - from) as u64);
}

fn cut(setup: &Setup, file: NodeId, size: u64) {
    setup.setattr(&setup.caller, file, &SetAttr { size: Some(size), ..SetAttr::default() }).unwrap();
}

#[test]
fn pages_that_are_written_back_leave_what_was_changed_beside_their_kernel() {
    for inline_len_max in [0, 60_000] {
        let setup = Setup::new(inline_len_max);
        let file = setup.file(ROOT, "file");
        setup.write_at(file, 0, &[b'.'; LEN]).unwrap();
        let changed = [0..1, 100..200, 4090..4100];
        writes_back(&setup, file, 0, &changed);
        let is_changed = |at: &u64| changed.iter().any(|range| range.contains(at));
        let expected: Vec<u8> = (0..LEN as u64).map(|at| if is_changed(&at) { b'.' } else { b'p' }).collect();
        assert_eq!(setup.read_all(file), expected);
        setup.assert_sound("after pages were written");
    }
}

#[test]
fn pages_that_are_written_back_make_no_file_longer_that_was_cut_beside_their_kernel() {
    for inline_len_max in [0, 60_000] {
        let setup = Setup::new(inline_len_max);
        let file = setup.file(ROOT, "file");
        setup.write_at(file, 0, &[b'.'; LEN]).unwrap();
        cut(&setup, file, 150);
        let is_cut = [100..110, 150..u64::MAX];
        writes_back(&setup, file, 4096, &is_cut);
        assert_eq!(setup.read_all(file), [b'.'; 150]);
        writes_back(&setup, file, 0, &is_cut);
        let mut expected = vec![b'p'; 150];
        expected[100..110].fill(b'.');
        assert_eq!(setup.read_all(file), expected);

        setup.write_at(file, 300, b"later").unwrap();
        writes_back(&setup, file, 0, &is_cut);
        expected.resize(300, 0);
        expected.extend(b"later");
        assert_eq!(setup.read_all(file), expected);
        cut(&setup, file, 50);
        writes_back(&setup, file, 0, std::slice::from_ref(&(60..70)));
        let mut expected = vec![b'p'; LEN];
        expected[60..70].fill(0);
        assert_eq!(setup.read_all(file), expected, "what has no place in it any more is nothing");
        setup.assert_sound("after pages were written");
    }
}

#[derive(Debug, Default)]
struct Noted(Mutex<Vec<Range<u64>>>);

impl ContentObserver for Noted {
    fn content_changed(&self, _: NodeId, bytes: Range<u64>) {
        self.0.lock().unwrap().push(bytes);
    }
}

#[test]
fn every_change_of_content_is_told_with_its_bytes() {
    let setup = Setup::new(100);
    let [file, other] = ["file", "other"].map(|name| setup.file(ROOT, name));
    setup.write_at(other, 0, &[1; 500]).unwrap();
    let noted = Arc::new(Noted::default());
    let observer: Arc<dyn ContentObserver> = Arc::clone(&noted) as _;
    let caller = Caller { content_observer: Some(observer), ..setup.caller.clone() };
    let fs = &setup.fs;
    let told = |range: Range<u64>| assert_eq!(std::mem::take(&mut *noted.0.lock().unwrap()), [range]);
    let write = |flags| fs.write(&caller, file, 10, Bytes::from_static(b"data"), flags).unwrap();
    write(WriteFlags::default());
    told(10..14);
    write(WriteFlags { append: kvfs_fs::Append::End, ..WriteFlags::default() });
    told(14..18);
    let size = |size| SetAttr { size: Some(size), ..SetAttr::default() };
    fs.setattr(&caller, file, &size(5)).unwrap();
    told(5..u64::MAX);
    fs.setattr(&caller, file, &size(1000)).unwrap();
    told(5..u64::MAX);
    fs.fallocate(&caller, file, 500, 1000, FallocateMode::PunchHole).unwrap();
    told(500..1000);
    fs.fallocate(&caller, file, 900, 200, FallocateMode::ZeroRange { keep_size: false }).unwrap();
    told(900..1100);
    fs.fallocate(&caller, file, 0, 1200, FallocateMode::Allocate { keep_size: false }).unwrap();
    told(1100..1200);
    fs.copy_file_range(&caller, other, 100, file, 2000, 1000).unwrap();
    told(2000..2400);
    fs.fallocate(&caller, file, 0, 9000, FallocateMode::Allocate { keep_size: true }).unwrap();
    fs.setattr(&caller, file, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).unwrap();
    assert!(noted.0.lock().unwrap().is_empty(), "no content has changed");
}

/// `None`: any byte.
#[derive(Debug, Default)]
struct Watched(Mutex<Vec<Option<Range<u64>>>>);

impl Watched {
    fn take(&self) -> Vec<Option<Range<u64>>> {
        std::mem::take(&mut *self.0.lock().unwrap())
    }
}

impl ContentWatcher for Watched {
    fn bytes_changed(&self, bytes: Range<u64>) {
        self.0.lock().unwrap().push(Some(bytes));
    }

    fn file_changed(&self) {
        self.0.lock().unwrap().push(None);
    }
}

#[test]
fn watcher_is_told_of_changes_by_whatever_changes_its_file_and_of_no_others() {
    let setup = Setup::new(100);
    let [file, other] = ["file", "other"].map(|name| setup.file(ROOT, name));
    let watched = Arc::new(Watched::default());
    let watch = watch_content(&setup.fs, file, Arc::clone(&watched) as _);
    setup.write_at(file, 10, b"data").unwrap();
    setup.write_at(other, 10, b"data").unwrap();
    cut(&setup, file, 5);
    assert_eq!(watched.take(), [Some(10..14), Some(5..u64::MAX)]);
    let caller = Caller { writes_back: Some(watch.of_writer()), ..setup.caller.clone() };
    setup.fs.write(&caller, file, 0, Bytes::from_static(b"own"), WriteFlags::default()).unwrap();
    assert_eq!(watched.take(), []);

    let view = begin(&setup, Isolation::Snapshot);
    view.lookup(&view.caller, ROOT, b"file").unwrap();
    view.write_at(file, 1, b"in it").unwrap();
    view.write_at(file, 3000, b"in it").unwrap();
    assert_eq!(watched.take(), [], "it is another view");
    commit(&view).unwrap();
    assert_eq!(watched.take(), [Some(1..6), Some(3000..3005)]);

    drop(watch);
    setup.write_at(file, 10, b"data").unwrap();
    assert_eq!(watched.take(), []);
}
