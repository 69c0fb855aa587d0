//! Root works on a store whose directory another user owns: nothing that this user puts there leads root
//! elsewhere.

use std::fs::{self, File};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, lchown, symlink};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::process::Command;

use kvfs_rpc::client::blocking::Store;
use rustix::process::{Signal, kill_process};

use crate::exec::exec;
use crate::user::{NOBODY, as_nobody, can_be_nobody, give};
use crate::world::{
    KVFS, World, can_mount, daemon_of, fingerprint, is_mounted, kvfs, mounts_below, run, wait_until,
};

const DENIED: i32 = 7;
const TRUSTED: &str = "store_owner=65534";

/// What the owner of the store puts in its directory.
#[derive(Debug, Clone, Copy)]
enum Plant {
    LinkToFile,
    LinkToMissing,
    LinkToDirectory,
    LinkToSocket,
    LinkToDevice,
    HardLink,
    Pipe,
    /// A directory of the owner's, full of links to a directory of root's.
    DirectoryOfLinks,
}

/// Root's things, which no attack may touch.
struct Victims<'w> {
    world: &'w World,
    _listener: UnixListener,
    store: String,
    before: (u64, u64),
}

impl<'w> Victims<'w> {
    fn new(world: &'w World) -> Self {
        fs::write(world.path("letter"), "dear").unwrap();
        fs::set_permissions(world.path("letter"), fs::Permissions::from_mode(0o640)).unwrap();
        world.dir("etc");
        let listener = UnixListener::bind(world.path("socket")).unwrap();
        fs::set_permissions(world.path("socket"), fs::Permissions::from_mode(0o600)).unwrap();
        let store = world.store("roots");
        kvfs(&["kv", "put", "-s", &store, "tags", "secret", "of root"]).ok();
        let before = fingerprint(&store);
        Self { world, _listener: listener, store, before }
    }

    fn plant(&self, plant: Plant, at: &Path) {
        let link = |target: &str| {
            symlink(self.world.path(target), at).unwrap();
            lchown(at, Some(NOBODY), Some(NOBODY)).unwrap();
        };
        match plant {
            Plant::LinkToFile => link("letter"),
            Plant::LinkToMissing => link("missing"),
            Plant::LinkToDirectory => link("etc"),
            Plant::LinkToSocket => link("socket"),
            Plant::LinkToDevice => {
                if at.exists() {
                    fs::remove_file(at).unwrap();
                }
                link("roots/device");
            }
            Plant::HardLink => fs::hard_link(self.world.path("letter"), at).unwrap(),
            Plant::Pipe => {
                run(Command::new("mkfifo").arg(at)).ok();
                give(at.to_str().unwrap());
            }
            Plant::DirectoryOfLinks => {
                fs::create_dir(at).unwrap();
                for number in 0..100 {
                    symlink(self.world.path("etc"), at.join(number.to_string())).unwrap();
                }
                give(at.to_str().unwrap());
            }
        }
    }

    #[track_caller]
    fn are_untouched(&self, attack: &str) {
        assert_eq!(fs::read_to_string(self.world.path("letter")).unwrap(), "dear", "{attack}");
        let letter = fs::metadata(self.world.path("letter")).unwrap();
        assert_eq!((letter.mode() & 0o7777, letter.uid()), (0o640, 0), "{attack}");
        assert!(fs::symlink_metadata(self.world.path("missing")).is_err(), "{attack}");
        assert_eq!(fs::read_dir(self.world.path("etc")).unwrap().count(), 0, "{attack}");
        assert!(mounts_below(&self.world.path("etc")).is_empty(), "{attack}");
        let socket = fs::metadata(self.world.path("socket")).unwrap();
        assert!(socket.file_type().is_socket() && socket.mode() & 0o777 == 0o600, "{attack}");
        assert_eq!(fingerprint(&self.store), self.before, "{attack}");
    }
}

/// A store of the user `nobody`, in a directory of that user.
fn store_of_nobody(world: &World, name: &str) -> String {
    let home = world.dir(name);
    give(&home);
    let store = format!("{home}/store");
    as_nobody(&["mkfs", &store, "--size", "256M"]).ok();
    store
}

/// What root does with every store: none of it may hang.
fn work_as_root(store: &str, dir: &str) {
    kvfs(&["kv", "put", "-s", store, "tags", "a", "1"]);
    kvfs(&["check", store]);
    kvfs(&["stats", store]);
    kvfs(&["snapshot", "receive", "-s", store, "--status"]);
    kvfs(&["snapshot", "receive", "-s", store, "--abandon"]);
    if kvfs(&["mount", "-o", TRUSTED, store, dir]).code == Some(0) {
        let begun = kvfs(&["txn", "begin", "-s", dir]);
        if begun.code == Some(0) {
            let text = String::from_utf8(begun.stdout).unwrap();
            let (id, view) = text.trim().split_once('\n').unwrap();
            assert!(view.starts_with(store) && is_mounted(view), "{view}");
            kvfs(&["txn", "abort", "-s", dir, id]).ok();
        }
        kvfs(&["kv", "put", "-s", dir, "tags", "b", "2"]);
        kvfs(&["umount", "--abort-open", dir]).ok();
    }
    assert!(!is_mounted(dir));
}

#[test]
fn links_in_a_foreign_store_lead_root_nowhere() {
    if !can_mount("links_in_a_foreign_store_lead_root_nowhere") || !can_be_nobody("links_in_a_foreign_store")
    {
        return;
    }
    let world = World::new();
    let victims = Victims::new(&world);
    let dir = world.dir("mnt");
    let files = [Plant::LinkToFile, Plant::LinkToMissing, Plant::HardLink, Plant::Pipe];
    let sockets = [Plant::LinkToFile, Plant::LinkToMissing, Plant::LinkToSocket, Plant::HardLink];
    let directories = [Plant::LinkToDirectory, Plant::LinkToMissing, Plant::DirectoryOfLinks];
    // Every name that kvfs uses in a store's directory.
    let attacks: [(&str, &[Plant]); 7] = [
        ("device", &[Plant::LinkToDevice]),
        ("control.sock", &sockets),
        ("kv.sock", &sockets),
        ("views", &directories),
        ("receiving", &files),
        ("kvfs.log", &files),
        ("kvfs.log.old", &files),
    ];
    let mut number = 0;
    for (name, plants) in attacks {
        for &plant in plants {
            let attack = format!("{plant:?} as {name}");
            let store = store_of_nobody(&world, &format!("home{number}"));
            number += 1;
            if name == "kvfs.log.old" {
                let log = File::create(format!("{store}/kvfs.log")).unwrap();
                log.set_len(100 << 20).unwrap();
                give(&format!("{store}/kvfs.log"));
            }
            victims.plant(plant, &Path::new(&store).join(name));
            work_as_root(&store, &dir);
            // A socket that was replaced by a hard link's other name is gone, and the file is not.
            victims.are_untouched(&attack);
        }
    }
}

#[test]
fn a_foreign_device_link_is_refused_by_every_command() {
    if !can_be_nobody("a_foreign_device_link_is_refused_by_every_command") {
        return;
    }
    let world = World::new();
    let victims = Victims::new(&world);
    let store = store_of_nobody(&world, "home");
    victims.plant(Plant::LinkToDevice, &Path::new(&store).join("device"));
    for args in [
        &["kv", "get", "-s", &store, "tags", "secret"][..],
        &["check", &store],
        &["check", "--repair", &store],
        &["snapshot", "list", "-s", &store],
        &["mount", "-o", TRUSTED, &store, &world.dir("mnt")],
    ] {
        kvfs(args).fails(DENIED, &["belongs to user 0", "user 65534"]);
    }
    let store = store_of_nobody(&world, "tiers");
    victims.plant(Plant::LinkToDevice, &Path::new(&store).join("device.1"));
    for args in [&["kv", "get", "-s", &store, "tags", "secret"][..], &["tier", "list", &store]] {
        kvfs(args).fails(DENIED, &["belongs to user 0", "user 65534"]);
    }
    victims.are_untouched("a link to root's device");
}

#[test]
fn sockets_in_a_foreign_store_do_not_lead_commands_to_another_store() {
    let test = "sockets_in_a_foreign_store_do_not_lead_commands_to_another_store";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let (roots, dir) = world.mounted();
    kvfs(&["kv", "put", "-s", &dir, "tags", "secret", "of root"]).ok();
    let store = store_of_nobody(&world, "home");
    for name in ["control.sock", "kv.sock"] {
        symlink(format!("{roots}/{name}"), format!("{store}/{name}")).unwrap();
        let answer = kvfs(&["kv", "get", "-s", &store, "tags", "secret"]);
        assert!(!String::from_utf8_lossy(&answer.stdout).contains("of root"), "{answer:?}");
        kvfs(&["kv", "put", "-s", &store, "tags", "secret", "of nobody"]);
        kvfs(&["snapshot", "create", "-s", &store, "planted"]);
        fs::remove_file(format!("{store}/{name}")).unwrap();
    }
    fs::write(format!("{dir}/secret"), "of root").unwrap();
    // By the path of a store's socket, or by the one for the users of its mounts.
    symlink(format!("{roots}/files.sock"), format!("{store}/files.sock")).unwrap();
    symlink(format!("{roots}/kv.sock"), format!("{store}/kv.sock")).unwrap();
    let answer = exec(&store, &[], "cat /kvfs/secret");
    assert!(!String::from_utf8_lossy(&answer.stdout).contains("of root"), "{answer:?}");
    assert!(Store::connect(Path::new(&store)).is_err(), "the library has followed a link");
    assert_eq!(kvfs(&["kv", "get", "-s", &dir, "tags", "secret"]).ok(), "of root");
    assert!(!kvfs(&["snapshot", "list", "-s", &dir]).ok().contains("planted"));
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_foreign_store_is_mounted_only_with_its_owner_named() {
    let test = "a_foreign_store_is_mounted_only_with_its_owner_named";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let (store, dir) = (store_of_nobody(&world, "home"), world.dir("mnt"));
    kvfs(&["mount", &store, &dir]).fails(DENIED, &["65534", "-o store_owner=65534"]);
    kvfs(&["mount", "-o", "store_owner=1", &store, &dir]).fails(DENIED, &["-o store_owner=65534"]);
    assert!(!is_mounted(&dir));
    kvfs(&["mount", "-o", TRUSTED, &store, &dir]).ok();
    let text = kvfs(&["txn", "begin", "-s", &dir]).ok();
    let (id, view) = text.trim().split_once('\n').unwrap();
    fs::write(format!("{view}/new"), "hello").unwrap();
    kvfs(&["txn", "commit", "-s", &dir, id]).ok();
    assert_eq!(fs::read_to_string(format!("{dir}/new")).unwrap(), "hello");
    kvfs(&["umount", &dir]).ok();
    // What root's daemon has left there does not keep the owner from the store.
    let left = |name: &str| fs::symlink_metadata(format!("{store}/{name}")).map(|found| found.uid()).ok();
    assert_eq!(left("kvfs.log"), Some(NOBODY));
    assert_eq!(as_nobody(&["kv", "put", "-s", &store, "tags", "a", "1"]).ok(), "");
    assert!(as_nobody(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn owner_of_a_store_that_root_serves_takes_no_disk_no_mounts_and_no_transactions_of_roots() {
    let test = "owner_of_a_store_that_root_serves_takes_no_disk_no_mounts_and_no_transactions_of_roots";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let (store, dir, at) = (store_of_nobody(&world, "home"), world.dir("mnt"), world.dir("twig"));
    give(&at);
    kvfs(&["mount", "-o", TRUSTED, &store, &dir]).ok();
    let denied = ["only root and the user that has mounted the store"];
    as_nobody(&["grow", &dir, "1T"]).fails(DENIED, &denied);
    as_nobody(&["grow", &dir]).fails(DENIED, &denied);
    as_nobody(&["umount", &dir]).fails(DENIED, &["you may not unmount", "its owner and root"]);

    as_nobody(&["branch", "create", "-s", &dir, "try"]).ok();
    kvfs(&["branch", "mount", "-s", &dir, "try", &at]).ok();
    as_nobody(&["branch", "merge", "-s", &dir, "try"]).fails(DENIED, &denied);
    as_nobody(&["branch", "merge", "-s", &dir, "try", "--prefer", "main"]).fails(DENIED, &denied);
    as_nobody(&["branch", "delete", "-s", &dir, "try"]).fails(DENIED, &denied);
    as_nobody(&["branch", "umount", "-s", &dir, "try"]).fails(DENIED, &denied);
    assert!(is_mounted(&at), "what root has mounted stays");
    kvfs(&["branch", "umount", "-s", &dir, "try"]).ok();
    as_nobody(&["branch", "merge", "-s", &dir, "try"]).ok();

    let text = kvfs(&["txn", "begin", "-s", &dir]).ok();
    let (id, _) = text.trim().split_once('\n').unwrap();
    as_nobody(&["quota", "on", "-s", &dir, "--abort-open"]).fails(DENIED, &denied);
    kvfs(&["txn", "abort", "-s", &dir, id]).ok();
    as_nobody(&["quota", "on", "-s", &dir]).ok();

    // What the owner puts in the place of the open device is not what root asks for room.
    fs::rename(format!("{store}/device"), format!("{store}/moved")).unwrap();
    symlink("/nowhere/at/all", format!("{store}/device")).unwrap();
    lchown(format!("{store}/device"), Some(NOBODY), Some(NOBODY)).unwrap();
    kvfs(&["grow", &dir, "512M"]).ok();
    fs::rename(format!("{store}/moved"), format!("{store}/device")).unwrap();
    kvfs(&["umount", &dir]).ok();
}

#[test]
fn a_store_that_root_makes_in_a_foreign_directory_is_its_owners() {
    let test = "a_store_that_root_makes_in_a_foreign_directory_is_its_owners";
    if !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let store = world.dir("store");
    give(&store);
    kvfs(&["mkfs", &store, "--size", "256M"]).ok();
    kvfs(&["kv", "put", "-s", &store, "tags", "a", "1"]).ok();
    assert_eq!(fs::metadata(format!("{store}/device")).unwrap().uid(), NOBODY);
    assert!(as_nobody(&["check", &store]).ok().starts_with("clean"));
    // Root's own file is not given away with it.
    let other = world.dir("other");
    give(&other);
    fs::write(world.path("image"), "").unwrap();
    kvfs(&["mkfs", &other, "--device", &world.text("image"), "--size", "256M"])
        .fails(DENIED, &["belongs to user 0"]);
    assert_eq!(fs::read_dir(&other).unwrap().count(), 0);
    assert_eq!(fs::metadata(world.path("image")).unwrap().len(), 0);
}

#[test]
fn a_store_in_a_directory_open_to_all_is_refused() {
    let world = World::new();
    let (store, dir) = (world.store("store"), world.dir("mnt"));
    fs::set_permissions(&store, fs::Permissions::from_mode(0o777)).unwrap();
    kvfs(&["mount", &store, &dir]).fails(DENIED, &["chmod go-w"]);
    kvfs(&["kv", "get", "-s", &store, "tags", "a"]).fails(DENIED, &["chmod go-w"]);
    fs::set_permissions(&store, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(kvfs(&["check", &store]).ok().starts_with("clean"));
}

#[test]
fn unmounting_with_directories_replaced_detaches_nothing_else() {
    let test = "unmounting_with_directories_replaced_detaches_nothing_else";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let store = store_of_nobody(&world, "home");
    let dir = world.dir("home/below/mnt");
    for name in ["home/below", "home/below/mnt"] {
        give(&world.text(name));
    }
    let victim = world.dir("victim");
    kvfs(&["mount", "-o", TRUSTED, &store, &dir]).ok();
    let text = kvfs(&["txn", "begin", "-s", &dir]).ok();
    let (id, view) = text.trim().split_once('\n').unwrap();
    assert!(is_mounted(view));
    for name in [id, "mnt"] {
        let point = world.dir(&format!("victim/{name}"));
        run(Command::new("mount").args(["-t", "tmpfs", "tmpfs", &point])).ok();
    }
    let home = world.text("home");
    let swap = |name: &str, moved: &str| {
        let script = format!("mv {home}/{name} {home}/{moved} && ln -s {victim} {home}/{name}");
        run(Command::new("setpriv").args([
            "--reuid=65534",
            "--regid=65534",
            "--clear-groups",
            "sh",
            "-ec",
            &script,
        ]))
        .ok();
    };
    swap("store/views", "store/moved");
    kvfs(&["txn", "abort", "-s", &store, id]).ok();
    wait_until("the end of the view", || !is_mounted(&format!("{home}/store/moved/{id}")));
    assert!(is_mounted(&format!("{victim}/{id}")));
    swap("below", "moved");
    kill_process(daemon_of(&store), Signal::TERM).unwrap();
    wait_until("the end of the mount", || !is_mounted(&format!("{home}/moved/mnt")));
    assert!(is_mounted(&format!("{victim}/mnt")));
}

#[test]
fn links_below_a_bind_mount_lead_a_transaction_of_root_nowhere() {
    let test = "links_below_a_bind_mount_lead_a_transaction_of_root_nowhere";
    if !can_mount(test) || !can_be_nobody(test) {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    let (home, bound, victim) = (format!("{dir}/home"), world.dir("bound"), world.dir("victim"));
    fs::write(format!("{victim}/secret"), "root's").unwrap();
    let do_as_nobody = |script: &str| {
        let words = ["--reuid=65534", "--regid=65534", "--clear-groups", "sh", "-ec", script];
        run(Command::new("setpriv").args(words).current_dir("/")).ok();
    };
    fs::create_dir(&home).unwrap();
    give(&home);
    do_as_nobody(&format!("mkdir {home}/part && echo text > {home}/part/own"));
    run(Command::new("mount").args(["--bind", &format!("{home}/part"), &bound])).ok();
    let list = |id: &str| {
        let script = format!("ls {bound} .");
        run(Command::new(KVFS)
            .args(["txn", "join", "-s", &dir, id, "--", "sh", "-c", &script])
            .current_dir(&bound))
    };
    let begin = || {
        let text = kvfs(&["txn", "begin", "-s", &dir]).ok();
        text.trim().split_once('\n').unwrap().0.to_owned()
    };
    let before = begin();
    // The transaction begins while the name is a link, and is joined when it is the directory that is
    // mounted.
    do_as_nobody(&format!("mv {home}/part {home}/moved && ln -s {victim} {home}/part"));
    let during = begin();
    do_as_nobody(&format!("rm {home}/part && mv {home}/moved {home}/part"));
    assert_eq!(list(&before).ok().matches("own").count(), 2);
    let refused = list(&during);
    assert!(!String::from_utf8_lossy(&refused.stdout).contains("secret"), "root is led to {victim}");
    refused.fails(1, &["show", "in the transaction"]);
    for id in [before, during] {
        kvfs(&["txn", "abort", "-s", &dir, &id]).ok();
    }
}
