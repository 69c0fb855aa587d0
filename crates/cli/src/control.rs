//! The control socket of a store, as commands and the daemon come by it.
//!
//! Thread safety: plain functions. Invariant: what waits for the daemon shows a progress bar.

use std::path::Path;

pub(crate) use kvfs_control::*;

use crate::error::{CliError, Result};
use crate::progress::Bar;
use crate::store_dir::StoreDir;

/// A bar for something that the daemon does.
const BARS: Bars = |what| {
    let bar = Bar::new(what);
    Box::new(move |stage, unit, done, total| bar.show(stage, unit, done, total))
};

/// Connects to the daemon of a store, if there is one.
pub(crate) fn connect(store: &StoreDir) -> Result<Daemon> {
    Ok(Client::greet(store.connect_control(), &store.control_name(), BARS)?)
}

/// Connects to the daemon of the mounts that show `source`, by the socket for their users.
pub(crate) fn connect_public(source: &Path) -> Result<Daemon> {
    Ok(Client::connect_public(source, BARS)?)
}

/// The answer is another one than to what was asked.
pub(crate) fn confused() -> CliError {
    Client::confused().into()
}
