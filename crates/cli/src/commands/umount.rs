//! `kvfs umount`.

use std::process::ExitCode;

use kvfs_fuse::mount::Unmount;

use crate::args::UmountArgs;
use crate::control::{Client, Daemon, Request};
use crate::daemon::explain_mount;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::open::CLOSE_TIME_MAX;
use crate::store_dir::StoreDir;

pub(crate) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let mount = mounts::required(&args.dir)?;
    if mounts::resolve(&args.dir)? != mount.dir {
        return Err(CliError::new(
            Code::MountPoint,
            format!("{} lies inside a mount; the mount point is {}", args.dir.display(), mount.dir.display()),
        ));
    }
    // Whoever may unmount need not be one who may talk to the daemon.
    let daemon = StoreDir::open(&mount.store).and_then(|store| Client::connect(&store.socket_path()));
    let closing = match daemon {
        Ok(Daemon::Serving { mut client, dir }) if dir == mount.dir => {
            client.call(&Request::Leave { abort_open: args.abort_open })?;
            if args.lazy { None } else { client.await_closed().ok() }
        }
        _ => None,
    };
    let how = if args.lazy { Unmount::Lazy } else { Unmount::Clean };
    kvfs_fuse::mount::unmount(&mount.dir, how).map_err(|error| explain_mount(&error))?;
    let Some(closing) = closing else { return Ok(ExitCode::SUCCESS) };
    let closed = closing.wait(CLOSE_TIME_MAX).map_err(|error| {
        CliError::new(error.code, format!("unmounted {}, but: {error}", mount.dir.display()))
    })?;
    if !closed {
        eprintln!("kvfs: unmounted, but the daemon is still writing to {}", mount.store.display());
    }
    Ok(ExitCode::SUCCESS)
}
