//! What the store is told of reads to come.

use std::sync::{Arc, Mutex};

use kvfs_fs::{FileType, MountOptions, NodeId};
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, BlockRange, Durability, Keyspace, Position, Read, Result, Store};

use crate::setup::Setup;

const ROOT: NodeId = NodeId::ROOT;

/// Remembers the advice.
#[derive(Default)]
struct Advised {
    inner: ModelStore,
    ranges: Mutex<Vec<BlockRange>>,
}

impl Read for Advised {
    kvfs_store::pass_on!(inner: get, multi_get, cursor, read_blocks, next_extent);

    fn will_need(&self, _: Keyspace, ranges: Vec<BlockRange>) {
        self.ranges.lock().unwrap().extend(ranges);
    }
}

impl Store for Advised {
    kvfs_store::pass_on!(inner: open_keyspace, keyspaces, snapshot, sync, position, capabilities, space, stats);

    fn apply(&self, batch: Batch, durability: Durability) -> Result<Position> {
        self.inner.apply(batch, durability)
    }
}

impl Advised {
    /// The inodes and numbers of blocks since the last call.
    fn take(&self) -> Vec<(u64, u64)> {
        let ranges = std::mem::take(&mut *self.ranges.lock().unwrap());
        let told = |range: &BlockRange| {
            assert_eq!(range.first, 0);
            (u64::from_be_bytes(range.prefix[..].try_into().unwrap()), range.count)
        };
        ranges.iter().map(told).collect()
    }
}

fn grow(setup: &Setup, directory: NodeId, sizes: &[usize]) -> Vec<NodeId> {
    let grow_file = |(number, size): (usize, &usize)| {
        let file = setup.file(directory, &format!("file-{number}"));
        setup.write_at(file, 0, &vec![7; *size]).unwrap();
        file
    };
    sizes.iter().enumerate().map(grow_file).collect()
}

#[test]
fn a_store_is_told_which_files_a_scan_comes_to() {
    let store = Arc::new(Advised::default());
    let setup = Setup::with(Arc::clone(&store) as Arc<dyn Store>, 1000, MountOptions::default());
    // The second one has all of its content in its row.
    let (first, second) = (setup.dir(ROOT, "first"), setup.dir(ROOT, "second"));
    let files = grow(&setup, first, &[5000, 100, 20_000, 4096]);
    let others = grow(&setup, second, &[8192, 3 << 20]);
    for plus in [false, true] {
        setup.list(first, 3, plus);
        assert_eq!(store.take(), [], "a listing alone");
        setup.read_all(files[0]);
        setup.read_all(files[1]);
        assert_eq!(store.take(), [], "one file is no scan, and what has no blocks counts for none");
        setup.read_all(files[2]);
        assert_eq!(store.take(), [(files[3].0, 1)]);
        setup.list(second, 3, plus);
        assert_eq!(
            store.take(),
            [(others[0].0, 2), (others[1].0, 256)],
            "a scan goes on with what is listed"
        );
        for _ in 0..9 {
            setup.list(ROOT, 3, plus);
        }
        setup.list(second, 3, plus);
        assert_eq!(store.take(), [], "directories were listed and no file was read");
    }
}

#[test]
fn each_view_has_scans_of_its_own() {
    let store = Arc::new(Advised::default());
    let setup = Setup::with(Arc::clone(&store) as Arc<dyn Store>, 0, MountOptions::default());
    let files = grow(&setup, ROOT, &[5000, 5000, 5000]);
    setup.list(ROOT, 10, true);
    setup.read_all(files[0]);
    let again = setup.through(
        Arc::new(
            kvfs_fs::FileSystem::open(Arc::clone(&setup.store), setup.clock.clone(), setup.options).unwrap(),
        ),
        setup.options,
    );
    again.list(ROOT, 10, true);
    assert_eq!(store.take(), [], "no file was read there");
    setup.read_all(files[1]);
    assert_eq!(store.take(), [(files[2].0, 2)]);
}

/// The names of a directory's files that come without nodes.
fn without_nodes(setup: &Setup, directory: NodeId) -> Vec<String> {
    let listed = setup.list(directory, 100, true);
    assert!(
        listed
            .iter()
            .filter(|entry| entry.kind == FileType::Directory)
            .skip(2)
            .all(|entry| entry.entry.is_some())
    );
    let withheld = listed.iter().filter(|entry| entry.kind != FileType::Directory && entry.entry.is_none());
    withheld.map(|entry| String::from_utf8(entry.name.clone()).unwrap()).collect()
}

#[test]
fn programs_that_look_at_no_file_get_no_nodes_of_files() {
    let mut setup = Setup::new(1000);
    let directories: Vec<NodeId> = (0..60).map(|number| setup.dir(ROOT, &format!("dir-{number}"))).collect();
    for &directory in &directories {
        setup.dir(directory, "below");
        grow(&setup, directory, &[1, 2, 3]);
    }
    let all = ["file-0", "file-1", "file-2"];
    assert_eq!(without_nodes(&setup, directories[0]), [""; 0], "it is not known who lists");

    setup.caller.pid = 77;
    for &directory in &directories[..8] {
        assert_eq!(without_nodes(&setup, directory), ["file-0"], "it is asked");
    }
    assert_eq!(without_nodes(&setup, directories[8]), all, "it goes by names");
    let nodes = setup.nodes().stats().nodes;
    assert_eq!(without_nodes(&setup, directories[9]), all);
    assert_eq!(setup.nodes().stats().nodes, nodes, "none is made for them");

    // Another program takes up the names that it has told.
    setup.caller.pid = 78;
    assert!(setup.lookup(&setup.caller, directories[9], b"none").is_err());
    setup.lookup(&setup.caller, directories[9], b"below").unwrap();
    setup.caller.pid = 77;
    assert_eq!(without_nodes(&setup, directories[10]), all, "a directory is no file");
    setup.caller.pid = 78;
    setup.lookup(&setup.caller, directories[9], b"file-1").unwrap();
    setup.caller.pid = 77;
    for &directory in &directories[11..27] {
        assert_eq!(without_nodes(&setup, directory), [""; 0], "it looks at files");
    }
    assert_eq!(without_nodes(&setup, directories[27]), ["file-0"], "it is asked again");
    setup.lookup(&setup.caller, directories[27], b"file-0").unwrap();
    assert_eq!(without_nodes(&setup, directories[28]), [""; 0]);
}
