//! Where a command finds its store: the daemon of a mounted one, or the store itself.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use kvfs_open::OpenOptions;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use crate::control::{
    self, BranchRequest, Client, Daemon, Mounted, Peer, Request, RequestHandler, Response, TierRequest,
};
use crate::error::{CliError, Code, Result};
use crate::killed_daemon;
use crate::mounts::{self, MountedStore};
use crate::open;
use crate::progress::Bar;
use crate::store_dir::StoreDir;

/// Tells commands under `kvfs exec` which store it is: its directory, or that of its mount.
pub(crate) const EXEC_STORE_VARIABLE: &str = "KVFS_EXEC_STORE";

/// A store that answers requests.
pub(crate) struct Endpoint {
    /// `None`: only its daemon can be reached.
    store: Option<StoreDir>,
    read_only: bool,
    via: Via,
}

/// The store at `target` (default: the current directory, or that of `kvfs exec`): itself, or that of the
/// mount that the path is on, with this mount.
pub(crate) fn find_store(target: Option<&Path>) -> Result<(StoreDir, Option<MountedStore>)> {
    let mounted = mounted_at(target)?;
    let store = match (&mounted, target) {
        (Some(mounted), _) => StoreDir::open(&mounted.store)?,
        (None, Some(path)) => StoreDir::open(path)?,
        (None, None) => {
            let around = std::env::var_os(EXEC_STORE_VARIABLE).ok_or_else(|| {
                CliError::new(
                    Code::NotMounted,
                    "the current directory is not on a mounted kvfs store; name one with -s STORE",
                )
            })?;
            StoreDir::open(Path::new(&around))?
        }
    };
    Ok((store, mounted))
}

/// The mount that `target` is on, if it means that: a store may lie on the mount of another one.
pub(crate) fn mounted_at(target: Option<&Path>) -> Result<Option<MountedStore>> {
    if target.is_none()
        && let Some(mounted) = mounts::containing(Path::new("."))?
    {
        killed_daemon::end_of(&mounted)?;
        return Ok(Some(mounted));
    }
    let around = std::env::var_os(EXEC_STORE_VARIABLE);
    let Some(path) = target.or(around.as_deref().map(Path::new)) else { return Ok(None) };
    let Some(mounted) = mounts::containing(path)? else { return Ok(None) };
    // Before anything is asked on the mount.
    killed_daemon::end_of(&mounted)?;
    Ok(Some(mounted).filter(|_| !open::is_store(path)))
}

/// The daemon of the mount that `target` is on, with where it has mounted the store, by the socket for users
/// of the mount: for what is refused with `error` because the store's directory is closed, or not to be seen
/// from here.
pub(crate) fn reach_public(
    target: Option<&Path>,
    error: CliError,
) -> Result<(Client, PathBuf, MountedStore)> {
    let is_closed = matches!(error.code, Code::Denied | Code::NotAStore);
    match mounted_at(target)? {
        Some(mounted) if is_closed => match control::connect_public(&mounted.store)? {
            Daemon::Serving { client, dir } => Ok((client, dir, mounted)),
            Daemon::Closing(_) => Err(CliError::new(Code::NotMounted, "the store is being unmounted")),
            Daemon::Absent => Err(out_of_reach(&mounted).unwrap_or(error)),
        },
        _ => Err(error),
    }
}

/// The mount is here, and neither its store nor its sockets are: as in a container.
fn out_of_reach(mounted: &MountedStore) -> Option<CliError> {
    let (dir, store) = (mounted.dir.display(), mounted.store.display());
    let is_away = !mounted.store.exists() && mounted.obituary().is_none();
    is_away.then(|| {
        let message = format!(
            "{dir} shows the store {store}, which cannot be reached from here: in a container, bind {} into it, \
             from where root has mounted the store (or {store}, at the same path); without it there are files only",
            kvfs_socket::public::BASE
        );
        CliError::new(Code::NotMounted, message)
    })
}

/// Refuses a path on a branch, or in a transaction, for what is about the main line alone: `why` says so.
pub(crate) fn expect_main_line(target: Option<&Path>, why: &str) -> Result<()> {
    let path = target.unwrap_or(Path::new("."));
    let Some(view) = mounts::containing(path)?.filter(|mounted| mounted.is_view) else { return Ok(()) };
    if target.is_some() && open::is_store(path) {
        return Ok(());
    }
    let main = mounts::of_store(&view.store)?.unwrap_or_else(|| view.store.clone());
    let message = format!(
        "{} lies on a branch, or in a transaction, that is mounted on {}; {why}: say so with -s {}",
        mounts::resolve(path)?.display(),
        view.dir.display(),
        main.display()
    );
    Err(CliError::new(Code::Usage, message))
}

/// The transaction whose view is mounted at `view`: a branch is one, too.
pub(crate) fn txn_of_view(client: &mut Client, view: &MountedStore) -> Result<u64> {
    let mut known: Vec<(u64, Vec<u8>)> = Vec::new();
    if let Response::Branches { lines, .. } = client.call(&Request::Branch(BranchRequest::List))? {
        known.extend(lines.into_iter().map(|line| (line.id, line.dir)));
    }
    if let Response::Transactions(lines) = client.call(&Request::Transactions)? {
        known.extend(lines.into_iter().map(|line| (line.id, line.view)));
    }
    let same = mounts::list_all()?.into_iter().filter(|mounted| mounted.device == view.device);
    let dirs: Vec<_> = same.map(|mounted| mounted.dir.into_os_string().into_encoded_bytes()).collect();
    let found = known.into_iter().find(|(_, dir)| dirs.contains(dir));
    found.map(|(id, _)| id).ok_or_else(|| {
        let message = format!(
            "{} is a branch or a transaction, and not one of yours that is open here; what is done there is not part of \
             it, so say what you mean: KVFS_TXN=ID, or the main line with -s STORE",
            view.dir.display()
        );
        CliError::new(Code::Usage, message)
    })
}

/// The store itself answers: says so where its mount is dead.
pub(crate) fn tell_of_death(mounted: Option<&MountedStore>) {
    if let Some(why) = mounted.and_then(MountedStore::obituary) {
        eprintln!("kvfs: {why}; what follows comes from the store itself");
    }
}

/// What answers.
enum Via {
    /// Mounted: the daemon.
    Daemon(Client),
    /// Not mounted: this process, which has opened the store.
    Local(RequestHandler),
    /// Nothing, any more.
    Gone,
}

impl Endpoint {
    /// Does `work` with the store at `target` (a store, or any path on a mount; default: the current
    /// directory), and closes it, whatever comes of the work.
    pub(crate) fn with<T>(
        target: Option<&Path>,
        read_only: bool,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let found = find_store(target)
            .and_then(|(store, mounted)| Ok((Via::reach(&store, read_only)?, Some(store), mounted)));
        let (via, store, mounted) = match found {
            Err(error) => {
                let (client, _, mounted) = reach_public(target, error)?;
                (Via::Daemon(client), None, Some(mounted))
            }
            found => found?,
        };
        if matches!(via, Via::Local(_)) {
            tell_of_death(mounted.as_ref());
        }
        let mut endpoint = Self { store, read_only, via };
        let done = work(&mut endpoint);
        let closed = endpoint.close();
        let done = done?;
        closed.map(|()| done)
    }

    /// Whether the store is mounted or served, and its daemon answers.
    pub(crate) fn is_of_daemon(&self) -> bool {
        matches!(self.via, Via::Daemon(_))
    }

    /// Answers one request; a failure becomes an error. When the store is unmounted meanwhile, it is opened.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Response> {
        if let Via::Daemon(client) = &mut self.via {
            match client.ask(request) {
                Ok(Ok(Response::Closing)) => {
                    if let Via::Daemon(client) = std::mem::replace(&mut self.via, Via::Gone)
                        && let Some(store) = &self.store
                    {
                        open::wait_closed(store, client)?;
                    }
                }
                Err(_) if is_repeated(request) => {}
                Err(error) => return Err(Client::lost(&error).into()),
                Ok(answer) => return Ok(answer?),
            }
            self.via = match &self.store {
                Some(store) => Via::open(store, self.read_only)?,
                None => Via::Gone,
            };
        }
        let Via::Local(handler) = &self.via else {
            return Err(CliError::new(Code::NotMounted, "the store was unmounted meanwhile"));
        };
        if ends_by_signals(request) {
            stop_by_signals(handler.service().defrag_gate().flag())?;
        }
        let bar = Bar::new("at work");
        Ok(bar.watch(|| handler.answer(&Peer::own(), request.clone()))?)
    }

    /// Closes the store, if this process opened it.
    fn close(self) -> Result<()> {
        match self.via {
            Via::Local(handler) => Ok(Bar::new("closing the store").watch(|| handler.service().close())?),
            Via::Daemon(_) | Via::Gone => Ok(()),
        }
    }
}

/// Whether a request whose daemon has ended is made once more. That does no harm; only one that names
/// something would no longer be told what was there, and one that takes long would keep a store that was just
/// unmounted.
fn is_repeated(request: &Request) -> bool {
    !matches!(
        request,
        Request::Snapshot(_)
            | Request::Check
            | Request::Defrag(_)
            | Request::Tier(_)
            | Request::RemoveTrees { .. }
            | Request::CloneTree { .. }
    )
}

/// Whether it takes long, and what is done stays where it is ended.
fn ends_by_signals(request: &Request) -> bool {
    match request {
        Request::Defrag(request) => !request.dry_run,
        Request::Tier(request) => matches!(request, TierRequest::Drain { .. } | TierRequest::Remove { .. }),
        _ => false,
    }
}

/// A signal sets the flag; a second one ends the process.
pub(crate) fn stop_by_signals(is_stopping: &Arc<AtomicBool>) -> Result<()> {
    for signal in [SIGINT, SIGTERM] {
        flag::register_conditional_default(signal, Arc::clone(is_stopping))
            .and_then(|_| flag::register(signal, Arc::clone(is_stopping)))
            .map_err(|error| CliError::new(Code::Failed, format!("cannot catch signals: {error}")))?;
    }
    Ok(())
}

impl Via {
    /// The daemon; if there is none, or it is ending, the store itself.
    fn reach(store: &StoreDir, read_only: bool) -> Result<Self> {
        match Self::try_reach(store, read_only) {
            // A daemon came up, or was just ending, between our asking for it and our opening.
            Err(error) if error.code == Code::InUse => Self::try_reach(store, read_only),
            done => done,
        }
    }

    fn try_reach(store: &StoreDir, read_only: bool) -> Result<Self> {
        match control::connect(store)? {
            Daemon::Serving { client, .. } => return Ok(Self::Daemon(client)),
            Daemon::Closing(client) => open::wait_closed(store, client)?,
            Daemon::Absent => {}
        }
        Self::open(store, read_only)
    }

    fn open(store: &StoreDir, read_only: bool) -> Result<Self> {
        let _bar = Bar::new("opening the store");
        let open = open::open_for_command(store, &OpenOptions { read_only, ..OpenOptions::default() })?;
        let service = Arc::new(open.into_service());
        Ok(Self::Local(RequestHandler::new(service, Mounted::default())))
    }
}
