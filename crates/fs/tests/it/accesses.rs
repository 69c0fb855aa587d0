//! How files are read and written.

use std::time::Duration;

use kvfs_fs::{ACCESSES_ATTRIBUTE, AccessPattern, FileAccesses, FsError, NodeId, XattrMode};
use kvfs_store::TierBytes;

use crate::setup::Setup;

const ROOT: NodeId = NodeId::ROOT;

#[test]
fn accesses_of_a_file_are_counted_by_stretch_and_pattern_and_told_by_an_attribute() {
    let setup = Setup::new(100);
    let file = setup.file(ROOT, "file");
    for block in 0..256 {
        setup.write_at(file, block << 12, &[7; 4096]).unwrap();
    }
    setup.clock.advance(Duration::from_secs(5));
    for at in 0..8 {
        setup.read(&setup.caller, file, (512 << 10) + (at << 15), &mut [0; 4096]).unwrap();
    }
    setup.clock.advance(Duration::from_secs(2));
    let value = setup.getxattr(&setup.caller, file, ACCESSES_ATTRIBUTE).unwrap();
    let found = FileAccesses::parse(std::str::from_utf8(&value).unwrap()).unwrap();
    let total = found.total();
    assert_eq!((total.bytes, found.stretches.len()), (1 << 20, 4));
    assert_eq!((total.reads.count, total.reads.bytes), (8, 8 << 12));
    assert_eq!((total.writes.count, total.writes.bytes), (256, 1 << 20));
    assert_eq!(total.reads.pattern(), Some(AccessPattern::Strided));
    assert_eq!(total.writes.pattern(), Some(AccessPattern::Sequential));
    assert_eq!(total.reads.last, Some(Duration::from_secs(2)));
    assert_eq!(total.writes.last, Some(Duration::from_secs(7)));
    assert_eq!(found.stretches.iter().map(|s| s.reads.count).collect::<Vec<_>>(), [0, 0, 8, 0]);
    assert_eq!(total.stored, TierBytes::default(), "the model has no devices");
    let refused = setup.setxattr(&setup.caller, file, ACCESSES_ATTRIBUTE, b"", XattrMode::Set);
    assert!(matches!(refused, Err(FsError::NotSupported(_))), "{refused:?}");
    let refused = setup.getxattr(&setup.caller, ROOT, ACCESSES_ATTRIBUTE);
    assert!(matches!(refused, Err(FsError::NotSupported(_))), "{refused:?}");
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"");
}

#[test]
fn copies_count_as_no_accesses_of_either_file() {
    let setup = Setup::new(100);
    let (source, target) = (setup.file(ROOT, "source"), setup.file(ROOT, "target"));
    setup.write_at(source, 0, &[7; 8192]).unwrap();
    let copied = setup.copy_file_range(&setup.caller, source, 0, target, 0, 8192).unwrap();
    assert_eq!(copied.bytes, 8192);
    for (file, writes) in [(source, 1), (target, 0)] {
        let value = setup.getxattr(&setup.caller, file, ACCESSES_ATTRIBUTE).unwrap();
        let total = FileAccesses::parse(std::str::from_utf8(&value).unwrap()).unwrap().total();
        assert_eq!((total.reads.count, total.writes.count), (0, writes));
    }
}
