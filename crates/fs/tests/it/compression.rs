//! The setting of directories and files by which content is compressed.

use std::sync::Arc;

use kvfs_fs::{COMPRESSION_ATTRIBUTE, FsError, MountOptions, NodeId, RenameMode, XattrMode};
use kvfs_kvdb::Background;
use kvfs_store::Store;

use crate::engine;
use crate::setup::Setup;
use crate::transfer::{model, pass_on};

const ROOT: NodeId = NodeId::ROOT;

fn set(setup: &Setup, node: NodeId, words: &str) -> Result<(), FsError> {
    setup.setxattr(&setup.caller, node, COMPRESSION_ATTRIBUTE, words.as_bytes(), XattrMode::Set)
}

fn get(setup: &Setup, node: NodeId) -> String {
    let value = setup.getxattr(&setup.caller, node, COMPRESSION_ATTRIBUTE).unwrap();
    String::from_utf8(value.to_vec()).unwrap()
}

#[test]
fn new_files_take_over_the_compression_of_their_directory_and_keep_it() {
    let mut setup = Setup::new(4096);
    let (dir, other) = (setup.dir(ROOT, "dir"), setup.dir(ROOT, "other"));
    let old = setup.file(dir, "old");
    assert_eq!(get(&setup, dir), "none");
    set(&setup, dir, "zstd").unwrap();
    assert_eq!([get(&setup, dir), get(&setup, old), get(&setup, ROOT)], ["zstd:3", "none", "none"]);
    let sub = setup.dir(dir, "sub");
    let file = setup.file(sub, "file");
    assert_eq!([get(&setup, sub), get(&setup, file)], ["zstd:3", "zstd:3"]);
    setup.rename(&setup.caller, sub, b"file", other, b"moved", RenameMode::Replace).unwrap();
    setup.link(&setup.caller, file, ROOT, b"name").unwrap();
    assert_eq!(get(&setup, file), "zstd:3", "moved and linked elsewhere");
    set(&setup, sub, "none").unwrap();
    assert_eq!(get(&setup, setup.file(sub, "plain")), "none");
    set(&setup, file, "lz4").unwrap();
    setup.reopen();
    let found = setup.lookup(&setup.caller, ROOT, b"name").unwrap().node;
    assert_eq!(get(&setup, found), "lz4");
    setup.removexattr(&setup.caller, found, COMPRESSION_ATTRIBUTE).unwrap();
    assert_eq!(get(&setup, found), "none");
    setup.assert_sound("after changes of settings");
}

#[test]
fn a_compression_is_no_listed_attribute_and_only_of_files_and_directories() {
    let setup = Setup::new(4096);
    set(&setup, ROOT, "lz4").unwrap();
    assert_eq!(setup.listxattr(&setup.caller, ROOT).unwrap(), b"");
    for words in ["", "gzip", "zstd:0", "zstd:99", "\u{fffd}"] {
        assert!(matches!(set(&setup, ROOT, words), Err(FsError::Invalid(_))), "{words}");
    }
    let link = setup.symlink(&setup.caller, ROOT, b"link", b"target").unwrap().node;
    assert!(matches!(set(&setup, link, "lz4"), Err(FsError::NotSupported(_))));
    assert_eq!(get(&setup, ROOT), "lz4");
}

/// Small files in rows, larger ones in blocks, changed in the middle and at the end.
#[test]
fn compressed_content_takes_less_space_and_reads_the_same() {
    for words in ["lz4", "zstd:3"] {
        let device = engine::create();
        let db = engine::open(&device, 1 << 20, Background::Manual);
        let setup = Setup::with(Arc::clone(&db) as _, 4096, MountOptions::default());
        let dir = setup.dir(ROOT, "dir");
        set(&setup, dir, words).unwrap();
        let text = |seed: usize, len: usize| -> Vec<u8> {
            (0..len)
                .map(|at| b"all work and no play makes a dull line\n"[(at + at / 97 * seed) % 39])
                .collect()
        };
        let mut files = Vec::new();
        for seed in 1..60 {
            let content = text(seed, if seed % 3 == 0 { 3000 } else { seed * 5000 });
            let file = setup.file(dir, &format!("f{seed}"));
            setup.write_at(file, 0, &content).unwrap();
            files.push((file, content));
        }
        db.flush().unwrap();
        for (at, (file, content)) in files.iter_mut().enumerate() {
            let (offset, change) = (content.len() / 2, text(at + 99, 6000 * (at % 4)));
            setup.write_at(*file, offset as u64, &change).unwrap();
            content.resize(content.len().max(offset + change.len()), 0);
            content[offset..offset + change.len()].copy_from_slice(&change);
        }
        db.flush().unwrap();
        db.compact().unwrap();
        for (file, content) in &files {
            assert!(setup.read_all(*file) == *content, "{words}");
        }
        let stats = db.stats();
        let stat =
            |name: &str| stats.iter().find(|(known, _)| known == name).map(|(_, value)| *value).unwrap();
        for space in ["data", "meta"] {
            let (stored, raw) =
                (stat(&format!("keyspace.{space}.bytes")), stat(&format!("keyspace.{space}.raw_bytes")));
            assert!(stored * 2 < raw, "{words}, {space}: {stored} of {raw} bytes");
        }
        assert!(db.check().unwrap().findings.is_empty());
        setup.assert_sound(words);
        db.close().unwrap();
    }
}

/// A store of compressed content fits into one of the same size again, also by what leads to a later state.
#[test]
fn content_that_is_received_is_compressed_as_its_files_are_set() {
    let (source, mut target) = (model(1), engine::setup([2; 16], 64 << 10, 200));
    let dir = source.dir(ROOT, "packed");
    set(&source, dir, "zstd:3").unwrap();
    let (packed, plain) = (source.file(dir, "packed"), source.file(ROOT, "plain"));
    let mut from = None;
    for (name, offset) in [("one", 0), ("two", 1 << 20)] {
        for file in [packed, plain] {
            source.write_at(file, offset, &b"twice ".repeat((1 << 20) / 6)).unwrap();
        }
        source.store.create_snapshot(name).unwrap();
        pass_on(&source, from, name, &mut target, false).unwrap();
        from = Some(name);
        let stats = target.store.stats();
        let stat = |name: &str| stats.iter().find(|(known, _)| known == name).unwrap().1;
        let (stored, raw) = (stat("keyspace.data.bytes"), stat("keyspace.data.raw_bytes"));
        assert!(raw >= offset + (2 << 20) - 8192, "{name}: {raw}");
        assert!(stored * 10 < raw * 6 && stored * 10 > raw * 4, "{name}: {stored} of {raw} bytes");
        target.assert_sound(name);
    }
}
