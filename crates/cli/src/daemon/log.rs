//! Where the daemon's messages go.
//!
//! `KVFS_LOG` (or `RUST_LOG`) filters, as in `KVFS_LOG=debug` or `KVFS_LOG=info,kvfs_fuse=trace`.

use std::fs::{File, OpenOptions};
use std::io::IsTerminal;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::sync::Arc;

use tracing_subscriber::EnvFilter;

use crate::error::{CliError, Code, Result};
use crate::store_dir::StoreDir;

/// A log longer than this at the start becomes `kvfs.log.old` (bytes).
const LOG_BYTES_MAX: u64 = 4 << 20;

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
        Target::File => match open(&store.log_path()) {
            Ok(file) => builder.with_ansi(false).with_writer(Arc::new(file)).try_init(),
            // A store that is only to be read may lie where nothing can be written.
            Err(error) => {
                eprintln!("kvfs: no log: cannot write {}: {error}", store.log_path().display());
                return Ok(());
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
    Ok(EnvFilter::new("info"))
}

fn open(path: &Path) -> std::io::Result<File> {
    if path.metadata().is_ok_and(|found| found.len() > LOG_BYTES_MAX) {
        std::fs::rename(path, path.with_extension("log.old"))?;
    }
    OpenOptions::new().create(true).append(true).mode(0o600).open(path)
}
