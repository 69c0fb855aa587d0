//! The process that serves the file of a slow disk.
//!
//! Thread safety: one thread takes the requests, so that the arm meets them in their order; others read and
//! write the image, and each answers when the request is due. One fewer may be in the making than there are
//! of these threads; what waits behind is due later anyway.
//!
//! Invariants: a flush is answered behind all that came before it; what is written lies in the image when it
//! is answered.

use super::arm::{Arm, Mechanics};
use crate::image::Aligned;
use anyhow::{Context, Result, ensure};
use bytes::Bytes;
use kvfs_fuse::abi::{Attr, flags};
use kvfs_fuse::dispatch::{
    Attributes, Data, Entry, FallocateArgs, OpenArgs, Opened, Operations, ReadArgs, Reply, RequestContext,
    WriteArgs, Written,
};
use kvfs_fuse::mount::{MountOptions, Unmount, mount};
use kvfs_fuse::session::{InitConfig, SessionConfig};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Errno, Session};
use rustix::fs::Timespec;
use rustix::process::{Pid, Signal};
use rustix::thread::{ClockId, clock_nanosleep_absolute};
use signal_hook::consts::SIGTERM;
use signal_hook::iterator::Signals;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

/// Of the one file.
pub(super) const FILE_NAME: &str = "disk";
const ROOT: u64 = 1;
const FILE: u64 = 2;
/// Enough to keep the arm busy while the image takes part of a request's time.
const THREADS: usize = 16;
const FOREVER: Duration = Duration::from_hours(24 * 365);
const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// Serves until it is unmounted, or the thread of the process `parent` ends that has started it.
pub(super) fn serve(dir: &Path, image: &Path, mechanics: Mechanics, parent: u64) -> Result<()> {
    let mut signals = Signals::new([SIGTERM])?;
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    let is_parent = |pid: Pid| pid.as_raw_nonzero().get().cast_unsigned() == parent as u32;
    ensure!(rustix::process::getppid().is_some_and(is_parent), "what has started it has ended");
    // Memory for a request should not wait for what is to be written to this very disk; containers may not
    // say so.
    let _ = rustix::process::configure_io_flusher_behavior(true);
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let file = OpenOptions::new().read(true).write(true).custom_flags(direct).open(image);
    let file = Arc::new(file.with_context(|| format!("cannot open {}", image.display()))?);
    let bytes = file.metadata()?.len();
    let (jobs, taken) = channel();
    start_threads(&file, taken)?;
    let config = SessionConfig {
        init: InitConfig { no_opendir: true, no_flush: true, ..InitConfig::default() },
        workers: 1,
        clone_device: false,
        steers: false,
        ..SessionConfig::default()
    };
    let options = MountOptions { source: "slow-disk".into(), ..MountOptions::default() };
    let (point, device) = mount(dir, &options)?;
    let point = Arc::new(point);
    let server = Arc::new(Disk { arm: Mutex::new(Arm::new(mechanics)), jobs, bytes });
    let session = Session::start(Box::new(DeviceTransport::new(device)), &config, server)?;
    let ending = Arc::clone(&point);
    thread::spawn(move || {
        for _signal in signals.forever() {
            if let Err(error) = ending.unmount(Unmount::Abort) {
                eprintln!("{error}");
            }
        }
    });
    session.wait()?;
    point.forget();
    Ok(())
}

fn start_threads(file: &Arc<File>, jobs: Receiver<Job>) -> Result<()> {
    let jobs = Arc::new(Mutex::new(jobs));
    for number in 0..THREADS {
        let (file, jobs) = (Arc::clone(file), Arc::clone(&jobs));
        let work = move || {
            // Else the kernel adds 50 us to each sleep.
            let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
            loop {
                let next = jobs.lock().unwrap_or_else(PoisonError::into_inner).recv();
                let Ok(Job { due, task }) = next else { return };
                task.work(&file, due);
            }
        };
        thread::Builder::new().name(format!("disk-{number}")).spawn(work)?;
    }
    Ok(())
}

/// What a request asks of the image.
enum Task {
    Read { offset: u64, bytes: usize, reply: Reply<Data> },
    Write { offset: u64, data: Bytes, reply: Reply<Written> },
    Flush { reply: Reply<()> },
}

struct Job {
    due: Duration,
    task: Task,
}

impl Task {
    fn work(self, file: &File, due: Duration) {
        match self {
            Self::Read { offset, bytes, reply } => {
                let mut buffer = Aligned::new(bytes);
                let read = file.read_exact_at(buffer.bytes(), offset);
                sleep_until(due);
                match read {
                    Ok(()) => drop(reply.ok(Data::Whole(buffer.freeze()))),
                    Err(error) => reply.error(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                }
            }
            Self::Write { offset, data, reply } => {
                let len = data.len();
                let mut buffer = Aligned::new(len);
                buffer.bytes().copy_from_slice(&data);
                drop(data);
                let written = file.write_all_at(buffer.bytes(), offset);
                sleep_until(due);
                match written {
                    Ok(()) => drop(reply.ok(Written(len as u32))),
                    Err(error) => reply.error(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
                }
            }
            Self::Flush { reply } => {
                sleep_until(due);
                reply.ok(());
            }
        }
    }
}

fn now() -> Duration {
    let now = rustix::time::clock_gettime(ClockId::Monotonic);
    Duration::new(now.tv_sec.cast_unsigned(), now.tv_nsec as u32)
}

fn sleep_until(due: Duration) {
    let until = Timespec { tv_sec: due.as_secs().cast_signed(), tv_nsec: due.subsec_nanos().into() };
    while clock_nanosleep_absolute(ClockId::Monotonic, &until) == Err(Errno::INTR) {}
}

/// The file system of one file.
struct Disk {
    arm: Mutex<Arm>,
    jobs: Sender<Job>,
    bytes: u64,
}

impl Disk {
    fn attr(&self, node: u64) -> Attr {
        let (mode, nlink, size) =
            if node == ROOT { (S_IFDIR | 0o700, 2, 0) } else { (S_IFREG | 0o600, 1, self.bytes) };
        Attr { ino: node, size, blocks: size / 512, mode, nlink, blksize: 4096, ..Attr::default() }
    }

    fn with_arm<T>(&self, ask: impl FnOnce(&mut Arm) -> T) -> T {
        ask(&mut self.arm.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn take(&self, offset: u64, bytes: u64, task: Task) {
        let due = self.with_arm(|arm| arm.serve(now(), &(offset..offset + bytes)));
        self.queue(Job { due, task });
    }

    /// A reply that is dropped because all threads have gone answers with an error.
    fn queue(&self, job: Job) {
        let _ = self.jobs.send(job);
    }
}

impl Operations for Disk {
    fn lookup(&self, _cx: &RequestContext, _parent: u64, name: &[u8], reply: Reply<Entry>) {
        let entry = if name == FILE_NAME.as_bytes() {
            let attr = self.attr(FILE);
            Entry { node: FILE, generation: 1, attr, entry_timeout: FOREVER, attr_timeout: FOREVER }
        } else {
            Entry::negative(FOREVER)
        };
        reply.ok(entry);
    }

    fn getattr(&self, _cx: &RequestContext, node: u64, _fh: Option<u64>, reply: Reply<Attributes>) {
        reply.ok(Attributes { attr: self.attr(node), timeout: FOREVER });
    }

    fn open(&self, _cx: &RequestContext, _node: u64, _args: OpenArgs, reply: Reply<Opened>) {
        let flags = flags::open::DIRECT_IO | flags::open::PARALLEL_DIRECT_WRITES;
        reply.ok(Opened { fh: 0, flags });
    }

    fn read(&self, _cx: &RequestContext, _node: u64, args: ReadArgs, reply: Reply<Data>) {
        let bytes = u64::from(args.size).min(self.bytes.saturating_sub(args.offset));
        self.take(args.offset, bytes, Task::Read { offset: args.offset, bytes: bytes as usize, reply });
    }

    fn write(&self, _cx: &RequestContext, _node: u64, args: WriteArgs, data: Bytes, reply: Reply<Written>) {
        let bytes = data.len() as u64;
        if args.offset.saturating_add(bytes) > self.bytes {
            return reply.error(Errno::NOSPC);
        }
        self.take(args.offset, bytes, Task::Write { offset: args.offset, data, reply });
    }

    fn fsync(&self, _cx: &RequestContext, _node: u64, _fh: u64, _datasync: bool, reply: Reply<()>) {
        let due = self.with_arm(|arm| arm.done_at());
        self.queue(Job { due, task: Task::Flush { reply } });
    }

    fn fallocate(&self, _cx: &RequestContext, _node: u64, _args: FallocateArgs, reply: Reply<()>) {
        reply.error(Errno::OPNOTSUPP);
    }
}
