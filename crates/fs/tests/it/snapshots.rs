//! Named snapshots of files: what their views show, how they are compared, and restoring one in place.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{
    Attr, Caller, DiffKind, DiffStream, Difference, FileSystem, FileType, FsError, MountOptions, NodeId,
    Project, RenameMode, Restored, Result, SetAttr, SetTime, Timestamp, XattrMode,
};
use kvfs_kvdb::Background;
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Isolation, KeyspaceKind};

use crate::driver::Driver;
use crate::engine;
use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

/// What a reader sees of one name, but for access, change and creation times.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) kind: FileType,
    mode: u32,
    owner: (u32, u32),
    rdev: u32,
    project: Project,
    pub(crate) nlink: u32,
    pub(crate) size: u64,
    pub(crate) mtime: Timestamp,
    content: Vec<u8>,
    xattrs: Vec<(Vec<u8>, Bytes)>,
    /// The first path that leads to the same inode.
    pub(crate) first_name: String,
}

pub(crate) type Tree = BTreeMap<String, Seen>;

fn see(view: &Setup, path: &str, attr: &Attr, firsts: &mut BTreeMap<u64, String>) -> Seen {
    let node = NodeId(attr.inode);
    let content = match attr.kind {
        FileType::Regular => view.read_all(node),
        FileType::Symlink => view.readlink(&view.caller, node).unwrap().to_vec(),
        _ => Vec::new(),
    };
    let names = view.listxattr(&Caller::default(), node).unwrap();
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let xattrs =
        names.map(|name| (name.to_vec(), view.getxattr(&view.caller, node, name).unwrap())).collect();
    Seen {
        kind: attr.kind,
        mode: attr.mode,
        owner: (attr.uid, attr.gid),
        rdev: attr.rdev,
        project: view.project(&view.caller, node).unwrap(),
        nlink: attr.nlink,
        size: attr.size,
        mtime: attr.mtime,
        content,
        xattrs,
        first_name: firsts.entry(attr.inode).or_insert_with(|| path.to_owned()).clone(),
    }
}

/// Everything below the root by path, and the inodes.
pub(crate) fn tree(view: &Setup) -> (Tree, BTreeMap<u64, String>) {
    let (mut tree, mut firsts) = (Tree::new(), BTreeMap::new());
    let mut todo = vec![(ROOT, String::new())];
    let root = view.getattr(&view.caller, ROOT).unwrap();
    tree.insert("/".to_owned(), see(view, "/", &root, &mut firsts));
    while let Some((directory, path)) = todo.pop() {
        let mut names: Vec<_> =
            view.list(directory, 7, false).into_iter().map(|listed| listed.name).collect();
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        for name in names {
            let path = format!("{path}/{}", name.escape_ascii());
            let entry = view.lookup(&view.caller, directory, &name).unwrap();
            tree.insert(path.clone(), see(view, &path, &entry.attr, &mut firsts));
            if entry.attr.kind == FileType::Directory {
                todo.push((entry.node, path));
            }
        }
    }
    (tree, firsts)
}

pub(crate) fn view_of(main: &Setup, name: &str) -> Setup {
    let snapshot = main.store.open_snapshot(name).unwrap();
    main.through(main.fs.view_of(snapshot).unwrap(), main.options)
}

pub(crate) fn restore(main: &Setup, name: &str) -> Result<Restored> {
    let then = view_of(main, name);
    let txn = begin(main, Isolation::Snapshot);
    let restored = kvfs_fs::restore(&txn.fs, &then.fs)?;
    commit(&txn.fs)?;
    Ok(restored)
}

/// Lines such as `+ /a/b`, `~ /a`, `> /a /b`, `+ key tags/x`.
pub(crate) fn lines(differences: &[Difference]) -> Vec<String> {
    let line = |difference: &Difference| {
        let sign = match difference.kind {
            DiffKind::Added => '+',
            DiffKind::Removed => '-',
            DiffKind::Changed => '~',
            DiffKind::Renamed => '>',
        };
        let text = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
        let key = if difference.file.is_none() { "key " } else { "" };
        let from = difference.from.as_ref().map_or_else(String::new, |from| format!("{} ", text(from)));
        format!("{sign} {key}{from}{}", text(&difference.place))
    };
    differences.iter().map(line).collect()
}

/// What leads from `before` to `after`, all at once.
pub(crate) fn diff_from(after: &FileSystem, before: &FileSystem) -> Result<Vec<Difference>> {
    DiffStream::new(before, after).next_page(usize::MAX, usize::MAX)
}

fn diff(before: &Setup, after: &FileSystem) -> Vec<String> {
    lines(&diff_from(after, &before.fs).unwrap())
}

fn now(main: &Setup) -> Arc<FileSystem> {
    main.fs.view_of(main.store.snapshot().unwrap()).unwrap()
}

pub(crate) fn rename(view: &Setup, from: (NodeId, &str), to: (NodeId, &str)) {
    let mode = RenameMode::NoReplace;
    view.rename(&view.caller, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), mode).unwrap();
}

/// Random changes, a snapshot, more changes; then everything must be as it was, and again after an opening.
fn restores_random_changes(mut driver: Driver, seed: u64) {
    driver.run(150);
    driver.setup.store.create_snapshot("then").unwrap();
    let then = view_of(&driver.setup, "then");
    let (before, inodes_before) = tree(&then);
    drop(then);
    driver.run(150);
    let then = view_of(&driver.setup, "then");
    assert_eq!(tree(&then), (before, inodes_before.clone()), "seed {seed}: the snapshot has changed");
    drop(then);
    let inodes_between = tree(&driver.setup).1;
    restore(&driver.setup, "then").unwrap();
    let then = view_of(&driver.setup, "then");
    let (expected, _) = tree(&then);
    let (found, inodes) = tree(&driver.setup);
    for (path, seen) in &expected {
        assert_eq!(found.get(path), Some(seen), "seed {seed}: {path}");
    }
    assert_eq!(found.len(), expected.len(), "seed {seed}: more names than there were");
    for (inode, path) in inodes_before.iter().filter(|(inode, _)| inodes_between.contains_key(inode)) {
        assert_eq!(inodes.get(inode), Some(path), "seed {seed}: another inode");
    }
    // What had to be made again is another file.
    let replaced = diff(&then, &now(&driver.setup));
    assert!(replaced.iter().all(|line| line.starts_with("~ /")), "seed {seed}: {replaced:?}");
    drop(then);
    driver.setup.assert_sound(&format!("seed {seed}"));
    driver.setup.reopen();
    assert_eq!(tree(&driver.setup).0, expected, "seed {seed}: after an opening");
    driver.setup.assert_sound(&format!("seed {seed}, reopened"));
}

#[test]
fn a_restored_snapshot_is_the_tree_that_it_was() {
    for seed in 1..=20 {
        for inline_len_max in [100, 4096] {
            restores_random_changes(Driver::new(Setup::new(inline_len_max), seed, 20_000), seed);
        }
    }
}

#[test]
fn a_restored_snapshot_is_the_tree_that_it_was_over_the_engine() {
    for seed in 101..=108 {
        let device = engine::create();
        let memtable_bytes = if seed % 2 == 0 { 16 << 10 } else { 1 << 20 };
        let mut db = engine::open(&device, memtable_bytes, Background::Manual);
        let mut setup = Setup::with(Arc::clone(&db) as _, 200, MountOptions::default());
        setup.reopen_store = Some(Box::new(move || {
            db.close().unwrap();
            db = engine::open(&device, memtable_bytes, Background::Manual);
            Arc::clone(&db) as _
        }));
        restores_random_changes(Driver::new(setup, seed, 20_000), seed);
    }
}

#[test]
fn snapshots_are_compared_by_path_and_key() {
    let main = Setup::new(100);
    let tags = main.store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
    let put = |key: &'static str, value: Option<&'static str>| {
        let mut batch = Batch::new();
        match value {
            Some(value) => batch.put(tags, key, value),
            None => batch.delete(tags, key),
        }
        main.store.apply(batch, Durability::Buffered).unwrap();
    };
    let (a, b) = (main.dir(ROOT, "a"), main.dir(ROOT, "b"));
    let changed = main.file(a, "changed");
    let hidden = main.file(a, "hidden");
    for file in [changed, hidden] {
        main.write_at(file, 0, &[1; 9000]).unwrap();
    }
    main.file(a, "gone");
    main.file(a, "moved");
    put("kept", Some("x"));
    put("gone", Some("x"));
    main.store.create_snapshot("one").unwrap();
    let mtime = main.getattr(&main.caller, hidden).unwrap().mtime;
    main.write_at(changed, 5000, b"new").unwrap();
    // Neither the size nor the time of the change tells of this one.
    main.write_at(hidden, 5000, b"new").unwrap();
    let back = SetAttr { mtime: Some(SetTime::At(mtime)), ctime: Some(mtime), ..SetAttr::default() };
    main.setattr(&main.caller, hidden, &back).unwrap();
    main.unlink(&main.caller, a, b"gone").unwrap();
    rename(&main, (a, "moved"), (b, "here"));
    main.file(b, "new");
    put("gone", None);
    put("new", Some("y"));
    main.store.create_snapshot("two").unwrap();
    main.file(b, "later");
    let (one, two) = (view_of(&main, "one"), view_of(&main, "two"));
    let expected = [
        "~ /a/changed",
        "- /a/gone",
        "~ /a/hidden",
        "> /a/moved /b/here",
        "+ /b/new",
        "- key tags/gone",
        "+ key tags/new",
    ];
    assert_eq!(diff(&one, &two.fs), expected);
    let backwards = diff(&two, &one.fs);
    assert_eq!(backwards.len(), expected.len());
    assert!(
        backwards.contains(&"> /b/here /a/moved".to_owned()) && backwards.contains(&"- /b/new".to_owned())
    );
    assert_eq!(diff(&two, &now(&main)), ["+ /b/later"]);
    assert_eq!(diff(&one, &one.fs), [""; 0]);
    let refused = diff_from(&main.fs, &one.fs);
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
}

#[test]
fn what_was_renamed_to_and_fro_and_changed_is_told_once() {
    let main = Setup::new(100);
    let (dir, file) = (main.dir(ROOT, "d"), main.file(ROOT, "f"));
    main.link(&main.caller, file, dir, b"g").unwrap();
    main.store.create_snapshot("one").unwrap();
    for name in ["d", "f"] {
        rename(&main, (ROOT, name), (ROOT, "other"));
        rename(&main, (ROOT, "other"), (ROOT, name));
    }
    for node in [dir, file] {
        main.setxattr(&main.caller, node, b"user.note", b"text", XattrMode::Set).unwrap();
    }
    main.write_at(file, 0, b"text").unwrap();
    let told = diff(&view_of(&main, "one"), &now(&main));
    assert!(told.len() == 2 && told.contains(&"~ /d".to_owned()), "{told:?}");
}

/// All pages of a comparison.
fn in_pages(
    before: &Arc<FileSystem>,
    after: &Arc<FileSystem>,
    lines_max: usize,
    bytes_max: usize,
) -> Vec<String> {
    let mut stream = DiffStream::new(Arc::clone(before), Arc::clone(after));
    let mut all = Vec::new();
    while !stream.is_through() {
        let page = stream.next_page(lines_max, bytes_max).unwrap();
        assert!(page.len() <= lines_max && (!page.is_empty() || stream.is_through()));
        all.extend(lines(&page));
        assert_eq!(stream.position(), all.len() as u64);
    }
    all
}

#[test]
fn comparison_in_pages_tells_what_the_whole_tells() {
    for seed in 0..8 {
        let mut driver = Driver::new(Setup::new(100), seed, 20_000);
        let tags = driver.setup.store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
        let put = |driver: &Driver, key: &'static str| {
            let mut batch = Batch::new();
            batch.put(tags, key, "value");
            driver.setup.store.apply(batch, Durability::Buffered).unwrap();
        };
        driver.run(200);
        put(&driver, "before");
        driver.setup.store.create_snapshot("then").unwrap();
        driver.run(200);
        for key in ["a", "b", "c"] {
            put(&driver, key);
        }
        let (then, now) = (view_of(&driver.setup, "then").fs, now(&driver.setup));
        let mut whole = lines(&diff_from(&now, &then).unwrap());
        assert!(whole.len() > 4, "{seed}: {whole:?}");
        whole.sort();
        for (lines_max, bytes_max) in [(1, usize::MAX), (3, usize::MAX), (usize::MAX, 1), (usize::MAX, 1000)]
        {
            let mut paged = in_pages(&then, &now, lines_max, bytes_max);
            paged.sort();
            assert_eq!(paged, whole, "{seed} {lines_max} {bytes_max}");
        }
    }
}

#[test]
fn names_in_a_directory_that_was_made_again_have_changed_in_any_page() {
    let main = Setup::new(100);
    let dir = main.dir(ROOT, "dir");
    for name in ["gone", "same", "stays"] {
        main.file(dir, name);
    }
    main.store.create_snapshot("then").unwrap();
    rename(&main, (dir, "stays"), (ROOT, "stays"));
    for name in ["gone", "same"] {
        main.unlink(&main.caller, dir, name.as_bytes()).unwrap();
    }
    main.rmdir(&main.caller, ROOT, b"dir").unwrap();
    let again = main.dir(ROOT, "dir");
    for name in ["new", "same", "stays"] {
        main.file(again, name);
    }
    let expected =
        ["~ /dir", "- /dir/gone", "+ /dir/new", "~ /dir/same", "+ /dir/stays", "> /dir/stays /stays"];
    let (then, now) = (view_of(&main, "then").fs, now(&main));
    assert_eq!(lines(&diff_from(&now, &then).unwrap()), expected);
    let mut paged = in_pages(&then, &now, 1, usize::MAX);
    paged.sort_by(|a, b| a[2..].cmp(&b[2..]));
    let mut sorted = expected.map(str::to_owned);
    sorted.sort_by(|a, b| a[2..].cmp(&b[2..]));
    assert_eq!(paged, sorted);
}

#[test]
fn a_restore_keeps_open_what_it_removes_and_brings_keys_back() {
    let main = Setup::new(100);
    let tags = main.store.open_keyspace("tags", KeyspaceKind::Tuple, None).unwrap();
    let put = |key: &'static str, value: &'static str| {
        let mut batch = Batch::new();
        batch.put(tags, key, value);
        main.store.apply(batch, Durability::Buffered).unwrap();
    };
    let kept = main.file(ROOT, "kept");
    main.write_at(kept, 0, b"old").unwrap();
    main.setxattr(&main.caller, kept, b"user.note", b"old", XattrMode::Set).unwrap();
    put("song", "old");
    main.store.create_snapshot("then").unwrap();
    main.write_at(kept, 0, b"newer").unwrap();
    main.setxattr(&main.caller, kept, b"user.note", b"new", XattrMode::Set).unwrap();
    put("song", "new");
    put("other", "new");
    let (dir, gone) = (main.dir(ROOT, "dir"), main.file(ROOT, "gone"));
    main.write_at(gone, 0, b"still here").unwrap();
    let restored = restore(&main, "then").unwrap();
    assert_eq!((restored.names, restored.keys), (2, 2), "{restored:?}");
    // Held open by their nodes.
    assert_eq!(main.read_all(gone), b"still here");
    assert_eq!(main.getattr(&main.caller, gone).unwrap().nlink, 0);
    assert!(main.create(&main.caller, dir, b"late", 0o644, true).is_err(), "a directory that was removed");
    // The same node has the old content again.
    assert_eq!(main.read_all(kept), b"old");
    assert_eq!(main.getxattr(&main.caller, kept, b"user.note").unwrap(), "old");
    assert_eq!(main.store.get(tags, b"song").unwrap(), Some(Bytes::from("old")));
    assert_eq!(main.store.get(tags, b"other").unwrap(), None);
    main.forget(gone, 1);
    main.forget(dir, 1);
    main.housekeep().unwrap();
    main.assert_sound("when no lookup holds them any more");
}

#[test]
fn a_restore_swaps_and_nests_what_was_moved() {
    let main = Setup::new(100);
    let (a, b) = (main.dir(ROOT, "a"), main.dir(ROOT, "b"));
    let inner = main.dir(a, "inner");
    let file = main.file(inner, "file");
    main.link(&main.caller, file, b, b"linked").unwrap();
    main.store.create_snapshot("then").unwrap();
    let before = tree(&view_of(&main, "then"));
    // inner comes above a, a and b swap, and the file loses one name and gets another.
    rename(&main, (a, "inner"), (ROOT, "top"));
    rename(&main, (ROOT, "a"), (inner, "a"));
    rename(&main, (ROOT, "b"), (ROOT, "a"));
    rename(&main, (inner, "a"), (ROOT, "b"));
    rename(&main, (ROOT, "b"), (inner, "b"));
    main.unlink(&main.caller, b, b"linked").unwrap();
    main.link(&main.caller, file, ROOT, b"another").unwrap();
    restore(&main, "then").unwrap();
    assert_eq!(tree(&main), before);
    main.assert_sound("restored");
}

#[test]
fn restore_over_a_concurrent_write_is_canceled() {
    let main = Setup::new(100);
    let file = main.file(ROOT, "file");
    main.write_at(file, 0, b"old").unwrap();
    main.store.create_snapshot("then").unwrap();
    main.write_at(file, 0, b"new").unwrap();
    let then = view_of(&main, "then");
    let txn = begin(&main, Isolation::Snapshot);
    main.write_at(file, 0, b"own").unwrap();
    let restored = kvfs_fs::restore(&txn.fs, &then.fs);
    assert!(matches!(restored, Err(FsError::Canceled(_))), "{restored:?}");
    txn.fs.txn().unwrap().abort();
    assert_eq!(main.read_all(file), b"own");
    let refused = kvfs_fs::restore(&main.fs, &then.fs);
    assert!(matches!(refused, Err(FsError::Invalid(_))), "{refused:?}");
}

pub(crate) fn restore_paths(main: &Setup, name: &str, paths: &[&str]) -> Result<Restored> {
    let then = view_of(main, name);
    let txn = begin(main, Isolation::Snapshot);
    let paths: Vec<Bytes> = paths.iter().map(|path| Bytes::copy_from_slice(path.as_bytes())).collect();
    let restored = kvfs_fs::restore_paths(&txn.fs, &then.fs, &paths)?;
    commit(&txn.fs)?;
    Ok(restored)
}

/// Random changes, a snapshot, more changes; then each directory of the root is brought back, or refused.
#[test]
fn a_restored_part_is_as_it_was_and_the_rest_as_it_is() {
    let (mut restored, mut refused) = (0, 0);
    for seed in 1..=60 {
        let mut driver = Driver::new(Setup::new(if seed % 2 == 0 { 100 } else { 4096 }), seed, 20_000);
        driver.run(120);
        driver.setup.store.create_snapshot("then").unwrap();
        let before = tree(&view_of(&driver.setup, "then")).0;
        driver.run(40);
        let tops = before.keys().filter(|path| path.matches('/').count() == 1 && path.len() > 1);
        for top in tops {
            let is_inside = |path: &str| path == top || path.starts_with(&format!("{top}/"));
            let (now, _) = tree(&driver.setup);
            match restore_paths(&driver.setup, "then", &[top]) {
                Ok(_) => restored += 1,
                Err(FsError::NotRestored(_)) => {
                    refused += 1;
                    assert_eq!(tree(&driver.setup).0, now, "seed {seed}: {top} was refused");
                    continue;
                }
                Err(error) => panic!("seed {seed}: {top}: {error}"),
            }
            let (after, _) = tree(&driver.setup);
            // Links have names elsewhere, which count, and which share their content.
            let is_single = |path: &str| {
                [&before, &now, &after].iter().all(|tree| {
                    tree.get(path).is_none_or(|seen| seen.kind == FileType::Directory || seen.nlink == 1)
                })
            };
            for path in before.keys().chain(now.keys()).chain(after.keys()).filter(|path| is_single(path)) {
                let expected = if is_inside(path) { before.get(path) } else { now.get(path) };
                if path == "/" {
                    continue;
                }
                assert_eq!(after.get(path), expected, "seed {seed}: {path} after restoring {top}");
            }
            driver.setup.assert_sound(&format!("seed {seed}, {top}"));
        }
    }
    println!("{restored} restored, {refused} refused");
    assert!(restored > 50 && refused > 0, "{restored} restored, {refused} refused");
}

#[test]
fn a_part_that_something_was_moved_out_of_or_into_is_refused() {
    let main = Setup::new(100);
    let (a, b) = (main.dir(ROOT, "a"), main.dir(ROOT, "b"));
    let inner = main.dir(a, "inner");
    main.write_at(main.file(inner, "f"), 0, b"old").unwrap();
    main.store.create_snapshot("then").unwrap();
    rename(&main, (a, "inner"), (b, "inner"));
    let seen = tree(&main).0;
    for (paths, why) in [
        (&["/a"][..], "out of"),
        (&["/b"], "into"),
        (&["/a/inner/f"], "is gone or another one"),
        (&["/a/nothing"], "is not in the snapshot"),
        (&["/"], "is everything"),
        (&["b", "a/.."], "upwards"),
    ] {
        let refused = restore_paths(&main, "then", paths);
        let Err(FsError::NotRestored(text)) = &refused else { panic!("{paths:?}: {refused:?}") };
        let why = if why == "out of" { "linked here from what" } else { why };
        assert!(text.contains(why), "{paths:?}: {text}");
        assert_eq!(tree(&main).0, seen);
    }
    restore_paths(&main, "then", &["a", "b/"]).unwrap();
    assert_eq!(main.read_all(main.lookup(&main.caller, inner, b"f").unwrap().node), b"old");
    assert!(!tree(&main).0.contains_key("/b/inner"));
    main.assert_sound("after both");
}

#[test]
fn a_shown_snapshot_has_no_privileges_and_the_snapshot_has_them() {
    let main = Setup::new(4096);
    let file = main.file(ROOT, "program");
    for name in [&b"security.capability"[..], b"user.note"] {
        main.setxattr(&main.caller, file, name, b"value", XattrMode::Set).unwrap();
    }
    main.setattr(&main.caller, file, &SetAttr { mode: Some(0o6755), ..SetAttr::default() }).unwrap();
    let device = main.mknod(&main.caller, ROOT, b"null", 0o020_666, 0x0103).unwrap().node;
    let whiteout = main.mknod(&main.caller, ROOT, b"whiteout", 0o020_600, 0).unwrap().node;
    let directory = main.dir(ROOT, "shared");
    main.setattr(&main.caller, directory, &SetAttr { mode: Some(0o2775), ..SetAttr::default() }).unwrap();
    let info = main.snapshots().create("then", false).unwrap();
    let view = kvfs_fs::show_snapshot(&main.fs, &info).unwrap();
    let shown = main.through(view, main.options);
    let program = shown.lookup(&shown.caller, ROOT, b"program").unwrap();
    assert_eq!((program.attr.mode, shown.getattr(&shown.caller, program.node).unwrap().mode), (0o755, 0o755));
    let listed = shown.list(ROOT, 100, true);
    let of = |name: &[u8]| listed.iter().find(|listed| listed.name == name).unwrap().entry.unwrap().attr;
    assert_eq!((of(b"program").mode, of(b"shared").mode), (0o755, 0o2775));
    assert_eq!(of(b"whiteout").rdev, 0, "and nothing else becomes one");
    assert!(![0, 0x0103].contains(&of(b"null").rdev));
    assert_eq!(shown.listxattr(&shown.caller, program.node).unwrap(), b"user.note\0");
    let asked = shown.getxattr(&shown.caller, program.node, b"security.capability");
    assert!(matches!(asked, Err(FsError::NoAttribute)));
    let whole = main.fs.view_of(main.store.open_snapshot("then").unwrap()).unwrap();
    let whole = main.through(whole, main.options);
    let program = whole.lookup(&whole.caller, ROOT, b"program").unwrap();
    assert_eq!(program.attr.mode, 0o6755);
    assert!(whole.getxattr(&whole.caller, program.node, b"security.capability").is_ok());
    assert_eq!(whole.lookup(&whole.caller, ROOT, b"null").unwrap().attr.rdev, 0x0103);
    let _ = (device, whiteout);
}

#[test]
fn a_private_snapshot_stays_private_until_it_is_told_otherwise() {
    let options = MountOptions { owner_uid: 500, ..MountOptions::default() };
    let mut main = Setup::with(Arc::new(ModelStore::new()), 4096, options);
    let seen = |main: &Setup, uid| -> Vec<String> {
        main.snapshots().shown_to(uid).into_iter().map(|info| info.name).collect()
    };
    main.snapshots().create("open", false).unwrap();
    main.file(ROOT, "a");
    main.snapshots().create("closed", true).unwrap();
    for _ in 0..2 {
        assert_eq!(seen(&main, 0), ["open", "closed"]);
        assert_eq!(seen(&main, 500), ["open", "closed"]);
        assert_eq!(seen(&main, 501), ["open"]);
        main.assert_sound("with a private snapshot");
        main.reopen();
    }
    assert!(main.snapshots().create("closed", false).is_err());
    assert_eq!(seen(&main, 501), ["open"], "a name that exists changes nothing");
    main.snapshots().set_private("closed", false).unwrap();
    main.snapshots().set_private("open", true).unwrap();
    main.reopen();
    assert_eq!(seen(&main, 501), ["closed"]);
    main.snapshots().delete("open").unwrap();
    main.snapshots().create("open", false).unwrap();
    assert_eq!(seen(&main, 501), ["closed", "open"]);
    assert!(main.snapshots().set_private("missing", true).is_err());
    main.options.private_snapshots = true;
    main.reopen();
    assert_eq!((seen(&main, 501).len(), seen(&main, 500).len()), (0, 2));
}
