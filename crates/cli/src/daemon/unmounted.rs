//! The daemon of a store that is not mounted: it serves commands, keys and processes without a mount.
//!
//! Thread safety: shared. Invariant: nothing here asks for FUSE, nor for rights that an ordinary user lacks.

use std::sync::{Arc, OnceLock};

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_posix::Volume;
use kvfs_service::NoMounts;

use super::cannot_start;
use super::front_ends::{FrontEnds, Store};
use super::public::PublicSockets;
use super::signals::Signals;
use crate::error::{CliError, Code, Result};

/// Tells the daemon to end.
#[derive(Default)]
pub(super) struct End {
    is_asked: Mutex<bool, class::CliDaemonUnmountedIsAsked>,
    asked: Condvar,
}

impl End {
    pub(super) fn ask(&self) {
        *self.is_asked.lock() = true;
        self.asked.notify_all();
    }

    fn wait(&self) {
        self.asked.wait_while(&mut self.is_asked.lock(), |is_asked| !*is_asked);
    }
}

/// From the first socket to the last.
pub(super) fn run(
    store: Store<'_>,
    end: &Arc<End>,
    signals: Signals,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let volume = Volume::over(Arc::clone(store.fs)).map_err(|error| cannot_start("a thread", &error))?;
    let main = OnceLock::from(volume.view());
    let keys = store.public.and_then(PublicSockets::listen_for_keys);
    let front_ends = FrontEnds::start(store, Arc::new(NoMounts::default()), keys, main, None)?;
    tracing::info!(store = %store.dir.path().display(), "served without a mount");

    let ender = signals.end(front_ends.transactions(), end);
    if store.plan.while_used {
        let end = Arc::clone(end);
        front_ends.stop_when_unused(move || end.ask());
    }
    let announced = ender.as_ref().map_or_else(|error| Err(error.clone()), |_| ready());
    if announced.is_ok() {
        end.wait();
    }
    store.service.begin_end();
    front_ends.end();
    drop(ender);
    let failed = |error| CliError::new(Code::Failed, format!("cannot write everything out: {error}"));
    announced.and(volume.unmount().map_err(failed))
}
