//! `kvfs mount -o remount,…`: what the kernel checks by itself changes on a mount that is there.
//!
//! The daemon is told of the placement alone: the kernel refuses changes of files through a mount that is read-only, and has handed over
//! its dirty pages before. The store stays open for writing, so merges go on.

use std::path::Path;
use std::process::ExitCode;

use kvfs_service::READ_ONLY_STAT;

use super::mount::{parse_cache_policy, parse_placement};
use crate::args::MountArgs;
use crate::control::{self, Daemon, Request, Response, TierRequest};
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
    apply_ours(args, &mount.store)?;
    kvfs_fuse::mount::remount(&mount.dir, &args.options.join(",")).map_err(|error| explain_mount(&error))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells the daemon of options that are not the kernel's: the placement changes; another cache policy would need another cache. (What
/// `/etc/fstab` says comes along with each remount, so what is as before is no reason to refuse.)
fn apply_ours(args: &MountArgs, store: &Path) -> Result<()> {
    let of = |wanted: &str| {
        let pairs = options(args).filter_map(|option| option.split_once('='));
        pairs.filter(|(name, _)| *name == wanted).last().map(|(_, value)| value)
    };
    let cache = of("cache").map(parse_cache_policy).transpose()?;
    let placement = of("placement").map(parse_placement).transpose()?;
    if cache.is_none() && placement.is_none() {
        return Ok(());
    }
    let Daemon::Serving { mut client, .. } = control::connect(&StoreDir::open(store)?)? else {
        return Err(CliError::new(Code::Failed, "the daemon of the mount does not answer".to_owned()));
    };
    if let Some(cache) = cache {
        let Response::Stats(stats) = client.call(&Request::Stats)? else { return Err(control::confused()) };
        let policy = format!("cache.policy.{cache}");
        if stats.iter().all(|(name, _)| *name != policy) {
            let message = format!("cache={cache} needs another mount: unmount, and mount it again");
            return Err(CliError::new(Code::Usage, message));
        }
    }
    if let Some(placement) = placement {
        let policy = Some(placement.to_string());
        client.call(&Request::Tier(TierRequest::Placement { policy, keeps: false }))?;
    }
    Ok(())
}

/// Whether the daemon can't write at all. One that has no socket can't.
fn is_opened_read_only(store: &StoreDir) -> Result<bool> {
    let Daemon::Serving { mut client, .. } = control::connect(store)? else { return Ok(true) };
    let Response::Stats(stats) = client.call(&Request::Stats)? else { return Err(control::confused()) };
    Ok(stats.iter().any(|(name, value)| name == READ_ONLY_STAT && *value == 1))
}
