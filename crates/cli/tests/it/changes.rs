//! What differs, and what becomes of conflicts: comparisons, undo with obstacles, merges that prefer a side,
//! trees that go.

use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::world::{KVFS, World, can_mount, is_mounted, kvfs, run};

const CONFLICT: i32 = 75;
const BUILT_ON: i32 = 10;

/// A command on the mount `dir`.
#[track_caller]
fn on(dir: &str, words: &[&str]) -> crate::world::Run {
    run(Command::new(KVFS).args(words).current_dir(dir))
}

/// Runs `script` in a transaction on the mount and gives the transaction's number.
#[track_caller]
fn txn(dir: &str, script: &str) -> u64 {
    on(dir, &["txn", "run", "--", "sh", "-ec", script]).ok();
    let list: Value = serde_json::from_str(&on(dir, &["txn", "list", "--committed", "--json"]).ok()).unwrap();
    list.as_array().unwrap().last().unwrap()["id"].as_u64().unwrap()
}

fn text(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| error.kind().to_string())
}

fn lines(text: &str) -> Vec<Value> {
    text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
}

#[test]
fn merge_that_conflicts_leaves_the_branch_mounted_and_prefer_decides() {
    if !can_mount("merge_that_conflicts_leaves_the_branch_mounted_and_prefer_decides") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let at = world.dir("branch");
    let file = |root: &str, name: &str| format!("{root}/{name}");
    for name in ["f", "g", "h"] {
        fs::write(file(&dir, name), "old").unwrap();
    }
    on(&dir, &["branch", "create", "try"]).ok();
    on(&dir, &["branch", "mount", "try", &at]).ok();
    for name in ["f", "g", "h"] {
        fs::write(file(&at, name), "branch").unwrap();
    }
    fs::write(file(&at, "only"), "branch").unwrap();
    let id = txn(&dir, "echo txn >f");
    fs::write(file(&dir, "g"), "main").unwrap();
    fs::write(file(&dir, "h"), "main").unwrap();
    on(&dir, &["kv", "put", "tags", "a", "1"]).ok();

    let refused = on(&dir, &["branch", "merge", "try"]);
    refused.fails(
        CONFLICT,
        &["/f was changed", &format!("transaction {id} (sh -ec"), "pid ", "uid 0", "--prefer"],
    );
    assert!(is_mounted(&at), "the branch stays mounted");
    assert_eq!((text(&file(&at, "f")), text(&file(&dir, "f"))), ("branch".to_owned(), "txn\n".to_owned()));
    // In part: what is left is named, and nothing happens.
    on(&dir, &["branch", "merge", "try", "--prefer", "main", "/f", "g"]).fails(CONFLICT, &["/h was changed"]);
    assert!(is_mounted(&at) && text(&file(&dir, "g")) == "main");
    on(&dir, &["branch", "merge", "try", "--prefer", "sideways"]).fails(2, &["sideways"]);
    on(&dir, &["branch", "merge", "try", "--prefer", "branch", "--prefer", "main", "/g", &file(&dir, "h")])
        .ok();
    assert!(!is_mounted(&at));
    let found = ["f", "g", "h", "only"].map(|name| text(&file(&dir, name)));
    assert_eq!(found, ["branch", "main", "main", "branch"]);
    assert_eq!(on(&dir, &["branch", "list", "--json"]).ok().trim(), "[]");
    on(&dir, &["check", "."]).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn undo_with_obstacles_takes_paths_skips_and_forces() {
    if !can_mount("undo_with_obstacles_takes_paths_skips_and_forces") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    for name in ["a", "b", "c"] {
        fs::write(format!("{dir}/{name}"), "old").unwrap();
    }
    on(&dir, &["kv", "put", "tags", "one", "old"]).ok();
    let script = format!(
        "for f in a b c; do printf new >$f; done; mkdir made; echo x >made/x; {KVFS} kv put tags one new"
    );
    let id = txn(&dir, &script);
    let number = id.to_string();
    let later = txn(&dir, "printf later >b");
    on(&dir, &["kv", "put", "tags", "one", "later"]).ok();
    fs::write(format!("{dir}/made/other"), "others").unwrap();

    let refused = on(&dir, &["txn", "undo", &number]);
    refused.fails(
        BUILT_ON,
        &[
            "/b",
            &format!("transaction {later}: sh -ec"),
            "user root",
            "key tags/one",
            "outside of any",
            "--skip PATH",
        ],
    );
    on(&dir, &["txn", "undo", &number, "/a", "--dry-run"]).ok();
    on(&dir, &["txn", "undo", &number, "/a"]).ok();
    let state = || ["a", "b", "c", "made/x", "made/other"].map(|name| text(&format!("{dir}/{name}")));
    assert_eq!(state(), ["old", "later", "new", "x\n", "others"]);
    on(&dir, &["txn", "undo", &number, "--skip", "/made", "--skip", "/b"]).fails(BUILT_ON, &["key tags/one"]);
    on(&dir, &["txn", "undo", &number, "--skip", "made", "--skip", "b", "--skip", "kv:tags"]).ok();
    assert_eq!(state(), ["old", "later", "old", "x\n", "others"]);
    on(&dir, &["txn", "undo", &number, "--force", "kv:tags/one", "/made"]).ok();
    assert_eq!(state()[3..], ["entity not found".to_owned(), "entity not found".to_owned()]);
    assert_eq!(on(&dir, &["kv", "get", "tags", "one"]).ok(), "old");
    assert_eq!(state()[1], "later");
    on(&dir, &["txn", "undo", &number, "--force"]).ok();
    assert_eq!(state()[..3], ["old", "old", "old"].map(str::to_owned));
    on(&dir, &["check", "."]).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn diff_shows_mode_owner_size_target_and_values_before_and_after() {
    if !can_mount("diff_shows_mode_owner_size_target_and_values_before_and_after") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    fs::create_dir(format!("{dir}/d")).unwrap();
    fs::write(format!("{dir}/d/f"), "old").unwrap();
    fs::set_permissions(format!("{dir}/d/f"), fs::Permissions::from_mode(0o644)).unwrap();
    symlink("old-target", format!("{dir}/link")).unwrap();
    on(&dir, &["kv", "put", "tags", "song", "old"]).ok();
    on(&dir, &["snapshot", "create", "then"]).ok();
    on(&dir, &["branch", "create", "try"]).ok();
    let id = on(&dir, &["txn", "begin"]).ok().lines().next().unwrap().to_owned();
    let script = format!(
        "echo longer >d/f; chmod 600 d/f; chown 12345:54321 d/f; ln -sfn new-target link; {KVFS} kv put tags song newer"
    );
    on(&dir, &["txn", "join", &id, "--", "sh", "-ec", &script]).ok();
    let at = world.dir("branch");
    on(&dir, &["branch", "mount", "try", &at]).ok();
    let branches: Value = serde_json::from_str(&on(&dir, &["branch", "list", "--json"]).ok()).unwrap();
    let in_branch = branches[0]["transaction"].to_string();
    run(Command::new("sh").args(["-ec", &script]).current_dir(&at).env("KVFS_TXN", in_branch)).ok();

    let check = |words: &[&str], last: &[&str]| {
        let with = |more: &[&str]| on(&dir, &[words, more, last].concat()).ok();
        let shown = with(&[]);
        let want = [
            "~ /d/f  3 B → 7 B, mode 0644 → 0600, owner root:root → 12345:54321",
            "~ /link  \"old-target\" → \"new-target\"",
            "~ key tags/song  3 B → 5 B, \"old\" → \"newer\"",
        ];
        assert_eq!(shown.lines().collect::<Vec<_>>(), want, "{words:?}");
        let json = lines(&with(&["--json"]));
        let file = &json[0];
        assert_eq!((&file["before"]["mode"], &file["after"]["mode"]), (&"0644".into(), &"0600".into()));
        assert_eq!((&file["before"]["uid"], &file["after"]["uid"]), (&0.into(), &12345.into()));
        assert_eq!((&file["before"]["bytes"], &file["after"]["bytes"]), (&3.into(), &7.into()));
        assert_eq!(
            (&json[1]["before"]["target"], &json[1]["after"]["target"]),
            (&"old-target".into(), &"new-target".into())
        );
        assert_eq!(
            (&json[2]["before"]["value"], &json[2]["after"]["value"]),
            (&"old".into(), &"newer".into())
        );
    };
    check(&["txn", "diff", &id], &[]);
    check(&["branch", "diff", "try"], &[]);
    assert_eq!(on(&dir, &["txn", "diff", &id, "/d", "kv:other"]).ok().lines().count(), 1);
    assert_eq!(on(&dir, &["branch", "diff", "try", "kv:tags/so"]).ok().lines().count(), 1);
    on(&dir, &["txn", "commit", &id]).ok();
    check(&["snapshot", "diff", "then"], &[]);
    let part = on(&dir, &["snapshot", "diff", "then", "--", &format!("{dir}/d")]).ok();
    assert_eq!(part.lines().count(), 1, "{part}");
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn rm_removes_trees_of_a_mount_wholly_and_undo_brings_them_back() {
    if !can_mount("rm_removes_trees_of_a_mount_wholly_and_undo_brings_them_back") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let at = |name: &str| format!("{dir}/{name}");
    fs::create_dir_all(at("tree/a/b")).unwrap();
    for number in 0..200 {
        fs::write(at(&format!("tree/a/b/{number}")), number.to_string()).unwrap();
    }
    symlink("tree", at("link")).unwrap();
    let open = fs::File::open(at("tree/a/b/7")).unwrap();
    on(&dir, &["rm", "tree"]).fails(2, &["-r"]);
    on(&dir, &["rm", "-r", "none", "tree"]).fails(1, &["none"]);
    on(&dir, &["rm", "-r", "."]).fails(2, &["\".\""]);
    // The kernel knows these names.
    assert_eq!(fs::read_dir(at("tree/a/b")).unwrap().count(), 200);
    let told = on(&dir, &["rm", "-rf", "--json", "tree", "link", "none"]).ok();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["trees"], &told["can_be_undone"]), (&Value::from(2), &Value::from(true)));
    assert_eq!(text(&at("tree/a/b/7")), text(&at("none")));
    assert!(fs::symlink_metadata(at("link")).is_err());
    assert_eq!(std::io::read_to_string(open).unwrap(), "7", "what is open stays");
    on(&dir, &["check", "."]).ok();
    on(&dir, &["txn", "undo", &told["transaction"].to_string()]).ok();
    assert_eq!((text(&at("tree/a/b/199")), text(&at("link/a/b/0"))), ("199".to_owned(), "0".to_owned()));
    // What is mounted read-only elsewhere is not changed from there.
    let bound = world.dir("bound");
    run(Command::new("mount").args(["--bind", &dir, &bound])).ok();
    run(Command::new("mount").args(["-o", "remount,bind,ro", &bound])).ok();
    kvfs(&["rm", "-r", &format!("{bound}/tree")]).fails(2, &["read-only"]);
    run(Command::new("umount").arg(&bound)).ok();
    // In a transaction it is a part of it.
    on(&dir, &["txn", "run", "-q", "--", "sh", "-ec", &format!("{KVFS} rm -r tree; exit 3")]).fails(3, &[]);
    assert_eq!(text(&at("tree/a/b/0")), "0");
    on(&dir, &["txn", "run", "-q", "--", KVFS, "rm", "-r", "tree"]).ok();
    assert!(fs::symlink_metadata(at("tree")).is_err());
    on(&dir, &["check", "."]).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn clone_makes_a_tree_of_its_own_that_shares_its_content() {
    if !can_mount("clone_makes_a_tree_of_its_own_that_shares_its_content") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let at = |name: &str| format!("{dir}/{name}");
    fs::create_dir_all(at("tree/a/b")).unwrap();
    fs::create_dir(at("into")).unwrap();
    for number in 0..200 {
        fs::write(at(&format!("tree/a/b/{number}")), number.to_string()).unwrap();
    }
    let large: Vec<u8> = (0..8 << 20_u32).map(|at| (at / 4096 * 7 + at) as u8).collect();
    fs::write(at("tree/large"), &large).unwrap();
    symlink("large", at("tree/link")).unwrap();
    // The kernel knows that there is none.
    assert!(fs::symlink_metadata(at("copy")).is_err());
    let told = on(&dir, &["clone", "--json", "tree", "copy"]).ok();
    let told: Value = serde_json::from_str(&told).unwrap();
    assert_eq!((&told["names"], &told["bytes_shared"]), (&Value::from(205), &Value::from(8 << 20)));
    assert_eq!(told["can_be_undone"], Value::from(true));
    assert!(fs::read(at("copy/link")).unwrap() == large);
    assert_eq!(text(&at("copy/a/b/199")), "199");
    fs::write(at("copy/a/b/7"), "changed").unwrap();
    fs::remove_file(at("tree/large")).unwrap();
    assert!(fs::read(at("copy/large")).unwrap() == large);
    assert_eq!(text(&at("tree/a/b/7")), "7");
    // A directory that is there gets it; nothing is overwritten, and nothing comes into itself.
    on(&dir, &["clone", "copy/large", "into"]).ok();
    assert!(fs::read(at("into/large")).unwrap() == large);
    on(&dir, &["clone", "copy/large", "into"]).fails(1, &["into", "is there already"]);
    on(&dir, &["clone", "copy/large", "into/large"]).fails(1, &["is there already"]);
    on(&dir, &["clone", "tree", "tree/a/in"]).fails(1, &["into itself", "nothing was cloned"]);
    on(&dir, &["clone", "none", "copy2"]).fails(1, &["none"]);
    on(&dir, &["clone", "tree", "/dev/shm/copy"]).fails(9, &["not on a mounted kvfs store"]);
    on(&dir, &["check", "."]).ok();
    on(&dir, &["txn", "undo", &told["transaction"].to_string()]).fails(10, &["copy/a/b/7"]);
    // In a transaction it is a part of it, and has what was written there.
    let script = format!(
        "ls new 2>/dev/null || :; echo more >>copy/a/b/8; exec 5>copy/open; echo open >&5; {KVFS} clone copy new"
    );
    let script = format!(
        "{script}; ! {KVFS} clone copy new/a/in/in; cat new/a/b/8 new/open; cmp copy/large new/large"
    );
    on(&dir, &["txn", "run", "-q", "--", "sh", "-ec", &format!("{script}; exit 3")]).fails(3, &[]);
    assert!(fs::symlink_metadata(at("new")).is_err());
    let seen = on(&dir, &["txn", "run", "-q", "--", "sh", "-ec", &script]).ok();
    assert!(seen.contains("8more\nopen\n"), "{seen}");
    assert!(fs::read(at("new/large")).unwrap() == large);
    // A large copy is a clone, by the kernel's own call.
    let huge = large.repeat(3);
    fs::write(at("huge"), &huge).unwrap();
    on(&dir, &["sync"]).ok();
    assert_eq!(fs::copy(at("huge"), at("huge2")).unwrap(), huge.len() as u64);
    fs::write(at("huge"), "gone").unwrap();
    assert!(fs::read(at("huge2")).unwrap() == huge);
    on(&dir, &["check", "."]).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn names_that_are_no_plain_text_stay_on_one_line_and_whole_in_json() {
    if !can_mount("names_that_are_no_plain_text_stay_on_one_line_and_whole_in_json") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let (name, shown) = ("a\n- etc \x1b[31m", r"a\n- etc \u{1b}[31m");
    let file = format!("{dir}/{name}");
    fs::write(&file, "old\n").unwrap();
    on(&dir, &["snapshot", "create", "before"]).ok();
    on(&dir, &["branch", "create", "try"]).ok();
    let at = world.dir("branch");
    on(&dir, &["branch", "mount", "try", &at]).ok();
    fs::write(format!("{at}/{name}"), "branch").unwrap();
    let id = txn(&dir, "echo txn | tee a* >/dev/null");
    let diff = on(&dir, &["snapshot", "diff", "before"]).ok();
    assert!(diff.starts_with(&format!("~ /{shown}")) && diff.lines().count() == 1, "{diff:?}");
    fs::write(&file, "main").unwrap();
    for (refused, code, line) in [
        (&["branch", "merge", "try"][..], CONFLICT, format!("\n  /{shown} was changed outside")),
        (&["txn", "undo", &id.to_string()], BUILT_ON, format!("\n  ~ /{shown}")),
        (&["clone", name, name], 1, "kvfs: a\n- etc \\u{1b}[31m: it is there".to_owned()),
    ] {
        on(&dir, refused).fails(code, &[&line]);
    }
    let open: u64 = on(&dir, &["txn", "begin"]).ok().lines().next().unwrap().parse().unwrap();
    on(&dir, &["txn", "join", &open.to_string(), "--", "sh", "-c", "echo joined | tee -a a* >/dev/null"])
        .ok();
    let content = on(&dir, &["txn", "diff", "--content", &open.to_string()]).ok();
    assert!(content.contains(&format!("--- a/{shown}\n+++ b/{shown}\n")), "{content:?}");

    let raw = std::ffi::OsStr::from_bytes(b"d\xff");
    fs::create_dir(Path::new(&dir).join(raw)).unwrap();
    run(Command::new(KVFS).args(["quota", "project", "set"]).arg(raw).arg("7").current_dir(&dir)).ok();
    run(Command::new(KVFS).args(["branch", "create", "of"]).arg(raw).current_dir(&dir)).ok();
    for list in [&["quota", "project", "list"][..], &["branch", "list"]] {
        let text = on(&dir, &[list, &["--json"]].concat()).ok();
        let rows: Value = serde_json::from_str(&text).unwrap();
        let row = rows.as_array().unwrap().last().unwrap();
        assert_eq!(
            (row["directory"].as_str(), row["directory_base64"].as_str()),
            (Some("/d\u{fffd}"), Some("L2T/"))
        );
        assert!(on(&dir, list).ok().contains("/d\u{fffd}"), "{list:?}");
    }
}
