//! `kvfs status`: what is mounted where, or served without a mount, by which user, since when.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use std::{fs, io};

use kvfs_fuse::mount::{self, PointState};
use kvfs_service::lines::HealthLine;
use kvfs_socket::peer_credentials;
use kvfs_store::clock::{Clock, SystemClock};

use crate::args::StatusArgs;
use crate::control::{self, Client};
use crate::daemon::background;
use crate::endpoint;
use crate::error::{CliError, Code, Result};
use crate::killed_daemon;
use crate::mounts::{self, MountedStore};
use crate::names::Table;
use crate::output::{print, printable, printable_path, with_bytes};
use crate::procs;
use crate::store_dir::StoreDir;
use crate::units::human_duration;

/// A mount, or a store that is served without one, with what is known of its daemon.
struct Line {
    /// Without a directory where there is none.
    mount: MountedStore,
    /// In another mount namespace, that of this process.
    elsewhere: Option<u32>,
    state: &'static str,
    /// Process and user of the daemon.
    daemon: Option<(u32, u32)>,
    since: Option<Duration>,
    /// What is wrong with the store or its device.
    trouble: Option<String>,
    /// Trees that are being removed in the background, and names of such trees that have gone.
    removing: (u64, u64),
}

impl Line {
    /// Where it is mounted.
    fn mounted(&self) -> Option<&Path> {
        Some(&*self.mount.dir).filter(|dir| !dir.as_os_str().is_empty())
    }

    /// The daemon's process, if that has a number here: not in a container, outside of which the daemon is.
    fn pid(&self) -> Option<u32> {
        self.daemon.map(|(pid, _)| pid).filter(|&pid| pid > 0)
    }
}

pub(crate) fn run(args: &StatusArgs) -> Result<ExitCode> {
    let lines = match args.store.as_deref().or(args.target.as_deref()) {
        Some(target) => of(target)?,
        None => lines(all()?),
    };
    print(&if args.form.json { as_json(&lines) } else { as_text(&lines, args.form.numeric) })?;
    let has_failed = lines.iter().any(|line| line.trouble.is_some());
    Ok(if has_failed { ExitCode::from(Code::Failed as u8) } else { ExitCode::SUCCESS })
}

/// Those of the store at `target`, or of the one that is mounted there.
fn of(target: &Path) -> Result<Vec<Line>> {
    let store = match endpoint::mounted_at(Some(target))? {
        Some(mounted) => mounted.store,
        None => mounts::resolve(target)?,
    };
    let found: Vec<_> = all()?.into_iter().filter(|(mount, _)| mount.store == store).collect();
    if found.is_empty() {
        let message =
            format!("{} is neither mounted nor served, as far as this user can see", target.display());
        return Err(CliError::new(Code::NotMounted, message));
    }
    Ok(lines(found))
}

/// Asks the daemon of each, once for all mounts of a store.
fn lines(found: Vec<(MountedStore, Option<u32>)>) -> Vec<Line> {
    let mut answers = BTreeMap::new();
    let mut answered = |(mount, elsewhere): (MountedStore, _)| {
        let answer = answers.entry(mount.store.clone()).or_insert_with(|| Answer::of(&mount));
        line(mount, elsewhere, answer)
    };
    found.into_iter().map(&mut answered).collect()
}

/// What is mounted or served: what this process sees, and, with a process of each, what it sees of other
/// mount namespaces.
fn all() -> Result<Vec<(MountedStore, Option<u32>)>> {
    let mut seen = BTreeSet::new();
    let mut found = Vec::new();
    for (mount, elsewhere) in mounts::everywhere()? {
        if seen.insert((mount.dir.clone(), mount.store.clone())) {
            found.push((mount, elsewhere));
        }
    }
    let served = procs::pids().filter_map(served_by);
    found.extend(served.map(|store| (MountedStore { store, ..MountedStore::default() }, None)));
    Ok(found)
}

/// The store that a process serves without a mount, as far as this process may look.
fn served_by(pid: u32) -> Option<PathBuf> {
    // The paths of another user's process may lead to a file system that does not answer.
    let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
    if procs::command(pid) != "kvfs" || ![0, rustix::process::geteuid().as_raw()].contains(&uid) {
        return None;
    }
    let words = procs::words(pid);
    let (_, words) = words.split_first()?;
    let subcommand = background::subcommand(words)?;
    if words[subcommand].as_os_str() != "serve" {
        return None;
    }
    // Its command line names the store; where that is not from the root, it has the directory open.
    let opened = procs::opened(pid);
    let named = words.iter().filter(|word| word.is_absolute()).cloned();
    let mut candidates = named.chain(opened);
    candidates.find(|path| {
        let stream = StoreDir::open(path).ok().and_then(|store| store.connect_control().ok());
        let stream = stream.or_else(|| Client::reach_public(path).ok());
        stream.and_then(|stream| peer_credentials(&stream).ok()).is_some_and(|peer| peer.pid == pid)
    })
}

/// What the daemon of a store has answered.
struct Answer {
    /// `None`: it lets this user not in.
    stream: Option<UnixStream>,
    is_killed: bool,
    /// It does not answer, nor would it what a look at the mount asks.
    is_silent: bool,
    health: HealthLine,
}

impl Answer {
    fn of(mount: &MountedStore) -> Self {
        let is_timeout =
            |error: &io::Error| matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        let reached = control::reach(mount);
        let has_no_place = reached.as_ref().is_err_and(is_timeout);
        let stream = reached.ok();
        let is_killed = stream.as_ref().is_some_and(killed_daemon::is_behind);
        let health = stream.as_ref().filter(|_| !is_killed).map_or(Ok(None), Client::health);
        let is_silent = has_no_place || health.as_ref().is_err_and(is_timeout);
        Self { stream, is_killed, is_silent, health: health.ok().flatten().unwrap_or_default() }
    }
}

fn line(mount: MountedStore, elsewhere: Option<u32>, answer: &Answer) -> Line {
    let Answer { stream, is_killed, is_silent, health } = answer;
    let (is_killed, is_silent) = (*is_killed, *is_silent);
    let daemon = daemon_of(&mount, stream.as_ref());
    let is_mounted = !mount.dir.as_os_str().is_empty();
    // A mount of another user whose daemon does not answer here may answer nothing at all. A directory of
    // another namespace is another one here.
    let may_ask = elsewhere.is_none() && (stream.is_some() || mount.is_trusted());
    let is_asked = is_mounted && may_ask && !is_silent && !is_killed;
    let point = if is_asked { mount::state(&mount.dir) } else { PointState::Free };
    let state = match (elsewhere, point) {
        _ if is_killed => "dead",
        _ if is_silent => "silent",
        (Some(_), _) => "elsewhere",
        (None, _) if is_mounted && !may_ask => "-",
        (None, PointState::Stale) => "dead",
        (None, _) if health.failure.is_some() => "failed",
        (None, _) if health.device_failures > 0 => "failing",
        (None, _) if mount.is_read_only() => "read-only",
        (None, _) => "serving",
    };
    let since = daemon.filter(|&(pid, _)| pid > 0).and_then(|(pid, _)| procs::began(pid));
    let removing = (health.trees_removing, health.names_removed);
    let trouble = match state {
        "silent" => Some("the daemon does not answer".to_owned()),
        "dead" => {
            Some("the daemon has died; the next mount of the store, or `kvfs umount`, clears up".to_owned())
        }
        _ => health.trouble(),
    };
    Line { mount, elsewhere, state, daemon, since, trouble, removing }
}

/// Process and user of the daemon, by its socket; where none lets this user in, by its command line.
fn daemon_of(mount: &MountedStore, stream: Option<&UnixStream>) -> Option<(u32, u32)> {
    if let Some(credentials) = stream.and_then(|stream| peer_credentials(stream).ok()) {
        return Some((credentials.pid, credentials.uid));
    }
    procs::pids().find_map(|pid| {
        // Of a process that waits for a page, the words may wait as well.
        let is_ours = procs::command(pid) == "kvfs" && {
            let words = procs::words(pid);
            words.contains(&mount.store) && words.contains(&mount.dir)
        };
        let uid = fs::metadata(format!("/proc/{pid}")).ok()?.uid();
        is_ours.then_some((pid, uid))
    })
}

fn as_text(lines: &[Line], numeric: bool) -> String {
    if lines.is_empty() {
        return "no store is mounted or served\n".to_owned();
    }
    let now = SystemClock::new().wall();
    let mut text =
        format!("{:9}  {:>8}  {:>8}  {:>7}  STORE ON DIRECTORY\n", "STATE", "USER", "SINCE", "PID");
    for line in lines {
        let user = line.daemon.map_or("-".to_owned(), |(_, uid)| Table::Users.shown(uid, numeric));
        let pid = line.pid().map_or("-".to_owned(), |pid| pid.to_string());
        let since = line.since.map_or("-".to_owned(), |at| human_duration(now.saturating_sub(at)));
        let elsewhere = line.elsewhere.map_or_else(String::new, |pid| format!(" (as process {pid} sees it)"));
        let store = printable_path(&line.mount.store);
        let place = match line.mounted() {
            Some(dir) => format!("on {}", printable_path(dir)),
            None => "without a mount".to_owned(),
        };
        // Writing to a string never fails.
        let _ =
            writeln!(text, "{:9}  {user:>8}  {since:>8}  {pid:>7}  {store} {place}{elsewhere}", line.state);
        if let Some(trouble) = &line.trouble {
            let _ = writeln!(text, "           {}", printable(trouble));
        }
        if let (trees @ 1.., names) = line.removing {
            let trees = if trees == 1 { "a tree".to_owned() } else { format!("{trees} trees") };
            let _ = writeln!(text, "           removing {trees}: {names} names have gone");
        }
    }
    text
}

fn as_json(lines: &[Line]) -> String {
    let list: Vec<_> = lines
        .iter()
        .map(|line| {
            let value = serde_json::json!({
                "options": line.mount.options,
                "state": line.state,
                "namespace_of": line.elsewhere,
                "pid": line.pid(),
                "uid": line.daemon.map(|(_, uid)| uid),
                "trouble": line.trouble,
                "trees_removing": line.removing.0,
                "names_removed": line.removing.1,
                "since": line.since.map(|at| at.as_secs_f64()),
            });
            let value = with_bytes(value, "store", Some(line.mount.store.as_os_str().as_bytes()));
            with_bytes(value, "mounted", line.mounted().map(|dir| dir.as_os_str().as_bytes()))
        })
        .collect();
    format!("{}\n", serde_json::Value::Array(list))
}
