//! SIGTERM, SIGINT and SIGHUP abort open transactions and unmount: cleanly the first time, lazily the second,
//! by force the third.
//!
//! Thread safety: one thread of its own; it may wait for the kernel, which needs the workers to write dirty
//! pages.

use std::sync::Arc;
use std::thread::JoinHandle;

use kvfs_fs::FileSystem;
use kvfs_fuse::mount::{MountError, MountPoint, Unmount};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Handle;

use super::Transactions;
use crate::error::{CliError, Code, Result};

/// Signals are caught, and wait for something to unmount.
pub(super) struct Signals {
    caught: signal_hook::iterator::Signals,
}

/// The thread that unmounts; dropped, it ends.
pub(super) struct Unmounter {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    pub(super) fn catch() -> Result<Self> {
        let caught = signal_hook::iterator::Signals::new([SIGTERM, SIGINT, SIGHUP])
            .map_err(|error| CliError::new(Code::Failed, format!("cannot catch signals: {error}")))?;
        Ok(Self { caught })
    }

    /// From now on a signal unmounts `mounted`; also one that came before.
    pub(super) fn unmount(
        self,
        mounted: &Arc<MountPoint>,
        fs: &Arc<FileSystem>,
        transactions: &Arc<Transactions>,
    ) -> Result<Unmounter> {
        let Self { mut caught } = self;
        let handle = caught.handle();
        let (mounted, fs, transactions) = (Arc::clone(mounted), Arc::clone(fs), Arc::clone(transactions));
        let body = move || {
            for (nth, signal) in caught.forever().enumerate() {
                tracing::info!(signal, "unmounting");
                // Their views would keep the mount in use, in namespaces that nobody else sees.
                transactions.abort_all("the daemon was told to end");
                answer(nth, &mounted, &fs);
            }
        };
        let thread = std::thread::Builder::new()
            .name("kvfs-signals".into())
            .spawn(body)
            .map_err(|error| CliError::new(Code::Failed, format!("cannot start a thread: {error}")))?;
        Ok(Unmounter { handle, thread: Some(thread) })
    }
}

fn answer(nth: usize, mounted: &MountPoint, fs: &FileSystem) {
    let how = match nth {
        0 => Unmount::Clean,
        1 => Unmount::Lazy,
        _ => Unmount::Abort,
    };
    match mounted.unmount(how) {
        Ok(()) => {}
        Err(error @ MountError::Busy { .. }) => {
            tracing::warn!(%error, "still serving; a second signal detaches the mount all the same");
            // What follows a signal that is not obeyed is SIGKILL, often.
            let synced = fs.sync_target_all().map(|position| fs.store().sync(position));
            if !matches!(synced, Ok(Ok(()))) {
                tracing::error!(?synced, "cannot write everything out");
            }
        }
        Err(error) => tracing::error!(%error, "cannot unmount"),
    }
}

impl Drop for Unmounter {
    fn drop(&mut self) {
        self.handle.close();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the signal thread panicked");
        }
    }
}
