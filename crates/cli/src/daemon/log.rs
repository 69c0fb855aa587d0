//! Where the daemon's messages go.
//!
//! `KVFS_LOG` (or `RUST_LOG`) filters, as in `KVFS_LOG=debug` or `KVFS_LOG=info,kvfs_fuse=trace`.

mod bounded;

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

use bounded::BoundedLog;
pub(crate) use bounded::messages_lost;

use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// `SlateDB` tells of each request that it makes again, and much else that concerns nothing but itself.
const DEFAULT: &str = "info,slatedb=warn";

/// A stream for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Target {
    /// Standard error.
    Terminal,
    /// `STORE/kvfs.log`.
    File,
}

/// Starts logging; once in a process.
pub(crate) fn start(store: &StoreDir, target: Target) -> Result<()> {
    let filter = filter()?;
    let builder = tracing_subscriber::fmt().with_env_filter(filter);
    let started = match target {
        Target::Terminal => {
            builder.with_ansi(std::io::stderr().is_terminal()).with_writer(std::io::stderr).try_init()
        }
        Target::File => match BoundedLog::open(store) {
            Ok(log) => builder.with_ansi(false).with_writer(log).try_init(),
            // A store that is only to be read may lie where nothing can be written.
            Err(error) => {
                eprintln!("kvfs: no log: cannot write {}: {error}", store.log_name().display());
                // Into the standard error of a daemon that has let go of its terminal, and till then of the
                // command that mounts.
                builder.with_ansi(false).with_writer(std::io::stderr).try_init()
            }
        },
    };
    started.map_err(|error| CliError::new(Code::Failed, format!("cannot start logging: {error}")))
}

fn filter() -> Result<EnvFilter> {
    for name in ["KVFS_LOG", "RUST_LOG"] {
        let Some(text) = std::env::var_os(name) else { continue };
        let text = text.to_string_lossy();
        return EnvFilter::try_new(&*text)
            .map_err(|error| CliError::new(Code::Usage, format!("{name}={text}: {error}")));
    }
    Ok(EnvFilter::new(DEFAULT))
}
