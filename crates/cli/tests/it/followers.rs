//! Mounts that follow a writer elsewhere: a store of engine `slatedb` that several directories name.

use std::fs;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};
use rustix::process::{Signal, kill_process};

use crate::world::{KVFS, Run, World, can_mount, daemon_of, daemons_of, kvfs, run, wait_until};

const USAGE: i32 = 2;
const IN_USE: i32 = 3;
const NOT_A_STORE: i32 = 4;

/// Content of one file: longer than what a row holds.
const LEN: usize = 6000;

fn make_store(world: &World) -> String {
    let (store, objects) = (world.text("store"), world.text("objects"));
    kvfs(&["mkfs", &store, "--engine", "slatedb", "--url", &objects]).ok();
    store
}

/// Another directory that names the same objects, as on another machine.
fn second(world: &World, name: &str) -> String {
    fs::create_dir_all(world.path(&format!("{name}/slatedb"))).unwrap();
    for file in ["engine", "slatedb/place"] {
        fs::copy(world.path(&format!("store/{file}")), world.path(&format!("{name}/{file}"))).unwrap();
    }
    world.text(name)
}

fn write_synced(path: &str, content: &[u8]) {
    let mut file = fs::File::create(path).unwrap();
    file.write_all(content).unwrap();
    file.sync_all().unwrap();
}

fn content_of(number: u32) -> Vec<u8> {
    format!("{number:08}").repeat(LEN / 8).into_bytes()
}

/// How many numbered files a listing shows; there is no hole in it, and all but the last one are whole.
fn prefix(dir: &str) -> u32 {
    let mut numbers: Vec<u32> = fs::read_dir(format!("{dir}/numbered"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().to_str().unwrap().parse().unwrap())
        .collect();
    numbers.sort_unstable();
    for (index, number) in (0..).zip(&numbers) {
        assert_eq!(*number, index, "a hole in {dir}: {numbers:?}");
    }
    for number in numbers.iter().rev().skip(1).take(3) {
        // The kernel may look the name up anew; what it then shows may be newer, never older.
        assert!(
            fs::read(format!("{dir}/numbered/{number}")).unwrap() == content_of(*number),
            "{dir}: {number}"
        );
    }
    numbers.len() as u32
}

#[test]
fn following_mounts_show_a_prefix_within_their_bound_and_go_on_with_the_next_writer() {
    const COUNT: u32 = 60;
    if !can_mount("following_mounts_show_a_prefix_within_their_bound_and_go_on_with_the_next_writer") {
        return;
    }
    let world = World::new();
    let (store, dir) = (make_store(&world), world.dir("mnt"));
    kvfs(&["mount", &store, &dir, "-o", "follow"]).fails(USAGE, &["follow", "ro"]);
    kvfs(&["mount", &store, &dir]).ok();
    fs::create_dir(format!("{dir}/numbered")).unwrap();
    write_synced(&format!("{dir}/changed"), &[b'a'; LEN]);
    let followers = ["one", "two"].map(|name| {
        let mount = world.dir(&format!("{name}-mnt"));
        kvfs(&["mount", &second(&world, name), &mount, "-o", "ro,follow"]).ok();
        mount
    });

    // Files come in the order in which they were made, on both.
    let (clock, shown) = (SystemClock::new(), AtomicU32::new(0));
    let mut longest = Duration::ZERO;
    std::thread::scope(|scope| {
        for follower in &followers {
            let shown = &shown;
            scope.spawn(move || {
                let mut last = 0;
                wait_until("all files", || {
                    let now = prefix(follower);
                    assert!(now >= last, "{now} after {last}");
                    last = now;
                    now == COUNT
                });
                shown.fetch_add(1, Ordering::Relaxed);
            });
        }
        for number in 0..COUNT {
            write_synced(&format!("{dir}/numbered/{number}"), &content_of(number));
        }
        let durable = clock.monotonic();
        wait_until("both followers", || shown.load(Ordering::Relaxed) == 2);
        longest = longest.max(clock.monotonic().saturating_sub(durable));
    });
    eprintln!("both showed the last of {COUNT} files {longest:?} after it was durable");

    // What the kernel has cached of names, attributes, pages and listings is not shown for longer either.
    let [one, _] = &followers;
    let mut open = fs::File::open(format!("{one}/changed")).unwrap();
    let mut read_open = || {
        let mut bytes = Vec::new();
        open.rewind().unwrap();
        open.read_to_end(&mut bytes).unwrap();
        bytes
    };
    assert_eq!(read_open(), [b'a'; LEN]);
    assert!(!Path::new(&format!("{one}/new")).exists());
    let modified = fs::metadata(format!("{dir}/changed")).unwrap().modified().unwrap();
    let file = fs::OpenOptions::new().write(true).open(format!("{dir}/changed")).unwrap();
    (&file).write_all(&[b'b'; LEN]).unwrap();
    // As if nothing had happened: the same size and time.
    file.set_modified(modified).unwrap();
    file.sync_all().unwrap();
    fs::rename(format!("{dir}/numbered"), format!("{dir}/new")).unwrap();
    fs::remove_file(format!("{dir}/new/7")).unwrap();
    fs::write(format!("{dir}/new/8"), "short").unwrap();
    fs::File::open(format!("{dir}/new/8")).unwrap().sync_all().unwrap();
    wait_until("pages of an open file", || read_open() == [b'b'; LEN]);
    wait_until("new names", || Path::new(&format!("{one}/new")).exists());
    wait_until("old names", || !Path::new(&format!("{one}/numbered")).exists());
    wait_until("listings", || fs::read_dir(format!("{one}/new")).unwrap().count() == COUNT as usize - 1);
    wait_until("sizes", || fs::read(format!("{one}/new/8")).unwrap() == b"short");
    drop(open);

    // The writer is killed, and another one takes over.
    kill_process(daemon_of(&store), Signal::KILL).unwrap();
    wait_until("the end of the daemon", || daemons_of(Path::new(&store)).is_empty());
    assert!(Command::new("umount").args(["-l", &dir]).status().unwrap().success());
    assert_eq!(fs::read(format!("{one}/changed")).unwrap(), [b'b'; LEN]);
    let (next, next_dir) = (second(&world, "next"), world.dir("next-mnt"));
    kvfs(&["mount", &next, &next_dir]).ok();
    write_synced(&format!("{next_dir}/after"), b"another writer");
    for follower in &followers {
        wait_until("the next writer", || {
            fs::read(format!("{follower}/after")).is_ok_and(|content| content == b"another writer")
        });
        fs::write(format!("{follower}/x"), "x").unwrap_err();
        kvfs(&["umount", follower]).ok();
    }
    kvfs(&["umount", &next_dir]).ok();
    assert!(kvfs(&["check", &next]).ok().starts_with("clean"));
}

/// The command, with a place of its own for what directories of stores have.
fn by_url(world: &World, args: &[&str]) -> Run {
    run(Command::new(KVFS).args(args).env("KVFS_STATE_DIR", world.text("state")))
}

#[test]
fn store_in_object_storage_is_made_and_mounted_by_its_url_alone() {
    if !can_mount("store_in_object_storage_is_made_and_mounted_by_its_url_alone") {
        return;
    }
    let world = World::new();
    let (dir, url) = (world.dir("mnt"), format!("file://{}", world.text("objects")));
    by_url(&world, &["mount", &url, &dir]).fails(NOT_A_STORE, &["no kvfs store at", &url, "mkfs"]);
    assert_eq!(fs::read_dir(world.path("state")).unwrap().count(), 0, "nothing is left behind");
    by_url(&world, &["mkfs", &url, "--url", &url]).fails(USAGE, &["--url"]);
    assert!(by_url(&world, &["mkfs", &url]).ok().contains(&url));
    by_url(&world, &["mount", &url, &dir]).ok();
    write_synced(&format!("{dir}/file"), b"content");
    by_url(&world, &["kv", "put", "-s", &url, "k", "a", "b"]).ok();
    by_url(&world, &["mount", &url, &world.dir("second")]).fails(IN_USE, &["mounted on"]);
    by_url(&world, &["umount", &dir]).ok();

    // Another machine knows nothing but the URL, and follows or goes on.
    fs::remove_dir_all(world.path("state")).unwrap();
    for options in ["ro,follow", "rw"] {
        by_url(&world, &["mount", "-o", options, &url, &dir]).ok();
        assert_eq!(fs::read(format!("{dir}/file")).unwrap(), b"content");
        by_url(&world, &["umount", &dir]).ok();
    }
    assert!(by_url(&world, &["check", &url]).ok().starts_with("clean"));
    assert_eq!(by_url(&world, &["kv", "get", "-s", &url, "k", "a"]).ok(), "b");
    let states: Vec<_> = fs::read_dir(world.path("state")).unwrap().collect();
    assert_eq!(states.len(), 1, "{states:?}");
}
