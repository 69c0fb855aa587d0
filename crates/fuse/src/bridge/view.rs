//! A transaction's view behind a connection of its own.
//!
//! Thread safety: a [`View`] is a handle. Invariants: what the view's kernel side knows ends with the view:
//! after [`View::end`] every request fails, whoever still has the mount.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::FileSystem;
use rustix::io::Errno;

use super::{Bridge, BridgeConfig, init_config};
use crate::session::{InitConfig, Readdirplus, Session, SessionConfig, SessionError};
use crate::transport::{BufferPool, DeviceTransport, Transport};

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
    /// No thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    /// The connection did not come up.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// A view that is mounted somewhere.
pub struct View {
    bridge: Arc<Bridge>,
    session: Session,
}

impl View {
    /// Serves `fs`, a transaction of the bridge `main`, on the connection of `device`, which somebody has just
    /// mounted, here or in a namespace of his own. Request buffers come from `buffers`.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn serve(
        main: &Bridge,
        fs: Arc<FileSystem>,
        device: OwnedFd,
        buffers: Arc<BufferPool>,
    ) -> Result<Self, ViewError> {
        Self::serve_to(main, fs, device, buffers, None)
    }

    /// As [`Self::serve`], where the kernel side knows only this user and group, if `only_ids` says so.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn serve_to(
        main: &Bridge,
        fs: Arc<FileSystem>,
        device: OwnedFd,
        buffers: Arc<BufferPool>,
        only_ids: Option<(u32, u32)>,
    ) -> Result<Self, ViewError> {
        let transport = DeviceTransport::interruptible(device).map_err(ViewError::Descriptor)?;
        Self::start(main, fs, Box::new(transport), buffers, only_ids)
    }

    /// As [`Self::serve`], on any transport that can be ended from this side.
    ///
    /// # Errors
    /// See [`ViewError`].
    pub fn serve_on(
        main: &Bridge,
        fs: Arc<FileSystem>,
        transport: Box<dyn Transport>,
        buffers: Arc<BufferPool>,
    ) -> Result<Self, ViewError> {
        Self::start(main, fs, transport, buffers, None)
    }

    fn start(
        main: &Bridge,
        fs: Arc<FileSystem>,
        transport: Box<dyn Transport>,
        buffers: Arc<BufferPool>,
        only_ids: Option<(u32, u32)>,
    ) -> Result<Self, ViewError> {
        let locks_reads = fs.locks_reads();
        let id = fs.txn_id().map_or(0, |id| id.0);
        let config = SessionConfig {
            init: view_init_config(locks_reads, fs.has_acls()),
            workers: WORKERS,
            clone_device: false,
            name: format!("txn{id}"),
            ..SessionConfig::default()
        };
        let bridge_config = BridgeConfig { only_ids, ..view_config(main, locks_reads) };
        let bridge = Arc::new(main.of_view(fs, bridge_config).map_err(ViewError::Thread)?);
        let session = Session::start_with(transport, &config, Arc::clone(&bridge) as Arc<_>, buffers)?;
        bridge.attach(session.notifier());
        Ok(Self { bridge, session })
    }

    /// What stands between the view and its kernel side.
    pub fn bridge(&self) -> &Bridge {
        &self.bridge
    }

    /// Whether nobody has it mounted any more.
    pub fn has_ended(&self) -> bool {
        self.session.has_ended()
    }

    /// Ends the connection. The view has been committed or aborted before: that is what answers everybody who
    /// waits.
    ///
    /// # Errors
    /// The connection had failed before.
    pub fn end(self) -> Result<(), SessionError> {
        drop(self.bridge);
        self.session.abort()
    }
}

/// What to negotiate for a view. Where reads are locked, a listing must not look at each file.
fn view_init_config(locks_reads: bool, has_acls: bool) -> InitConfig {
    let readdirplus = if locks_reads { Readdirplus::Off } else { Readdirplus::Always };
    InitConfig { readdirplus, posix_acl: has_acls, dont_mask: has_acls, ..init_config() }
}

/// Attributes of directories tell of all their entries: where reads are locked, only whoever asks for them
/// locks that. What is hidden on the main line is hidden here, too.
fn view_config(main: &Bridge, locks_reads: bool) -> BridgeConfig {
    let of_main = &main.files.shared.config;
    let config = BridgeConfig {
        hidden: of_main.hidden.clone(),
        door: of_main.door.clone(),
        ..BridgeConfig::default()
    };
    let directory_attr_timeout = if locks_reads { Duration::ZERO } else { config.directory_attr_timeout };
    BridgeConfig { directory_attr_timeout, ..config }
}
