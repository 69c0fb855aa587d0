//! `kvfs umount`.

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use kvfs_fuse::mount::{Mount, MountError, Unmount};

use crate::args::UmountArgs;
use crate::control::{self, BranchRequest, Client, Closing, Daemon, Request, Response};
use crate::daemon::explain_mount;
use crate::error::{CliError, Code, Result};
use crate::killed_daemon;
use crate::mounts::{self, MountedStore};
use crate::open::{CLOSE_TIME_MAX, NOTICE_TIME_MAX};
use crate::procs;
use crate::progress::Bar;
use crate::store_dir::StoreDir;

/// How often a mount that is in use is tried again, and how long after each other.
const PASSING_TRIES: usize = 40;
const PASSING_PERIOD: Duration = Duration::from_millis(50);

pub(crate) fn run(args: &UmountArgs) -> Result<ExitCode> {
    let resolved = mounts::resolve(&args.dir)?;
    let on = mounts::on(&resolved)?;
    if on.as_ref().is_none_or(|mount| mount.dir != resolved)
        && let Some(client) = served_without_mount(&args.dir)?
    {
        return end(client, args);
    }
    let mount = mounts::required(&args.dir)?;
    if mounts::resolve(&args.dir)? != mount.dir {
        return Err(CliError::new(
            Code::MountPoint,
            format!("{} lies inside a mount; the mount point is {}", args.dir.display(), mount.dir.display()),
        ));
    }
    let ended = killed_daemon::end_of(&mount);
    if !args.lazy {
        ended.clone()?;
    }
    let closing = match daemon_to_ask(&mount, args) {
        Some(Daemon::Serving { mut client, dir }) if dir == mount.dir => {
            if (args.abort_open || args.checkpoint_open) && !args.lazy {
                check_unused(&mount, &mut client)?;
            }
            leave(&mut client, args)?;
            if args.lazy { None } else { client.await_closed().ok() }
        }
        _ => None,
    };
    let how = if args.lazy { Unmount::Lazy } else { Unmount::Clean };
    {
        let _bar = Bar::new("unmounting");
        let unmount = || kvfs_fuse::mount::unmount(&mount.dir, how);
        let pause = || std::thread::park_timeout(PASSING_PERIOD);
        let unmounted = unmount_past_passing(unmount, || found_in_the_way(&mount), pause);
        unmounted.map_err(|(error, found)| in_the_way(&error, &found))?;
    }
    ended?;
    if mount.is_view && !args.lazy {
        settle(&mount)?;
    }
    let Some(closing) = closing else { return Ok(ExitCode::SUCCESS) };
    if let Some(elsewhere) = still_open(&mount, closing)? {
        eprintln!("kvfs: unmounted {}, but {elsewhere}", mount.dir.display());
    }
    Ok(ExitCode::SUCCESS)
}

/// The daemon, if it has a say. What is detached needs none of its answers, which one that hangs would not
/// give; nor would another user's to root.
fn daemon_to_ask(mount: &MountedStore, args: &UmountArgs) -> Option<Daemon> {
    let has_say = mount.is_trusted() && (!args.lazy || args.abort_open || args.checkpoint_open);
    // A user that may unmount need not be allowed to talk to it.
    has_say.then(|| StoreDir::open(&mount.store).and_then(|store| control::connect(&store)).ok()).flatten()
}

/// Waits until the daemon has closed the store, unless other mounts show the file system: it ends with the
/// last one.
fn still_open(mount: &MountedStore, mut closing: Closing) -> Result<Option<String>> {
    let store = mount.store.display();
    if let Some(other) = mounts::list_all()?.into_iter().find(|other| other.device == mount.device) {
        return Ok(Some(format!("{store} stays open: {} shows it as well", other.dir.display())));
    }
    let mut wait = |time_max: Duration| {
        closing.wait(time_max).map_err(|error| {
            CliError::new(error.kind().into(), format!("unmounted {}, but: {error}", mount.dir.display()))
        })
    };
    if wait(NOTICE_TIME_MAX)? {
        return Ok(None);
    }
    let daemon = StoreDir::open(&mount.store).and_then(|store| control::connect(&store));
    if let Ok(Daemon::Serving { .. }) = daemon {
        return Ok(Some(format!("{store} stays open: another mount namespace shows it as well")));
    }
    Ok((!wait(CLOSE_TIME_MAX)?).then(|| format!("the daemon still has {store} open")))
}

/// The daemon of a store that no mount shows.
fn served_without_mount(store: &Path) -> Result<Option<(StoreDir, Client)>> {
    let Ok(store) = StoreDir::open(store) else { return Ok(None) };
    match control::connect(&store)? {
        Daemon::Serving { client, dir } if dir.as_os_str().is_empty() => Ok(Some((store, client))),
        Daemon::Serving { dir, .. } => Err(CliError::new(
            Code::MountPoint,
            format!("{} is mounted on {}: unmount that", store.path().display(), dir.display()),
        )),
        Daemon::Closing(_) | Daemon::Absent => Ok(None),
    }
}

/// Ends the daemon of a store without a mount.
fn end((store, mut client): (StoreDir, Client), args: &UmountArgs) -> Result<ExitCode> {
    leave(&mut client, args)?;
    let mut closing = client.await_closed()?;
    if let Daemon::Serving { mut client, .. } = control::connect(&store)? {
        client.call(&Request::End)?;
    }
    if !closing.wait(CLOSE_TIME_MAX)? {
        eprintln!("kvfs: ended, but the daemon still has {} open", store.path().display());
    }
    Ok(ExitCode::SUCCESS)
}

/// Before transactions are ended for an unmount: refuses what would be refused then. Processes of
/// transactions do not count: they end with these.
fn check_unused(mount: &MountedStore, client: &mut Client) -> Result<()> {
    let Response::Transactions(open) = client.call(&Request::Transactions)? else {
        return Err(control::confused());
    };
    let mut users = procs::users_of(&mount.dir);
    users.retain(|user| {
        open.iter().all(|line| line.pid != user.pid) && !mounts::is_in_view(user.pid, &mount.dir)
    });
    if users.is_empty() && mounts_below(mount).is_empty() {
        return Ok(());
    }
    Err(in_the_way(&MountError::Busy { point: mount.dir.clone() }, &found_in_the_way(mount)))
}

/// Unmounts what is in use by nothing but passing looks: a command that lists mounts, or asks for their free
/// space, uses each for a moment, and nothing shows which it was. So what two looks in a row find is in the
/// way; else it is tried again, for [`PASSING_TRIES`] pauses at most.
///
/// # Errors
/// Why it stays mounted, and what is in the way.
fn unmount_past_passing(
    mut unmount: impl FnMut() -> std::result::Result<(), MountError>,
    mut found: impl FnMut() -> String,
    mut pause: impl FnMut(),
) -> std::result::Result<(), (MountError, String)> {
    let mut before = String::new();
    for _ in 0..PASSING_TRIES {
        match unmount() {
            Err(MountError::Busy { .. }) => {}
            done => return done.map_err(|error| (error, String::new())),
        }
        let now = found();
        if !now.is_empty() && now == before {
            break;
        }
        before = now;
        pause();
    }
    unmount().map_err(|error| (error, found()))
}

/// The other mounts that lie on it, a line each. What can't be listed is not named.
fn mounts_below(mount: &MountedStore) -> String {
    let mut below = mounts::table().unwrap_or_default();
    below.retain(|other| other.point != mount.dir && other.point.starts_with(&mount.dir));
    let line = |other: &Mount| format!("\n  {} is mounted on {}", other.fs_type, other.point.display());
    below.iter().map(line).collect()
}

/// The mounts and processes that keep it, a line each.
fn found_in_the_way(mount: &MountedStore) -> String {
    mounts_below(mount) + &procs::describe(&procs::users_of(&mount.dir))
}

/// Why it stays mounted, and what was found in the way.
fn in_the_way(error: &MountError, found: &str) -> CliError {
    let explained = CliError::from(explain_mount(error));
    if !matches!(error, MountError::Busy { .. }) {
        return explained;
    }
    let in_the_way = match found {
        "" => "; no process that this user may look at is in the way".to_owned(),
        found => format!("; in the way:{found}"),
    };
    let message = format!("{}{in_the_way}\n`kvfs umount --lazy` detaches it all the same", explained.message);
    CliError::new(explained.code, message)
}

fn leave(client: &mut Client, args: &UmountArgs) -> Result<()> {
    let UmountArgs { abort_open, checkpoint_open, .. } = *args;
    if let Response::Kept(names) = client.call(&Request::Leave { abort_open, checkpoint_open })? {
        for name in names {
            eprintln!("kvfs: kept as branch {name}");
        }
    }
    Ok(())
}

/// What was a branch is checkpointed when this returns.
fn settle(mount: &MountedStore) -> Result<()> {
    let daemon = StoreDir::open(&mount.store).and_then(|store| control::connect(&store));
    if let Ok(Daemon::Serving { mut client, .. }) = daemon {
        let dir = mount.dir.as_os_str().as_bytes().to_vec();
        client.call(&Request::Branch(BranchRequest::Settle { dir }))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
