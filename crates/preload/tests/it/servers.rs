//! Which servers a program talks to, and what it takes of their answers.

use std::fs::Permissions;
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Output;

use kvfs_lane::greeting::{self, IDS_MAX, PLACEHOLDER_MODE, Request, placeholder_name};
use kvfs_lane::{Call, LANE_DATA_BYTES, Reply, ServerLane, decode, encode};
use rustix::process::{Uid, geteuid};

use crate::run::{Served, under};

const NOBODY: u32 = 65534;

fn run(directory: &Path, expected: &str, script: &str) -> Output {
    let mut command = under("bash", directory);
    command.env("KVFS_EXEC_EXPECTED", expected).env("LC_ALL", "C");
    command.args(["-c", script]).output().expect("bash runs")
}

fn directory_of(served: &Served) -> std::path::PathBuf {
    served.socket().parent().expect("is in one").to_owned()
}

/// What `kvfs exec` says of a directory that it has found.
fn identity(directory: &Path) -> String {
    let found = std::fs::metadata(directory).expect("is there");
    format!(":{}:{}", found.dev(), found.ino())
}

#[test]
fn link_in_the_place_of_a_socket_leads_no_program_to_another_server() {
    let (one, other) = (Served::new(), Served::new());
    let (directory, others) = (directory_of(&one), directory_of(&other));
    assert!(run(&others, "", "echo secret > /kvfs/f").status.success());
    std::fs::rename(one.socket(), directory.join("aside")).expect("moves it");
    symlink(other.socket(), one.socket()).expect("makes a link");
    let ran = run(&directory, "", "cat /kvfs/f; echo planted > /kvfs/f");
    assert_eq!(String::from_utf8_lossy(&ran.stdout), "");
    let message = String::from_utf8_lossy(&ran.stderr);
    assert_eq!(message.matches("Permission denied").count(), 2, "{message}");
    assert_eq!(run(&others, "", "cat /kvfs/f").stdout, b"secret\n");
}

#[test]
fn directory_in_the_place_of_a_stores_leads_no_program_to_its_server() {
    let (one, other) = (Served::new(), Served::new());
    let (directory, others) = (directory_of(&one), directory_of(&other));
    let ran = run(&directory, &identity(&directory), "echo kept > /kvfs/f; cat /kvfs/f");
    assert_eq!(ran.stdout, b"kept\n", "{ran:?}");
    let ran = run(&others, &identity(&directory), "echo planted > /kvfs/f");
    assert!(String::from_utf8_lossy(&ran.stderr).contains("Permission denied"), "{ran:?}");
    assert_eq!(run(&others, "", "ls /kvfs").stdout, b"");
}

/// A listener of another user.
fn listener_of_nobody(socket: &Path) -> UnixListener {
    std::thread::scope(|scope| {
        let bind = || {
            // Of this thread alone.
            rustix::thread::set_thread_res_uid(Uid::ROOT, Uid::from_raw(NOBODY), Uid::ROOT)
                .expect("may be it");
            UnixListener::bind(socket).expect("binds")
        };
        scope.spawn(bind).join().expect("ends")
    })
}

#[test]
fn nothing_is_said_to_a_server_of_a_user_that_may_not_serve_the_store() {
    if !geteuid().is_root() {
        eprintln!("skipped: only root acts as another user");
        return;
    }
    let home = tempfile::tempdir().expect("a directory");
    std::fs::create_dir(home.path().join("cwd")).expect("another one");
    std::fs::set_permissions(home.path(), Permissions::from_mode(0o777)).expect("changes");
    let socket = home.path().join("socket");
    let listener = listener_of_nobody(&socket);
    listener.set_nonblocking(true).expect("sets");
    let refused = |expected| {
        let ran = run(home.path(), expected, "echo said > /kvfs/f");
        assert!(String::from_utf8_lossy(&ran.stderr).contains("Permission denied"), "{ran:?}");
    };
    refused("");
    assert_eq!(listener.accept().expect_err("is not called").kind(), ErrorKind::WouldBlock);
    // The owner of the file does not say whose process listens.
    chown(&socket, Some(0), None).expect("is root's");
    refused("1");
    let mut said = Vec::new();
    let mut calls = 0;
    while let Ok((mut called, _)) = listener.accept() {
        called.read_to_end(&mut said).expect("has ended");
        calls += 1;
    }
    assert!(calls > 0 && said.is_empty(), "{calls} {said:?}");
    // The owner of the store may serve it.
    std::thread::scope(|scope| {
        let program = scope.spawn(|| run(home.path(), "65534", "echo said > /kvfs/f"));
        listener.set_nonblocking(false).expect("sets");
        let (called, _) = listener.accept().expect("is called");
        assert!(matches!(greeting::next_request(&called, IDS_MAX), Ok(Request::Hello { .. })));
        // From now on none is there.
        std::fs::remove_file(&socket).expect("was there");
        drop(called);
        assert!(!program.join().expect("ends").status.success());
    });
}

/// Answers a connection: each file can be opened, and has more content than is asked for.
fn answer_too_long(socket: &UnixStream, placeholders: &Path) {
    while let Ok(request) = greeting::next_request(socket, IDS_MAX) {
        match request {
            Request::Lane => {
                let (lane, _, memory) = ServerLane::create().expect("makes");
                greeting::grant(socket, &[memory.as_fd()], &[]).expect("grants");
                std::thread::spawn(move || answer_lane(lane));
            }
            Request::Placeholders { .. } => {
                let made = placeholders.join("new");
                std::fs::write(&made, "").expect("writes");
                std::fs::set_permissions(&made, Permissions::from_mode(PLACEHOLDER_MODE)).expect("changes");
                let handle = std::fs::metadata(&made).expect("is there").ino();
                let name = placeholder_name(handle);
                let name = std::str::from_utf8(&name[..16]).expect("digits");
                std::fs::rename(made, placeholders.join(name)).expect("moves it");
                let directory = std::fs::File::open(placeholders).expect("opens");
                greeting::grant(socket, &[directory.as_fd()], &[handle]).expect("grants");
            }
            _ => greeting::grant(socket, &[], &[]).expect("grants"),
        }
    }
}

fn answer_lane(mut lane: ServerLane) {
    let (mut message, mut space) = (Vec::new(), vec![0; LANE_DATA_BYTES]);
    while lane.next(&mut message).is_ok() {
        let call = decode::<Call<'_>>(&message).expect("is one").0;
        let long = vec![1; LANE_DATA_BYTES - 256];
        let len = match call {
            Call::Open { handle, .. } => {
                let handle = handle.unwrap_or_default();
                encode(&Reply::Opened { handle }, &[], &mut space)
            }
            Call::Read { .. } => encode(&Reply::Done, &long, &mut space),
            Call::Write { .. } => encode(&Reply::Number(1 << 40), &[], &mut space),
            _ => encode(&Reply::Failed { errno: 22 }, &[], &mut space),
        };
        lane.answer(&space[..len.expect("fits")]).expect("is answered");
    }
}

#[test]
fn answers_longer_than_what_was_asked_for_are_none() {
    let home = tempfile::tempdir().expect("a directory");
    let placeholders = home.path().join("placeholders");
    for name in ["cwd", "placeholders"] {
        std::fs::create_dir(home.path().join(name)).expect("another one");
    }
    let listener = UnixListener::bind(home.path().join("socket")).expect("binds");
    std::thread::spawn(move || {
        for called in listener.incoming() {
            let placeholders = placeholders.clone();
            std::thread::spawn(move || answer_too_long(&called.expect("is called"), &placeholders));
        }
    });
    for script in ["head -c 16 /kvfs/f", "echo text > /kvfs/f"] {
        let ran = run(home.path(), "", script);
        let message = String::from_utf8_lossy(&ran.stderr);
        assert!(message.contains("Input/output error"), "{script}: {ran:?}");
        assert_eq!((ran.stdout.len(), ran.status.success()), (0, false), "{script}");
    }
}
