//! A FUSE daemon in the foreground, as a child of this program.
//!
//! Thread safety: each value belongs to one thread.
//!
//! Invariants: on drop the daemon has ended and nothing of it is mounted.

use crate::host;
use crate::memory::{MemoryPeak, MemoryWatch};
use crate::mount::{is_mounted, unmount_lazily};
use anyhow::{Context, Result, bail};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const MOUNT_LIMIT: Duration = Duration::from_mins(1);
/// Unmounting writes out everything that is dirty.
const EXIT_LIMIT: Duration = Duration::from_mins(5);

/// A running daemon and what it has mounted.
pub struct Daemon {
    child: Child,
    dir: PathBuf,
    log: PathBuf,
    watch: Option<MemoryWatch>,
    has_ended: bool,
}

impl Daemon {
    /// Starts the command and waits until something is mounted on `dir`. Its output goes to `log`.
    pub fn start(mut command: Command, dir: &Path, log: &Path) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        // A process group of its own: Ctrl-C on the terminal must not end it under a workload.
        let child = command
            .stdin(Stdio::null())
            .stdout(output.try_clone()?)
            .stderr(output)
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let watch = Some(MemoryWatch::start(child.id()));
        let mut daemon = Self { child, dir: dir.to_owned(), log: log.to_owned(), watch, has_ended: false };
        let mounted = host::wait_until(MOUNT_LIMIT, || {
            if let Some(status) = daemon.child.try_wait()? {
                daemon.has_ended = true;
                bail!("{command:?} ended before it mounted, {status}:\n{}", daemon.log_tail());
            }
            is_mounted(dir)
        })?;
        if !mounted {
            bail!("{command:?} has not mounted within {MOUNT_LIMIT:?}:\n{}", daemon.log_tail());
        }
        Ok(daemon)
    }

    /// Of its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Unmounts by calling `stop`, waits for the end, and says how much memory was taken.
    pub fn stop(mut self, stop: impl FnOnce(&Child) -> Result<()>) -> Result<MemoryPeak> {
        stop(&self.child)?;
        let mut status = None;
        let ended = host::wait_until(EXIT_LIMIT, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        self.has_ended = ended;
        // Only now: writing everything out may be what takes the most.
        let peak = self.watch.take().map(MemoryWatch::finish).unwrap_or_default();
        match status {
            None => bail!("the daemon has not ended within {EXIT_LIMIT:?}:\n{}", self.log_tail()),
            Some(status) if !status.success() => {
                bail!("the daemon ended with {status}:\n{}", self.log_tail())
            }
            Some(_) => Ok(peak),
        }
    }

    /// Kills it, as a machine that dies; what it has mounted goes, too.
    pub fn kill(mut self) -> Result<()> {
        self.child.kill()?;
        self.child.wait()?;
        self.has_ended = true;
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(20)..].join("\n")
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !self.has_ended {
            unmount_lazily(&self.dir);
            // It may have ended by itself since, and there is no daemon left to tell.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        unmount_lazily(&self.dir);
    }
}
