//! How much space a store takes, may take and says to be free, and how it is when nothing can be written.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use kvfs_store::clock::{Clock, SystemClock};
use rustix::process::{Signal, kill_process};

use crate::world::{World, can_mount, daemon_of, daemons_of, fingerprint, kvfs, run, wait_until};

const MIB: u64 = 1 << 20;

/// Bytes that the device takes on its file system.
fn taken(store: &str) -> u64 {
    fs::metadata(format!("{store}/device")).unwrap().blocks() * 512
}

/// What `df` shows of a mount: size, used and available bytes.
fn df(dir: &str) -> (u64, u64, u64) {
    let found = rustix::fs::statvfs(dir).unwrap();
    let used = found.f_blocks - found.f_bfree;
    (found.f_blocks * found.f_frsize, used * found.f_frsize, found.f_bavail * found.f_frsize)
}

fn write_file(path: &str, mib: u64) {
    let mut file = fs::File::create(path).unwrap();
    let mut chunk = vec![0_u8; MIB as usize];
    for number in 0..mib {
        chunk.iter_mut().zip(number..).for_each(|(byte, value)| *byte = value as u8);
        file.write_all(&chunk).unwrap();
    }
    file.sync_all().unwrap();
}

#[test]
fn new_store_takes_little_and_grows_with_what_is_written() {
    if !can_mount("new_store_takes_little_and_grows_with_what_is_written") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--size", "64G"]).ok();
    let empty = taken(&store);
    assert!(empty <= 64 * MIB, "an empty store takes {empty} bytes");
    kvfs(&["mount", &store, &dir]).ok();
    let mounted = taken(&store);
    assert!(mounted <= 64 * MIB, "a mounted, empty store takes {mounted} bytes");
    write_file(&format!("{dir}/file"), 128);
    kvfs(&["sync", &dir]).ok();
    let grown = taken(&store);
    println!("empty {empty}, mounted {mounted}, with 128 MiB {grown} bytes");
    assert!((128 * MIB..640 * MIB).contains(&grown), "with 128 MiB it takes {grown} bytes");
    kvfs(&["umount", &dir]).ok();
    kvfs(&["check", &store]).ok();
}

#[test]
fn space_of_deleted_files_is_free_within_a_second() {
    if !can_mount("space_of_deleted_files_is_free_within_a_second") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    kvfs(&["mkfs", &store, "--size", "2G"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    let (_, before, _) = df(&dir);
    for is_synced in [false, true] {
        for number in 0..6 {
            write_file(&format!("{dir}/{number}"), 50);
        }
        if is_synced {
            kvfs(&["umount", &dir]).ok();
            kvfs(&["mount", &store, &dir]).ok();
        }
        let (_, full, _) = df(&dir);
        assert!(full >= before + 250 * MIB, "{before}, then {full} bytes are used");
        for number in 0..6 {
            fs::remove_file(format!("{dir}/{number}")).unwrap();
        }
        let clock = SystemClock::new();
        let mut used = 0;
        wait_until("the space of deleted files", || {
            used = df(&dir).1;
            used <= before + 40 * MIB
        });
        let took = clock.monotonic();
        println!("df: {before} before, {full} with the files, {used} bytes {took:?} after they were deleted");
        assert!(took.as_millis() < 1500, "the space was free after {took:?}");
    }
    kvfs(&["umount", &dir]).ok();
    kvfs(&["check", &store]).ok();
}

#[test]
fn grow_makes_a_store_larger_mounted_or_not_and_never_smaller() {
    let world = World::new();
    let store = world.store("store");
    kvfs(&["grow", &store, "128M"]).fails(2, &["256 MiB", "does not shrink"]);
    assert!(kvfs(&["grow", &store, "512M"]).ok().contains("may take 512 MiB now, 256 MiB before"));
    assert!(kvfs(&["grow", &store, "512M"]).ok().contains("512 MiB already"));
    kvfs(&["check", &store]).ok();
    if !can_mount("grow_makes_a_store_larger_mounted_or_not_and_never_smaller") {
        return;
    }
    let dir = world.dir("mnt");
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(df(&dir).0, 512 * MIB);
    let mut count = 0;
    let full = loop {
        match fs::write(format!("{dir}/{count}"), vec![7; 4 << 20]) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    kvfs(&["grow", &dir, "1G"]).ok();
    assert_eq!(df(&dir).0, 1 << 30);
    for number in 0..60 {
        fs::write(format!("{dir}/more-{number}"), vec![9; 4 << 20]).unwrap();
    }
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(df(&dir).0, 1 << 30);
    assert_eq!(fs::read(format!("{dir}/more-59")).unwrap(), vec![9; 4 << 20]);
    kvfs(&["umount", &dir]).ok();
    // A mount for reading only can't.
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    assert!(kvfs(&["grow", &dir, "2G"]).code != Some(0));
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn grow_of_a_block_device_takes_what_was_added_to_it() {
    if !can_mount("grow_of_a_block_device_takes_what_was_added_to_it") {
        return;
    }
    let world = World::new();
    let (image, store, dir) = (world.text("image"), world.text("store"), world.dir("mnt"));
    fs::File::create(&image).unwrap().set_len(256 * MIB).unwrap();
    let Some(device) = loop_device(&image, &[]) else {
        eprintln!("SKIPPED grow_of_a_block_device_takes_what_was_added_to_it: no loop devices");
        return;
    };
    kvfs(&["mkfs", &store, "--device", &device.0]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    kvfs(&["grow", &dir, "400M"]).fails(6, &["the block device", "has 256 MiB"]);
    fs::File::options().write(true).open(&image).unwrap().set_len(512 * MIB).unwrap();
    run(Command::new("losetup").args(["-c", &device.0])).ok();
    assert!(kvfs(&["grow", &dir]).ok().contains("512 MiB now"));
    for number in 0..80 {
        fs::write(format!("{dir}/{number}"), vec![3; 4 << 20]).unwrap();
    }
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

/// A loop device; detached in the end.
struct LoopDevice(String);

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["-d", &self.0]).status();
    }
}

fn loop_device(image: &str, options: &[&str]) -> Option<LoopDevice> {
    let made = Command::new("losetup").args(options).args(["-f", "--show", image]).output().ok()?;
    let name = String::from_utf8(made.stdout).ok()?.trim().to_owned();
    made.status.success().then_some(LoopDevice(name))
}

#[test]
fn remount_read_only_refuses_changes_until_it_is_undone() {
    if !can_mount("remount_read_only_refuses_changes_until_it_is_undone") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    kvfs(&["mount", "--memory", "256M", &store, &dir]).ok();
    let file = format!("{dir}/file");
    fs::write(&file, "before").unwrap();
    let open = fs::File::options().write(true).open(&file).unwrap();
    kvfs(&["mount", "-o", "remount,ro", &store, &dir]).fails(3, &["in use"]);
    drop(open);
    // The last close reaches the kernel's books when the file is let go of.
    wait_until("the remount", || kvfs(&["mount", "-o", "remount,ro", &store, &dir]).code == Some(0));
    let refused = fs::write(&file, "during").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    assert_eq!(fs::read_to_string(&file).unwrap(), "before");
    // As mount(8) calls its helper, with all that the mount table says.
    let helper = world.text("mount.fuse.kvfs");
    std::os::unix::fs::symlink(crate::world::KVFS, &helper).unwrap();
    let table = "ro,relatime,user_id=0,group_id=0,default_permissions,allow_other,memory=256M,commit=3,remount,rw,nosuid";
    run(Command::new(&helper).args([&store, &dir, "-o", table])).ok();
    fs::write(&file, "after").unwrap();
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = mounts.lines().find(|line| line.contains(&format!(" {dir} "))).unwrap();
    assert!(line.contains("rw,nosuid") && line.contains("relatime"), "{line}");
    kvfs(&["umount", &dir]).ok();
    // What was opened for reading only can't be made writable.
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    kvfs(&["mount", "-o", "remount,rw", &store, &dir]).fails(2, &["mounted with -o ro", "mount it again"]);
    kvfs(&["umount", &dir]).ok();
    kvfs(&["mount", "-o", "remount,ro", &store, &dir]).fails(9, &["not on a mounted"]);
}

#[test]
fn remount_changes_the_commit_interval_and_refuses_what_needs_another_mount() {
    if !can_mount("remount_changes_the_commit_interval_and_refuses_what_needs_another_mount") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    kvfs(&["mount", "-o", "commit=3600,memory=256M,noatime", &store, &dir]).ok();
    let flushes = || {
        let stats: serde_json::Value = serde_json::from_str(&kvfs(&["stats", "--json", &dir]).ok()).unwrap();
        stats["journal.flushes"].as_u64().unwrap()
    };
    let remount = |options: &str| kvfs(&["mount", "-o", &format!("remount,{options}"), &store, &dir]);
    // Nothing of a list is applied where an option is refused.
    let other =
        ["memory=512M", "relatime", "undo_count=3", "io_limit=1M", "slow=5s", "writeback", "lazytime"];
    for option in other {
        let refused = format!("{option} needs another mount: unmount, and mount it again");
        remount(&format!("nosuid,commit=0.1,{option}")).fails(2, &[&refused]);
    }
    remount("sparkle").fails(2, &["unknown mount option \"sparkle\""]);
    kvfs(&["mount", "-o", "remount", "--memory", "1G", &store, &dir]).fails(2, &["memory=1073741824 needs"]);
    let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
    assert!(!mounts.lines().any(|line| line.contains(&format!(" {dir} ")) && line.contains("nosuid")));
    fs::write(format!("{dir}/file"), "content").unwrap();
    let before = flushes();
    remount("noatime,memory=256M,commit=3600").ok();
    remount("noatime,memory=256M,commit=3600,commit=0.1").ok();
    wait_until("the commit", || flushes() > before);
    kvfs(&["umount", &dir]).ok();
}

/// A bind mount for reading only; gone in the end.
struct ReadOnlyView(String);

impl ReadOnlyView {
    fn of(dir: &str, at: String) -> Self {
        fs::create_dir_all(&at).unwrap();
        run(Command::new("mount").args(["--bind", dir, &at])).ok();
        run(Command::new("mount").args(["-o", "remount,bind,ro", &at])).ok();
        Self(at)
    }
}

impl Drop for ReadOnlyView {
    fn drop(&mut self) {
        let _ = Command::new("umount").args(["-l", &self.0]).status();
    }
}

#[test]
fn store_on_read_only_media_is_mounted_after_a_crash_and_nothing_is_written() {
    if !can_mount("store_on_read_only_media_is_mounted_after_a_crash_and_nothing_is_written") {
        return;
    }
    let world = World::new();
    let base = world.dir("base");
    let (store, dir) = (world.store("base/store"), world.dir("mnt"));
    kvfs(&["mount", &store, &dir]).ok();
    write_file(&format!("{dir}/large"), 20);
    fs::write(format!("{dir}/file"), "only in the journal").unwrap();
    kvfs(&["kv", "put", "-s", &dir, "tags", "key", "value"]).ok();
    kvfs(&["sync", &dir]).ok();
    let daemon = daemon_of(&store);
    kill_process(daemon, Signal::KILL).unwrap();
    wait_until("the death of the daemon", || daemons_of(Path::new(&store)).is_empty());
    run(Command::new("umount").args(["-l", &dir])).ok();
    let print = fingerprint(&store);
    let names = |dir: &str| {
        let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let listed = names(&store);

    let view = ReadOnlyView::of(&base, world.text("media"));
    let media = format!("{}/store", view.0);
    kvfs(&["mount", &media, &dir]).fails(7, &["can only be read", "-o ro"]);
    for _ in 0..2 {
        kvfs(&["mount", "-o", "ro", &media, &dir]).ok();
        assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "only in the journal");
        assert_eq!(fs::read(format!("{dir}/large")).unwrap().len(), 20 << 20);
        let refused = fs::write(format!("{dir}/new"), "x").unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
        // Without a socket commands read the store themselves, beside the daemon.
        assert_eq!(kvfs(&["kv", "get", "-s", &dir, "tags", "key"]).ok(), "value");
        kvfs(&["kv", "put", "-s", &dir, "tags", "key", "other"]).fails(7, &["can only be read"]);
        assert!(kvfs(&["stats", &dir]).ok().contains("store.read_only"));
        kvfs(&["snapshot", "list", "-s", &dir]).ok();
        kvfs(&["mount", "-o", "remount,rw", &media, &dir]).fails(2, &["mount it again"]);
        kvfs(&["umount", &dir]).ok();
        wait_until("the end of the daemon", || daemons_of(Path::new(&media)).is_empty());
    }
    drop(view);
    assert_eq!(fingerprint(&store), print, "the device is as it was");
    assert_eq!(names(&store), listed, "nothing was made beside it");
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "only in the journal");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn store_on_a_read_only_block_device_is_mounted_for_reading() {
    if !can_mount("store_on_a_read_only_block_device_is_mounted_for_reading") {
        return;
    }
    let world = World::new();
    let (image, store, dir) = (world.text("image"), world.text("store"), world.dir("mnt"));
    fs::File::create(&image).unwrap().set_len(256 * MIB).unwrap();
    kvfs(&["mkfs", &store, "--device", &image]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    fs::write(format!("{dir}/file"), "content").unwrap();
    kvfs(&["umount", &dir]).ok();
    let Some(device) = loop_device(&image, &["-r"]) else {
        eprintln!("SKIPPED store_on_a_read_only_block_device_is_mounted_for_reading: no loop devices");
        return;
    };
    fs::remove_file(format!("{store}/device")).unwrap();
    std::os::unix::fs::symlink(&device.0, format!("{store}/device")).unwrap();
    kvfs(&["mount", &store, &dir]).fails(7, &["can only be read", "-o ro"]);
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "content");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn store_on_a_full_file_system_deletes_and_goes_on() {
    if !can_mount("store_on_a_full_file_system_deletes_and_goes_on") {
        return;
    }
    let world = World::new();
    let (host, dir) = (world.dir("host"), world.dir("mnt"));
    run(Command::new("mount").args(["-t", "tmpfs", "-o", "size=192M", "tmpfs", &host])).ok();
    let store = format!("{host}/store");
    kvfs(&["mkfs", &store, "--size", "1G"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    let write = |name: String| fs::write(format!("{dir}/{name}"), vec![5; 20_000]);
    let fill = |name: &str| {
        let mut count = 0;
        loop {
            match write(format!("{name}-{count}")) {
                Ok(()) => count += 1,
                Err(error) => {
                    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{name}: {error}");
                    return count;
                }
            }
        }
    };
    let first = fill("a");
    assert!(first > 1000, "{first} files fitted");
    let (_, _, available) = df(&dir);
    assert!(available < 16 * MIB, "{available} bytes were available");
    for number in 0..first / 2 {
        fs::remove_file(format!("{dir}/a-{number}")).unwrap();
    }
    for number in 0..first / 4 {
        write(format!("b-{number}")).unwrap();
    }
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(fs::read(format!("{dir}/a-{}", first - 1)).unwrap().len(), 20_000);
    let (_, _, available) = df(&dir);
    assert!(available < 100 * MIB, "{available} bytes are said to be available after the next mount");
    write("c".to_owned()).unwrap();
    kvfs(&["umount", &dir]).ok();
    // The kernel closes the files of the daemon one after the other: its connection may end before its device
    // does.
    let unmounted = || Command::new("umount").arg(&host).status().is_ok_and(|status| status.success());
    wait_until("the host file system to be free", unmounted);
}
