//! The control socket of a store, as commands and the daemon come by it.
//!
//! Thread safety: plain functions. Invariant: what waits for the daemon shows a progress bar.

use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

pub(crate) use kvfs_control::*;

use crate::error::{CliError, Result};
use crate::killed_daemon;
use crate::mounts::MountedStore;
use crate::progress::Bar;
use crate::store_dir::StoreDir;

/// A bar for something that the daemon does.
const BARS: Bars = |what| {
    let bar = Bar::new(what);
    Box::new(move |stage, unit, done, total| bar.show(stage, unit, done, total))
};

/// Connects to the daemon of a store, if there is one. One that was killed and can't end is made to.
pub(crate) fn connect(store: &StoreDir) -> Result<Daemon> {
    let stream = store.connect_control();
    match &stream {
        Ok(stream) => killed_daemon::end(stream, store.path())?,
        Err(error) if error.kind() == io::ErrorKind::TimedOut => {
            return Err(killed_daemon::unreached(store.path(), error));
        }
        Err(_) => {}
    }
    Ok(Client::greet(stream, &store.control_name(), BARS)?)
}

/// A connection to the daemon of a mount, by whichever of its sockets lets this user in. `TimedOut`: it
/// accepts nothing.
pub(crate) fn reach(mount: &MountedStore) -> io::Result<UnixStream> {
    match StoreDir::open(&mount.store).map(|store| store.connect_control()) {
        Ok(Ok(stream)) => Ok(stream),
        Ok(Err(error)) if error.kind() == io::ErrorKind::TimedOut => Err(error),
        _ => Client::reach_public(&mount.store),
    }
}

/// Connects to the daemon of the mounts that show `source`, by the socket for their users.
pub(crate) fn connect_public(source: &Path) -> Result<Daemon> {
    Ok(Client::connect_public(source, BARS)?)
}

/// The answer is another one than to what was asked.
pub(crate) fn confused() -> CliError {
    Client::confused().into()
}
