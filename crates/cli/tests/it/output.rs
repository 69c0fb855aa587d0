//! What commands print, for which user, and about which store without being told.

use std::fs;
use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::world::{KVFS, World, can_mount, daemon_of, is_mounted, kvfs, run, wait_until};

const IN_USE: i32 = 3;
const READER_GONE: i32 = 141;
const NOT_MOUNTED: i32 = 9;
const NOT_FOUND: i32 = 1;

#[test]
fn commands_whose_reader_has_gone_end_without_a_word() {
    let world = World::new();
    let store = world.store("store");
    kvfs(&["kv", "-s", &store, "put", "tags", "a", "1"]).ok();
    kvfs(&["snapshot", "-s", &store, "create", "monday"]).ok();
    kvfs(&["branch", "-s", &store, "create", "try"]).ok();
    for words in [
        &["stats", &store][..],
        &["stats", "--json", &store],
        &["stats", "--zones", &store],
        &["check", &store],
        &["check", "--json", &store],
        &["check", "--repair", "--dry-run", &store],
        &["kv", "-s", &store, "scan", "tags"],
        &["kv", "-s", &store, "get", "tags", "a"],
        &["kv", "-s", &store, "export", "tags"],
        &["kv", "-s", &store, "keyspaces"],
        &["snapshot", "-s", &store, "list"],
        &["snapshot", "-s", &store, "list", "--json"],
        &["branch", "-s", &store, "list"],
        &["status"],
        &["status", "--json"],
        &["version"],
        &["completions", "bash"],
    ] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let mut command = Command::new(KVFS);
        let child = command.args(words).stdout(writer).stderr(Stdio::piped()).spawn().unwrap();
        drop(command);
        let ended = child.wait_with_output().unwrap();
        assert_eq!(String::from_utf8_lossy(&ended.stderr), "", "{words:?}");
        assert_eq!(ended.status.code(), Some(READER_GONE), "{words:?}");
    }
    // As `2>&1 | head`: what the command did stays what it was.
    for (words, code) in [
        (&["txn", "list", "-s", &store][..], NOT_MOUNTED),
        (&["kv", "-s", &store, "get", "tags", "none"], NOT_FOUND),
        (&["mkfs", &store], IN_USE),
    ] {
        let (reader, writer) = rustix::pipe::pipe().unwrap();
        drop(reader);
        let output = writer.try_clone().unwrap();
        let ended = Command::new(KVFS).args(words).stdout(output).stderr(writer).status().unwrap();
        assert_eq!(ended.code(), Some(code), "{words:?}");
    }
    kvfs(&["check", &store]).ok();
}

#[test]
fn check_in_json_has_identifiers_and_findings_as_fields() {
    let world = World::new();
    let store = world.store("store");
    let clean: Value = serde_json::from_str(&kvfs(&["check", "--json", &store]).ok()).unwrap();
    assert_eq!((&clean["clean"], &clean["findings"]), (&true.into(), &Value::Array(Vec::new())));
    let names: Vec<&String> = clean["checked"].as_object().unwrap().keys().collect();
    let is_identifier = |name: &&String| name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    assert!(names.len() > 5 && names.iter().all(is_identifier), "{names:?}");
    assert!(clean["checked"]["extended_attributes"].is_u64());
}

#[test]
fn commands_mean_the_mount_of_the_working_directory() {
    if !can_mount("commands_mean_the_mount_of_the_working_directory") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    for words in [
        &["stats"][..],
        &["stats", "-s", &dir],
        &["check"],
        &["check", "-s", &store],
        &["sync"],
        &["sync", "-s", &store],
        &["locks"],
        &["kv", "keyspaces"],
        &["txn", "list", "-n"],
        &["snapshot", "list"],
        &["branch", "list"],
        &["quota", "report"],
    ] {
        let ran = run(Command::new(KVFS).args(words).current_dir(&dir));
        assert!(ran.code == Some(0) || ["quota", "status"].contains(&words[0]), "{words:?}: {}", ran.stderr);
    }
    let stats = run(Command::new(KVFS).arg("stats").current_dir(&dir)).ok();
    assert!(stats.starts_with("space ") && stats.lines().nth(10) == Some(""), "{stats}");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn status_tells_what_is_mounted_where_by_whom_since_when() {
    if !can_mount("status_tells_what_is_mounted_where_by_whom_since_when") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    // Daemons of other tests may have died.
    let list = || -> Vec<Value> { serde_json::from_slice(&kvfs(&["status", "--json"]).stdout).unwrap() };
    // What other tests run in namespaces of their own has copies of the mount.
    let is_it = |line: &&Value| line["mounted"] == dir.as_str() && line["namespace_of"].is_null();
    let of = |list: &[Value]| list.iter().find(is_it).cloned();
    let line = of(&list()).unwrap();
    assert_eq!((&line["store"], &line["state"]), (&store.as_str().into(), &"serving".into()));
    assert_eq!(line["pid"], daemon_of(&store).as_raw_nonzero().get());
    assert_eq!(line["uid"], 0);
    assert!(line["since"].as_f64().unwrap() > 1e9);
    let text = String::from_utf8(kvfs(&["status"]).stdout).unwrap();
    assert!(text.contains(&format!("{store} on {dir}")) && text.contains("root"), "{text}");
    // Of one store, by its directory or by what is below its mount; not of another one.
    for target in [&store, &dir, &format!("{dir}/.kvfs")] {
        let told = String::from_utf8(kvfs(&["status", target]).stdout).unwrap();
        assert!(told.lines().skip(1).all(|line| line.contains(&format!("{store} on "))), "{told}");
        assert!(told.contains(&format!("{store} on {dir}")), "{told}");
    }
    let other = world.store("other");
    kvfs(&["status", "--store", &other]).fails(NOT_MOUNTED, &[&other, "neither mounted nor served"]);
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the mount to be dead", || of(&list()).is_some_and(|line| line["state"] == "dead"));
    let told = kvfs(&["status", &dir]);
    assert!(told.code == Some(1) && String::from_utf8_lossy(&told.stdout).contains("has died"));
    let told = kvfs(&["status"]);
    assert!(told.code == Some(1) && String::from_utf8_lossy(&told.stdout).contains("has died"));
    kvfs(&["umount", &dir]).ok();
    assert_eq!(of(&list()), None);
}

#[test]
fn umount_of_a_mount_in_use_names_processes_and_mounts_in_the_way() {
    if !can_mount("umount_of_a_mount_in_use_names_processes_and_mounts_in_the_way") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    fs::create_dir(format!("{dir}/below")).unwrap();
    let mut sleeper = Command::new("sleep").arg("1000").current_dir(format!("{dir}/below")).spawn().unwrap();
    let pid = format!("pid {}", sleeper.id());
    kvfs(&["umount", &dir]).fails(IN_USE, &["in use", &pid, "sleep", "root", "working directory", "--lazy"]);
    assert!(is_mounted(&dir));
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    let below = format!("{dir}/below");
    run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", &below])).ok();
    kvfs(&["umount", &dir]).fails(IN_USE, &["in use", &format!("tmpfs is mounted on {below}")]);
    run(Command::new("umount").arg(&below)).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn umount_returns_when_the_process_of_the_daemon_has_ended() {
    if !can_mount("umount_returns_when_the_process_of_the_daemon_has_ended") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    for round in 0..4 {
        if round > 0 {
            kvfs(&["mount", &store, &dir]).ok();
        }
        let daemon = daemon_of(&store);
        kvfs(&["umount", &dir]).ok();
        let stat = fs::read_to_string(format!("/proc/{daemon}/stat")).unwrap_or_default();
        // An ended process waits for its parent to look at it.
        let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
        assert!(matches!(state, None | Some('Z' | 'X')), "{stat}");
    }
}

#[test]
fn sigterm_is_remembered_until_the_mount_is_not_in_use() {
    if !can_mount("sigterm_is_remembered_until_the_mount_is_not_in_use") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    let mut sleeper = Command::new("sleep").arg("1000").current_dir(&dir).spawn().unwrap();
    let daemon: Pid = daemon_of(&store);
    kill_process(daemon, Signal::TERM).unwrap();
    let log = || fs::read_to_string(world.path("store").join("kvfs.log")).unwrap_or_default();
    wait_until("the daemon to say what is in the way", || log().contains("still serving"));
    assert!(log().contains(&format!("pid {}", sleeper.id())), "{}", log());
    assert!(is_mounted(&dir) && fs::read_dir(&dir).is_ok(), "it goes on serving");
    sleeper.kill().unwrap();
    sleeper.wait().unwrap();
    wait_until("the mount to go", || !is_mounted(&dir));
    wait_until("the daemon to end", || crate::world::daemons_of(&world.path("store")).is_empty());
    kvfs(&["check", &store]).ok();
}
