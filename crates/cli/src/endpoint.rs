//! Where a command finds its store: the daemon of a mounted one, or the store itself.

use std::path::Path;
use std::sync::Arc;

use crate::control::{Client, Handler, Request, Response};
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::open::OpenStore;
use crate::service::Service;
use crate::store_dir::StoreDir;

/// A store that answers requests.
pub(crate) enum Endpoint {
    /// Mounted: the daemon answers.
    Daemon(Client),
    /// Not mounted: opened by this process, closed on drop.
    Local(Box<OpenStore>),
}

impl Endpoint {
    /// The store at `target` (a store, or any path on a mount; default: the current directory).
    pub(crate) fn open(target: Option<&Path>, read_only: bool) -> Result<Self> {
        let here = Path::new(".");
        let path = target.unwrap_or(here);
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
        if let Some(client) = Client::connect(&store.socket_path())? {
            return Ok(Self::Daemon(client));
        }
        Ok(Self::Local(Box::new(OpenStore::open(&store, crate::open::Memory::default(), read_only)?)))
    }

    /// Answers one request; a failure becomes an error.
    pub(crate) fn call(&mut self, request: Request) -> Result<Response> {
        match self {
            Self::Daemon(client) => client.call(&request),
            Self::Local(open) => {
                let service = Service::new(Arc::clone(&open.db), Arc::clone(&open.fs));
                match service.handle(request) {
                    Response::Failed { code, message } => Err(CliError::new(Code::from_number(code), message)),
                    response => {
                        open.sync()?;
                        Ok(response)
                    }
                }
            }
        }
    }

    /// The daemon answered something else than was asked.
    pub(crate) fn confused() -> CliError {
        CliError::new(Code::Failed, "the daemon gave an answer of another kind; is it of another version?")
    }
}
