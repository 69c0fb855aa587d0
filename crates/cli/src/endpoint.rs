//! Where a command finds its store: the daemon of a mounted one, or the store itself.

use std::path::Path;

use crate::control::{Client, Daemon, Handler, Peer, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};
use crate::open::{self, OpenOptions};
use crate::progress::Bar;
use crate::service::Service;
use crate::store_dir::StoreDir;

/// A store that answers requests.
pub(crate) struct Endpoint {
    store: StoreDir,
    read_only: bool,
    via: Via,
}

/// The store at `target` (default: the current directory): itself, or that of the mount that the path is on,
/// with this mount.
pub(crate) fn find_store(target: Option<&Path>) -> Result<(StoreDir, Option<MountedStore>)> {
    let path = target.unwrap_or(Path::new("."));
    // A store may lie on the mount of another one.
    let mounted = mounts::containing(path)?.filter(|_| target.is_none() || !open::is_store(path));
    let store = match (&mounted, target) {
        (Some(mounted), _) => StoreDir::open(&mounted.store)?,
        (None, Some(path)) => StoreDir::open(path)?,
        (None, None) => {
            return Err(CliError::new(
                Code::NotMounted,
                "the current directory is not on a mounted kvfs store; name one with -s STORE",
            ));
        }
    };
    Ok((store, mounted))
}

/// The store itself answers: says so where its mount is dead.
pub(crate) fn tell_of_death(mounted: Option<&MountedStore>) {
    if let Some(why) = mounted.and_then(MountedStore::obituary) {
        eprintln!("kvfs: {why}; what follows comes from the store itself");
    }
}

/// Who answers.
enum Via {
    /// Mounted: the daemon.
    Daemon(Client),
    /// Not mounted: this process, which has opened the store.
    Local(Box<Service>),
    /// Nobody, any more.
    Gone,
}

impl Endpoint {
    /// Does `work` with the store at `target` (a store, or any path on a mount; default: the current directory), and
    /// closes it, whatever comes of the work.
    pub(crate) fn with<T>(
        target: Option<&Path>,
        read_only: bool,
        work: impl FnOnce(&mut Self) -> Result<T>,
    ) -> Result<T> {
        let (store, mounted) = find_store(target)?;
        let via = Via::reach(&store, read_only)?;
        if matches!(via, Via::Local(_)) {
            tell_of_death(mounted.as_ref());
        }
        let mut endpoint = Self { store, read_only, via };
        let done = work(&mut endpoint);
        let closed = endpoint.close();
        let done = done?;
        closed.map(|()| done)
    }

    /// Answers one request; a failure becomes an error. When the store is unmounted meanwhile, it is opened.
    pub(crate) fn call(&mut self, request: &Request) -> Result<Response> {
        if let Via::Daemon(client) = &mut self.via {
            match client.call(request) {
                Ok(Response::Closing) => {
                    if let Via::Daemon(client) = std::mem::replace(&mut self.via, Via::Gone) {
                        open::wait_closed(&self.store, client)?;
                    }
                }
                // It ended. Once more does no harm; only who names something would no longer be told what was there.
                Err(error) if error.code == Code::NotMounted && !matches!(request, Request::Snapshot(_)) => {}
                answer => return answer,
            }
            self.via = Via::open(&self.store, self.read_only)?;
        }
        let Via::Local(service) = &self.via else {
            return Err(CliError::new(Code::NotMounted, "the store was unmounted meanwhile"));
        };
        let bar = Bar::new("at work");
        match bar.watch(|| service.handle(&Peer::own(), request.clone())) {
            Response::Failed { code, message } => Err(CliError::new(Code::from_number(code), message)),
            response => Ok(response),
        }
    }

    /// Closes the store, if this process opened it.
    fn close(self) -> Result<()> {
        match self.via {
            Via::Local(service) => Bar::new("closing the store").watch(|| service.close()),
            Via::Daemon(_) | Via::Gone => Ok(()),
        }
    }

    /// The daemon answered something else than was asked.
    pub(crate) fn confused() -> CliError {
        Client::confused()
    }
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
        match Client::connect(&store.socket_path())? {
            Daemon::Serving { client, .. } => return Ok(Self::Daemon(client)),
            Daemon::Closing(client) => open::wait_closed(store, client)?,
            Daemon::Absent => {}
        }
        Self::open(store, read_only)
    }

    fn open(store: &StoreDir, read_only: bool) -> Result<Self> {
        let _bar = Bar::new("opening the store");
        let open = open::open_behind_exit(store, &OpenOptions { read_only, ..OpenOptions::default() })?;
        Ok(Self::Local(Box::new(Service::new(open, None))))
    }
}
