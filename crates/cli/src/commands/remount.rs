//! `kvfs mount -o remount,…`: what the kernel checks by itself changes on a mount that is there.
//!
//! The daemon is not told: the kernel refuses changes of files through a mount that is read-only, and has handed over
//! its dirty pages before. The store stays open for writing, so merges go on.

use std::process::ExitCode;

use kvfs_service::READ_ONLY_STAT;

use crate::args::MountArgs;
use crate::control::{self, Daemon, Request, Response};
use crate::daemon::explain_mount;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// Whether the options ask for a remount.
pub(crate) fn is_asked_for(args: &MountArgs) -> bool {
    options(args).any(|option| option == "remount")
}

fn options(args: &MountArgs) -> impl Iterator<Item = &str> {
    args.options.iter().flat_map(|list| list.split(','))
}

pub(crate) fn run(args: &MountArgs) -> Result<ExitCode> {
    let dir = mounts::resolve(&args.dir)?;
    let mount = mounts::required(&dir)?;
    let (store, point) = (mounts::resolve(&args.store)?, mount.dir.display());
    if mount.dir != dir || (mount.store != store && args.store != dir) {
        let message = format!(
            "{} is not mounted on {}; {point} is a mount of {}",
            store.display(),
            dir.display(),
            mount.store.display()
        );
        return Err(CliError::new(Code::NotMounted, message));
    }
    let is_read_only = mount.options.split(',').any(|option| option == "ro");
    let is_to_be = options(args).filter_map(|option| match option {
        "ro" => Some(true),
        "rw" => Some(false),
        _ => None,
    });
    if is_read_only && is_to_be.last() == Some(false) && is_opened_read_only(&StoreDir::open(&mount.store)?)?
    {
        let store = mount.store.display();
        return Err(CliError::new(
            Code::Usage,
            format!(
                "{store} was mounted with -o ro, and is open for reading only; unmount {point} and mount it again"
            ),
        ));
    }
    kvfs_fuse::mount::remount(&mount.dir, &args.options.join(",")).map_err(|error| explain_mount(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Whether the daemon can't write at all. One that has no socket can't.
fn is_opened_read_only(store: &StoreDir) -> Result<bool> {
    let Daemon::Serving { mut client, .. } = control::connect(store)? else { return Ok(true) };
    let Response::Stats(stats) = client.call(&Request::Stats)? else { return Err(control::confused()) };
    Ok(stats.iter().any(|(name, value)| name == READ_ONLY_STAT && *value == 1))
}
