//! `kvfs umount`.

use std::process::ExitCode;
use std::time::Duration;

use kvfs_store::clock::{Clock, SystemClock};

use crate::args::UmountArgs;
use crate::control::Client;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// How long the daemon may take to write everything out before we only warn.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(600);

pub(crate) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let mount = mounts::required(&args.dir)?;
    let absolute = std::path::absolute(&args.dir).map_err(|error| CliError::io("resolve", &args.dir, &error))?;
    if absolute.canonicalize().unwrap_or(absolute) != mount.dir {
        return Err(CliError::new(
            Code::MountPoint,
            format!("{} lies inside a mount; the mount point is {}", args.dir.display(), mount.dir.display()),
        ));
    }
    let daemon = StoreDir::open(&mount.store).ok().and_then(|store| Client::connect(&store.socket_path()).ok()?);
    kvfs_fuse::mount::unmount(&mount.dir, args.lazy).map_err(|error| {
        let code = if error.is_busy() { Code::InUse } else { Code::Failed };
        CliError::new(code, format!("cannot unmount {}: {error}", mount.dir.display()))
    })?;
    if let Some(daemon) = daemon
        && !args.lazy
        && !daemon.wait_closed(CLOSE_TIME_MAX, &SystemClock::new() as &dyn Clock)
    {
        eprintln!("kvfs: unmounted, but the daemon is still writing to {}", mount.store.display());
    }
    Ok(ExitCode::SUCCESS)
}
