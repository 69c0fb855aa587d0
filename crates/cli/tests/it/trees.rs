//! Trees that are removed in views, and by calls on a mount.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use kvfs_rpc::client::{BeginOptions, ClientError, calls};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::lanes::Client;
use crate::user::can_be_nobody;
use crate::world::{KVFS, Run, World, can_mount, daemons_of, kvfs, run, wait_exit, wait_until};

const DENIED: i32 = 7;

/// A command on the mount `dir`.
#[track_caller]
fn on(dir: &str, words: &[&str]) -> Run {
    run(Command::new(KVFS).args(words).current_dir(dir))
}

/// Runs `script` in a transaction on the mount.
#[track_caller]
fn within(dir: &str, script: &str) -> Run {
    on(dir, &["txn", "run", "-q", "--", "sh", "-ec", script])
}

/// `tree` with files enough that removing them name by name would show.
fn plant(dir: &str) {
    fs::create_dir_all(format!("{dir}/tree/a/b")).unwrap();
    for number in 0..300 {
        fs::write(format!("{dir}/tree/a/b/{number}"), number.to_string()).unwrap();
    }
}

fn names(dir: &str) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn stat(dir: &str, name: &str) -> u64 {
    let stats: Value = serde_json::from_str(&on(dir, &["stats", "--json"]).ok()).unwrap();
    stats[name].as_u64().unwrap_or_else(|| panic!("no {name} in {stats}"))
}

#[test]
fn tree_in_a_transaction_goes_at_once_and_with_it() {
    if !can_mount("tree_in_a_transaction_goes_at_once_and_with_it") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    plant(&dir);
    let (tree, file) = (format!("{dir}/tree"), format!("{dir}/tree/a/b/7"));
    // The view's kernel side knows names below, and one that it has looked for in vain.
    let gone = format!(
        "test -e tree/a/b/7; ls -R tree >/dev/null; {KVFS} rm -r tree; test ! -e tree; test ! -e tree/a/b/7; \
         test -z \"$(ls)\"; {KVFS} rm -rf tree none; mkdir tree; echo new >tree/file; test \"$(ls tree)\" = file"
    );
    within(&dir, &format!("{gone}; exit 3")).fails(3, &[]);
    assert_eq!((names(&dir), fs::read_to_string(&file).unwrap()), (vec!["tree".to_owned()], "7".to_owned()));
    within(&dir, &format!("cd tree/a; {KVFS} rm -r ../../tree; test ! -e {tree}; {KVFS} rm -r {tree}"))
        .fails(1, &["cannot remove", "no such file or directory"]);
    assert!(Path::new(&file).exists());
    // A handful of operations, where there are 303 names.
    let id = on(&dir, &["txn", "begin"]).ok();
    let (id, view) = id.trim().split_once('\n').unwrap();
    let told = on(view, &["rm", "-r", "--json", "tree"]).ok();
    assert_eq!(serde_json::from_str::<Value>(&told).unwrap()["trees"], 1);
    assert_eq!(names(view), [""; 0]);
    let list: Value = serde_json::from_str(&on(&dir, &["txn", "list", "--json"]).ok()).unwrap();
    let operations = list[0]["operations"].as_u64().unwrap();
    assert!(operations < 10, "{list}");
    assert_eq!(names(&dir), ["tree"], "others see it until the commit");
    on(&dir, &["txn", "commit", id]).ok();
    assert!(names(&dir).is_empty());
    on(&dir, &["check", "."]).ok();
    on(&dir, &["txn", "undo", id]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "7");
    // All of it in one transaction, from the script above.
    within(&dir, &gone).ok();
    assert_eq!(names(&tree), ["file"]);
    wait_until("the end of the names", || stat(&dir, "fs.tree_names_removed") > 300);
    on(&dir, &["check", "."]).ok();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn tree_on_a_branch_goes_at_once_and_from_the_main_line_by_the_merge() {
    if !can_mount("tree_on_a_branch_goes_at_once_and_from_the_main_line_by_the_merge") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let at = world.dir("branch");
    for (name, of, tree) in [("whole", &[][..], "project/tree"), ("part", &["project"], "tree")] {
        let project = format!("{dir}/project");
        plant(&project);
        on(&dir, &[&["branch", "create", name], of].concat()).ok();
        on(&dir, &["branch", "mount", name, &at]).ok();
        assert_eq!(names(&format!("{at}/{tree}/a/b")).len(), 300);
        on(&at, &["rm", "-r", tree]).ok();
        assert!(!Path::new(&format!("{at}/{tree}")).exists());
        assert!(Path::new(&format!("{project}/tree/a/b/7")).exists());
        let changes = on(&dir, &["branch", "diff", name]).ok();
        assert!(changes.contains("/tree"), "{changes}");
        // It stays removed where the branch is mounted anew.
        kvfs(&["umount", &at]).ok();
        on(&dir, &["branch", "mount", name, &at]).ok();
        assert!(!Path::new(&format!("{at}/{tree}")).exists());
        on(&dir, &["branch", "merge", name]).ok();
        assert!(!Path::new(&format!("{project}/tree")).exists());
        on(&dir, &["check", "."]).ok();
    }
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn tree_goes_by_a_call_on_an_open_directory() {
    if !can_mount("tree_goes_by_a_call_on_an_open_directory") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    plant(&dir);
    let refused = |done: Result<Option<u64>, ClientError>| match done {
        Err(ClientError::Tree { errno, text }) => (Errno::from_raw_os_error(errno), text),
        other => panic!("{other:?}"),
    };
    let below = calls::Mount::open(Path::new(&format!("{dir}/tree/a"))).unwrap();
    let (errno, text) = refused(below.remove_tree(b"none"));
    assert!(errno == Errno::NOENT && text.starts_with("none: no such file or directory"), "{text}");
    for (path, expected) in
        [(&b"/tree"[..], Errno::INVAL), (b"", Errno::NOENT), (b"..", Errno::INVAL), (b"b/7/x", Errno::NOTDIR)]
    {
        let number = |error| match error {
            ClientError::Tree { errno, .. } => Errno::from_raw_os_error(errno),
            ClientError::Io(error) => Errno::from_io_error(&error).unwrap(),
            other => panic!("{other}"),
        };
        assert_eq!(below.remove_tree(path).map_err(number), Err(expected), "{path:?}");
    }
    // Where a mount is read-only, and from a part of it to the others, nothing goes.
    let bound = world.dir("bound");
    run(Command::new("mount").args(["--bind", &format!("{dir}/tree"), &bound])).ok();
    run(Command::new("mount").args(["-o", "remount,bind,ro", &bound])).ok();
    let read_only = calls::Mount::open(Path::new(&bound)).unwrap();
    assert!(
        matches!(read_only.remove_tree(b"a"), Err(ClientError::Io(error)) if error.raw_os_error() == Some(Errno::ROFS.raw_os_error()))
    );
    drop(read_only);
    run(Command::new("umount").arg(&bound)).ok();
    let txn = below.remove_tree(b"b").unwrap().unwrap();
    assert_eq!(names(&format!("{dir}/tree")), ["a"]);
    assert!(names(&format!("{dir}/tree/a")).is_empty());
    on(&dir, &["txn", "undo", &txn.to_string()]).ok();
    assert_eq!(names(&format!("{dir}/tree/a/b")).len(), 300);
    // Once more, and in the view of a transaction.
    assert!(below.remove_tree(b"b").unwrap().is_some_and(|again| again > txn));
    let id = below.begin(&BeginOptions::default()).unwrap();
    let view = calls::Mount::open(&below.view(id).unwrap()).unwrap();
    assert_eq!(view.remove_tree(b"tree/a").unwrap(), None);
    assert_eq!(refused(view.remove_tree(b"tree/a")).0, Errno::NOENT);
    assert_eq!(names(&format!("{dir}/tree")), ["a"]);
    below.commit(id, false).unwrap();
    assert!(names(&format!("{dir}/tree")).is_empty());
    assert!(refused(below.remove_tree(b"x")).0 == Errno::NOENT, "what is open has gone itself");
    let elsewhere = calls::Mount::open(Path::new("/")).unwrap();
    assert!(matches!(elsewhere.remove_tree(b"x"), Err(ClientError::Io(_))));
    drop((below, view));
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn ordinary_user_removes_in_a_transaction_what_is_removable_by_hand() {
    let test = "ordinary_user_removes_in_a_transaction_what_is_removable_by_hand";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    let as_user = |script: &str| {
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script];
        run(Command::new("setpriv").args(words).current_dir("/"))
    };
    fs::create_dir(format!("{dir}/home")).unwrap();
    fs::set_permissions(format!("{dir}/home"), fs::Permissions::from_mode(0o777)).unwrap();
    as_user(&format!("mkdir -p {dir}/home/own/below {dir}/home/other; touch {dir}/home/own/below/file")).ok();
    plant(&dir);
    fs::create_dir(format!("{dir}/home/other/roots")).unwrap();
    fs::write(format!("{dir}/home/other/roots/file"), "").unwrap();
    // In the place of the mount, where there are namespaces for it.
    let within = |script: &str| as_user(&format!("cd {dir}; {KVFS} txn run -q -- sh -ec '{script}'"));
    within(&format!("{KVFS} rm -r tree")).fails(DENIED, &["/tree: permission denied"]);
    within(&format!("{KVFS} rm -r home/other")).fails(DENIED, &["/home/other/roots: permission denied"]);
    assert_eq!(names(&format!("{dir}/home/other")), ["roots"]);
    within(&format!("{KVFS} rm -r home/own; test ! -e home/own")).ok();
    assert_eq!(names(&format!("{dir}/home")), ["other"]);
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn removal_that_waits_for_another_transaction_ends_by_a_signal_and_has_done_nothing() {
    if !can_mount("removal_that_waits_for_another_transaction_ends_by_a_signal_and_has_done_nothing") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    plant(&dir);
    let begin = || {
        let begun = on(&dir, &["txn", "begin"]).ok();
        let (id, view) = begun.trim().split_once('\n').unwrap();
        (id.to_owned(), view.to_owned())
    };
    let ((first, first_view), (second, second_view)) = (begin(), begin());
    fs::rename(format!("{first_view}/tree"), format!("{first_view}/moved")).unwrap();
    let remove = || Command::new(KVFS).args(["rm", "-r", "tree"]).current_dir(&second_view).spawn().unwrap();
    let mut child = remove();
    wait_until("the wait for a lock", || on(&dir, &["locks", "--json"]).ok().contains("\"waiter\":{"));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    assert!(!wait_exit(&mut child).success());
    assert_eq!(names(&second_view), ["tree"]);
    // And where it waits on, it goes on.
    let mut child = remove();
    wait_until("the wait for a lock", || on(&dir, &["locks", "--json"]).ok().contains("\"waiter\":{"));
    on(&dir, &["txn", "abort", &first]).ok();
    assert!(wait_exit(&mut child).success());
    assert!(names(&second_view).is_empty());
    on(&dir, &["txn", "commit", &second]).ok();
    assert!(names(&dir).is_empty());
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn store_unmounted_while_a_removal_in_a_view_waits_for_a_transaction_is_closed() {
    if !can_mount("store_unmounted_while_a_removal_in_a_view_waits_for_a_transaction_is_closed") {
        return;
    }
    let world = World::new();
    let (store, dir) = world.mounted();
    plant(&dir);
    let begin = || on(&dir, &["txn", "begin"]).ok().trim().split_once('\n').unwrap().1.to_owned();
    let (first, second) = (begin(), begin());
    fs::rename(format!("{first}/tree"), format!("{first}/moved")).unwrap();
    let mut child = Command::new(KVFS).args(["rm", "-r", "tree"]).current_dir(&second).spawn().unwrap();
    wait_until("the wait for a lock", || on(&dir, &["locks", "--json"]).ok().contains("\"waiter\":{"));
    // Unlike `kvfs umount` it asks for no transactions.
    run(Command::new("umount").arg(&dir)).ok();
    // Both transactions are given up; where the other one is first, the removal comes to its end in between.
    let _ = wait_exit(&mut child);
    wait_until("the daemon's end", || daemons_of(Path::new(&store)).is_empty());
    kvfs(&["mount", &store, &dir]).ok();
    assert_eq!(names(&dir), ["tree"]);
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn tree_removed_by_a_process_without_a_mount_is_gone_on_the_mount_too() {
    if !can_mount("tree_removed_by_a_process_without_a_mount_is_gone_on_the_mount_too") {
        return;
    }
    let world = World::new();
    let (_store, dir) = world.mounted();
    plant(&dir);
    let begun = on(&dir, &["txn", "begin"]).ok();
    let (id, view) = begun.trim().split_once('\n').unwrap();
    // Both kernel sides know the names.
    for root in [&dir[..], view] {
        assert_eq!(names(&format!("{root}/tree/a/b")).len(), 300);
    }
    let inside = Client::connect(&dir, id.parse().unwrap());
    assert_eq!(inside.remove_tree("/tree"), Ok(0));
    assert!(!Path::new(&format!("{view}/tree")).exists());
    assert!(Path::new(&format!("{dir}/tree/a/b/7")).exists());
    on(&dir, &["txn", "abort", id]).ok();
    let client = Client::connect(&dir, 0);
    let txn = client.remove_tree("/tree").unwrap();
    assert!(!Path::new(&format!("{dir}/tree")).exists() && names(&dir).is_empty());
    assert_eq!(client.remove_tree("/tree"), Err(Errno::NOENT));
    on(&dir, &["txn", "undo", &txn.to_string()]).ok();
    assert_eq!(client.read("/tree/a/b/7").unwrap(), "7");
    drop((client, inside));
    kvfs(&["umount", &dir]).ok();
}
