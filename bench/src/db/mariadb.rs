//! `MariaDB` with TPC-C: server and file system in a memory cgroup, terminals outside of it.
//!
//! Thread safety: plain functions; terminals are threads, which are joined before a function returns.

use crate::row::{Measured, Setup, detail};
use crate::server::{Server, as_user, make_dir_for, run};
use crate::stats::StatsMeter;
use crate::target::Target;
use crate::tpcc::{self, Tally, Terminal};
use anyhow::{Context, Result, anyhow, ensure};
use kvfs_bench::cgroup::MemoryCgroup;
use kvfs_bench::counters::Meter;
use kvfs_bench::results::Detail;
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt};
use mysql::prelude::Queryable;
use mysql::{Conn, OptsBuilder};
use rustix::process::Signal;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const USER: &str = "mysql";
const SERVER: &str = "/usr/sbin/mariadbd";
const DATABASE: &str = "tpcc";
/// Of the server while tables are filled.
const LOAD_BUFFER_BYTES: u64 = 1 << 30;
/// The last of the conditions that are checked where there are more warehouses than [`FEW_WAREHOUSES`]: the
/// others join everything.
const CONDITION_MANY: u32 = 9;
const FEW_WAREHOUSES: u32 = 4;

/// Whether the server is installed.
pub(crate) fn is_there() -> bool {
    Path::new(SERVER).is_file() && host::has_program("mariadb-install-db") && host::has_program("mariadb")
}

/// Of one row.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scale {
    pub(crate) warehouses: u32,
    /// Of server and file system together (bytes).
    pub(crate) memory_bytes: u64,
    /// Whether it is measured on slow devices, too.
    pub(crate) has_slow: bool,
}

impl Scale {
    /// Buffer pool of the server: so much that it, what else the server takes, and a daemon with all it may
    /// take have room together.
    fn buffer_bytes(self) -> u64 {
        self.memory_bytes / 8 * 3
    }

    /// `--memory` of kvfs: a quarter.
    pub(crate) fn daemon_bytes(self) -> u64 {
        self.memory_bytes / 4
    }
}

/// A data directory and how its server is reached.
pub(crate) struct MariaDb {
    data: PathBuf,
    /// Of the socket; logs lie beside it.
    sockets: PathBuf,
}

impl MariaDb {
    /// A new copy of the template on the target.
    pub(crate) fn on(target: &Target, warehouses: u32, setup: &Setup) -> Result<Self> {
        let data = target.dir().join("mariadb");
        let new = |data: PathBuf| Self::new(data, setup.run_dir);
        let name = format!("tpcc-{warehouses}");
        setup.templates.copy(&name, &data, |dir| new(dir.to_owned())?.init(warehouses))?;
        new(data)
    }

    fn new(data: PathBuf, run_dir: &Path) -> Result<Self> {
        let sockets = run_dir.join("mariadb-sockets");
        make_dir_for(USER, &sockets)?;
        Ok(Self { data, sockets })
    }

    /// Makes the data directory, with TPC-C's tables and one for acknowledgements.
    fn init(&self, warehouses: u32) -> Result<()> {
        make_dir_for(USER, &self.data)?;
        let mut install = Command::new("mariadb-install-db");
        install.args(["--no-defaults", "--user=mysql", "--auth-root-authentication-method=normal"]);
        install.args(["--skip-test-db", "--skip-log-bin"]).arg(format!("--datadir={}", self.data.display()));
        run(install)?;
        let fast = ["--innodb-flush-log-at-trx-commit=0", "--innodb-doublewrite=0"];
        let server = self.start(LOAD_BUFFER_BYTES, &fast)?;
        let mut connection = self.connect("mysql")?;
        connection.query_drop(format!("CREATE DATABASE {DATABASE} CHARACTER SET latin1"))?;
        connection.query_drop(format!("USE {DATABASE}"))?;
        tpcc::load(&mut connection, warehouses)?;
        connection.query_drop("CREATE TABLE acks (id INT NOT NULL PRIMARY KEY)")?;
        // All pages are in the tables when it ends.
        connection.query_drop("SET GLOBAL innodb_fast_shutdown = 0")?;
        drop(connection);
        server.stop()
    }

    /// Starts the server, which recovers first if it has to.
    pub(crate) fn start(&self, buffer_bytes: u64, more: &[&str]) -> Result<Server> {
        let mut command = as_user(USER, Path::new(SERVER));
        command.args(["--no-defaults", "--skip-networking"]);
        command.arg(format!("--datadir={}", self.data.display()));
        command.arg(format!("--socket={}", self.socket().display()));
        command.arg(format!("--pid-file={}", self.sockets.join("pid").display()));
        command.arg(format!("--innodb-buffer-pool-size={buffer_bytes}")).args(more);
        let log = self.sockets.with_file_name("mariadb.log");
        Server::start(command, &log, Signal::TERM, || self.connect("mysql").is_ok())
    }

    fn socket(&self) -> PathBuf {
        self.sockets.join("socket")
    }

    /// A connection to this database.
    pub(crate) fn connect(&self, database: &str) -> mysql::Result<Conn> {
        let options = OptsBuilder::new()
            .socket(Some(self.socket().to_string_lossy()))
            .user(Some("root"))
            .db_name(Some(database))
            .stmt_cache_size(Some(100));
        Conn::new(options)
    }

    /// To the database of TPC-C.
    pub(crate) fn connect_tpcc(&self) -> Result<Conn> {
        self.connect(DATABASE).context("cannot connect to the server")
    }

    /// Runs SQL from its standard input and prints what it says at once; for acknowledgements.
    pub(crate) fn script(&self) -> Command {
        let mut command = Command::new("mariadb");
        command.args(["--no-defaults", "--batch", "--skip-column-names", "--unbuffered", "--user=root"]);
        command.arg(format!("--socket={}", self.socket().display())).arg(DATABASE);
        command
    }

    /// How many acknowledgements there are, and the last one.
    pub(crate) fn acks(&self) -> Result<(u32, u32)> {
        let found = self.connect_tpcc()?.query_first("SELECT COUNT(*), COALESCE(MAX(id), 0) FROM acks")?;
        found.context("the server says nothing")
    }

    /// TPC-C's conditions, and `CHECK TABLE` of everything.
    pub(crate) fn check(&self, warehouses: u32) -> Result<()> {
        let mut connection = self.connect_tpcc()?;
        let tables: Vec<String> = connection.query("SHOW TABLES")?;
        for (table, _, kind, verdict) in connection
            .query::<(String, String, String, String), _>(format!("CHECK TABLE {}", tables.join(",")))?
        {
            ensure!(kind != "error" && (kind != "status" || verdict == "OK"), "{table}: {verdict}");
        }
        let last = if warehouses <= FEW_WAREHOUSES { u32::MAX } else { CONDITION_MANY };
        tpcc::check(&mut connection, last)
    }
}

/// TPC-C for so many seconds, after a third of it to warm up.
pub(crate) fn measure(
    target: &Target,
    scale: Scale,
    cgroup: &MemoryCgroup,
    setup: &Setup,
) -> Result<Measured> {
    let mariadb = MariaDb::on(target, scale.warehouses, setup)?;
    target.sync()?;
    host::drop_caches()?;
    cgroup.enter()?;
    let server = mariadb.start(scale.buffer_bytes(), &[]);
    cgroup.leave()?;
    let server = server?;
    let terminals = Terminals::start(&mariadb, scale.warehouses, setup)?;
    let seconds = setup.sizes.seconds;
    terminals.wait(seconds.div_ceil(3))?;
    terminals.is_counting.store(true, Ordering::Release);
    let stats = StatsMeter::start(target)?;
    let server_before = server_counters(&mariadb)?;
    let mut meter = Meter::start(target.probe()?)?;
    let start = Instant::now();
    terminals.wait(seconds)?;
    let elapsed = start.elapsed().as_secs_f64();
    meter.stop()?;
    let mut tally = terminals.stop()?;
    let count = tally.new_orders.count() as f64;
    ensure!(count > 0.0, "there was no new order in {elapsed:.0} s");
    let mut details = vec![
        detail("new orders a minute", Unit::Count, count * 60.0 / elapsed),
        detail("transactions each second", Unit::Count, tally.transactions as f64 / elapsed),
        detail("50 % of new orders within", Unit::Seconds, tally.new_orders.below(500)),
        detail("99 % of new orders within", Unit::Seconds, tally.new_orders.below(990)),
        detail("begun anew", Unit::Share, tally.conflicts as f64 / tally.transactions as f64),
    ];
    details.extend(server_details(&server_before, &server_counters(&mariadb)?, tally.transactions as f64));
    details.extend(stats.finish(target, tally.transactions as f64)?);
    target.sync()?;
    let usage = meter.finish()?;
    mariadb.check(scale.warehouses)?;
    server.stop()?;
    Ok(Measured { seconds: elapsed * 1000.0 / count, usage, details })
}

/// What the server counts itself, for all file systems alike: table 4.1 of nDiskFS (2020) has fsyncs and
/// blocks.
const SERVER_COUNTERS: &[(&str, &str, Unit)] = &[
    ("Innodb_data_fsyncs", "fsyncs of the server, 1,000 transactions", Unit::Count),
    ("Innodb_pages_written", "pages of the server, 1,000 transactions", Unit::Count),
    ("Innodb_os_log_written", "log of the server, a transaction", Unit::Bytes),
];

fn server_counters(mariadb: &MariaDb) -> Result<Vec<f64>> {
    let mut connection = mariadb.connect_tpcc()?;
    let counter = |&(name, ..): &(&str, &str, Unit)| {
        let row: Option<(String, f64)> =
            connection.query_first(format!("SHOW GLOBAL STATUS LIKE '{name}'"))?;
        Ok(row.map_or(0.0, |(_, value)| value))
    };
    SERVER_COUNTERS.iter().map(counter).collect()
}

fn server_details(before: &[f64], after: &[f64], transactions: f64) -> Vec<Detail> {
    let each = SERVER_COUNTERS.iter().zip(before.iter().zip(after));
    each.map(|(&(_, name, unit), (before, after))| {
        let scale = if unit == Unit::Count { 1000.0 } else { 1.0 };
        detail(name, unit, (after - before) * scale / transactions)
    })
    .collect()
}

/// Terminals that work in the background.
pub(crate) struct Terminals {
    threads: Vec<JoinHandle<mysql::Result<Tally>>>,
    shared: Arc<Shared>,
}

/// What the threads look at.
#[derive(Default)]
pub(crate) struct Shared {
    is_over: AtomicBool,
    /// Until then nothing is kept.
    is_counting: AtomicBool,
}

impl std::ops::Deref for Terminals {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl Terminals {
    /// Starts them all.
    pub(crate) fn start(mariadb: &MariaDb, warehouses: u32, setup: &Setup) -> Result<Self> {
        let mut terminals = Self { threads: Vec::new(), shared: Arc::default() };
        for number in 0..setup.sizes.terminals {
            let connection = mariadb.connect_tpcc()?;
            let terminal = Terminal::new(connection, number, warehouses, setup.run.into());
            let shared = Arc::clone(&terminals.shared);
            terminals.threads.push(std::thread::spawn(move || work(terminal, &shared)));
        }
        Ok(terminals)
    }

    /// Lets them work.
    fn wait(&self, seconds: u64) -> Result<()> {
        let has_failed = || self.threads.iter().any(JoinHandle::is_finished);
        let limit = Duration::from_secs(seconds);
        let failed = host::wait_until(limit, || interrupt::check().map(|()| has_failed()))?;
        ensure!(!failed, "a terminal has ended by itself: the server has refused a transaction");
        Ok(())
    }

    /// Ends them; what was done while they were counted.
    fn stop(mut self) -> Result<Tally> {
        self.shared.is_over.store(true, Ordering::Release);
        let mut sum = Tally::default();
        for thread in self.threads.drain(..) {
            sum.add(thread.join().map_err(|_| anyhow!("a terminal has panicked"))??);
        }
        Ok(sum)
    }
}

impl Drop for Terminals {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // After a kill all of them have failed.
            let _ = thread.join();
        }
    }
}

fn work(mut terminal: Terminal, shared: &Shared) -> mysql::Result<Tally> {
    let (mut kept, mut passed_over) = (Tally::default(), Tally::default());
    while !shared.is_over.load(Ordering::Acquire) {
        let tally = if shared.is_counting.load(Ordering::Acquire) { &mut kept } else { &mut passed_over };
        terminal.step(tally)?;
    }
    Ok(kept)
}
