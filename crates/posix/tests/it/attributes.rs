//! Permission bits, owners, times, extended attributes.

use kvfs_fs::{SetTime, Timestamp, XattrMode};
use kvfs_posix::{Access, NewMode, Place};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::world::{errno, root, user, volume};

const READS: Access = Access { reads: true, writes: false, executes: false };
const WRITES: Access = Access { reads: false, writes: true, executes: false };
const RUNS: Access = Access { reads: false, writes: false, executes: true };

#[test]
fn access_and_open_agree_with_the_bits_of_owner_group_and_others() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    let users = [user(&volume, 1000, &[]), user(&volume, 1001, &[1000]), user(&volume, 1002, &[])];
    root.mknod("/file", 0o100_000, 0).expect("is made");
    root.chown("/file", Some(1000), Some(1000)).expect("is given");
    for mode in 0..0o1000 {
        root.chmod("/file", mode).expect("is set");
        for (who, shift) in users.iter().zip([6, 3, 0]) {
            let bits = mode >> shift;
            for (access, bit) in [(READS, 4), (WRITES, 2), (RUNS, 1)] {
                let expected = (bits & bit == 0).then_some(Errno::ACCESS);
                assert_eq!(errno(who.access("/file", access)), expected, "{mode:o} {access:?}");
            }
            for (flags, needed) in [(OFlags::RDONLY, 4), (OFlags::WRONLY, 2), (OFlags::RDWR, 6)] {
                let opened = who.open("/file", flags, 0);
                let expected = (bits & needed != needed).then_some(Errno::ACCESS);
                assert_eq!(errno(opened.and_then(|fd| who.close(fd))), expected, "{mode:o} {flags:?}");
            }
        }
        let expected = (mode & 0o111 == 0).then_some(Errno::ACCESS);
        assert_eq!(errno(root.access("/file", RUNS)), expected, "root runs what some user may");
        root.access("/file", WRITES).expect("root may");
    }
}

#[test]
fn privileges_of_a_file_end_with_its_content_owner_and_group() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    let owner = user(&volume, 1000, &[50]);
    root.umask(0);
    root.mkdir("/dir", 0o777).expect("is made");
    owner.umask(0);
    let fd = owner.open("/dir/program", OFlags::CREATE | OFlags::RDWR, 0o777).expect("is made");
    let mode = || root.stat("/dir/program").expect("is there").mode;
    let set = || owner.chmod("/dir/program", 0o6777).expect("is the owner");
    set();
    assert_eq!(mode(), 0o6777);
    owner.write(fd, b"x").expect("writes");
    assert_eq!(mode(), 0o777);
    set();
    owner.truncate(fd, 0).expect("is open");
    assert_eq!(mode(), 0o777);
    set();
    owner.chown("/dir/program", None, Some(50)).expect("is in it");
    assert_eq!(mode(), 0o777);
    set();
    owner.fallocate(fd, kvfs_fs::FallocateMode::Allocate { keep_size: false }, 0, 100).expect("has space");
    assert_eq!(mode(), 0o777);
    set();
    let source = root.open("/dir/source", OFlags::CREATE | OFlags::RDWR, 0o644).expect("is made");
    root.write(source, b"content").expect("writes");
    let source = owner.open("/dir/source", OFlags::RDONLY, 0).expect("opens");
    owner.copy_file_range(source, None, fd, Some(0), 100).expect("copies");
    assert_eq!(mode(), 0o777);
    root.chown("/dir/program", None, Some(60)).expect("root may");
    set();
    assert_eq!(mode(), 0o4777, "the owner is not in the group");
    assert_eq!(errno(owner.chown("/dir/program", Some(1001), None)), Some(Errno::PERM));
    assert_eq!(errno(owner.chown("/dir/program", None, Some(61))), Some(Errno::PERM));
    owner.chown("/dir/program", Some(1000), Some(60)).expect("changes nothing");
    assert_eq!(errno(user(&volume, 1001, &[]).chmod("/dir/program", 0o777)), Some(Errno::PERM));
}

#[test]
fn umask_of_a_call_is_that_of_no_other_one() {
    let process = root();
    process.umask(0o022);
    process.mkdir("/own", NewMode::masked(0o777, 0o077)).expect("is made");
    process.mknod("/all", NewMode::masked(0o100_666, 0), 0).expect("is made");
    process.open("/group", OFlags::CREATE | OFlags::RDWR, NewMode::masked(0o666, 0o1007)).expect("is made");
    process.open("/usual", OFlags::CREATE | OFlags::RDWR, 0o666).expect("is made");
    let modes = ["/own", "/all", "/group", "/usual"].map(|path| process.stat(path).expect("is there").mode);
    assert_eq!(modes, [0o700, 0o666, 0o660, 0o644]);
    assert_eq!(process.umask(0), 0o022);
}

#[test]
fn times_are_set_by_owners_and_now_by_all_who_may_write() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    root.umask(0);
    root.mknod("/file", 0o100_666, 0).expect("is made");
    root.symlink(b"file", "/link").expect("is made");
    let old = Timestamp { seconds: -5, nanos: 7 };
    root.utimens("/file", Some(SetTime::At(old)), None).expect("is set");
    let attr = root.stat("/file").expect("is there");
    assert!(attr.atime == old && attr.mtime != old);
    root.utimens(Place::from("/link").no_follow(), None, Some(SetTime::At(old))).expect("the link itself");
    assert_eq!(root.stat("/file").expect("is there").mtime, attr.mtime);
    let other = user(&volume, 1000, &[]);
    other.utimens("/file", Some(SetTime::Now), Some(SetTime::Now)).expect("may write");
    assert_eq!(errno(other.utimens("/file", Some(SetTime::At(old)), None)), Some(Errno::PERM));
    root.chmod("/file", 0o644).expect("is set");
    assert_eq!(errno(other.utimens("/file", Some(SetTime::Now), Some(SetTime::Now))), Some(Errno::ACCESS));
    assert_eq!(errno(root.chmod(Place::from("/link").no_follow(), 0o600)), Some(Errno::OPNOTSUPP));
}

#[test]
fn extended_attributes_belong_to_those_who_may_read_and_write() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    let other = user(&volume, 1000, &[]);
    root.mknod("/file", 0o100_644, 0).expect("is made");
    root.setxattr("/file", b"user.color", b"red", XattrMode::Set).expect("is set");
    root.setxattr("/file", b"trusted.secret", b"x", XattrMode::Create).expect("is set");
    assert_eq!(other.getxattr("/file", b"user.color").expect("may read"), b"red");
    assert_eq!(errno(other.getxattr("/file", b"trusted.secret")), Some(Errno::NODATA));
    assert_eq!(other.listxattr("/file").expect("tells"), [b"user.color".to_vec()]);
    assert_eq!(root.listxattr("/file").expect("tells").len(), 2);
    assert_eq!(errno(other.setxattr("/file", b"user.color", b"", XattrMode::Set)), Some(Errno::ACCESS));
    assert_eq!(errno(other.setxattr("/file", b"security.x", b"", XattrMode::Set)), Some(Errno::PERM));
    let again = root.setxattr("/file", b"user.color", b"", XattrMode::Create);
    assert_eq!(errno(again), Some(Errno::EXIST));
    root.removexattr("/file", b"user.color").expect("is there");
    assert_eq!(errno(root.removexattr("/file", b"user.color")), Some(Errno::NODATA));
    root.symlink(b"file", "/link").expect("is made");
    let link = Place::from("/link").no_follow();
    assert_eq!(errno(root.setxattr(link, b"user.x", b"", XattrMode::Set)), Some(Errno::PERM));
}

#[test]
fn attributes_of_the_store_are_told_to_those_who_may_read_the_file() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    let other = user(&volume, 1000, &[]);
    root.mknod("/file", 0o100_600, 0).expect("is made");
    for name in [&b"kvfs.accesses"[..], b"kvfs.compression", b"kvfs.tier", b"kvfs.project"] {
        let told = |process: &kvfs_posix::Process| process.getxattr("/file", name);
        assert_eq!(errno(told(&other)), Some(Errno::ACCESS), "{}", name.escape_ascii());
        root.chmod("/file", 0o604).expect("is set");
        assert_eq!(told(&other).expect("may read"), told(&root).expect("may all"));
        root.chmod("/file", 0o600).expect("is set");
    }
}

#[test]
fn lists_count_where_bits_alone_would_not_allow_it() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    root.mknod("/file", 0o100_640, 0).expect("is made");
    let friend = user(&volume, 1000, &[]);
    assert_eq!(errno(friend.access("/file", READS)), Some(Errno::ACCESS));
    // Version 2: user::rw-, user:1000:r--, group::r--, mask::r--, other::---
    let entry = |tag: u16, bits: u16, id: u32| {
        let mut bytes = tag.to_le_bytes().to_vec();
        bytes.extend(bits.to_le_bytes());
        bytes.extend(id.to_le_bytes());
        bytes
    };
    let no_id = u32::MAX;
    let list = [(1, 6, no_id), (2, 4, 1000), (4, 4, no_id), (16, 4, no_id), (32, 0, no_id)];
    let value: Vec<u8> =
        2_u32.to_le_bytes().into_iter().chain(list.iter().flat_map(|&(t, b, i)| entry(t, b, i))).collect();
    assert_eq!(
        errno(friend.setxattr("/file", b"system.posix_acl_access", &value, XattrMode::Set)),
        Some(Errno::PERM)
    );
    root.setxattr("/file", b"system.posix_acl_access", &value, XattrMode::Set).expect("is set");
    friend.access("/file", READS).expect("is on the list");
    assert_eq!(errno(friend.access("/file", WRITES)), Some(Errno::ACCESS));
}

#[test]
fn sizes_are_set_by_path_and_by_descriptor() {
    let process = root();
    let fd = process.open("/file", OFlags::CREATE | OFlags::RDWR, 0o644).expect("is made");
    process.write(fd, b"0123456789").expect("writes");
    process.truncate("/file", 4).expect("is cut");
    process.truncate(fd, 8).expect("grows");
    let mut buffer = [1; 10];
    assert_eq!(process.pread(fd, &mut buffer, 0).expect("reads"), 8);
    assert_eq!(&buffer[..8], b"0123\0\0\0\0");
    let reading = process.open("/file", OFlags::RDONLY, 0).expect("opens");
    assert_eq!(errno(process.truncate(reading, 0)), Some(Errno::INVAL));
    assert_eq!(errno(process.truncate("/", 0)), Some(Errno::ISDIR));
    assert!(process.statvfs("/file").expect("tells").blocks > 0);
}

#[test]
fn set_id_bits_of_others_stay_where_neither_owner_nor_group_is_given() {
    let volume = volume();
    let root = volume.process(&kvfs_posix::Identity::root());
    root.mknod("/p", 0o100_755, 0).expect("is made");
    let other = user(&volume, 1000, &[0]);
    for mode in [0o4755, 0o2755] {
        root.chmod("/p", mode).expect("is set");
        assert_eq!(errno(other.chown("/p", None, None)), Some(Errno::PERM));
        assert_eq!(root.stat("/p").expect("is there").mode, mode);
    }
    root.chown("/p", None, None).expect("root may");
    assert_eq!(root.stat("/p").expect("is there").mode, 0o755);
    other.chown("/p", None, None).expect("there is nothing to lose");
}
