//! What was taken away from users stays taken away: in snapshots, in views of transactions and branches, in
//! counters.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, chown};
use std::process::Command;

use rustix::fs::{CWD, FileType, Mode, XattrFlags, makedev, mknodat, setxattr};

use crate::user::{NOBODY, can_be_nobody};
use crate::world::{Run, World, can_mount, kvfs, run};

/// As the user `nobody`, or another user without rights.
fn as_user(uid: u32, program: &str, args: &[&str]) -> Run {
    let options = [format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".to_owned()];
    run(Command::new("setpriv").args(options).arg("--").arg(program).args(args).current_dir("/"))
}

fn as_nobody(program: &str, args: &[&str]) -> Run {
    as_user(NOBODY, program, args)
}

fn works_here(test: &str) -> bool {
    can_mount(test) && can_be_nobody(test)
}

fn chmod(path: &str, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// `id` with root's set-user-id bit, a copy of it with capabilities, and a device node that all may read.
fn make_privileges(dir: &str) {
    for name in ["id", "capable"] {
        fs::copy("/usr/bin/id", format!("{dir}/{name}")).unwrap();
    }
    chmod(&format!("{dir}/id"), 0o4755);
    let net_raw = [1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
    setxattr(format!("{dir}/capable"), "security.capability", &net_raw, XattrFlags::empty()).unwrap();
    let null = format!("{dir}/null");
    mknodat(CWD, &null, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(1, 3)).unwrap();
    chmod(&null, 0o666);
    assert_eq!(
        as_nobody(&format!("{dir}/id"), &["-u"]).ok(),
        "0\n",
        "the bit works where it was not taken away"
    );
}

fn take_privileges(dir: &str) {
    chmod(&format!("{dir}/id"), 0o755);
    rustix::fs::removexattr(format!("{dir}/capable"), "security.capability").unwrap();
    fs::remove_file(format!("{dir}/null")).unwrap();
}

#[test]
fn a_snapshot_gives_no_set_id_bits_capabilities_or_devices() {
    let test = "a_snapshot_gives_no_set_id_bits_capabilities_or_devices";
    if !works_here(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    make_privileges(&dir);
    kvfs(&["snapshot", "create", "-s", &dir, "then"]).ok();
    take_privileges(&dir);
    let then = format!("{dir}/.kvfs/snapshots/then");
    for attempt in 0..2 {
        assert_eq!(
            as_nobody(&format!("{then}/id"), &["-u"]).ok(),
            format!("{NOBODY}\n"),
            "attempt {attempt}"
        );
        // Looked at by a listing, and by name.
        as_nobody("ls", &["-l", &then]).ok();
    }
    let mut value = [0; 64];
    let asked = rustix::fs::getxattr(format!("{then}/capable"), "security.capability", &mut value);
    assert_eq!(asked, Err(rustix::io::Errno::NODATA));
    assert_eq!(rustix::fs::listxattr(format!("{then}/capable"), &mut value), Ok(0));
    for opened in
        [File::open(format!("{then}/null")), File::options().write(true).open(format!("{then}/null"))]
    {
        assert_eq!(opened.unwrap_err().raw_os_error(), Some(rustix::io::Errno::NXIO.raw_os_error()));
    }
    // The snapshot itself has it all still.
    kvfs(&["snapshot", "restore", "-s", &dir, "then"]).ok();
    assert_eq!(as_nobody(&format!("{dir}/id"), &["-u"]).ok(), "0\n");
    assert_eq!(rustix::fs::getxattr(format!("{dir}/capable"), "security.capability", &mut value), Ok(20));
    File::open(format!("{dir}/null")).unwrap();
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn a_private_snapshot_is_shown_to_root_and_the_stores_owner_alone() {
    let test = "a_private_snapshot_is_shown_to_root_and_the_stores_owner_alone";
    if !works_here(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let letter = format!("{dir}/letter");
    fs::write(&letter, "dear").unwrap();
    chmod(&letter, 0o644);
    kvfs(&["snapshot", "create", "-s", &dir, "then"]).ok();
    kvfs(&["snapshot", "create", "-s", &dir, "--private", "hidden"]).ok();
    chmod(&letter, 0o600);
    let at = |name: &str| format!("{dir}/.kvfs/snapshots/{name}/letter");
    let listed = |uid| as_user(uid, "ls", &[&format!("{dir}/.kvfs/snapshots")]).ok();
    let shows = |name: &str| as_nobody("cat", &[&at(name)]).code == Some(0);
    assert!(!as_nobody("cat", &[&letter]).stdout.starts_with(b"dear"));
    assert!(shows("then") && !shows("hidden"), "content stays readable where the snapshot shows it");
    assert_eq!(listed(NOBODY), "then\n");
    assert_eq!(listed(0), "hidden\nthen\n");
    assert_eq!(fs::read_to_string(at("hidden")).unwrap(), "dear");
    // A name that root has looked up just now is looked up again for each user.
    assert!(!shows("hidden"));
    kvfs(&["snapshot", "set", "-s", &dir, "--private", "then"]).ok();
    assert!(!shows("then"));
    let json = kvfs(&["snapshot", "list", "-s", &dir, "--json"]).ok();
    let lines: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert!(lines.as_array().unwrap().iter().all(|line| line["private"] == true), "{json}");
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
    kvfs(&["mount", &store, &dir]).ok();
    assert!(!shows("then") && !shows("hidden") && fs::read_to_string(at("then")).is_ok());
    kvfs(&["snapshot", "set", "-s", &dir, "--public", "then"]).ok();
    assert!(shows("then") && !shows("hidden"));
    // A new one of the name is what it was made as.
    kvfs(&["snapshot", "delete", "-s", &dir, "hidden"]).ok();
    chmod(&letter, 0o644);
    kvfs(&["snapshot", "create", "-s", &dir, "hidden"]).ok();
    assert!(shows("hidden"));
    kvfs(&["snapshot", "set", "-s", &dir, "--private", "missing"]).fails(1, &["missing"]);
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_mount_with_private_snapshots_shows_none_to_others() {
    let test = "a_mount_with_private_snapshots_shows_none_to_others";
    if !works_here(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    kvfs(&["snapshot", "create", "-s", &store, "then"]).ok();
    chown(&store, Some(NOBODY), Some(NOBODY)).unwrap();
    chown(format!("{store}/device"), Some(NOBODY), Some(NOBODY)).unwrap();
    kvfs(&["mount", "-o", "private_snapshots,store_owner=65534", &store, &dir]).ok();
    let listed = |uid| as_user(uid, "ls", &[&format!("{dir}/.kvfs/snapshots")]).ok();
    assert_eq!((listed(1), listed(NOBODY), listed(0)), (String::new(), "then\n".into(), "then\n".into()));
    let inside = format!("{dir}/.kvfs/snapshots/then");
    assert_ne!(as_user(1, "ls", &[&inside]).code, Some(0));
    assert_eq!(as_nobody("ls", &[&inside]).code, Some(0));
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn counters_name_keyspaces_to_users_that_may_read_them() {
    let test = "counters_name_keyspaces_to_users_that_may_read_them";
    if !works_here(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    // Closing the store brings them to the device, so that there is something to count.
    for name in ["payroll", "phonebook", "salaries.old"] {
        kvfs(&["kv", "put", "-s", &store, name, "key", "value"]).ok();
    }
    kvfs(&["kv", "chmod", "-s", &store, "644", "phonebook"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    for name in ["stats.txt", "stats.json", "stats.prom"] {
        let file = format!("{dir}/.kvfs/stats/{name}");
        let (all, shown) = (fs::read_to_string(&file).unwrap(), as_nobody("cat", &[&file]).ok());
        assert!(["payroll", "phonebook", "salaries"].iter().all(|name| all.contains(name)), "{all}");
        assert!(!shown.contains("payroll") && !shown.contains("salaries"), "{name}: {shown}");
        assert!(shown.contains("phonebook") && shown.contains("meta"), "{name}: {shown}");
    }
    kvfs(&["kv", "chmod", "-s", &dir, "600", "phonebook"]).ok();
    assert!(!as_nobody("cat", &[&format!("{dir}/.kvfs/stats/stats.txt")]).ok().contains("phonebook"));
    assert!(kvfs(&["stats", &dir]).ok().contains("payroll"));
    kvfs(&["umount", &dir]).ok();
}
