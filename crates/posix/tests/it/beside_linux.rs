//! The same calls on a directory of the machine, by the kernel, and on a volume: same outcomes, same errors,
//! same trees.
//!
//! Random sequences over a few names; the seed is printed when they differ.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use kvfs_device::Rng;
use kvfs_fs::{FileType, RenameMode};
use kvfs_posix::{Fd, Place, Process};
use rustix::fs::{AtFlags, CWD, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use crate::world::{errno, root};

const STEPS: usize = 1500;

/// A directory in which there is just another one.
const DEPTH: &str = "x/";

/// Paths with links, dots and slashes in all places.
fn path(rng: &mut Rng) -> String {
    const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];
    let depth = rng.range(1, 4);
    let mut path = String::new();
    for level in 0..depth {
        if level > 0 {
            path.push_str(if rng.below(12) == 0 { "//" } else { "/" });
        }
        match rng.below(24) {
            0 => path.push('.'),
            1 if level > 0 => path.push_str(".."),
            _ => path.push_str(NAMES[rng.below(5) as usize]),
        }
    }
    if rng.below(8) == 0 {
        path.push('/');
    }
    path
}

/// A call, as both sides are asked.
#[derive(Debug)]
enum Call {
    Mkdir(String),
    Open(String, OFlags),
    Symlink(String, String),
    Link(String, String, bool),
    Unlink(String),
    Rmdir(String),
    Rename(String, String, RenameMode),
    Stat(String, bool),
    Readlink(String),
    Write(String, u64, u8, bool),
    Truncate(String, u64),
    Chmod(String, u32),
}

fn call(rng: &mut Rng) -> Call {
    match rng.below(16) {
        0 | 1 => Call::Mkdir(path(rng)),
        2..=4 => {
            let all = [OFlags::CREATE, OFlags::EXCL, OFlags::TRUNC, OFlags::DIRECTORY, OFlags::NOFOLLOW];
            let mut flags = [OFlags::RDONLY, OFlags::WRONLY, OFlags::RDWR][rng.below(3) as usize];
            for flag in all {
                let is_set = rng.below(if flag == OFlags::CREATE { 2 } else { 5 }) == 0;
                flags.set(flag, is_set);
            }
            // What the two mean together changed between kernels.
            if flags.contains(OFlags::CREATE) {
                flags.remove(OFlags::DIRECTORY);
            }
            Call::Open(path(rng), flags)
        }
        5 => Call::Symlink(path(rng), path(rng)),
        6 => Call::Link(path(rng), path(rng), rng.below(2) == 0),
        7 => Call::Unlink(path(rng)),
        8 => Call::Rmdir(path(rng)),
        9 | 10 => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Call::Rename(path(rng), path(rng), modes[rng.below(3) as usize])
        }
        11 => Call::Stat(path(rng), rng.below(2) == 0),
        12 => Call::Readlink(path(rng)),
        13 => Call::Write(path(rng), rng.below(9000), rng.below(256) as u8, rng.below(3) == 0),
        14 => Call::Truncate(path(rng), rng.below(9000)),
        _ => Call::Chmod(path(rng), rng.below(0o1000) as u32 | 0o700),
    }
}

/// What is compared of an outcome.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    Done,
    Refused(Errno),
    Stat { kind: u32, mode: u32, nlink: u32, size: u64 },
    Text(Vec<u8>),
}

fn answer<T>(outcome: Result<T, Errno>, of: impl FnOnce(T) -> Answer) -> Answer {
    outcome.map_or_else(Answer::Refused, of)
}

/// By the kernel, beneath `base`.
struct Linux(File);

impl Linux {
    fn new(base: &Path) -> Self {
        Self(File::open(base).expect("opens"))
    }

    fn do_it(&self, call: &Call) -> Answer {
        let (dir, mode) = (&self.0, Mode::from_raw_mode(0o755));
        let done = |outcome: Result<(), Errno>| answer(outcome, |()| Answer::Done);
        match call {
            Call::Mkdir(path) => done(rustix::fs::mkdirat(dir, path, mode)),
            Call::Open(path, flags) => {
                done(rustix::fs::openat(dir, path, *flags, Mode::from_raw_mode(0o644)).map(drop))
            }
            Call::Symlink(target, path) => done(rustix::fs::symlinkat(target, dir, path)),
            Call::Link(old, new, follows) => {
                let flags = if *follows { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                done(rustix::fs::linkat(dir, old, dir, new, flags))
            }
            Call::Unlink(path) => done(rustix::fs::unlinkat(dir, path, AtFlags::empty())),
            Call::Rmdir(path) => done(rustix::fs::unlinkat(dir, path, AtFlags::REMOVEDIR)),
            Call::Rename(old, new, mode) => {
                let flags = match mode {
                    RenameMode::NoReplace => RenameFlags::NOREPLACE,
                    RenameMode::Exchange => RenameFlags::EXCHANGE,
                    _ => RenameFlags::empty(),
                };
                done(rustix::fs::renameat_with(dir, old, dir, new, flags))
            }
            Call::Stat(path, follows) => {
                let flags = if *follows { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW };
                answer(rustix::fs::statat(dir, path, flags), |stat| Answer::Stat {
                    kind: stat.st_mode >> 12,
                    mode: stat.st_mode & 0o7777,
                    nlink: if stat.st_mode >> 12 == 4 { 0 } else { stat.st_nlink as u32 },
                    size: if stat.st_mode >> 12 == 4 { 0 } else { stat.st_size as u64 },
                })
            }
            Call::Readlink(path) => {
                answer(rustix::fs::readlinkat(dir, path, Vec::new()), |text| Answer::Text(text.into_bytes()))
            }
            Call::Write(path, offset, fill, appends) => {
                let flags = OFlags::WRONLY | if *appends { OFlags::APPEND } else { OFlags::empty() };
                done(
                    rustix::fs::openat(dir, path, flags, Mode::empty())
                        .and_then(|fd| rustix::io::pwrite(&fd, &[*fill; 700], *offset).map(drop)),
                )
            }
            Call::Truncate(path, size) => {
                // By way of the directory, so that the path is walked as the others are.
                let own = format!("/proc/self/fd/{}/{path}", std::os::fd::AsRawFd::as_raw_fd(dir));
                if path.is_empty() { Answer::Refused(Errno::NOENT) } else { done(truncate(&own, *size)) }
            }
            Call::Chmod(path, mode) => {
                done(rustix::fs::chmodat(dir, path, Mode::from_raw_mode(*mode), AtFlags::empty()))
            }
        }
    }
}

fn truncate(path: &str, size: u64) -> Result<(), Errno> {
    let opened = rustix::fs::openat(CWD, path, OFlags::WRONLY, Mode::empty());
    match opened {
        Ok(fd) => rustix::fs::ftruncate(&fd, size),
        Err(error) => Err(error),
    }
}

fn on_volume(process: &Process, call: &Call) -> Answer {
    let done = |outcome: kvfs_posix::Result<()>| errno(outcome).map_or(Answer::Done, Answer::Refused);
    let open = |path: &str, flags, mode| process.open(path, flags, mode);
    let close = |fd: Fd| process.close(fd);
    match call {
        Call::Mkdir(path) => done(process.mkdir(path.as_str(), 0o755)),
        Call::Open(path, flags) => done(open(path, *flags, 0o644).and_then(close)),
        Call::Symlink(target, path) => done(process.symlink(target.as_bytes(), path.as_str())),
        Call::Link(old, new, follows) => {
            let old = Place::from(old.as_str());
            done(process.link(if *follows { old } else { old.no_follow() }, new.as_str()))
        }
        Call::Unlink(path) => done(process.unlink(path.as_str())),
        Call::Rmdir(path) => done(process.rmdir(path.as_str())),
        Call::Rename(old, new, mode) => done(process.rename(old.as_str(), new.as_str(), *mode)),
        Call::Stat(path, follows) => {
            let place = Place::from(path.as_str());
            match process.stat(if *follows { place } else { place.no_follow() }) {
                Ok(attr) => Answer::Stat {
                    kind: attr.kind as u32,
                    mode: attr.mode,
                    nlink: if attr.kind == FileType::Directory { 0 } else { attr.nlink },
                    size: if attr.kind == FileType::Directory { 0 } else { attr.size },
                },
                Err(error) => Answer::Refused(error.errno()),
            }
        }
        Call::Readlink(path) => match process.readlink(path.as_str()) {
            Ok(text) => Answer::Text(text),
            Err(error) => Answer::Refused(error.errno()),
        },
        Call::Write(path, offset, fill, appends) => {
            let flags = OFlags::WRONLY | if *appends { OFlags::APPEND } else { OFlags::empty() };
            done(open(path, flags, 0).and_then(|fd| {
                let written = process.pwrite(fd, &[*fill; 700], *offset).map(drop);
                close(fd).and(written)
            }))
        }
        Call::Truncate(path, size) => done(open(path, OFlags::WRONLY, 0).and_then(|fd| {
            let cut = process.truncate(fd, *size);
            close(fd).and(cut)
        })),
        Call::Chmod(path, mode) => done(process.chmod(path.as_str(), *mode)),
    }
}

/// Everything in the tree: path, kind, mode, content or target.
fn tree_of_linux(base: &Path, at: &Path, into: &mut Vec<(String, u32, Vec<u8>)>) {
    let mut entries: Vec<_> =
        std::fs::read_dir(at).expect("lists").map(|entry| entry.expect("is one").path()).collect();
    entries.sort();
    for path in entries {
        let meta = path.symlink_metadata().expect("is there");
        let content = if meta.is_file() {
            let file = OpenOptions::new().read(true).open(&path).expect("opens");
            let mut content = vec![0; meta.len() as usize];
            file.read_exact_at(&mut content, 0).expect("reads");
            content
        } else if meta.is_symlink() {
            std::os::unix::ffi::OsStringExt::into_vec(path.read_link().expect("is one").into_os_string())
        } else {
            Vec::new()
        };
        let name = path.strip_prefix(base).expect("lies beneath").display().to_string();
        into.push((name, meta.mode(), content));
        if meta.is_dir() {
            tree_of_linux(base, &path, into);
        }
    }
}

fn tree_of_volume(process: &Process, at: &str, into: &mut Vec<(String, u32, Vec<u8>)>) {
    let listed = process.opendir(if at.is_empty() { "/" } else { at }).expect("opens");
    let mut names: Vec<Vec<u8>> = listed.map(|entry| entry.expect("is one").name).collect();
    names.retain(|name| name != b"." && name != b"..");
    names.sort();
    for name in names {
        let path = format!("{at}/{}", String::from_utf8_lossy(&name));
        let attr = process.stat(Place::from(path.as_str()).no_follow()).expect("is there");
        let content = match attr.kind {
            FileType::Regular => {
                let fd = process.open(path.as_str(), OFlags::RDONLY, 0).expect("opens");
                let mut content = vec![0; attr.size as usize];
                assert_eq!(process.pread(fd, &mut content, 0).expect("reads"), content.len());
                process.close(fd).expect("closes");
                content
            }
            FileType::Symlink => process.readlink(path.as_str()).expect("is one"),
            _ => Vec::new(),
        };
        into.push((path[1..].to_owned(), attr.st_mode(), content));
        if attr.kind == FileType::Directory {
            tree_of_volume(process, &path, into);
        }
    }
}

#[test]
fn random_calls_have_the_outcomes_that_they_have_on_linux() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: the kernel would refuse as an ordinary user what root may");
        return;
    }
    for seed in 1..=12 {
        // No `..` leads out of what is compared.
        let dir = tempfile::tempdir().expect("makes a directory");
        let (mut rng, below) = (Rng::new(seed), DEPTH.repeat(10));
        std::fs::create_dir_all(dir.path().join(&below)).expect("is made");
        let (linux, process) = (Linux::new(&dir.path().join(&below)), root());
        for _ in 0..10 {
            process.mkdir(DEPTH, 0o755).expect("is made");
            process.chdir(DEPTH).expect("is one");
        }
        for step in 0..STEPS {
            let call = call(&mut rng);
            let expected = linux.do_it(&call);
            assert_eq!(on_volume(&process, &call), expected, "seed {seed}, step {step}: {call:?}");
        }
        let (mut expected, mut found) = (Vec::new(), Vec::new());
        tree_of_linux(dir.path(), dir.path(), &mut expected);
        tree_of_volume(&process, "", &mut found);
        assert_eq!(found, expected, "seed {seed}: the trees");
    }
}
