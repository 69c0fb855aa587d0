//! Servers and daemons that are killed under load, and what is there afterwards.
//!
//! The time is from the kill until the file system is mounted, the database is open and its check has passed.
//!
//! Thread safety: plain functions; an acknowledgement is read by a thread of its own.
//!
//! Invariants: no process that was started here outlives its value.

use crate::mariadb::{MariaDb, Terminals};
use crate::postgres::Postgres;
use crate::row::{Measured, Setup, detail};
use crate::server::Server;
use crate::sqlite::{self, JournalMode};
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::Meter;
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// So long a database may take until enough is acknowledged, or a server until it has noticed that its files
/// are gone.
const LIMIT: Duration = Duration::from_mins(2);

/// Before the kill: so long there is load, and so many transactions are acknowledged.
const LOAD_MIN: Duration = Duration::from_secs(1);
const ACKS_MIN: u32 = 20;
const MARIADB_BUFFER_BYTES: u64 = 256 << 20;
const SCRIPT_ROWS: u32 = 100_000;

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
    Postgres,
    MariaDb,
}

impl Database {
    pub(crate) const ALL: [Self; 4] =
        [Self::Sqlite(JournalMode::Wal), Self::Sqlite(JournalMode::Delete), Self::Postgres, Self::MariaDb];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Sqlite(JournalMode::Wal) => "sqlite-wal",
            Self::Sqlite(JournalMode::Delete) => "sqlite-delete",
            Self::Postgres => "postgres",
            Self::MariaDb => "mariadb",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Sqlite(JournalMode::Wal) => "SQLite WAL",
            Self::Sqlite(JournalMode::Delete) => "SQLite DELETE",
            Self::Postgres => "PostgreSQL",
            Self::MariaDb => "MariaDB",
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
        Database::Postgres => kill_postgres(target, victim, setup),
        Database::MariaDb => kill_mariadb(target, victim, setup),
    }
}

/// Without `synchronous = EXTRA`, `SQLite` does not sync the directory when it deletes the rollback journal,
/// which is its commit: a crash of the file system may take back the last one.
fn kill_sqlite(target: &mut Target, mode: JournalMode, victim: Victim, setup: &Setup) -> Result<Measured> {
    let path = target.dir().join("rows.db");
    let own = std::env::current_exe()?;
    let mut command = Command::new(own);
    command.arg("--write-sqlite").arg(&path).args(["--journal-mode", mode.name()]);
    let mut writer = AckReader::start(command)?;
    // Another moment in each run.
    writer.wait_for(ACKS_MIN + 7 * setup.run)?;

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

fn kill_postgres(target: &mut Target, victim: Victim, setup: &Setup) -> Result<Measured> {
    let postgres = Postgres::on(target, setup)?;
    target.sync()?;
    let server = postgres.start()?;
    let load = Load(postgres.load()?);
    let script = write_script(setup, |id| format!("INSERT INTO acks VALUES ({id});\n\\echo {id}\n"))?;
    let writer = AckReader::start(postgres.script(&script))?;
    let struck = strike(target, writer, server, victim, setup)?;
    drop(load);
    let server = postgres.start()?;
    postgres.check()?;
    let (count, last) = postgres.acks()?;
    let seconds = struck.start.elapsed().as_secs_f64();
    check_acks(struck.acknowledged, count, last)?;
    server.stop()?;
    finish(target, struck.meter, victim, seconds, struck.acknowledged)
}

fn kill_mariadb(target: &mut Target, victim: Victim, setup: &Setup) -> Result<Measured> {
    let warehouses = *setup.sizes.warehouses.first().context("there is a scale")?;
    let mariadb = MariaDb::on(target, warehouses, setup)?;
    target.sync()?;
    let server = mariadb.start(MARIADB_BUFFER_BYTES, &[])?;
    let terminals = Terminals::start(&mariadb, warehouses, setup)?;
    let script = write_script(setup, |id| format!("INSERT INTO acks VALUES ({id}); SELECT {id};\n"))?;
    let writer = AckReader::start_with(mariadb.script(), Stdio::from(std::fs::File::open(&script)?))?;
    let struck = strike(target, writer, server, victim, setup)?;
    drop(terminals);
    let server = mariadb.start(MARIADB_BUFFER_BYTES, &[])?;
    mariadb.check(warehouses)?;
    let (count, last) = mariadb.acks()?;
    let seconds = struck.start.elapsed().as_secs_f64();
    check_acks(struck.acknowledged, count, last)?;
    server.stop()?;
    finish(target, struck.meter, victim, seconds, struck.acknowledged)
}

/// A program that is killed when it is not needed any more.
struct Load(Child);

impl Drop for Load {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// What was killed, and when.
struct Struck {
    start: Instant,
    meter: Meter,
    acknowledged: u32,
}

/// Waits for acknowledgements, kills, and mounts anew if it was the daemon; the server is gone afterwards.
fn strike(
    target: &mut Target,
    mut writer: AckReader,
    mut server: Server,
    victim: Victim,
    setup: &Setup,
) -> Result<Struck> {
    // Another moment in each run.
    writer.wait_for(ACKS_MIN + 7 * setup.run)?;
    let meter = Meter::start(target.probe()?)?;
    let start = Instant::now();
    if victim != Victim::Server {
        target.kill_daemon()?;
    }
    if victim == Victim::Daemon {
        // Its clients must not hear of success once its files are gone.
        std::thread::sleep(Duration::from_millis(500));
    }
    server.kill()?;
    let acknowledged = writer.finish()?;
    drop(server);
    if victim != Victim::Server {
        target.mount_after_kill()?;
    }
    Ok(Struck { start, meter, acknowledged })
}

/// A file with the statements of so many acknowledged inserts as no run comes to.
fn write_script(setup: &Setup, statement: impl Fn(u32) -> String) -> Result<PathBuf> {
    let path = setup.run_dir.join("acks.sql");
    let text: String = (1..=SCRIPT_ROWS).map(statement).collect();
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

/// Every row that was acknowledged is there, and none is missing between them.
fn check_acks(acknowledged: u32, count: u32, last: u32) -> Result<()> {
    ensure!(count == last, "{count} rows are there, the last is {last}");
    ensure!(last >= acknowledged, "{acknowledged} rows were acknowledged, {last} are there");
    Ok(())
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
    start: Instant,
    reader: Option<JoinHandle<()>>,
}

impl AckReader {
    /// Starts it.
    fn start(command: Command) -> Result<Self> {
        Self::start_with(command, Stdio::null())
    }

    /// Starts it with this standard input.
    fn start_with(mut command: Command, input: Stdio) -> Result<Self> {
        command.stdin(input).stdout(Stdio::piped()).stderr(Stdio::null());
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
        Ok(Self { child, last, start: Instant::now(), reader: Some(reader) })
    }

    /// Waits until it has worked for a while, and so many are durable.
    pub(crate) fn wait_for(&mut self, count: u32) -> Result<()> {
        let reached = host::wait_until(LIMIT, || {
            interrupt::check()?;
            if let Some(status) = self.child.try_wait()? {
                anyhow::bail!("the client ended by itself, {status}");
            }
            Ok(self.start.elapsed() >= LOAD_MIN && self.last.load(Ordering::Acquire) >= count)
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
