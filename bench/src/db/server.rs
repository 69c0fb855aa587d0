//! Servers of databases, as users of their own, and what they begin with: data directories that are made once
//! and copied.
//!
//! Thread safety: each value belongs to one thread.
//!
//! Invariants: a server and all processes that it has started are gone when it is dropped.

use anyhow::{Context, Result, bail, ensure};
use kvfs_bench::{host, interrupt};
use rustix::process::{Pid, Signal};
use std::fs::{self, File};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Of a start after a crash, too.
const START_LIMIT: Duration = Duration::from_mins(5);
const STOP_LIMIT: Duration = Duration::from_mins(5);
/// Of processes that were killed.
const GONE_LIMIT: Duration = Duration::from_mins(1);

/// A command that runs as this user, whose group has the same name. Shared memory of System V that it leaves
/// behind when it is killed is gone with it.
pub(crate) fn as_user(user: &str, program: &Path) -> Command {
    let mut command = Command::new("unshare");
    command.args(["--ipc", "--", "setpriv"]);
    command.args([&format!("--reuid={user}"), &format!("--regid={user}"), "--init-groups", "--"]);
    command.arg(program).current_dir("/");
    command
}

/// Runs a command to its end; its output is part of the error.
pub(crate) fn run(mut command: Command) -> Result<String> {
    command.stdin(Stdio::null()).env("LC_ALL", "C");
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    ensure!(
        output.status.success(),
        "{command:?}: {}: {} {}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    Ok(text(&output.stdout))
}

/// Makes a directory for this user alone.
pub(crate) fn make_dir_for(user: &str, dir: &Path) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    host::run("chown", &[format!("{user}:{user}").as_ref(), dir.as_os_str()])?;
    host::run("chmod", &["700".as_ref(), dir.as_os_str()])?;
    Ok(())
}

/// A server that runs.
pub(crate) struct Server {
    child: Child,
    log: PathBuf,
    /// What asks it to write out everything and end.
    stop: Signal,
    has_ended: bool,
}

impl Server {
    /// Starts it, and waits until `is_ready`. Its output goes to `log`.
    pub(crate) fn start(
        mut command: Command,
        log: &Path,
        stop: Signal,
        mut is_ready: impl FnMut() -> bool,
    ) -> Result<Self> {
        let output = File::options().create(true).append(true).open(log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        // A process group of its own: Ctrl-C on the terminal must not end it under its clients.
        let child = command.process_group(0).spawn().with_context(|| format!("cannot run {command:?}"))?;
        let mut server = Self { child, log: log.to_owned(), stop, has_ended: false };
        let is_up = host::wait_until(START_LIMIT, || {
            interrupt::check()?;
            if let Some(status) = server.child.try_wait()? {
                server.has_ended = true;
                bail!("the server has ended, {status}:\n{}", server.log_tail());
            }
            Ok(is_ready())
        })?;
        ensure!(is_up, "the server was not ready within {START_LIMIT:?}:\n{}", server.log_tail());
        Ok(server)
    }

    /// Lets it write out everything and end.
    pub(crate) fn stop(mut self) -> Result<()> {
        rustix::process::kill_process(Pid::from_child(&self.child), self.stop)?;
        let mut status = None;
        host::wait_until(STOP_LIMIT, || {
            status = self.child.try_wait()?;
            Ok(status.is_some())
        })?;
        let status = status.with_context(|| format!("the server has not ended within {STOP_LIMIT:?}"))?;
        self.has_ended = true;
        ensure!(status.success(), "the server ended with {status}:\n{}", self.log_tail());
        Ok(())
    }

    /// Sends `SIGKILL` to it and to what it has started, and waits until all are gone.
    pub(crate) fn kill(&mut self) -> Result<()> {
        if self.has_ended {
            return Ok(());
        }
        let children = children_of(self.child.id())?;
        self.child.kill()?;
        for child in &children {
            // It may have ended by itself.
            let _ = rustix::process::kill_process(*child, Signal::KILL);
        }
        self.child.wait()?;
        self.has_ended = true;
        let are_gone = host::wait_until(GONE_LIMIT, || Ok(children.iter().all(|child| is_gone(*child))))?;
        ensure!(are_gone, "processes of the server are still there {GONE_LIMIT:?} after it was killed");
        Ok(())
    }

    fn log_tail(&self) -> String {
        let log = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = log.lines().collect();
        lines[lines.len().saturating_sub(15)..].join("\n")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.kill() {
            eprintln!("a server may still be there: {error:#}");
        }
    }
}

/// State and parent of a process, as `/proc/PID/stat` has them.
fn state_and_parent(pid: &str) -> Option<(String, u32)> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name before may hold spaces.
    let mut fields = stat[stat.rfind(')')? + 2..].split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn children_of(parent: u32) -> Result<Vec<Pid>> {
    let mut children = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let name = name.to_string_lossy();
        let Ok(pid) = name.parse::<i32>() else { continue };
        if state_and_parent(&name).is_some_and(|(_, found)| found == parent) {
            children.extend(Pid::from_raw(pid));
        }
    }
    Ok(children)
}

fn is_gone(pid: Pid) -> bool {
    state_and_parent(&pid.as_raw_nonzero().to_string()).is_none_or(|(state, _)| state == "Z")
}

/// Data directories that are made once, and copied to the file systems.
pub(crate) struct Templates {
    dir: PathBuf,
    keep: bool,
}

impl Templates {
    /// They are kept in `dir` until the end, or for later invocations.
    pub(crate) fn new(dir: PathBuf, keep: bool) -> Result<Self> {
        fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir, keep })
    }

    /// A copy in a new directory `to`; the template of this name is made if it is not there.
    pub(crate) fn copy(&self, name: &str, to: &Path, make: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        let template = self.dir.join(name);
        // Written last: a template without it was left half done.
        let marker = self.dir.join(format!("{name}.complete"));
        if !marker.exists() {
            if template.exists() {
                fs::remove_dir_all(&template)?;
            }
            eprintln!("making the database {name}, once");
            make(&template)?;
            fs::write(&marker, "")?;
        }
        let args = ["-a".as_ref(), "--sparse=never".as_ref(), template.as_os_str(), to.as_os_str()];
        host::run("cp", &args)?;
        Ok(())
    }
}

impl Drop for Templates {
    fn drop(&mut self) {
        if !self.keep
            && let Err(error) = fs::remove_dir_all(&self.dir)
        {
            eprintln!("{} stays: {error}", self.dir.display());
        }
    }
}
