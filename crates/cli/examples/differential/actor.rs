//! Users: a thread each, with credentials of its own, and descriptors in both directories.
//!
//! Thread safety: one operation at a time, in the order of the calls of [`Cast::perform`].

use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rustix::fd::OwnedFd;
use rustix::fs::{
    self, AtFlags, CWD, Dir, FileType, Gid, Mode, OFlags, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid,
};
use rustix::io::{self, Errno};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::op::{Act, Bits, Node, Op};
use crate::outcome::{Outcome, Summary, Value};
use crate::{Failed, below};

pub(crate) const NAMES: [&str; 3] = ["root", "anna", "ben"];
/// Of the users that are not root; both are in [`SHARED_GROUP`].
pub(crate) const USER_IDS: [u32; 2] = [10_001, 10_002];
pub(crate) const SHARED_GROUP: u32 = 10_100;
/// Descriptors of each user.
pub(crate) const SLOTS: usize = 4;

/// All users of an episode.
pub(crate) struct Cast {
    actors: Vec<Actor>,
}

struct Actor {
    acts: Option<Sender<Op>>,
    outcomes: Receiver<(Outcome, Outcome)>,
    thread: Option<JoinHandle<()>>,
}

impl Cast {
    pub(crate) fn start(one: &Path, other: &Path) -> Result<Self, Failed> {
        let actors =
            (0..NAMES.len()).map(|index| Actor::start(index, [one, other])).collect::<Result<_, _>>()?;
        Ok(Self { actors })
    }

    /// What `act` answers in both directories.
    pub(crate) fn perform(&self, act: &Act) -> Result<(Outcome, Outcome), Failed> {
        let actor = &self.actors[act.actor];
        actor.acts.as_ref().ok_or("the user is gone")?.send(act.op.clone())?;
        Ok(actor.outcomes.recv()?)
    }
}

impl Actor {
    fn start(index: usize, dirs: [&Path; 2]) -> Result<Self, Failed> {
        let (acts, todo) = channel::<Op>();
        let (done, outcomes) = channel();
        let mut places = dirs.map(Place::new);
        let thread = std::thread::Builder::new().name(NAMES[index].into()).spawn(move || {
            let become_user = || -> io::Result<()> {
                let Some(id) = index.checked_sub(1).map(|user| USER_IDS[user]) else { return Ok(()) };
                let (uid, gid) = (Uid::from_raw(id), Gid::from_raw(id));
                set_thread_groups(&[Gid::from_raw(SHARED_GROUP)])?;
                set_thread_res_gid(gid, gid, gid)?;
                set_thread_res_uid(uid, uid, uid)
            };
            if become_user().is_err() {
                return;
            }
            for op in todo {
                let [one, other] = &mut places;
                if done.send((Outcome(one.run(&op)), Outcome(other.run(&op)))).is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { acts: Some(acts), outcomes, thread: Some(thread) })
    }
}

impl Drop for Actor {
    fn drop(&mut self) {
        self.acts = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

/// One of the two directories, as one user has it open.
struct Place {
    dir: PathBuf,
    slots: [Option<OwnedFd>; SLOTS],
}

impl Place {
    fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned(), slots: [const { None }; SLOTS] }
    }

    fn at(&self, path: &str) -> PathBuf {
        below(&self.dir, path)
    }

    fn slot(&self, slot: usize) -> io::Result<&OwnedFd> {
        self.slots[slot].as_ref().ok_or(Errno::BADF)
    }

    fn run(&mut self, op: &Op) -> io::Result<Value> {
        match op {
            Op::Open { slot, path, flags, mode } => self.open(*slot, path, *flags, *mode),
            Op::TmpFile { slot, path, mode } => self.open(*slot, path, OFlags::TMPFILE | OFlags::RDWR, *mode),
            Op::LinkSlot { slot, path } => {
                fs::fstat(self.slot(*slot)?)?;
                unit(fs::linkat(self.slot(*slot)?, "", CWD, self.at(path), AtFlags::EMPTY_PATH))
            }
            Op::Close { slot } => {
                self.slots[*slot] = None;
                Ok(Value::Unit)
            }
            Op::Read { slot, offset, len } => {
                let mut bytes = vec![0; *len];
                let count = io::pread(self.slot(*slot)?, &mut bytes, *offset)?;
                bytes.truncate(count);
                Ok(Value::Bytes(bytes))
            }
            Op::Write { slot, offset, len, fill } => {
                let count = io::pwrite(self.slot(*slot)?, &vec![*fill; *len], *offset)?;
                Ok(Value::Number(count as u64))
            }
            Op::Truncate { path, size } => self.truncate(path, *size),
            Op::TruncateSlot { slot, size } => unit(fs::ftruncate(self.slot(*slot)?, *size)),
            Op::Allocate { slot, flags, offset, len } => {
                unit(fs::fallocate(self.slot(*slot)?, *flags, *offset, *len))
            }
            Op::CopyRange { from, from_offset, to, to_offset, len } => {
                let (mut from_offset, mut to_offset) = (*from_offset, *to_offset);
                let (from, to) = (self.slot(*from)?, self.slot(*to)?);
                let count =
                    fs::copy_file_range(from, Some(&mut from_offset), to, Some(&mut to_offset), *len)?;
                Ok(Value::Number(count as u64))
            }
            _ => self.run_on_names(op),
        }
    }

    fn run_on_names(&self, op: &Op) -> io::Result<Value> {
        match op {
            Op::Mkdir { path, mode } => unit(fs::mkdir(self.at(path), (*mode).into())),
            Op::Mknod { path, node, mode } => {
                let (kind, device) = match node {
                    Node::File => (FileType::RegularFile, 0),
                    Node::Fifo => (FileType::Fifo, 0),
                    Node::Socket => (FileType::Socket, 0),
                    Node::CharDevice => (FileType::CharacterDevice, fs::makedev(1, 3)),
                };
                unit(fs::mknodat(CWD, self.at(path), kind, (*mode).into(), device))
            }
            Op::Rmdir { path } => unit(fs::unlinkat(CWD, self.at(path), AtFlags::REMOVEDIR)),
            Op::Unlink { path } => unit(fs::unlink(self.at(path))),
            Op::Rename { from, to, flags } => {
                unit(fs::renameat_with(CWD, self.at(from), CWD, self.at(to), *flags))
            }
            Op::Link { from, to, follow } => {
                let flags = if *follow { AtFlags::SYMLINK_FOLLOW } else { AtFlags::empty() };
                // Whether users may link to what is another's the kernel judges by the mode that it has last
                // seen.
                fs::stat(self.at(from)).ok();
                unit(fs::linkat(CWD, self.at(from), CWD, self.at(to), flags))
            }
            Op::Symlink { target, path } => unit(fs::symlink(target, self.at(path))),
            Op::Readlink { path } => Ok(Value::Bytes(fs::readlink(self.at(path), Vec::new())?.into_bytes())),
            Op::List { path } => list(&self.at(path)),
            _ => self.run_on_attributes(op),
        }
    }

    fn run_on_attributes(&self, op: &Op) -> io::Result<Value> {
        match op {
            Op::Chmod { path, mode } => unit(fs::chmod(self.at(path), (*mode).into())),
            Op::ChmodSlot { slot, mode } => unit(fs::fchmod(self.slot(*slot)?, (*mode).into())),
            Op::Chown { path, uid, gid, follow } => {
                let (uid, gid) = (uid.map(Uid::from_raw), gid.map(Gid::from_raw));
                unit(fs::chownat(CWD, self.at(path), uid, gid, symlinks(*follow)))
            }
            Op::Utimens { path, mtime, follow } => {
                let last_modification = match mtime {
                    Some(seconds) => Timespec { tv_sec: *seconds, tv_nsec: 0 },
                    None => Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                };
                let last_access = Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT };
                let times = Timestamps { last_access, last_modification };
                unit(fs::utimensat(CWD, self.at(path), &times, symlinks(*follow)))
            }
            Op::Access { path, access } => unit(fs::access(self.at(path), *access)),
            Op::Stat { path, follow } => {
                let stat = fs::statat(CWD, self.at(path), symlinks(*follow))?;
                Ok(Value::Stat(Summary::of(&stat)))
            }
            Op::StatSlot { slot } => Ok(Value::Stat(Summary::of(&fs::fstat(self.slot(*slot)?)?))),
            Op::SetXattr { path, name, value, flags } => {
                unit(fs::lsetxattr(self.at(path), *name, value, *flags))
            }
            Op::GetXattr { path, name, room } => {
                let mut bytes = vec![0; *room];
                let count = fs::lgetxattr(self.at(path), *name, &mut bytes)?;
                bytes.truncate(count.min(*room));
                Ok(if *room == 0 { Value::Number(count as u64) } else { Value::Bytes(bytes) })
            }
            Op::RemoveXattr { path, name } => unit(fs::lremovexattr(self.at(path), *name)),
            Op::ListXattr { path } => xattr_names(&self.at(path)).map(Value::Names),
            _ => Err(Errno::NOSYS),
        }
    }

    fn open(&mut self, slot: usize, path: &str, flags: OFlags, mode: Bits) -> io::Result<Value> {
        self.slots[slot] = None;
        // No open may wait for the other end of a pipe.
        let flags = flags | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let file = fs::open(self.at(path), flags, mode.into())?;
        self.slots[slot] = Some(file);
        Ok(Value::Unit)
    }

    /// `truncate(2)`, which the library lacks: the same checks come with an open for writing.
    fn truncate(&self, path: &str, size: u64) -> io::Result<Value> {
        let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
        unit(fs::ftruncate(fs::open(self.at(path), flags, Mode::empty())?, size))
    }
}

fn unit(done: io::Result<()>) -> io::Result<Value> {
    done.map(|()| Value::Unit)
}

fn symlinks(follow: bool) -> AtFlags {
    if follow { AtFlags::empty() } else { AtFlags::SYMLINK_NOFOLLOW }
}

fn list(path: &Path) -> io::Result<Value> {
    let dir = fs::open(path, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?;
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let mut name = entry.file_name().to_bytes().to_vec();
        name.extend(format!(" {:?}", entry.file_type()).bytes());
        names.push(name);
    }
    names.sort();
    Ok(Value::Names(names))
}

/// Names of a file's extended attributes, sorted; not of what only one of two file systems has.
pub(crate) fn xattr_names(path: &Path) -> io::Result<Vec<Vec<u8>>> {
    let mut bytes = vec![0; 1 << 16];
    let count = fs::llistxattr(path, &mut bytes)?;
    let names = bytes[..count].split(|byte| *byte == 0).filter(|name| !name.is_empty());
    let mut names: Vec<Vec<u8>> = names.map(<[u8]>::to_vec).collect();
    names.sort();
    Ok(names)
}
