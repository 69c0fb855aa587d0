//! A transaction's view behind a connection of its own.
//!
//! Thread safety: a [`View`] is a handle. Invariants: what the view's kernel side knows ends with the view:
//! after [`View::end`] every request fails, even if a process still has the mount.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{FileSystem, NodeId, TxnView};
use rustix::io::Errno;

use super::{Bridge, BridgeConfig, init_config};
use crate::session::{InitConfig, Readdirplus, Session, SessionConfig, SessionError};
use crate::transport::{BufferPool, DeviceTransport};

/// Threads that take requests of one view: a parked request leaves them free, and most transactions have
/// one busy process at a time.
const WORKERS: usize = 2;

/// Why a view can't be served.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ViewError {
    /// The descriptor is of something else.
    #[error("the descriptor is not one of a FUSE mount: {0}")]
    Descriptor(Errno),
    /// The connection did not come up.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// A view that is mounted somewhere.
pub struct View {
    bridge: Arc<Bridge>,
    session: Session,
}

/// How a view is served.
#[derive(Clone)]
pub struct ViewOptions {
    /// Where request buffers come from.
    pub buffers: Arc<BufferPool>,
    /// Whether a worker follows the program that asks; see [`SessionConfig::steers`].
    pub steers: bool,
    /// The only user and group that the kernel side knows; see [`BridgeConfig::only_ids`].
    pub only_ids: Option<(u32, u32)>,
}

impl View {
    /// Serves `fs`, a transaction of the bridge `main`, on the connection of `device`, which has just been
    /// mounted, here or in another namespace.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn serve(
        main: &Bridge,
        fs: Arc<FileSystem>,
        device: OwnedFd,
        options: ViewOptions,
    ) -> Result<Self, ViewError> {
        let transport = DeviceTransport::interruptible(device).map_err(ViewError::Descriptor)?;
        let ViewOptions { buffers, steers, only_ids } = options;
        let config = session_config(&fs, steers);
        let bridge_config = bridge_config(main, &fs, only_ids);
        let bridge = Arc::new(main.of_view(fs, bridge_config));
        let operations = Arc::clone(&bridge) as Arc<_>;
        let session = Session::start_with(Box::new(transport), &config, operations, buffers)?;
        bridge.attach(session.notifier());
        Ok(Self { bridge, session })
    }

    /// What stands between the view and its kernel side.
    pub fn bridge(&self) -> &Arc<Bridge> {
        &self.bridge
    }

    /// Whether it is mounted nowhere any more.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Ends the connection. The view has been committed or aborted before: that is what answers every
    /// waiting request.
    ///
    /// # Errors
    /// The connection had failed before.
    pub fn end(self) -> Result<(), SessionError> {
        drop(self.bridge);
        self.session.abort()
    }
}

/// Whether the view is that of a transaction that locks what it reads.
fn locks_reads(fs: &FileSystem) -> bool {
    fs.txn().is_some_and(TxnView::locks_reads)
}

/// How the session of a view runs. Where reads are locked, a listing must not look at each file.
fn session_config(fs: &FileSystem, steers: bool) -> SessionConfig {
    let id = fs.txn().map_or(0, |txn| txn.id().0);
    let has_acls = fs.has_acls();
    let readdirplus = if locks_reads(fs) { Readdirplus::Off } else { Readdirplus::Always };
    SessionConfig {
        init: InitConfig { readdirplus, posix_acl: has_acls, dont_mask: has_acls, ..init_config() },
        workers: WORKERS,
        clone_device: false,
        steers,
        name: format!("txn{id}"),
        root: fs.nodes().root().0,
        ..SessionConfig::default()
    }
}

/// As on the main line, but that this kernel side writes through. Attributes of directories tell of all their
/// entries: where reads are locked, only a request for them locks that. In a branch of one directory there is
/// nothing of the whole store: no hidden directory, no calls.
fn bridge_config(main: &Bridge, fs: &FileSystem, only_ids: Option<(u32, u32)>) -> BridgeConfig {
    let of_main = &main.files.shared.config;
    let directory_attr_timeout =
        if locks_reads(fs) { Duration::ZERO } else { of_main.directory_attr_timeout };
    let mut config = BridgeConfig { directory_attr_timeout, writeback: false, only_ids, ..of_main.clone() };
    if fs.nodes().root() != NodeId::ROOT {
        (config.hidden, config.control) = (None, None);
    }
    config
}

#[cfg(test)]
mod tests;
