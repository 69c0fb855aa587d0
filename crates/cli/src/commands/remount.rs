//! `kvfs mount -o remount,…`: options change on a mount that is there.
//!
//! The kernel refuses changes of files through a mount that is read-only, and has handed over its dirty pages
//! before. The store stays open for writing, so merges go on. What is not the kernel's, the daemon changes or
//! refuses ([`super::mount::options`]).

use std::process::ExitCode;

use kvfs_fuse::mount::is_of_kernel;
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
    let store = if kvfs_open::is_url(&args.store) {
        kvfs_open::new_directory_of_url(&args.store, None)?.0
    } else {
        mounts::resolve(&args.store)?
    };
    let point = mount.dir.display();
    if mount.dir != dir || (mount.store != store && args.store != dir) {
        let message = format!(
            "{} is not mounted on {}; {point} is a mount of {}",
            store.display(),
            dir.display(),
            mount.store.display()
        );
        return Err(CliError::new(Code::NotMounted, message));
    }
    let is_read_only = mount.is_read_only();
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
    let shown = kvfs_fuse::mount::on_top_of(&mount.dir)
        .map_err(|error| CliError::io("read", kvfs_fuse::mount::MOUNT_TABLE.as_ref(), &error))?;
    let wanted = of_daemon(args, &shown.map_or_else(String::new, |mount| mount.all_options()));
    let daemon =
        if wanted.is_empty() { None } else { Some(control::connect(&StoreDir::open(&mount.store)?)?) };
    let mut client = match daemon {
        None => None,
        Some(Daemon::Serving { client, .. }) => Some(client),
        Some(_) => {
            return Err(CliError::new(Code::Failed, "the daemon of the mount does not answer".to_owned()));
        }
    };
    // The kernel may refuse its part, when files are open for writing: nothing is changed then.
    if let Some(client) = &mut client {
        client.call(&Request::Remount { options: wanted.clone(), is_check: true })?;
    }
    kvfs_fuse::mount::remount(&mount.dir, &args.options.join(",")).map_err(|error| explain_mount(&error))?;
    if let Some(client) = &mut client {
        client.call(&Request::Remount { options: wanted, is_check: false })?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Options that the daemon has to know of: not those that the kernel changes, that are for mount(8) alone, or
/// that mount(8) has from the kernel's own table.
fn of_daemon(args: &MountArgs, table: &str) -> Vec<String> {
    let is_told = |option: &&str| {
        *option != "remount" && !is_of_kernel(option) && !table.split(',').any(|shown| shown == *option)
    };
    let mut wanted: Vec<String> =
        options(args).filter(|option| !option.is_empty()).filter(is_told).map(str::to_owned).collect();
    wanted.extend(args.memory.map(|bytes| format!("memory={bytes}")));
    wanted.extend(args.workers.map(|count| format!("workers={count}")));
    wanted.extend(args.size.map(|bytes| format!("size={bytes}")));
    wanted
}

/// Whether the daemon can't write at all. One that has no socket can't.
fn is_opened_read_only(store: &StoreDir) -> Result<bool> {
    let Daemon::Serving { mut client, .. } = control::connect(store)? else { return Ok(true) };
    let Response::Stats(stats) = client.call(&Request::Stats)? else { return Err(control::confused()) };
    Ok(stats.iter().any(|(name, value)| name == READ_ONLY_STAT && *value == 1))
}
