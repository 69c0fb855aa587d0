//! `PostgreSQL` with pgbench: its TPC-B-like transactions, the server with its defaults.
//!
//! Thread safety: plain functions; servers and clients are processes.

use crate::row::{Measured, Setup, detail};
use crate::server::{Server, as_user, make_dir_for, run};
use crate::stats::StatsMeter;
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use kvfs_bench::counters::Meter;
use kvfs_bench::host;
use kvfs_bench::latencies::Latencies;
use kvfs_bench::units::Unit;
use rustix::process::Signal;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

const USER: &str = "postgres";
const DATABASE: &str = "bench";
const CLIENTS: &str = "4";
const THREADS: &str = "2";

/// Where Debian has the programs; `None` when they are missing.
pub(crate) fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let dirs = versions.filter_map(|entry| Some(entry.ok()?.path().join("bin")));
    dirs.filter(|dir| ["postgres", "pgbench", "pg_amcheck"].iter().all(|it| dir.join(it).is_file())).max()
}

/// A data directory and how its server is reached.
pub(crate) struct Postgres {
    programs: PathBuf,
    data: PathBuf,
    /// Of the socket; logs lie beside it.
    sockets: PathBuf,
}

impl Postgres {
    /// A new copy of the template on the target.
    pub(crate) fn on(target: &Target, setup: &Setup) -> Result<Self> {
        let scale = setup.sizes.pgbench_scale;
        let data = target.dir().join("postgres");
        let new = |data: PathBuf| Self::new(data, setup.run_dir);
        setup.templates.copy(&format!("pgbench-{scale}"), &data, |dir| new(dir.to_owned())?.init(scale))?;
        new(data)
    }

    fn new(data: PathBuf, run_dir: &Path) -> Result<Self> {
        let programs = programs().context("PostgreSQL is missing")?;
        let sockets = run_dir.join("postgres-sockets");
        make_dir_for(USER, &sockets)?;
        Ok(Self { programs, data, sockets })
    }

    /// Makes the data directory, with pgbench's tables and one for acknowledgements.
    fn init(&self, scale: u32) -> Result<()> {
        make_dir_for(USER, &self.data)?;
        let mut initdb = as_user(USER, &self.programs.join("initdb"));
        initdb.arg("-D").arg(&self.data).args([
            "--no-sync",
            "--auth=trust",
            "--encoding=UTF8",
            "--no-locale",
        ]);
        run(initdb)?;
        let server = self.start()?;
        run(self.client("createdb", &[DATABASE]))?;
        run(self.client("pgbench", &["-i", "-q", "-s", &scale.to_string(), DATABASE]))?;
        self.query("CREATE TABLE acks (id integer PRIMARY KEY)")?;
        self.query("CREATE EXTENSION amcheck")?;
        server.stop()
    }

    /// Starts the server, which recovers first if it has to.
    pub(crate) fn start(&self) -> Result<Server> {
        let mut command = as_user(USER, &self.programs.join("postgres"));
        command.arg("-D").arg(&self.data).arg("-k").arg(&self.sockets).args(["-c", "listen_addresses="]);
        // A server that is killed leaves what it has in /dev/shm.
        command.args(["-c", "dynamic_shared_memory_type=sysv"]);
        let log = self.sockets.with_file_name("postgres.log");
        Server::start(command, &log, Signal::INT, || {
            run(self.client("psql", &["-c", "SELECT 1", "postgres"])).is_ok()
        })
    }

    /// A client program for this server.
    pub(crate) fn client(&self, program: &str, args: &[&str]) -> Command {
        let mut command = Command::new(self.programs.join(program));
        command.arg("-h").arg(&self.sockets).args(["-U", USER]).args(args).current_dir("/");
        command
    }

    /// Asks for one value.
    pub(crate) fn query(&self, sql: &str) -> Result<String> {
        run(self.client("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-c", sql, DATABASE]))
    }

    /// pgbench in the background, until it is killed or the server is gone.
    pub(crate) fn load(&self) -> Result<Child> {
        let mut command =
            self.client("pgbench", &["-n", "-c", CLIENTS, "-j", THREADS, "-T", "600", DATABASE]);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().context("cannot run pgbench")
    }

    /// Runs a file of SQL and prints what it says to; for acknowledgements, which may not wait in a buffer.
    pub(crate) fn script(&self, file: &Path) -> Command {
        let psql =
            self.client("psql", &["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", DATABASE, "-f"]);
        let mut command = Command::new("stdbuf");
        command.arg("-oL").arg(psql.get_program()).args(psql.get_args()).arg(file).current_dir("/");
        command
    }

    /// Indexes and heaps by `pg_amcheck`, and pgbench's sums.
    pub(crate) fn check(&self) -> Result<()> {
        run(self.client("pg_amcheck", &["--heapallindexed", "--parent-check", DATABASE]))?;
        let sums = self.query(
            "SELECT (SELECT sum(abalance) FROM pgbench_accounts), (SELECT sum(bbalance) FROM pgbench_branches), \
             (SELECT sum(tbalance) FROM pgbench_tellers), (SELECT coalesce(sum(delta), 0) FROM pgbench_history)",
        )?;
        let sums: Vec<&str> = sums.split('|').collect();
        ensure!(sums.len() == 4 && sums.iter().all(|sum| *sum == sums[0]), "pgbench's sums differ: {sums:?}");
        Ok(())
    }

    /// How many acknowledgements there are, and the last one.
    pub(crate) fn acks(&self) -> Result<(u32, u32)> {
        let found = self.query("SELECT count(*), coalesce(max(id), 0) FROM acks")?;
        let (count, last) = found.split_once('|').context("psql says other things")?;
        Ok((count.parse()?, last.parse()?))
    }
}

/// pgbench for so many seconds, after a tenth of it to warm up.
pub(crate) fn measure(target: &Target, setup: &Setup) -> Result<Measured> {
    let postgres = Postgres::on(target, setup)?;
    target.sync()?;
    host::drop_caches()?;
    let server = postgres.start()?;
    let seconds = setup.sizes.seconds;
    let bench = |seconds: u64, more: &[&str]| {
        let duration = seconds.max(1).to_string();
        let fixed = ["-n", "-c", CLIENTS, "-j", THREADS, "-T", duration.as_str()];
        run(postgres.client("pgbench", &[&fixed, more, &[DATABASE]].concat()))
    };
    bench(seconds / 10, &[])?;
    let logs = setup.run_dir.join("pgbench");
    fs::create_dir_all(&logs)?;
    let prefix = format!("--log-prefix={}", logs.join("log").display());
    let stats = StatsMeter::start(target)?;
    let mut meter = Meter::start(target.probe()?)?;
    let start = Instant::now();
    bench(seconds, &["-l", &prefix])?;
    let elapsed = start.elapsed().as_secs_f64();
    meter.stop()?;
    let mut latencies = read_latencies(&logs)?;
    fs::remove_dir_all(&logs)?;
    let count = latencies.count() as f64;
    ensure!(count > 0.0, "pgbench has done nothing");
    let mut details = vec![
        detail("transactions each second", Unit::Count, count / elapsed),
        detail("50 % of transactions within", Unit::Seconds, latencies.below(500)),
        detail("99 % of transactions within", Unit::Seconds, latencies.below(990)),
    ];
    details.extend(stats.finish(target, count)?);
    target.sync()?;
    let usage = meter.finish()?;
    postgres.check()?;
    server.stop()?;
    Ok(Measured { seconds: elapsed * 1000.0 / count, usage, details })
}

/// The third field of each line: microseconds.
fn read_latencies(logs: &Path) -> Result<Latencies> {
    let mut latencies = Latencies::default();
    for entry in fs::read_dir(logs)? {
        let text = fs::read_to_string(entry?.path())?;
        for micros in text.lines().filter_map(|line| line.split(' ').nth(2)?.parse().ok()) {
            latencies.add(Duration::from_micros(micros));
        }
    }
    Ok(latencies)
}
