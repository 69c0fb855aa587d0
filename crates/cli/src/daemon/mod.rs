//! The daemon of a store: open → mount, unless it is served without → serve → unmount → close.
//!
//! Thread safety: one daemon a process. Its threads: the workers and the notifier of each FUSE session (the
//! main line's and one for each mounted transaction or branch), the engine's, the bridges', control socket,
//! signals, the clocks of transactions and branches, and the main thread, which waits for the main session to
//! end.
//!
//! Invariants: the daemon never depends on its own mount (working directory `/`, log and socket in the store,
//! which lies elsewhere); the store is closed after the last request; a client that waits for the end is told
//! how it went.

pub(crate) mod background;
mod cache_trace;
mod control_handler;
mod files;
mod front_ends;
mod inherited;
mod keys_handler;
pub(crate) mod log;
pub(crate) mod metrics;
mod point;
pub(crate) mod public;
mod resident;
mod signals;
mod tree_calls;
mod unmounted;
mod views;

pub(crate) use point::explain_mount;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::mount::{MountOptions, MountPoint, Unmount};
use kvfs_fuse::session::{InitConfig, SessionConfig};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Session, process};
use kvfs_open::OpenOptions;
use kvfs_service::follow::{CACHE_TIME_MAX, Follower};
use kvfs_service::operations::SlowLog;
use kvfs_service::{LockLog, Service, ServiceError};
use rustix::process::Resource;
use signal_hook::consts::SIGXFSZ;

use crate::allocator;
use crate::commands::mkfs::make_plain;
use crate::commands::mount::options::Asked;
use crate::control::{Mounted, RequestHandler, Server};
use crate::control_dir;
use crate::error::{CliError, Code, Result};
use crate::open::{OpenStore, Unmounted, open_unless_served};
use crate::store_dir::StoreDir;
use files::KernelSides;
use front_ends::{FrontEnds, Store};
use metrics::{Metrics, MetricsPlace};
use public::PublicSockets;
use resident::Keeper;
use signals::Signals;
use unmounted::End;
use views::{KernelSide, MainMount, MountedViews};

/// Of −1000 (never) to 1000: a killed daemon fails every process that uses the mount.
const OOM_SCORE_ADJUSTMENT: i16 = -900;

/// The kernel reads this far ahead (bytes); FUSE's own default is 128 KiB.
const READ_AHEAD_BYTES: u32 = 1 << 20;

/// What to serve, where to mount it, and how. Paths are absolute and without symbolic links.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option of its own")]
pub(crate) struct Plan {
    pub(crate) store: PathBuf,
    /// `None`: it is served without a mount.
    pub(crate) dir: Option<PathBuf>,
    /// Another user whose store is mounted all the same.
    pub(crate) store_owner: Option<u32>,
    pub(crate) create: bool,
    /// Without a mount: until the last process has gone.
    pub(crate) while_used: bool,
    pub(crate) size: Option<u64>,
    pub(crate) nonempty: bool,
    /// The kernel keeps dirty pages.
    pub(crate) writeback: bool,
    /// Whether workers follow the program that asks.
    pub(crate) steers: bool,
    /// Whether requests are to come by `io_uring`, where that is possible.
    pub(crate) io_uring: bool,
    /// Birth times are not asked for.
    pub(crate) nobtime: bool,
    pub(crate) workers: Option<usize>,
    /// Operations that take as long are told of in the log; `None`: none are.
    pub(crate) slow: Option<Duration>,
    /// Where metrics are served.
    pub(crate) metrics: Option<MetricsPlace>,
    /// Where what is asked of the block cache is recorded.
    pub(crate) cache_trace: Option<PathBuf>,
    pub(crate) mount: MountOptions,
    pub(crate) open: OpenOptions,
    /// What all of this is made of, for a remount.
    pub(crate) asked: Asked,
}

/// `None`: another one serves it, and that is all that is wanted.
fn open(plan: &Plan, store: &StoreDir, signals: &Signals) -> Result<Option<OpenStore>> {
    let open = match open_unless_served(store, &plan.open).inspect(|_| signals.opened())? {
        Unmounted::Opened(open) => open,
        Unmounted::Served(_) if plan.while_used => return Ok(None),
        Unmounted::Served(error) => return Err(error),
    };
    if let Some(path) = &plan.cache_trace
        && let Err(error) = cache_trace::start(path, &open)
    {
        open.close()?;
        return Err(error);
    }
    Ok(Some(open))
}

/// Mounts, calls `ready` when the mount or the sockets answer, serves until it is unmounted or told to end,
/// closes the store. Does nothing more where another one serves it, and that is all that is wanted.
pub(crate) fn serve(plan: &Plan, log: log::Target, ready: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    if let Some(dir) = &plan.dir {
        point::check(plan, dir)?;
    }
    let store = find_or_make(plan)?;
    store.check_owner(plan.store_owner)?;
    if let Some(dir) = &plan.dir {
        point::check_apart(&store, dir)?;
    }
    std::env::set_current_dir("/").map_err(|error| CliError::io("go to", "/".as_ref(), &error))?;
    log::start(&store, log)?;
    protect_process();
    allocator::keep_for_reuse(plan.open.memory.bytes());
    // Before other threads start, so that none of them is interrupted.
    let signals = Signals::catch()?;

    let Some(open) = open(plan, &store, &signals)? else { return ready().map(|()| ExitCode::SUCCESS) };
    tell_of_end(&store)?;
    let plan = &degraded(plan, &open);
    point::detach_dead_views(&store)?;
    let fs = Arc::clone(&open.fs);
    let keeper = Keeper::start(open.engine.clone(), Arc::clone(&fs), plan.open.memory)
        .map_err(|error| cannot_start("a thread", &error))?;
    let source = store.path().to_owned();
    let mounted = Mounted { dir: plan.dir.clone().unwrap_or_default(), source };
    let service = Arc::new(open.into_service());
    let lock_log = LockLog::start(service.locks()).map_err(|error| cannot_start("a thread", &error))?;
    let slow_log = plan.slow.map(|threshold| SlowLog::start(service.operations(), threshold)).transpose();
    let slow_log = slow_log.map_err(|error| cannot_start("a thread", &error))?;
    let metrics = plan.metrics.as_ref().map(|place| serve_metrics(plan, place, &service)).transpose()?;
    let handler = RequestHandler::new(Arc::clone(&service), mounted);
    let end = Arc::new(End::default());
    let asked = Arc::clone(&end);
    let handler = if plan.dir.is_some() {
        let asked = plan.asked.clone();
        handler.remounted_by(move |options| {
            asked.remount(options).map_err(|error| ServiceError::new(error.code.kind(), error.message))
        })
    } else {
        handler.ended_by(move || asked.ask())
    };
    let server = store.bind_control().and_then(|socket| Server::start(socket, Arc::new(handler)));
    let server = unless_unwritable(plan, server)
        .map_err(|error| CliError::io("listen on", &store.control_name(), &error));
    let public = PublicSockets::new(plan, store.path());
    let served = match server {
        Ok(mut server) => {
            let listener = public.as_ref().and_then(PublicSockets::listen_for_commands);
            if let (Some(server), Some(listener)) = (&mut server, listener)
                && let Err(error) = server.also_listen(listener)
            {
                tracing::warn!(%error, "no control socket for ordinary users");
            }
            let opened = Store { plan, dir: &store, fs: &fs, service: &service, public: public.as_ref() };
            let run = match &plan.dir {
                Some(dir) => run_session(opened, dir, signals, ready),
                None => unmounted::run(opened, &end, signals, ready),
            };
            Ok((run, server))
        }
        Err(error) => Err(error),
    };
    drop((metrics, slow_log));
    drop(fs);
    drop(keeper);
    // Before the store can be opened anew: the next daemon has the same directory.
    drop(public);
    let closed = match &served {
        Ok((_, Some(server))) => kvfs_store::progress::watched(server.news(), || service.close()),
        Ok((_, None)) | Err(_) => service.close(),
    };
    drop(lock_log);
    if let Err(error) = &closed {
        tracing::error!(%error, "closing the store failed");
    }
    let (served, server) = served?;
    let outcome = served.and(closed.map_err(CliError::from));
    if let Some(server) = server {
        let refusal = |error: &CliError| ServiceError::new(error.code.kind(), error.message.clone());
        server.finish(&outcome.as_ref().map_err(refusal).copied());
    }
    tracing::info!(clean = outcome.is_ok(), "store closed");
    outcome.map(|()| ExitCode::SUCCESS)
}

/// The user is told where nothing lasts.
fn tell_of_end(store: &StoreDir) -> Result<()> {
    if store.engine()?.is_volatile() {
        let store = store.path().display();
        tracing::warn!(%store, "what it holds is in memory alone");
        eprintln!(
            "kvfs: {store} keeps everything in memory: it is empty now, and what it holds ends with the unmount"
        );
    }
    Ok(())
}

/// What is served where devices are missing: the same, and nothing is written. The user is told.
fn degraded(plan: &Plan, open: &OpenStore) -> Plan {
    let mut plan = plan.clone();
    if let Some(missing) = open.engine.missing() {
        tracing::warn!("{missing}");
        eprintln!("kvfs: {missing}; the store can only be read");
        plan.open.read_only = true;
        plan.mount.read_only = true;
    }
    plan
}

fn cannot_start(what: &str, error: &std::io::Error) -> CliError {
    CliError::new(Code::Failed, format!("cannot start {what}: {error}"))
}

fn serve_metrics(plan: &Plan, place: &MetricsPlace, service: &Arc<Service>) -> Result<Metrics> {
    if let (MetricsPlace::Unix(path), Some(dir)) = (place, &plan.dir)
        && path.starts_with(dir)
    {
        let message = format!("metrics=unix:{place} lies on the mount itself; choose another place");
        return Err(CliError::new(Code::Usage, message));
    }
    Metrics::start(place, service)
        .map_err(|error| CliError::new(Code::Failed, format!("cannot serve metrics on {place}: {error}")))
}

/// A store that is only to be read may lie where no socket can be made: then there is none, and commands open
/// the store themselves, beside the daemon.
fn unless_unwritable<T>(plan: &Plan, made: std::io::Result<T>) -> std::io::Result<Option<T>> {
    use std::io::ErrorKind::{PermissionDenied, QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let is_unwritable = |error: &std::io::Error| {
        matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem | StorageFull | QuotaExceeded)
    };
    match made {
        Err(error) if plan.open.read_only && is_unwritable(&error) => {
            tracing::info!(%error, "no socket: the store's directory can't be written to");
            Ok(None)
        }
        made => made.map(Some),
    }
}

fn find_or_make(plan: &Plan) -> Result<StoreDir> {
    if plan.create && !StoreDir::is_occupied(&plan.store) {
        if plan.open.read_only {
            return Err(CliError::new(Code::Usage, "--create and -o ro contradict each other"));
        }
        make_plain(&plan.store, plan.size)?;
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
    // Connections of users and kernel sides of views have one or more descriptors each. Commands have the
    // limits of their caller.
    for resource in [Resource::Nofile, Resource::Fsize] {
        if let Err(error) = process::raise_limit(resource) {
            tracing::debug!(?resource, %error, "a limit stays as it was");
        }
    }
    // A file that would become longer than it may is then refused with EFBIG, and ends no process.
    if let Err(error) = signal_hook::flag::register(SIGXFSZ, Arc::new(AtomicBool::new(false))) {
        tracing::debug!(%error, "a file that becomes too long ends the daemon");
    }
    if let Err(error) = process::adjust_oom_score(OOM_SCORE_ADJUSTMENT) {
        tracing::debug!(%error, "not protected from the out-of-memory killer");
    }
}

/// From mount to unmount.
fn run_session(
    opened: Store<'_>,
    dir: &Path,
    signals: Signals,
    ready: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let Store { plan, dir: store, fs, service, public } = opened;
    let options = MountOptions { source: store.path().to_owned(), ..plan.mount.clone() };
    let (mounted, device) = kvfs_fuse::mount::mount(dir, &options).map_err(|error| explain_mount(&error))?;
    let mounted = Arc::new(mounted);
    let failed = |what: &str, error: &dyn std::fmt::Display| {
        CliError::new(Code::Failed, format!("cannot {what} {}: {error}", dir.display()))
    };
    let keys = public.and_then(PublicSockets::listen_for_keys);
    let public = public.filter(|_| keys.is_some());
    let keys_socket = public.map_or_else(|| store.keys_name(), PublicSockets::keys_name);
    let hidden = Some(control_dir::directory(service, fs, keys_socket));
    let control = Some(control_handler::control_handler(service));
    let view_calls = Some(tree_calls::handler(service));
    let writeback = plan.writeback;
    let btimes = !plan.nobtime;
    let waiting_bytes_max = plan.open.memory.waiting_bytes();
    let bridge_config = BridgeConfig {
        hidden,
        control,
        view_calls,
        writeback,
        btimes,
        waiting_bytes_max,
        ..kernel_caches(plan)
    };
    let bridge = Bridge::new(Arc::clone(fs), bridge_config);
    let bridge = Arc::new(bridge.map_err(|error| failed("serve", &error))?);
    let acls = fs.has_acls();
    let (posix_acl, dont_mask, io_uring) = (acls, acls, plan.io_uring);
    // Else pages are dropped when it is told to, and sizes and times are its own.
    let explicit_inval_data = !plan.open.follows;
    let asked = InitConfig { posix_acl, dont_mask, io_uring, explicit_inval_data, ..init_config() };
    let init = InitConfig { writeback_cache: writeback, ..asked };
    let mut config = SessionConfig { init, name: "kvfs".to_owned(), ..Default::default() };
    config.steers = plan.steers;
    config.workers = plan.workers.unwrap_or(config.workers);
    config.idle_buffer_bytes_max = plan.open.memory.io_bytes() as usize;
    let transport = Box::new(DeviceTransport::new(device));
    let session = Session::start(transport, &config, Arc::clone(&bridge) as Arc<_>)
        .map_err(|error| failed("serve", &error))?;
    bridge.attach(session.notifier());
    let told = Arc::clone(&bridge);
    let follower = Follower::start(fs, move |is_newer| told.forget_renewed(is_newer));
    let follower = follower.map_err(|error| failed("follow the store on", &error))?;
    let serving = Arc::clone(&bridge);
    let (buffers, options, store_dir) = (session.buffers(), plan.mount.clone(), store.clone());
    let views = Arc::new(MountedViews::default());
    let kernel = KernelSides { main: KernelSide::of(&bridge), views: Arc::clone(&views) };
    let mounts = Arc::new(MainMount {
        bridge,
        buffers,
        steers: plan.steers,
        options,
        dir: dir.to_owned(),
        store: store_dir,
        views,
    });
    let front_ends = FrontEnds::start(opened, mounts, keys, OnceLock::new(), Some(kernel))?;
    if let Err(error) = kvfs_fuse::mount::set_read_ahead(mounted.path(), READ_AHEAD_BYTES) {
        tracing::debug!(%error, "read-ahead stays at the kernel's default");
    }
    tracing::info!(store = %store.path().display(), dir = %dir.display(), "mounted");

    // From here on the way out is the end of the session, whatever fails.
    let unmounter = signals.unmount(&mounted, fs, front_ends.transactions());
    let announced = unmounter.as_ref().map_or_else(|error| Err(error.clone()), |_| ready());
    if announced.is_err() {
        detach_lazily(&mounted);
    }
    let ended = session.wait();
    service.begin_end();
    mounted.forget();
    tracing::info!(dir = %dir.display(), "unmounted");
    drop(follower);
    front_ends.end();
    serving.end();
    drop(unmounter);
    announced?;
    ended.map_err(|error| failed("go on serving", &error))
}

/// How long the kernel may keep what it was told: until it is told otherwise, unless there is a writer
/// elsewhere, who tells no kernel.
fn kernel_caches(plan: &Plan) -> BridgeConfig {
    let config = BridgeConfig::default();
    if !plan.open.follows {
        return config;
    }
    let (entry_timeout, attr_timeout) = (CACHE_TIME_MAX, CACHE_TIME_MAX);
    let (directory_attr_timeout, negative_timeout) = (CACHE_TIME_MAX, CACHE_TIME_MAX);
    BridgeConfig { entry_timeout, attr_timeout, directory_attr_timeout, negative_timeout, ..config }
}

fn detach_lazily(mounted: &MountPoint) {
    if let Err(error) = mounted.unmount(Unmount::Lazy) {
        tracing::warn!(%error, "cannot unmount");
    }
}
