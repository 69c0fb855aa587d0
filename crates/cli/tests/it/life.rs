//! The life of a mount: it comes up, goes away by command and by signal, and survives a killed daemon.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::world::{
    KVFS, World, can_mount, daemon_of, daemons_of, fingerprint, is_mounted, kvfs, run, wait_exit, wait_until,
};

/// A daemon in the foreground, mounted.
fn foreground(store: &str, dir: &str, options: &[&str]) -> Child {
    let child = Command::new(KVFS)
        .args(["mount", "--foreground"])
        .args(options)
        .args([store, dir])
        .stdin(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("the mount", || is_mounted(dir) && fs::metadata(dir).is_ok());
    child
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

#[test]
fn cycles_leave_no_daemon_and_no_mount() {
    if !can_mount("cycles_leave_no_daemon_and_no_mount") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.text("store"), world.dir("mnt"));
    for round in 0..4 {
        kvfs(&["mount", "--create", "--size", "256M", &store, &dir]).ok();
        assert!(is_mounted(&dir), "ready means mounted");
        let names: Vec<_> = fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names.len(), round);
        fs::write(format!("{dir}/{round}"), format!("round {round}")).unwrap();
        kvfs(&["umount", &dir]).ok();
        // When umount returns, nothing is left: neither mount nor daemon nor socket.
        assert!(!is_mounted(&dir));
        assert_eq!(daemons_of(Path::new(&store)), []);
        assert!(!Path::new(&store).join("control.sock").exists());
    }
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn mount_under_a_limit_of_file_sizes_works_and_a_file_that_is_too_long_ends_no_daemon() {
    if !can_mount("mount_under_a_limit_of_file_sizes_works_and_a_file_that_is_too_long_ends_no_daemon") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    // Longer than the store (KiB).
    run(Command::new("bash").args([
        "-c",
        "ulimit -f 2000000; exec \"$@\"",
        "bash",
        KVFS,
        "mount",
        &store,
        &dir,
    ]))
    .ok();
    let daemon = daemon_of(&store);
    let limits = fs::read_to_string(format!("/proc/{}/limits", daemon.as_raw_nonzero())).unwrap();
    assert!(limits.lines().any(|line| line.starts_with("Max file size") && line.contains("2048000000")));
    fs::write(format!("{dir}/file"), "content").unwrap();
    kill_process(daemon, Signal::XFSZ).unwrap();
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "content");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn the_daemon_in_the_background_depends_on_nothing() {
    if !can_mount("the_daemon_in_the_background_depends_on_nothing") {
        return;
    }
    let world = World::new();
    // Relative paths: the daemon works elsewhere.
    let name = format!("relative-{}", std::process::id());
    let (store, _) = (world.store(&name), world.dir("mnt"));
    run(Command::new(KVFS).args(["mount", &name, "mnt"]).current_dir(world.path(""))).ok();
    let daemon = daemon_of(&name);
    let process = PathBuf::from(format!("/proc/{}", daemon.as_raw_nonzero()));
    assert_eq!(fs::read_link(process.join("cwd")).unwrap(), Path::new("/"));
    for stream in 0..3 {
        assert_eq!(fs::read_link(process.join(format!("fd/{stream}"))).unwrap(), Path::new("/dev/null"));
    }
    assert_eq!(rustix::process::getsid(Some(daemon)).unwrap(), daemon, "a session of its own");
    if may_lower_oom_score() {
        assert_eq!(fs::read_to_string(process.join("oom_score_adj")).unwrap().trim(), "-900");
    } else {
        eprintln!("SKIPPED part of the_daemon_in_the_background_depends_on_nothing: no CAP_SYS_RESOURCE");
    }
    let log = fs::read_to_string(format!("{store}/kvfs.log")).unwrap();
    assert!(log.contains("mounted"), "{log}");
    assert_eq!(fs::metadata(format!("{store}/control.sock")).unwrap().mode() & 0o777, 0o600);
    kvfs(&["umount", &world.text("mnt")]).ok();
    let log = fs::read_to_string(format!("{store}/kvfs.log")).unwrap();
    assert!(log.contains("store closed"), "{log}");
}

fn may_lower_oom_score() -> bool {
    const CAP_SYS_RESOURCE: u32 = 24;
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap().trim();
    u64::from_str_radix(effective, 16).unwrap() >> CAP_SYS_RESOURCE & 1 == 1
}

#[test]
fn a_store_that_is_still_closing_is_waited_for() {
    if !can_mount("a_store_that_is_still_closing_is_waited_for") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    for round in 0..5 {
        fs::write(format!("{dir}/{round}"), vec![round; 3 << 20]).unwrap();
        // It returns at once, unlike `kvfs umount`. What other tests have just forked has the file open,
        // until it is a program.
        let unmounted = || Command::new("umount").arg(&dir).status().is_ok_and(|status| status.success());
        wait_until("the end of what has a file open", unmounted);
        if round % 2 == 0 {
            kvfs(&["mount", &store, &dir]).ok();
        } else {
            kvfs(&["kv", "put", "-s", &store, "rounds", &round.to_string(), "done"]).ok();
            kvfs(&["mount", &store, &dir]).ok();
        }
        assert_eq!(fs::read(format!("{dir}/{round}")).unwrap(), vec![round; 3 << 20]);
    }
    kvfs(&["umount", &dir]).ok();
    assert_eq!(kvfs(&["kv", "scan", "-s", &store, "rounds"]).ok(), "1\tdone\n3\tdone\n");
}

#[test]
fn a_signal_unmounts_and_closes() {
    if !can_mount("a_signal_unmounts_and_closes") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    for signal in [Signal::TERM, Signal::INT] {
        let mut daemon = foreground(&store, &dir, &["-o", "commit=3600"]);
        fs::write(format!("{dir}/{}", signal.as_raw()), "unsynced").unwrap();
        kill_process(pid(&daemon), signal).unwrap();
        assert!(wait_exit(&mut daemon).success());
        assert!(!is_mounted(&dir));
    }
    kvfs(&["mount", &store, &dir]).ok();
    for signal in [Signal::TERM, Signal::INT] {
        assert_eq!(fs::read_to_string(format!("{dir}/{}", signal.as_raw())).unwrap(), "unsynced");
    }
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_busy_mount_outlives_one_signal() {
    if !can_mount("a_busy_mount_outlives_one_signal") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    let mut daemon = foreground(&store, &dir, &[]);
    let mut errors = daemon.stderr.take().unwrap();
    let mut open = File::create(format!("{dir}/open")).unwrap();
    kill_process(pid(&daemon), Signal::TERM).unwrap();
    let mut said = Vec::new();
    let mut piece = [0; 4096];
    while !String::from_utf8_lossy(&said).contains("still serving") {
        let len = errors.read(&mut piece).unwrap();
        assert_ne!(len, 0, "the daemon ended: {}", String::from_utf8_lossy(&said));
        said.extend_from_slice(&piece[..len]);
    }
    open.write_all(b"still works").unwrap();
    assert!(is_mounted(&dir));
    kill_process(pid(&daemon), Signal::TERM).unwrap();
    wait_until("the detached mount", || !is_mounted(&dir));
    open.write_all(b", and still").unwrap();
    drop(open);
    let drained = std::thread::spawn(move || errors.read_to_end(&mut Vec::new()));
    assert!(wait_exit(&mut daemon).success());
    drained.join().unwrap().unwrap();
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/open")).unwrap(), "still works, and still");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_killed_daemon_is_followed_by_a_new_one() {
    if !can_mount("a_killed_daemon_is_followed_by_a_new_one") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    for round in 0..3 {
        let mut file = File::create(format!("{dir}/{round}")).unwrap();
        file.write_all(b"synced").unwrap();
        file.sync_all().unwrap();
        drop(file);
        let daemon = daemon_of(&store);
        kill_process(daemon, Signal::KILL).unwrap();
        wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
        assert!(fs::metadata(&dir).is_err(), "the mount is dead");
        let again = kvfs(&["mount", &store, &dir]);
        assert!(again.stderr.contains("detached"), "{}", again.stderr);
        again.ok();
        for earlier in 0..=round {
            assert_eq!(fs::read_to_string(format!("{dir}/{earlier}")).unwrap(), "synced");
        }
    }
    // A dead mount can be unmounted, too.
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    kvfs(&["umount", &dir]).ok();
    assert!(!is_mounted(&dir));
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn a_dead_mount_is_recognised_while_the_kernel_remembers_its_root() {
    if !can_mount("a_dead_mount_is_recognised_while_the_kernel_remembers_its_root") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let before = fs::metadata(&dir).unwrap();
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    // Attributes tell nothing: the kernel answers for the daemon.
    assert_eq!(fs::metadata(&dir).unwrap().ino(), before.ino());
    kvfs(&["mount", &store, &dir]).ok();
    fs::write(format!("{dir}/file"), "alive").unwrap();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_store_that_a_dying_process_still_holds_is_waited_for() {
    let world = World::new();
    let store = world.store("store");
    // A process that was killed holds its lock until the kernel has closed its files.
    let held = kvfs_device::FileDevice::open(Path::new(&store).join("device"), false).unwrap();
    let mut check = Command::new(KVFS).args(["check", &store]).stdout(Stdio::null()).spawn().unwrap();
    std::thread::park_timeout(std::time::Duration::from_millis(300));
    assert_eq!(check.try_wait().unwrap(), None, "it does not wait");
    drop(held);
    assert!(wait_exit(&mut check).success());
}

/// A daemon that opens a store and does not get on: another process has it, and does not say what it does.
fn opening(store: &str, options: &[&str]) -> (Child, UnixStream, impl Sized + use<>) {
    let held = kvfs_device::FileDevice::open(Path::new(store).join("device"), false).unwrap();
    let socket = UnixListener::bind(Path::new(store).join("control.sock")).unwrap();
    let serve = Command::new(KVFS).arg("serve").args(options).arg(store).stderr(Stdio::null()).spawn();
    let (connection, _) = socket.accept().unwrap();
    (serve.unwrap(), connection, (held, socket))
}

#[test]
fn a_signal_ends_a_daemon_that_is_opening_its_store() {
    let world = World::new();
    for signal in [Signal::TERM, Signal::INT] {
        let store = world.store(&format!("store{}", signal.as_raw()));
        let (mut daemon, _connection, _held) = opening(&store, &["--foreground"]);
        kill_process(pid(&daemon), signal).unwrap();
        assert_eq!(wait_exit(&mut daemon).signal(), Some(signal.as_raw()));
    }
}

#[test]
fn a_daemon_that_is_opening_its_store_ends_with_the_command_that_asked_for_it() {
    let world = World::new();
    let store = world.store("store");
    let (mut parent, mut connection, _held) = opening(&store, &[]);
    parent.kill().unwrap();
    wait_exit(&mut parent);
    // Up to the end of the process that has said hello.
    connection.read_to_end(&mut Vec::new()).unwrap();
}

#[test]
fn a_parent_that_is_killed_leaves_a_mount_or_nothing() {
    if !can_mount("a_parent_that_is_killed_leaves_a_mount_or_nothing") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    let mut parent = Command::new(KVFS).args(["mount", &store, &dir]).stderr(Stdio::null()).spawn().unwrap();
    wait_until("the daemon", || !daemons_of(Path::new(&store)).is_empty());
    parent.kill().unwrap();
    wait_exit(&mut parent);
    // The daemon was faster, or it gives up; both leave the store usable.
    let settled = || {
        let log = fs::read_to_string(format!("{store}/kvfs.log")).unwrap_or_default();
        daemons_of(Path::new(&store)).is_empty() || (is_mounted(&dir) && log.contains("mounted"))
    };
    wait_until("mount or end", settled);
    if !daemons_of(Path::new(&store)).is_empty() {
        // It may be about to give up.
        let _ = kvfs(&["umount", &dir]);
        wait_until("the end", || daemons_of(Path::new(&store)).is_empty());
    }
    assert!(!is_mounted(&dir));
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn read_only_changes_nothing() {
    if !can_mount("read_only_changes_nothing") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fs::write(format!("{dir}/file"), "hello").unwrap();
    kvfs(&["umount", &dir]).ok();
    let before = fingerprint(&store);
    kvfs(&["mount", "-o", "ro", &store, &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/file")).unwrap(), "hello");
    let error = fs::write(format!("{dir}/other"), "x").unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    kvfs(&["kv", "put", "-s", &dir, "a", "b", "c"]).fails(1, &["read-only"]);
    kvfs(&["check", &dir]).ok();
    kvfs(&["umount", &dir]).ok();
    assert_eq!(fingerprint(&store), before);
}

#[test]
fn a_full_store_takes_writes_again_after_deleting() {
    if !can_mount("a_full_store_takes_writes_again_after_deleting") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    fs::write(format!("{dir}/kept"), "kept").unwrap();
    let chunk = vec![0xa5; 1 << 20];
    for _ in 0..2 {
        let mut big = File::create(format!("{dir}/big")).unwrap();
        let error = std::iter::repeat_with(|| big.write_all(&chunk)).find_map(Result::err).unwrap();
        assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
        drop(big);
        fs::remove_file(format!("{dir}/big")).unwrap();
        // The kernel tells the daemon a moment later that the file is open nowhere.
        let again = vec![0x5a; 20 << 20];
        wait_until("space", || fs::write(format!("{dir}/again"), &again).is_ok());
        assert_eq!(fs::read(format!("{dir}/again")).unwrap(), vec![0x5a; 20 << 20]);
        fs::remove_file(format!("{dir}/again")).unwrap();
        assert_eq!(fs::read_to_string(format!("{dir}/kept")).unwrap(), "kept");
    }
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn options_reach_the_kernel() {
    if !can_mount("options_reach_the_kernel") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    kvfs(&[
        "mount",
        "-o",
        "noexec,nosuid",
        "-o",
        "nodev,noatime",
        "--memory",
        "64M",
        "--workers",
        "1",
        &store,
        &dir,
    ])
    .ok();
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table.lines().find(|line| line.contains(&format!(" {dir} "))).unwrap();
    for word in
        ["noexec", "nosuid", "nodev", "noatime", "allow_other", "default_permissions", "fuse.kvfs", &store]
    {
        assert!(line.contains(word), "{word}: {line}");
    }
    fs::write(format!("{dir}/program"), "#!/bin/sh\n").unwrap();
    run(Command::new("chmod").args(["+x", &format!("{dir}/program")])).ok();
    let refused = Command::new(format!("{dir}/program")).spawn().unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::PermissionDenied);
    let stats: serde_json::Value = serde_json::from_str(&kvfs(&["stats", "--json", &dir]).ok()).unwrap();
    assert!(stats["memory.ceiling_bytes"].as_u64().unwrap() < 64 << 20);
    assert!(stats["fs.nodes"].as_u64().unwrap() >= 1);
    assert!(kvfs(&["stats", &dir]).ok().contains("memory.ceiling_bytes"));
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn daemon_that_does_not_answer_is_detached_lazily() {
    if !can_mount("daemon_that_does_not_answer_is_detached_lazily") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    // An open transaction has no say, either.
    kvfs(&["txn", "begin", "-s", &dir]).ok();
    let daemon = daemon_of(&store);
    kill_process(daemon, Signal::STOP).unwrap();
    kvfs(&["umount", "--lazy", &dir]).ok();
    assert!(!is_mounted(&dir));
    kill_process(daemon, Signal::CONT).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn lazily_unmounted_stores_close_behind_their_last_user() {
    if !can_mount("lazily_unmounted_stores_close_behind_their_last_user") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let mut open = File::create(format!("{dir}/open")).unwrap();
    kvfs(&["umount", "--lazy", &dir]).ok();
    assert!(!is_mounted(&dir));
    open.write_all(b"late").unwrap();
    kvfs(&["mount", &store, &dir]).fails(3, &["still in use", &dir]);
    drop(open);
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/open")).unwrap(), "late");
    kvfs(&["umount", &dir]).ok();
}
