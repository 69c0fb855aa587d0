//! Servers and daemons that are killed under load, and what is there afterwards.
//!
//! The time is from the kill until the file system is mounted, the database is open and its check has passed.
//!
//! Thread safety: plain functions; an acknowledgement is read by a thread of its own.
//!
//! Invariants: no process that was started here outlives its value.

use crate::row::{Measured, Setup, detail};
use crate::sqlite::{self, JournalMode};
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::Meter;
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt};
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So long a database may take until enough is acknowledged, or a server until it has noticed that its files are gone.
const LIMIT: Duration = Duration::from_mins(2);

/// What is killed with `SIGKILL`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Victim {
    Server,
    /// Of the file system.
    Daemon,
    Both,
}

impl Victim {
    pub(crate) const ALL: [Self; 3] = [Self::Server, Self::Daemon, Self::Both];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Daemon => "daemon",
            Self::Both => "both",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Server => "server",
            Self::Daemon => "daemon",
            Self::Both => "both",
        }
    }
}

/// Whose files they are.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Database {
    Sqlite(JournalMode),
}

impl Database {
    pub(crate) const ALL: [Self; 2] = [Self::Sqlite(JournalMode::Wal), Self::Sqlite(JournalMode::Delete)];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite(JournalMode::Wal) => "sqlite-wal",
            Self::Sqlite(JournalMode::Delete) => "sqlite-delete",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Sqlite(JournalMode::Wal) => "SQLite WAL",
            Self::Sqlite(JournalMode::Delete) => "SQLite DELETE",
        }
    }
}

/// Kills under load, opens again, checks.
pub(crate) fn measure(
    target: &mut Target,
    database: Database,
    victim: Victim,
    setup: &Setup,
) -> Result<Measured> {
    match database {
        Database::Sqlite(mode) => kill_sqlite(target, mode, victim, setup),
    }
}

/// Without `synchronous = EXTRA`, `SQLite` does not sync the directory when it deletes the rollback journal, which is its commit: a crash
/// of the file system may take back the last one.
fn kill_sqlite(target: &mut Target, mode: JournalMode, victim: Victim, setup: &Setup) -> Result<Measured> {
    let path = target.dir().join("rows.db");
    let own = std::env::current_exe()?;
    let mut command = Command::new(own);
    command.arg("--write-sqlite").arg(&path).args(["--journal-mode", mode.name()]);
    let mut writer = AckReader::start(command)?;
    // Another moment in each run.
    writer.wait_for(setup.sizes.sqlite_rows / 10 + 7 * setup.run)?;

    let meter = Meter::start(target.probe()?)?;
    let start = Instant::now();
    if victim != Victim::Daemon {
        writer.kill()?;
    }
    if victim != Victim::Server {
        target.kill_daemon()?;
    }
    // One whose files are gone ends by itself.
    let acknowledged = writer.finish()?;
    if victim != Victim::Server {
        target.mount_after_kill()?;
    }
    let found = sqlite::check(&path)?;
    let seconds = start.elapsed().as_secs_f64();
    let lost = acknowledged.saturating_sub(found);
    let may_lose = u32::from(mode == JournalMode::Delete && victim != Victim::Server);
    ensure!(lost <= may_lose, "{acknowledged} rows were acknowledged, {found} are there");
    finish(target, meter, victim, seconds, acknowledged)
}

fn finish(
    target: &Target,
    mut meter: Meter,
    victim: Victim,
    seconds: f64,
    acknowledged: u32,
) -> Result<Measured> {
    let details = vec![detail("acknowledged before", Unit::Count, f64::from(acknowledged))];
    if victim != Victim::Server {
        // The daemon that it has begun with is gone.
        meter = Meter::start(target.probe()?)?;
    }
    meter.stop()?;
    Ok(Measured { seconds, usage: meter.finish()?, details })
}

/// A program that prints a number for each transaction that is durable, and ends when it cannot go on.
pub(crate) struct AckReader {
    child: Child,
    last: Arc<AtomicU32>,
    reader: Option<JoinHandle<()>>,
}

impl AckReader {
    /// Starts it.
    pub(crate) fn start(mut command: Command) -> Result<Self> {
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().with_context(|| format!("cannot run {command:?}"))?;
        let output = child.stdout.take().context("its output is a pipe")?;
        let last = Arc::new(AtomicU32::new(0));
        let seen = Arc::clone(&last);
        let reader = std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if let Ok(number) = line.trim().parse() {
                    seen.store(number, Ordering::Release);
                }
            }
        });
        Ok(Self { child, last, reader: Some(reader) })
    }

    /// Waits until so many are durable.
    pub(crate) fn wait_for(&mut self, count: u32) -> Result<()> {
        let reached = host::wait_until(LIMIT, || {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the client ended by itself, {status}");
            }
            Ok(self.last.load(Ordering::Acquire) >= count)
        })?;
        ensure!(reached, "{count} transactions have not come within {LIMIT:?}");
        Ok(())
    }

    /// Sends `SIGKILL`.
    pub(crate) fn kill(&mut self) -> Result<()> {
        Ok(self.child.kill()?)
    }

    /// Waits for its end, which it is made to come to; the number of the last one that was durable.
    pub(crate) fn finish(mut self) -> Result<u32> {
        let has_ended = host::wait_until(LIMIT, || Ok(self.child.try_wait()?.is_some()))?;
        ensure!(has_ended, "the client has not ended within {LIMIT:?}");
        self.join();
        Ok(self.last.load(Ordering::Acquire))
    }

    fn join(&mut self) {
        if let Some(reader) = self.reader.take() {
            // It does nothing that can panic.
            let _ = reader.join();
        }
    }
}

impl Drop for AckReader {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
        self.join();
    }
}
