//! SIGTERM, SIGINT and SIGHUP abort open transactions and unmount: cleanly the first time, lazily the second,
//! by force the third, which also ends what other mounts show still. A mount that is in use when the first
//! one comes is unmounted as soon as it is not. Where there is no mount, the first one ends the daemon. A
//! signal that the daemon was started to ignore, as by nohup, does nothing.
//!
//! Thread safety: one thread takes the signals; it may wait for the kernel, which needs the workers to write
//! dirty pages. Another one waits for what transactions are at work at, and until the mount is not in use.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use kvfs_fs::FileSystem;
use kvfs_fuse::mount::{MountError, MountPoint, Unmount};
use kvfs_service::Transactions;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;
use signal_hook::iterator::Handle;

use crate::error::{CliError, Code, Result};
use crate::procs;

use super::unmounted::End;

/// Between two attempts to unmount what is in use.
const RETRY_PERIOD: Duration = Duration::from_millis(500);

/// Why transactions are aborted.
const TOLD_TO_END: &str = "the daemon was told to end";

/// Signals are caught: while the store is being opened each ends the process, as a crash does; from then on
/// they wait for something to unmount.
pub(super) struct Signals {
    caught: signal_hook::iterator::Signals,
    is_opening: Arc<AtomicBool>,
}

/// The thread that unmounts, or ends the daemon; dropped, it ends.
pub(super) struct Unmounter {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

impl Signals {
    pub(super) fn catch() -> Result<Self> {
        let failed = |error| CliError::new(Code::Failed, format!("cannot catch signals: {error}"));
        let ignored = procs::ignored_signals();
        let signals: Vec<_> =
            [SIGTERM, SIGINT, SIGHUP].into_iter().filter(|signal| !ignored.contains(signal)).collect();
        let is_opening = Arc::new(AtomicBool::new(true));
        for &signal in &signals {
            flag::register_conditional_default(signal, Arc::clone(&is_opening)).map_err(failed)?;
        }
        Ok(Self { caught: signal_hook::iterator::Signals::new(signals).map_err(failed)?, is_opening })
    }

    /// The store is open: from now on a signal closes it.
    pub(super) fn opened(&self) {
        self.is_opening.store(false, Ordering::SeqCst);
    }

    /// From now on a signal unmounts `mounted`; also one that came before.
    pub(super) fn unmount(
        self,
        mounted: &Arc<MountPoint>,
        fs: &Arc<FileSystem>,
        transactions: &Arc<Transactions>,
    ) -> Result<Unmounter> {
        let Self { mut caught, .. } = self;
        let handle = caught.handle();
        let (mounted, fs, transactions) = (Arc::clone(mounted), Arc::clone(fs), Arc::clone(transactions));
        let body = move || {
            let mut waiting: Vec<Waiting> = Vec::new();
            for (nth, signal) in caught.forever().enumerate() {
                tracing::info!(signal, "unmounting");
                if nth > 0 {
                    answer(nth, &mounted, &fs);
                }
                waiting.retain(|waiting| !waiting.thread.is_finished());
                waiting.extend(Waiting::start(nth, &mounted, &fs, &transactions));
            }
            drop(waiting);
        };
        Unmounter::start(handle, body)
    }

    /// From now on a signal ends a daemon without a mount; also one that came before.
    pub(super) fn end(self, transactions: &Arc<Transactions>, end: &Arc<End>) -> Result<Unmounter> {
        let Self { mut caught, .. } = self;
        let handle = caught.handle();
        let (transactions, end) = (Arc::clone(transactions), Arc::clone(end));
        let body = move || {
            for signal in caught.forever() {
                tracing::info!(signal, "ending");
                end.ask();
                transactions.abort_all(TOLD_TO_END);
            }
        };
        Unmounter::start(handle, body)
    }
}

impl Unmounter {
    fn start(handle: Handle, body: impl FnOnce() + Send + 'static) -> Result<Self> {
        let thread = std::thread::Builder::new()
            .name("kvfs-signals".into())
            .spawn(body)
            .map_err(|error| CliError::new(Code::Failed, format!("cannot start a thread: {error}")))?;
        Ok(Self { handle, thread: Some(thread) })
    }
}

/// Aborts what is open. For the first signal it also unmounts, as soon as nothing uses the mount; dropped, it
/// does so no more.
struct Waiting {
    stop: mpsc::Sender<()>,
    thread: JoinHandle<()>,
}

impl Waiting {
    fn start(
        nth: usize,
        mounted: &Arc<MountPoint>,
        fs: &Arc<FileSystem>,
        transactions: &Arc<Transactions>,
    ) -> Option<Self> {
        let (mounted, fs, transactions) = (Arc::clone(mounted), Arc::clone(fs), Arc::clone(transactions));
        let (stop, stopped) = mpsc::channel();
        let body = move || {
            // Their views would keep the mount in use, in namespaces that no other process sees.
            transactions.abort_all(TOLD_TO_END);
            if nth > 0 || !answer(nth, &mounted, &fs) {
                return;
            }
            while stopped.recv_timeout(RETRY_PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                match mounted.unmount(Unmount::Clean) {
                    Err(MountError::Busy { .. }) => {}
                    Ok(()) => return,
                    Err(error) => return tracing::error!(%error, "cannot unmount"),
                }
            }
        };
        let thread = std::thread::Builder::new().name("kvfs-unmount".into()).spawn(body);
        let failed = |error| tracing::error!(%error, "cannot abort transactions, nor wait until the mount is not in use");
        thread.map_err(failed).ok().map(|thread| Self { stop, thread })
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.stop.send(());
        while !self.thread.is_finished() {
            std::thread::park_timeout(RETRY_PERIOD / 10);
        }
    }
}

/// True: the mount is in use, and stays.
fn answer(nth: usize, mounted: &MountPoint, fs: &FileSystem) -> bool {
    let how = match nth {
        0 => Unmount::Clean,
        1 => Unmount::Lazy,
        _ => Unmount::Abort,
    };
    if how != Unmount::Abort && mounted.is_detached() {
        tracing::warn!(
            "still serving: open files, a bind mount or another mount namespace keep what was unmounted; a third \
             signal ends it by force"
        );
    }
    match mounted.unmount(how) {
        Ok(()) => {}
        Err(error @ MountError::Busy { .. }) => {
            let users = procs::describe(&procs::users_of(mounted.path()));
            tracing::warn!(
                %error,
                users,
                "still serving, and unmounted when it is not in use; a second signal detaches the mount at once"
            );
            // What follows a signal that is not obeyed is SIGKILL, often.
            let synced = fs.sync_target_all().map(|position| fs.store().sync(position));
            if !matches!(synced, Ok(Ok(()))) {
                tracing::error!(?synced, "cannot write everything out");
            }
            return true;
        }
        Err(error) => tracing::error!(%error, "cannot unmount"),
    }
    false
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
