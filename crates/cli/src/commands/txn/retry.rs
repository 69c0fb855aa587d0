//! `kvfs txn run --retry`: each try is a process of its own, because namespaces are left only once.

use std::io::Read;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use rustix::io::{FdFlags, fcntl_setfd};

use super::run::CONFLICT_MARK;
use super::supervise::{Ended, Watch};
use crate::args::{BeginArgs, RunArgs};
use crate::error::{CliError, Code, Result};
use crate::progress;

pub(super) fn run(store: Option<&Path>, args: &RunArgs) -> Result<ExitCode> {
    let watch = Watch::begin(&[])?;
    for nth in 0..=args.retry {
        let (ended, conflict) = attempt(store, args, &watch)?;
        match ended {
            Ended::Exit(_) if conflict && nth < args.retry && !watch.has_heard() => {
                eprintln!("kvfs: trying again ({} of {})", nth + 1, args.retry);
            }
            Ended::Exit(code) => return Ok(ExitCode::from(code)),
            Ended::Told(signal) => return Ok(ExitCode::from(128 + signal)),
            Ended::Cut | Ended::Late => break,
        }
    }
    Ok(ExitCode::FAILURE)
}

/// One try; whether it failed by a conflict.
fn attempt(store: Option<&Path>, args: &RunArgs, watch: &Watch) -> Result<(Ended, bool)> {
    let failed = |error: std::io::Error| CliError::new(Code::Failed, format!("cannot try: {error}"));
    let (reading, writing) =
        rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).map_err(|errno| failed(errno.into()))?;
    // For the child alone: there is one thread, which starts one process.
    fcntl_setfd(&writing, FdFlags::empty()).map_err(|errno| failed(errno.into()))?;
    let mut command = Command::new("/proc/self/exe");
    command.args(progress::is_quiet().then_some("--quiet")).arg("txn");
    if let Some(store) = store {
        command.arg("--store").arg(store);
    }
    command.args(["run", "--conflict-to", &writing.as_raw_fd().to_string()]);
    command.args(words(args)).arg("--").args(&args.command);
    let child = watch.spawn(&mut command).map_err(failed)?;
    drop(writing);
    let ended = watch.wait(&child, None, None)?;
    watch.release();
    // A process that was left behind may still hold the other end: what there is, is there now.
    let mut mark = [0; CONFLICT_MARK.len()];
    let flags = rustix::fs::fcntl_getfl(&reading).map_err(|errno| failed(errno.into()))?;
    rustix::fs::fcntl_setfl(&reading, flags | rustix::fs::OFlags::NONBLOCK)
        .map_err(|errno| failed(errno.into()))?;
    let read = std::fs::File::from(reading).read(&mut mark);
    Ok((ended, matches!(read, Ok(len) if len > 0 && mark == CONFLICT_MARK)))
}

/// The options, without `--retry`.
fn words(args: &RunArgs) -> Vec<String> {
    use clap::ValueEnum;
    // Whole, so that no option is forgotten.
    let RunArgs { begin, retry: _, review, kill_children, is_async, conflict_to: _, command: _ } = args;
    let BeginArgs { isolation, timeout, idle_timeout, nice } = begin;
    let time =
        |time: Duration| if time == Duration::MAX { "0".to_owned() } else { time.as_secs_f64().to_string() };
    let mut words = Vec::new();
    if let Some(isolation) = isolation.to_possible_value() {
        words.push(format!("--isolation={}", isolation.get_name()));
    }
    words.extend(timeout.map(|timeout| format!("--timeout={}", time(timeout))));
    words.extend(idle_timeout.map(|timeout| format!("--idle-timeout={}", time(timeout))));
    words.push(format!("--nice={nice}"));
    words.extend(review.then(|| "--review".to_owned()));
    words.extend(is_async.then(|| "--async".to_owned()));
    words.extend(kill_children.then(|| "--kill-children".to_owned()));
    words
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::args::{self, Cli, TxnCommand};

    fn parsed(options: &[String]) -> RunArgs {
        let line = ["kvfs", "txn", "run"].into_iter().chain(options.iter().map(String::as_str));
        let cli = Cli::try_parse_from(line.chain(["--", "true"])).unwrap();
        match cli.command {
            args::Command::Txn(args) => match args.command {
                TxnCommand::Run(args) => args,
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn each_try_is_given_all_options() {
        for idle in ["0", "250ms", "8h"] {
            let options = [
                "--isolation=serializable",
                "--timeout=0.5ms",
                &format!("--idle-timeout={idle}"),
                "--nice=-3",
                "--review",
                "--async",
                "--kill-children",
            ];
            let args = parsed(&options.map(str::to_owned));
            let again = parsed(&words(&args));
            assert_eq!(format!("{again:?}"), format!("{args:?}"));
        }
    }
}
