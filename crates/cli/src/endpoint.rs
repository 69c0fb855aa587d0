//! Where a command finds its store: the daemon of a mounted one, or the store itself.

use std::path::Path;

use crate::control::{Client, Daemon, Handler, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::open::{self, Memory, OpenStore};
use crate::service::Service;
use crate::store_dir::StoreDir;

/// A store that answers requests.
pub(crate) enum Endpoint {
    /// Mounted: the daemon answers.
    Daemon(Client),
    /// Not mounted: opened by this process.
    Local(Box<Service>),
}

impl Endpoint {
    /// The store at `target` (a store, or any path on a mount; default: the current directory). Close it.
    pub(crate) fn open(target: Option<&Path>, read_only: bool) -> Result<Self> {
        let path = target.unwrap_or(Path::new("."));
        let store = match mounts::containing(path)? {
            Some(mount) => StoreDir::open(&mount.store)?,
            None if target.is_none() => {
                return Err(CliError::new(
                    Code::NotMounted,
                    "the current directory is not on a mounted kvfs store; name one with -s STORE",
                ));
            }
            None => StoreDir::open(path)?,
        };
        match Client::connect(&store.socket_path())? {
            Daemon::Serving { client, .. } => return Ok(Self::Daemon(client)),
            Daemon::Closing(client) => open::wait_closed(&store, client)?,
            Daemon::Absent => {}
        }
        let open = OpenStore::open(&store, Memory::default(), read_only)?;
        Ok(Self::Local(Box::new(Service::new(open, None))))
    }

    /// Answers one request; a failure becomes an error.
    pub(crate) fn call(&mut self, request: Request) -> Result<Response> {
        match self {
            Self::Daemon(client) => client.call(&request),
            Self::Local(service) => match service.handle(request) {
                Response::Failed { code, message } => Err(CliError::new(Code::from_number(code), message)),
                response => Ok(response),
            },
        }
    }

    /// Closes the store, if this process opened it.
    pub(crate) fn close(self) -> Result<()> {
        match self {
            Self::Daemon(_) => Ok(()),
            Self::Local(service) => service.close(),
        }
    }

    /// The daemon answered something else than was asked.
    pub(crate) fn confused() -> CliError {
        Client::confused()
    }
}
