//! Images of several users.

use kvfs_fs::{BeginOptions, FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::Db;
use kvfs_posix::{Identity, Volume};
use kvfs_store::{Store, clock::SystemClock};
use rustix::fs::OFlags;
use tempfile::TempDir;

use super::*;

const ONE: u32 = 1001;
const OTHER: u32 = 1002;

fn process() -> (TempDir, Volume, Process) {
    let directory = tempfile::tempdir().expect("a directory");
    let db = Db::builder().capacity_bytes(1 << 28).open(directory.path().join("store")).expect("opens");
    let (store, clock) = (db as Arc<dyn Store>, Arc::new(SystemClock::new()));
    FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
    let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
    let volume = Volume::over(Arc::new(fs)).expect("starts");
    let process = volume.process(&Identity::root());
    (directory, volume, process)
}

fn file_of(process: &Process, fd: Fd) -> SharedFile {
    SharedFile::of(process, fd).expect("is open")
}

fn mapped(images: &Images, process: &Process, name: &str, uid: u32) -> (Fd, Arc<Image>) {
    let fd = process.open(name, OFlags::CREATE | OFlags::RDWR, 0o644).expect("opens");
    process.write(fd, b"content").expect("writes");
    (fd, images.open(process, &file_of(process, fd), uid).expect("is mapped"))
}

fn held<'i>(image: &'i Image, process: &Process) -> Held<'i> {
    image.hold(process).expect("is there")
}

#[test]
fn what_fails_of_one_users_memory_is_told_to_that_user_and_keeps_no_other_file_from_being_written() {
    let (_directory, _volume, process) = process();
    let images = Images::new(0);
    let (_, failing) = mapped(&images, &process, "/one", ONE);
    let (fd, other) = mapped(&images, &process, "/other", OTHER);
    failing.content.process.close(failing.content.fd).expect("is open");
    for (uid, outcome, text) in [(OTHER, None, b"CONTENT"), (ONE, Some(Errno::BADF), b"cONTENT")] {
        pwrite(other.memory(), text, 0).expect("writes");
        assert_eq!(images.write_all(&process, uid).err().map(|error| error.errno()), outcome);
        let mut found = [0; 7];
        process.pread(fd, &mut found, 0).expect("reads");
        assert_eq!(&found, text);
    }
}

#[test]
fn room_of_a_user_bounds_what_that_user_makes_longer_and_not_what_others_do() {
    let (_directory, _volume, process) = process();
    let images = Images::new(0);
    let (fd, image) = mapped(&images, &process, "/one", ONE);
    let half = (IMAGE_BYTES_MAX / 2) as u64;
    held(&image, &process).reserve(half, ONE).expect("is half");
    assert_eq!(held(&image, &process).reserve(half + 1, ONE).expect_err("is more").errno(), Errno::FBIG);
    held(&image, &process).reserve(half + 1, OTHER).expect("is not refused");
    process.truncate(fd, half + 1).expect("is longer");
    drop(held(&image, &process));
    assert!(images.shares.take(ONE, 1).is_none());
    assert_eq!(
        images.open(&process, &file_of(&process, fd), OTHER).err().map(|error| error.errno()),
        Some(Errno::NOMEM)
    );
    process.truncate(fd, 1).expect("is shorter");
    drop(held(&image, &process));
    assert!(images.shares.take(ONE, IMAGE_BYTES_MAX / 2 - PAGE).is_some());
    drop(image);
    assert!(images.end_unkept(false) && images.shares.is_whole());
}

#[test]
fn what_is_mapped_in_a_transaction_concerns_that_one_alone() {
    let (_directory, volume, process) = process();
    let images = Images::new(0);
    let txn = volume.begin(&BeginOptions::default()).expect("begins");
    let inside = txn.process(&Identity::root());
    let (_, failing) = mapped(&images, &inside, "/one", ONE);
    failing.content.process.close(failing.content.fd).expect("is open");
    pwrite(failing.memory(), b"C", 0).expect("writes");
    images.write_all(&process, ONE).expect("has none");
    assert_eq!(images.write_all(&inside, ONE).expect_err("fails").errno(), Errno::BADF);
}

#[test]
fn memory_that_is_mapped_again_before_it_was_written_back_is_the_same() {
    let (_directory, _volume, process) = process();
    let images = Images::new(0);
    let (fd, image) = mapped(&images, &process, "/one", ONE);
    pwrite(image.memory(), b"C", 0).expect("writes");
    drop(image);
    let image = images.open(&process, &file_of(&process, fd), OTHER).expect("is mapped");
    assert!(images.end_unkept(false), "it is kept");
    let mut found = [0; 7];
    pread(image.memory(), &mut found, 0).expect("reads");
    assert_eq!(&found, b"Content");
    drop(image);
    assert!(images.end_unkept(false) && images.is_empty());
    process.pread(fd, &mut found, 0).expect("reads");
    assert_eq!(&found, b"Content");
}

#[test]
fn round_that_begins_while_others_wait_writes_back_for_all_of_them() {
    let (_directory, _volume, process) = process();
    let images = Images::new(0);
    let (fd, image) = mapped(&images, &process, "/one", ONE);
    let before = image.content.round();
    pwrite(image.memory(), b"C", 0).expect("writes");
    // They have come, and wait.
    let waiting = [(); 8].map(|()| image.content.round());
    for came_in in waiting {
        image
            .content
            .hold_since(came_in, &process)
            .and_then(|mut held| held.write_back())
            .expect("is written");
    }
    assert_eq!(image.content.round(), before + 1);
    let mut found = [0; 7];
    process.pread(fd, &mut found, 0).expect("reads");
    assert_eq!(&found, b"Content");
    // What comes later finds what was stored meanwhile.
    pwrite(image.memory(), b"c", 0).expect("writes");
    image.write_back(&process).expect("is written");
    process.pread(fd, &mut found, 0).expect("reads");
    assert_eq!((&found, image.content.round()), (b"content", before + 2));
}
