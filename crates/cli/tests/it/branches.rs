//! Branches of one directory, on a real mount.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use rustix::process::{Signal, kill_process};
use serde_json::Value;

use crate::world::{
    KVFS, Run, World, can_mount, daemon_of, daemons_of, is_mounted, kvfs, run, wait_exit, wait_until,
};

const USAGE: i32 = 2;
const FAILED: i32 = 1;
const CONFLICT: i32 = 75;

/// A command on the mount `dir`.
#[track_caller]
fn on(dir: &str, words: &[&str]) -> Run {
    run(Command::new(KVFS).args(words).current_dir(dir))
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn listed(dir: &str) -> Value {
    serde_json::from_str(&on(dir, &["branch", "list", "--json"]).ok()).unwrap()
}

/// A store with a project and something beside it.
fn with_project(world: &World) -> (String, String) {
    let (store, dir) = world.mounted();
    fs::create_dir_all(format!("{dir}/team/project/src")).unwrap();
    fs::write(format!("{dir}/team/project/src/a"), "old").unwrap();
    fs::write(format!("{dir}/team/project/b"), "old").unwrap();
    fs::write(format!("{dir}/secret"), "secret").unwrap();
    (store, dir)
}

#[test]
fn branch_of_a_directory_is_mounted_with_it_as_its_root_and_merged() {
    if !can_mount("branch_of_a_directory_is_mounted_with_it_as_its_root_and_merged") {
        return;
    }
    let world = World::new();
    let (store, dir) = with_project(&world);
    let at = world.dir("branch");
    // From anywhere, by a path on the mount; from the directory itself; and by a path from the root of the
    // store.
    kvfs(&["branch", "create", "fix", &format!("{dir}/team/project")]).ok();
    on(&format!("{dir}/team"), &["branch", "create", "near", "project/src"]).ok();
    kvfs(&["branch", "create", "-s", &store, "far", "/team/project"]).ok();
    let shown = on(&dir, &["branch", "list"]).ok();
    assert!(shown.contains(" OF ") && shown.contains(" /team/project/src"), "{shown}");
    let list = listed(&dir);
    let of: Vec<_> = (0..3).map(|at| list[at]["directory"].as_str().unwrap()).collect();
    assert_eq!(of, ["/team/project", "/team/project/src", "/team/project"]);
    on(&dir, &["branch", "mount", "fix", &at]).ok();
    assert_eq!(names(&at), ["b", "src"], "no hidden directory, nothing from above");
    assert_eq!(fs::metadata(&at).unwrap().ino(), fs::metadata(format!("{dir}/team/project")).unwrap().ino());
    assert!(!Path::new(&format!("{at}/.kvfs")).exists() && Path::new(&format!("{dir}/.kvfs")).exists());

    let file = |name: &str| format!("{at}/{name}");
    fs::write(file("src/a"), "changed").unwrap();
    fs::create_dir(file("new")).unwrap();
    fs::rename(file("b"), file("new/b")).unwrap();
    fs::hard_link(file("src/a"), file("linked")).unwrap();
    renameat_with(CWD, file("src"), CWD, file("new"), RenameFlags::EXCHANGE).unwrap();
    assert_eq!((names(&file("src")), names(&file("new"))), (vec!["b".to_owned()], vec!["a".to_owned()]));
    // Neither the root itself nor what is outside can be moved, swapped or linked.
    let refused = [
        fs::rename(format!("{dir}/secret"), file("secret")).unwrap_err(),
        fs::hard_link(format!("{dir}/secret"), file("secret")).unwrap_err(),
        renameat_with(CWD, format!("{dir}/team"), CWD, file("src"), RenameFlags::EXCHANGE)
            .unwrap_err()
            .into(),
    ];
    assert!(refused.iter().all(|error| error.kind() == std::io::ErrorKind::CrossesDevices), "{refused:?}");
    assert!(fs::remove_dir(&at).is_err() && fs::rename(&at, world.text("moved")).is_err());
    assert_eq!(
        fs::metadata(format!("{at}/..")).unwrap().ino(),
        fs::metadata(Path::new(&at).parent().unwrap()).unwrap().ino()
    );
    fs::write(format!("{dir}/team/project/beside"), "outside").unwrap();

    let diff = on(&dir, &["branch", "diff", "fix"]).ok();
    for line in ["+ /linked", "/src/b", "/new/a"] {
        assert!(diff.contains(line), "{line}: {diff}");
    }
    assert!(!diff.contains("/team") && !diff.contains("secret") && !diff.contains("beside"), "{diff}");
    let part = on(&dir, &["branch", "diff", "fix", "/linked"]).ok();
    assert_eq!(part.lines().count(), 1, "{part}");
    // It has no keys, and makes no branches of its own.
    let number = list[0]["transaction"].to_string();
    let keyed =
        run(Command::new(KVFS).args(["kv", "put", "-s", &dir, "tags", "a", "1"]).env("KVFS_TXN", &number));
    keyed.fails(FAILED, &["has no keys"]);
    on(&at, &["branch", "create", "inner", "src"]).fails(USAGE, &["lies on a branch"]);
    kvfs(&["branch", "create", "inner", &file("src")]).fails(USAGE, &["lies on a branch"]);

    on(&dir, &["branch", "merge", "fix"]).ok();
    assert!(!is_mounted(&at));
    assert_eq!(names(&format!("{dir}/team/project")), ["beside", "linked", "new", "src"]);
    assert_eq!(fs::read_to_string(format!("{dir}/team/project/new/a")).unwrap(), "changed");
    assert_eq!(names(&dir), ["secret", "team"]);
    kvfs(&["umount", &dir]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn branch_of_a_directory_conflicts_in_its_own_paths_and_lasts_over_a_crash() {
    if !can_mount("branch_of_a_directory_conflicts_in_its_own_paths_and_lasts_over_a_crash") {
        return;
    }
    let world = World::new();
    let (store, dir) = with_project(&world);
    let at = world.dir("branch");
    kvfs(&["branch", "create", "fix", &format!("{dir}/team/project")]).ok();
    on(&dir, &["branch", "mount", "fix", &at]).ok();
    fs::write(format!("{at}/src/a"), "inside").unwrap();
    fs::write(format!("{at}/b"), "inside").unwrap();
    kvfs(&["sync", &dir]).ok();
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the death of the daemon", || daemons_of(Path::new(&store)).is_empty());
    run(Command::new("umount").args(["-l", &at])).ok();
    run(Command::new("umount").args(["-l", &dir])).ok();
    kvfs(&["mount", &store, &dir]).ok();
    on(&dir, &["branch", "mount", "fix", &at]).ok();
    assert_eq!(
        (names(&at), fs::read_to_string(format!("{at}/b")).unwrap()),
        (vec!["b".into(), "src".into()], "inside".into())
    );
    fs::write(format!("{dir}/team/project/src/a"), "outside").unwrap();
    fs::write(format!("{dir}/team/project/b"), "outside").unwrap();
    on(&dir, &["branch", "merge", "fix"])
        .fails(CONFLICT, &["\n  /b was changed outside", "\n  /src/a was changed outside"]);
    assert_eq!(names(&at), ["b", "src"], "it stays mounted");
    // The directory is moved, and merged where it is.
    fs::rename(format!("{dir}/team/project"), format!("{dir}/moved")).unwrap();
    let shown = on(&dir, &["branch", "list"]).ok();
    assert!(
        shown.contains("/team/project (now /moved)") && listed(&dir)[0]["directory_now"] == "/moved",
        "{shown}"
    );
    on(&dir, &["branch", "merge", "fix", "--prefer", "branch", "/src", "--prefer", "main", "/b"]).ok();
    let text = |name: &str| fs::read_to_string(format!("{dir}/moved/{name}")).unwrap();
    assert_eq!((text("src/a"), text("b")), ("inside".to_owned(), "outside".to_owned()));

    // One whose directory is removed is not merged, and can be copied from.
    kvfs(&["branch", "create", "lost", &format!("{dir}/moved")]).ok();
    on(&dir, &["branch", "mount", "lost", &at]).ok();
    fs::write(format!("{at}/b"), "work").unwrap();
    fs::remove_dir_all(format!("{dir}/moved")).unwrap();
    assert!(on(&dir, &["branch", "list"]).ok().contains("/moved (removed)"));
    assert_eq!(listed(&dir)[0]["directory_now"], Value::Null);
    for more in [&[][..], &["--prefer", "branch"]] {
        let words = [&["branch", "merge", "lost"], more].concat();
        on(&dir, &words).fails(FAILED, &["its directory /moved was removed", "is as it was"]);
        assert_eq!(fs::read_to_string(format!("{at}/b")).unwrap(), "work");
    }
    on(&dir, &["branch", "delete", "lost"]).ok();
    kvfs(&["umount", &dir]).ok();
    // Of a snapshot, without a mount; it may be deleted then.
    kvfs(&["snapshot", "create", "-s", &store, "then"]).ok();
    let put = |value: &str| kvfs(&["kv", "put", "-s", &store, "tags", "a", value]).ok();
    put("since");
    kvfs(&["branch", "create", "-s", &store, "old", "--from", "none"]).fails(FAILED, &["none"]);
    kvfs(&["branch", "create", "-s", &store, "old", "--from", "then"]).ok();
    kvfs(&["branch", "create", "-s", &store, "x", "/moved", "--from", "then"])
        .fails(USAGE, &["no directory /moved in the snapshot"]);
    kvfs(&["snapshot", "delete", "-s", &store, "then"]).ok();
    kvfs(&["mount", &store, &dir]).ok();
    on(&dir, &["branch", "mount", "old", &at]).ok();
    let number = listed(&dir)[0]["transaction"].to_string();
    let in_branch =
        |words: &[&str]| run(Command::new(KVFS).args(words).current_dir(&dir).env("KVFS_TXN", &number));
    assert_ne!(in_branch(&["kv", "get", "tags", "a"]).code, Some(0), "it was not there then");
    in_branch(&["kv", "put", "tags", "a", "inside"]).ok();
    on(&dir, &["branch", "merge", "old"]).fails(CONFLICT, &["key \"a\" of keyspace tags"]);
    on(&dir, &["branch", "delete", "old"]).ok();
    kvfs(&["umount", &dir]).ok();
    // Without a mount.
    kvfs(&["branch", "create", "-s", &store, "cold", "team"]).ok();
    kvfs(&["branch", "create", "-s", &store, "none", "/moved"])
        .fails(USAGE, &["no directory /moved in the store"]);
    kvfs(&["branch", "create", "-s", &store, "none", "/secret"]).fails(USAGE, &["/secret is no directory"]);
    kvfs(&["branch", "create", "none", &world.dir("elsewhere")]).fails(9, &["not on a mounted"]);
    kvfs(&["branch", "merge", "-s", &store, "cold"]).ok();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn branch_whose_keys_a_client_still_reads_is_mounted_anew_and_merged() {
    if !can_mount("branch_whose_keys_a_client_still_reads_is_mounted_anew_and_merged") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let at = world.dir("branch");
    on(&dir, &["branch", "create", "keyed"]).ok();
    on(&dir, &["branch", "mount", "keyed", &at]).ok();
    let mut import = Command::new(KVFS);
    import.args(["kv", "import", "-s", &at, "big"]).stdin(Stdio::piped());
    let mut import = import.spawn().unwrap();
    let mut lines = import.stdin.take().unwrap();
    let value = "x".repeat(100_000);
    for key in 0..300 {
        writeln!(lines, "{{\"key\":\"{key}\",\"value\":\"{value}\"}}").unwrap();
    }
    drop(lines);
    assert!(wait_exit(&mut import).success());
    // As a pager does: it reads a little, and no more for now.
    let mut export = Command::new(KVFS);
    export.args(["kv", "export", "-s", &at, "big"]).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut export = export.spawn().unwrap();
    let mut pager = export.stdout.take().unwrap();
    pager.read_exact(&mut [0; 100]).unwrap();

    on(&dir, &["branch", "umount", "keyed"]).ok();
    on(&dir, &["branch", "mount", "keyed", &at]).ok();
    on(&dir, &["branch", "merge", "keyed"]).ok();
    assert!(!is_mounted(&at) && listed(&dir).as_array().unwrap().is_empty());
    drop(pager);
    assert!(!wait_exit(&mut export).success());
    assert!(on(&dir, &["kv", "get", "big", "299"]).ok().starts_with("xxx"));
    kvfs(&["umount", &dir]).ok();
}
