//! The daemon of a mounted store: open → mount → serve → unmount → close.
//!
//! Thread safety: one daemon a process. Its threads: the workers and the notifier of each FUSE session (the
//! main line's and one for each mounted transaction or branch), the engine's, the bridges', control socket, signals,
//! the clocks of transactions and branches, and the main thread, which waits for the main session to end.
//!
//! Invariants: the daemon never depends on its own mount (working directory `/`, log and socket in the
//! store, which lies elsewhere); the store is closed after the last request; whoever waits for the end is
//! told how it went.

pub(crate) mod background;
mod branches;
pub(crate) mod log;
mod point;
mod resident;
mod signals;
mod transactions;

pub(crate) use branches::Branches;
pub(crate) use point::explain_mount;
pub(crate) use transactions::Transactions;

use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::mount::{MountOptions, MountPoint, Unmount};
use kvfs_fuse::session::{InitConfig, SessionConfig};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Session, process};

use crate::allocator;
use crate::commands::mkfs::make_store;
use crate::control::{Response, Server};
use crate::error::{CliError, Code, Result};
use crate::hidden;
use crate::open::{OpenOptions, open_unmounted};
use crate::service::Service;
use crate::store_dir::StoreDir;
use resident::Keeper;
use signals::Signals;
use transactions::MainLine;

/// Of −1000 (never) to 1000: a killed daemon fails everybody who uses the mount.
const OOM_SCORE_ADJUSTMENT: i16 = -900;

/// The kernel reads this far ahead (bytes); FUSE's own default is 128 KiB.
const READ_AHEAD_BYTES: u32 = 1 << 20;

/// What to mount, where, and how. Paths are absolute and without symbolic links.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Plan {
    pub(crate) store: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) create: bool,
    pub(crate) size: Option<u64>,
    pub(crate) nonempty: bool,
    /// The kernel keeps dirty pages.
    pub(crate) writeback: bool,
    /// Whether workers follow the program that asks.
    pub(crate) steers: bool,
    /// Birth times are not asked for.
    pub(crate) nobtime: bool,
    pub(crate) workers: Option<usize>,
    pub(crate) mount: MountOptions,
    pub(crate) open: OpenOptions,
}

/// Mounts, calls `ready` when the mount answers, serves until it is unmounted, closes the store.
pub(crate) fn serve(plan: &Plan, log: log::Target, ready: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    point::check(plan)?;
    let store = find_or_make(plan)?;
    point::check_apart(&store, &plan.dir)?;
    std::env::set_current_dir("/").map_err(|error| CliError::io("go to", "/".as_ref(), &error))?;
    log::start(&store, log)?;
    protect_process();
    allocator::keep_for_reuse(plan.open.memory.bytes());
    // Before other threads start, so that none of them is interrupted.
    let signals = Signals::catch()?;

    let open = open_unmounted(&store, &plan.open)?;
    let fs = Arc::clone(&open.fs);
    let keeper = Keeper::start(Arc::clone(&open.db), plan.open.memory)
        .map_err(|error| CliError::new(Code::Failed, format!("cannot start a thread: {error}")))?;
    let service = Arc::new(Service::new(open, Some(plan.dir.clone())));
    let server = Server::start(&store.socket_path(), Arc::clone(&service) as Arc<_>)
        .map_err(|error| CliError::io("listen on", &store.socket_path(), &error));
    let served = match server {
        Ok(server) => Ok((run_session(plan, &store, &fs, &service, signals, ready), server)),
        Err(error) => Err(error),
    };
    drop(fs);
    drop(keeper);
    let closed = match &served {
        Ok((_, server)) => kvfs_store::progress::watched(server.news(), || service.close()),
        Err(_) => service.close(),
    };
    if let Err(error) = &closed {
        tracing::error!(%error, "closing the store failed");
    }
    let (served, server) = served?;
    let outcome = served.and(closed);
    server.finish(&match &outcome {
        Ok(()) => Response::Done,
        Err(error) => Response::Failed { code: error.code as u8, message: error.message.clone() },
    });
    tracing::info!(clean = outcome.is_ok(), "store closed");
    outcome.map(|()| ExitCode::SUCCESS)
}

fn find_or_make(plan: &Plan) -> Result<StoreDir> {
    if plan.create && !StoreDir::is_occupied(&plan.store) {
        if plan.open.read_only {
            return Err(CliError::new(Code::Usage, "--create and -o ro contradict each other"));
        }
        make_store(&plan.store, None, plan.size, crate::commands::mkfs::INLINE_DEFAULT, false)?;
    }
    StoreDir::open(&plan.store)
}

/// Dirty pages of mapped files need this process when memory is gone.
fn protect_process() {
    if let Err(error) = process::become_io_flusher() {
        tracing::debug!(%error, "not marked as a process that writes dirty pages");
    }
    if let Err(error) = kvfs_memory::huge_pages_only_where_asked_for() {
        tracing::debug!(%error, "the kernel may give huge pages unasked, which take more memory");
    }
    if let Err(error) = process::adjust_oom_score(OOM_SCORE_ADJUSTMENT) {
        tracing::debug!(%error, "not protected from the out-of-memory killer");
    }
}

/// From mount to unmount.
fn run_session(
    plan: &Plan,
    store: &StoreDir,
    fs: &Arc<kvfs_fs::FileSystem>,
    service: &Arc<Service>,
    signals: Signals,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let source = store.path().to_string_lossy().into_owned();
    let options = MountOptions { source, ..plan.mount.clone() };
    let (mounted, device) =
        kvfs_fuse::mount::mount(&plan.dir, &options).map_err(|error| explain_mount(&error))?;
    let mounted = Arc::new(mounted);
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        CliError::new(Code::Failed, format!("cannot {what} {}: {error}", plan.dir.display()))
    };
    let hidden = Some(hidden::directory(service, fs));
    let door = Some(transactions::door(service));
    let writeback = plan.writeback;
    let btimes = !plan.nobtime;
    let bridge_config = BridgeConfig { hidden, door, writeback, btimes, ..BridgeConfig::default() };
    let bridge = Bridge::new(Arc::clone(fs), bridge_config);
    let bridge = Arc::new(bridge.map_err(|error| failed("serve", &error))?);
    let acls = fs.has_acls();
    let init = InitConfig { writeback_cache: writeback, posix_acl: acls, dont_mask: acls, ..init_config() };
    let mut config = SessionConfig { init, name: "kvfs".to_owned(), ..Default::default() };
    config.steers = plan.steers;
    config.workers = plan.workers.unwrap_or(config.workers);
    config.idle_buffer_bytes_max = plan.open.memory.io_bytes() as usize;
    let transport = Box::new(DeviceTransport::new(device));
    let session = Session::start(transport, &config, Arc::clone(&bridge) as Arc<_>)
        .map_err(|error| failed("serve", &error))?;
    bridge.attach(session.notifier());
    let (buffers, mount) = (session.buffers(), plan.mount.clone());
    let main = MainLine { fs: Arc::clone(fs), bridge, buffers, steers: plan.steers, mount };
    let branches = Branches::new(main.clone(), store.clone())?;
    let transactions = Transactions::new(main, store.clone(), &branches)?;
    service.serve_transactions(&transactions, &branches);
    let keys = serve_keys(plan, store, fs, &transactions)?;
    if let Err(error) = kvfs_fuse::mount::set_read_ahead(mounted.path(), READ_AHEAD_BYTES) {
        tracing::debug!(%error, "read-ahead stays at the kernel's default");
    }
    tracing::info!(store = %store.path().display(), dir = %plan.dir.display(), "mounted");

    // From here on the way out is the end of the session, whatever fails.
    let unmounter = signals.unmount(&mounted, fs, &transactions);
    let announced = unmounter.as_ref().map_or_else(|error| Err(error.clone()), |_| ready());
    if announced.is_err() {
        detach_lazily(&mounted);
    }
    let ended = session.wait();
    mounted.forget();
    tracing::info!(dir = %plan.dir.display(), "unmounted");
    keys.stop();
    transactions.close();
    branches.close();
    drop(unmounter);
    announced?;
    ended.map_err(|error| failed("go on serving", &error))
}

/// The socket for keys. Everybody may connect who gets into the store's directory: each keyspace and each
/// transaction has an owner.
fn serve_keys(
    plan: &Plan,
    store: &StoreDir,
    fs: &Arc<kvfs_fs::FileSystem>,
    transactions: &Arc<Transactions>,
) -> Result<kvfs_rpc::server::Server> {
    let socket = store.keys_socket_path();
    let failed = |error: std::io::Error| CliError::io("listen on", &socket, &error);
    let options = kvfs_rpc::server::Options {
        socket: socket.clone(),
        mode: 0o666,
        store_uid: std::fs::metadata(store.path()).map_err(failed)?.uid(),
        mount: plan.dir.clone(),
        limits: kvfs_rpc::server::Limits::default(),
    };
    let transactions = Arc::clone(transactions) as Arc<_>;
    kvfs_rpc::server::Server::start(Arc::clone(fs), transactions, options).map_err(failed)
}

fn detach_lazily(mounted: &MountPoint) {
    if let Err(error) = mounted.unmount(Unmount::Lazy) {
        tracing::warn!(%error, "cannot unmount");
    }
}
