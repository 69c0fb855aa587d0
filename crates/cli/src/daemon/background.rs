//! Going to the background only when the mount is ready.
//!
//! The parent runs this program again, with its standard output as the channel for the news; the child
//! leaves the session of the terminal, mounts, and says "ready" or what is wrong. Only then it lets go of
//! the terminal and the parent returns. A parent that was killed meanwhile makes the child give up.
//!
//! Report: one byte, 0 or the exit code, then the message.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};

use rustix::process::{Signal, set_parent_process_death_signal};

use super::{Plan, inherited, log};
use crate::error::{CliError, Code, Result};
use crate::progress::Bar;

const READY: u8 = 0;

/// Longest message taken from the child (bytes).
const REPORT_LEN_MAX: u64 = 64 << 10;

/// The parent: starts the child with the same words (`kvfs mount …`), and waits for its report. `what` it
/// does meanwhile.
pub(crate) fn start(words: &[OsString], what: &str) -> Result<ExitCode> {
    let failed = |what: &str, error: &io::Error| {
        CliError::new(Code::Failed, format!("cannot {what} the daemon: {error}"))
    };
    inherited::keep_from_children().map_err(|error| failed("prepare", &error))?;
    let bar = Bar::new(what);
    let mut child = spawn(words).map_err(|error| failed("start", &error))?;
    let mut report = Vec::new();
    if let Some(channel) = child.stdout.take() {
        channel.take(REPORT_LEN_MAX).read_to_end(&mut report).map_err(|error| failed("hear", &error))?;
    }
    drop(bar);
    match report.split_first() {
        Some((&READY, _)) => Ok(ExitCode::SUCCESS),
        Some((&code, message)) => {
            // Only when it is gone, the store is free again.
            reap(&mut child);
            Err(CliError::new(Code::from_number(code), String::from_utf8_lossy(message)))
        }
        None => {
            let status = reap(&mut child);
            Err(CliError::new(Code::Failed, format!("the daemon died while it started ({status})")))
        }
    }
}

fn spawn(words: &[OsString]) -> io::Result<Child> {
    // The path tells people what runs; the link always works, also when the file was replaced.
    let program = std::env::current_exe().ok().filter(|path| path.exists());
    let program = program.as_deref().unwrap_or(Path::new("/proc/self/exe"));
    let (name, rest) = words.split_first().map_or((OsStr::new("kvfs"), words), |(name, rest)| (name, rest));
    Command::new(program)
        .arg0(name)
        .args(in_background(rest))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
}

/// The same words for the child, without the program's name: it is told behind the subcommand, before which
/// options may stand.
fn in_background(words: &[OsString]) -> Vec<OsString> {
    let subcommand = subcommand(words);
    let mut words = words.to_vec();
    words.insert(subcommand.map_or(words.len(), |at| at + 1), "--in-background".into());
    words
}

/// Which of the words behind the program's name is the subcommand.
pub(crate) fn subcommand(words: &[impl AsRef<OsStr>]) -> Option<usize> {
    words.iter().position(|word| !word.as_ref().as_encoded_bytes().starts_with(b"-"))
}

fn reap(child: &mut Child) -> String {
    child.wait().map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// The child: everything up to the end of the mount.
pub(crate) fn serve(plan: &Plan) -> Result<ExitCode> {
    // A child is never the leader of a group, so this can't fail; nor would it matter.
    if let Err(errno) = rustix::process::setsid() {
        eprintln!("kvfs: still in the session of the terminal: {errno}");
    }
    // While the store is being opened that ends the child as well; a parent that has gone before is met by
    // the report.
    follow_parent(Some(Signal::TERM));
    let mut reported = false;
    let done = super::serve(plan, log::Target::File, || {
        reported = true;
        follow_parent(None);
        report(READY, "").and_then(|()| let_go()).map_err(|error| {
            CliError::new(Code::Failed, format!("the command that asked for the daemon has gone: {error}"))
        })
    });
    match done {
        Err(error) if !reported => {
            if report(error.code as u8, &error.message).is_err() {
                eprintln!("kvfs: {error}");
            }
            Ok(ExitCode::from(error.code as u8))
        }
        Err(error) => {
            tracing::error!(%error, "the daemon failed");
            Ok(ExitCode::from(error.code as u8))
        }
        done => done,
    }
}

/// What this process is sent when its parent has gone.
fn follow_parent(signal: Option<Signal>) {
    if let Err(error) = set_parent_process_death_signal(signal) {
        tracing::debug!(%error, "the end of the parent is met by the report alone");
    }
}

fn report(code: u8, message: &str) -> io::Result<()> {
    let mut channel = io::stdout().lock();
    channel.write_all(&[code])?;
    channel.write_all(message.as_bytes())?;
    channel.flush()
}

/// Standard streams to nowhere; the closed channel tells the parent that the report is complete.
fn let_go() -> io::Result<()> {
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    Ok(())
}

#[cfg(test)]
mod tests;
