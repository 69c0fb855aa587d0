//! A block device as slow as a hard disk, for stores and file systems alike.
//!
//! A FUSE server in a process of its own holds back what is asked of one file, as [`Arm`] says, and reads and
//! writes an image with direct I/O meanwhile; a loop device with direct I/O lies over that file. Its process
//! is this program once more: [`serve_if_asked`] must be the first call of `main` in each program that makes
//! one. (In this process a thread that waits for the disk would keep alive the connection that it waits for
//! when the program is killed.)
//!
//! Thread safety: each value belongs to one thread. The server ends with the thread that has made it.
//!
//! Invariants: loop device, mount and server are gone when it is dropped; when this process is killed, server
//! and mount end, and what is left of the loop device fails every request.

mod arm;
mod server;
mod verify;

use crate::host;
use crate::image::{Image, Loop};
use anyhow::{Context, Result, bail, ensure};
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

pub use arm::{Arm, HARD_DISK, Mechanics};
pub use verify::Rates;

/// First argument of the server.
const SERVER: &str = "slow-disk-server";
const START_LIMIT: Duration = Duration::from_secs(20);
/// Of the end of the loop device and of the server: what is under way is waited for.
const END_LIMIT: Duration = Duration::from_mins(1);

/// See the module.
pub struct SlowDisk {
    attached: Loop,
    // Behind the loop device, which is detached first.
    _server: Server,
    _image: Image,
}

impl SlowDisk {
    /// A device of the size of `image`, which keeps its content; a directory in `work` is needed until it is
    /// dropped.
    pub fn new(work: &Path, image: Image, mechanics: Mechanics) -> Result<Self> {
        let name = image.path().file_stem().context("an image has a name")?;
        let dir = work.join(name).with_extension("slow");
        let server = Server::start(&dir, image.path(), mechanics)?;
        let attached = Loop::attach(&server.file())?;
        Ok(Self { attached, _server: server, _image: image })
    }

    /// Its path.
    pub fn device(&self) -> &str {
        self.attached.device()
    }
}

/// The process, and what it has mounted.
struct Server {
    child: Child,
    dir: PathBuf,
}

impl Server {
    fn start(dir: &Path, image: &Path, mechanics: Mechanics) -> Result<Self> {
        fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        let mut command = Command::new(std::env::current_exe()?);
        command.arg(SERVER).args([dir, image]);
        command.args([mechanics.seek.as_nanos().to_string(), mechanics.bytes_per_second.to_string()]);
        command.arg(std::process::id().to_string());
        // A process group of its own: Ctrl-C must not end it under what is mounted on it.
        let child = command.stdin(Stdio::null()).stdout(Stdio::null()).process_group(0).spawn()?;
        let mut server = Self { child, dir: dir.to_owned() };
        let file = server.file();
        let is_up = host::wait_until(START_LIMIT, || {
            if let Some(status) = server.child.try_wait()? {
                bail!("the server of {} has ended, {status}", server.dir.display());
            }
            Ok(file.exists())
        })?;
        ensure!(is_up, "{} was not served within {START_LIMIT:?}", file.display());
        Ok(server)
    }

    fn file(&self) -> PathBuf {
        self.dir.join(server::FILE_NAME)
    }

    fn end(&mut self) -> Result<()> {
        // Detaching a loop device goes on behind the call.
        let unmount = || {
            let done = rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::empty());
            Ok(done != Err(rustix::io::Errno::BUSY))
        };
        if !host::wait_until(END_LIMIT, unmount)? {
            rustix::mount::unmount(&self.dir, rustix::mount::UnmountFlags::DETACH)?;
        }
        let ended = host::wait_until(END_LIMIT, || Ok(self.child.try_wait()?.is_some()))?;
        if !ended {
            self.child.kill()?;
            self.child.wait()?;
        }
        fs::remove_dir(&self.dir)?;
        ensure!(ended, "it had to be killed");
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            eprintln!("the server of {} ended badly: {error:#}", self.dir.display());
        }
    }
}

/// Serves a slow disk, if this process was started for that, until it is unmounted; `None`: it was not.
pub fn serve_if_asked() -> Option<ExitCode> {
    let args: Vec<_> = std::env::args_os().skip(1).collect();
    let [word, dir, image, seek, rate, parent] = args.as_slice() else { return None };
    if word != SERVER {
        return None;
    }
    let number = |text: &std::ffi::OsString| text.to_str().and_then(|text| text.parse::<u64>().ok());
    let served = match (number(seek), number(rate), number(parent)) {
        (Some(seek), Some(bytes_per_second), Some(parent)) => {
            let mechanics = Mechanics { seek: Duration::from_nanos(seek), bytes_per_second };
            server::serve(dir.as_ref(), image.as_ref(), mechanics, parent)
        }
        _ => Err(anyhow::anyhow!("these are no numbers: {args:?}")),
    };
    Some(match served {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{SERVER}: {error:#}");
            ExitCode::FAILURE
        }
    })
}
