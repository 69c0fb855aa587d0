//! As an ordinary user, through fusermount3.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;
use std::process::Command;

use crate::world::{KVFS, Run, World, can_mount, daemons_of, is_mounted, kvfs, run};

pub(crate) const DENIED: i32 = 7;
/// The user `nobody` on every Linux.
pub(crate) const NOBODY: u32 = 65534;
/// Set where a test runs again in a namespace.
const NAMESPACE: &str = "KVFS_TEST_NAMESPACE";

pub(crate) fn as_nobody(args: &[&str]) -> Run {
    let options = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", KVFS];
    run(Command::new("setpriv").args(options).args(args).current_dir("/"))
}

/// Whether a process may become another user, and that user may run the binary and mount.
pub(crate) fn can_be_nobody(test: &str) -> bool {
    if !rustix::process::geteuid().is_root() {
        eprintln!("SKIPPED {test}: needs root, to become another user");
        return false;
    }
    let probe = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", KVFS, "version"])
        .output();
    if !probe.is_ok_and(|output| output.status.success()) {
        eprintln!("SKIPPED {test}: needs setpriv, and a binary that every user may run");
        return false;
    }
    true
}

/// Whether the body of `test` may go on here, with a `/dev/fuse` that fusermount3 may open for every user, as
/// distributions have it. Where the machine's is closed, the test runs again in a mount namespace of its own
/// with an open one, and the machine's stays as it is.
fn fusermount_works(test: &str) -> bool {
    let setuid = ["/usr/bin/fusermount3", "/bin/fusermount3"]
        .iter()
        .any(|path| fs::metadata(path).is_ok_and(|found| found.mode() & 0o4000 != 0));
    if !setuid {
        eprintln!("SKIPPED {test}: needs fusermount3");
        return false;
    }
    if !can_mount(test) {
        return false;
    }
    if fs::metadata("/dev/fuse").is_ok_and(|device| device.mode() & 0o006 == 0o006) {
        return true;
    }
    assert!(std::env::var_os(NAMESPACE).is_none(), "/dev/fuse is closed in the namespace, too");
    let inside = "mount -t tmpfs -o mode=755 tmpfs /mnt && mknod -m 666 /mnt/fuse c 10 229 \
                  && mount --bind /mnt/fuse /dev/fuse && umount -l /mnt && exec \"$@\"";
    let test_binary = std::env::current_exe().unwrap();
    let name = format!("user::{test}");
    let repeated = run(Command::new("unshare")
        .args(["--mount", "--propagation", "private", "--", "sh", "-c", inside, "sh"])
        .arg(test_binary)
        .args(["--exact", &name, "--nocapture"])
        .env(NAMESPACE, "1"));
    assert!(repeated.code == Some(0), "{} {}", String::from_utf8_lossy(&repeated.stdout), repeated.stderr);
    assert!(String::from_utf8_lossy(&repeated.stdout).contains("1 passed"), "the test did not run");
    false
}

pub(crate) fn give(path: &str) {
    chown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

#[test]
fn missing_rights_are_told() {
    if !can_be_nobody("missing_rights_are_told") {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    kvfs(&["kv", "put", "-s", &store, "tags", "a", "1"]).ok();
    as_nobody(&["mount", &store, &dir]).fails(DENIED, &["ermission", &store]);
    as_nobody(&["kv", "get", "-s", &store, "tags", "a"]).fails(DENIED, &["ermission"]);
    as_nobody(&["check", &store]).fails(DENIED, &["ermission"]);
    as_nobody(&["mkfs", &world.text("theirs"), "--size", "256M"]).fails(DENIED, &["ermission"]);
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "a"]).ok(), "1");
}

#[test]
fn an_ordinary_user_works_on_a_branch_of_a_directory() {
    let test = "an_ordinary_user_works_on_a_branch_of_a_directory";
    if !can_be_nobody(test) || !fusermount_works(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let (store, dir, at) = (format!("{home}/store"), world.dir("home/mnt"), world.dir("home/branch"));
    give(&dir);
    give(&at);
    as_nobody(&["mount", "--create", "--size", "256M", &store, &dir]).ok();
    let as_user = |script: &str| {
        let options = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-ec", script];
        run(Command::new("setpriv").args(options).current_dir("/"))
    };
    as_user(&format!("cd {dir}; mkdir -p team/project; echo old >team/project/a; echo secret >team/secret"))
        .ok();
    as_nobody(&["branch", "create", "fix", &format!("{dir}/team/project")]).ok();
    as_nobody(&["branch", "mount", "-s", &dir, "fix", &at]).ok();
    let seen = as_user(&format!("cd {at}; echo new >a; mkdir d; mv a d; ls -a; ls -a d/..")).ok();
    assert_eq!(seen, ".\n..\nd\n.\n..\nd\n");
    assert_ne!(
        as_user(&format!("ln {dir}/team/secret {at}/in")).code,
        Some(0),
        "nothing comes in from outside"
    );
    as_nobody(&["branch", "merge", "-s", &dir, "fix"]).ok();
    assert_eq!(as_user(&format!("cat {dir}/team/project/d/a; ls {dir}/team")).ok(), "new\nproject\nsecret\n");
    as_nobody(&["umount", &dir]).ok();
}

#[test]
fn an_ordinary_user_mounts_and_unmounts() {
    let test = "an_ordinary_user_mounts_and_unmounts";
    if !can_be_nobody(test) || !fusermount_works(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let (store, dir) = (format!("{home}/store"), world.dir("home/mnt"));
    give(&dir);
    as_nobody(&["mount", "--create", "--size", "256M", &store, &dir]).ok();
    assert!(is_mounted(&dir));
    let as_user = |script: &str| {
        let options = ["--reuid=65534", "--regid=65534", "--clear-groups", "--", "sh", "-ec", script];
        run(Command::new("setpriv").args(options).current_dir("/"))
    };
    as_user(&format!("echo hello > {dir}/file; mkdir {dir}/sub; chmod 700 {dir}/sub")).ok();
    assert_eq!(as_user(&format!("cat {dir}/file; stat -c %u {dir}/file")).ok(), "hello\n65534\n");
    as_nobody(&["kv", "put", "-s", &dir, "tags", "a", "1"]).ok();
    // Not even root looks into the mount of a user that has not let others in.
    assert_eq!(fs::read_dir(&dir).unwrap_err().kind(), std::io::ErrorKind::PermissionDenied);
    as_nobody(&["umount", &dir]).ok();
    assert!(!is_mounted(&dir));
    assert_eq!(daemons_of(Path::new(&store)), []);
    assert_eq!(as_nobody(&["kv", "get", "-s", &store, "tags", "a"]).ok(), "1");
    assert!(as_nobody(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn what_fusermount_refuses_is_explained() {
    let test = "what_fusermount_refuses_is_explained";
    if !can_be_nobody(test) || !fusermount_works(test) {
        return;
    }
    let world = World::new();
    let home = world.dir("home");
    give(&home);
    let store = format!("{home}/store");
    as_nobody(&["mkfs", &store, "--size", "256M"]).ok();
    let theirs = world.dir("of-root");
    as_nobody(&["mount", &store, &theirs]).fails(DENIED, &["of-root"]);
    let allowed = fs::read_to_string("/etc/fuse.conf")
        .is_ok_and(|conf| conf.lines().any(|line| line.trim() == "user_allow_other"));
    if !allowed {
        let dir = world.dir("home/mnt");
        give(&dir);
        as_nobody(&["mount", "-o", "allow_other", &store, &dir])
            .fails(DENIED, &["user_allow_other", "fuse.conf"]);
        assert!(!is_mounted(&dir));
    }
    assert!(as_nobody(&["check", &store]).ok().starts_with("clean"));
    assert_eq!(daemons_of(Path::new(&store)), []);
}
