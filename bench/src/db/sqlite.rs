//! `SQLite` in the process of the harness: one row a transaction, synchronous=FULL.
//!
//! Thread safety: plain functions.

use crate::row::{Measured, Setup, detail};
use crate::stats::StatsMeter;
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use clap::ValueEnum;
use kvfs_bench::counters::Meter;
use kvfs_bench::interrupt;
use kvfs_bench::latencies::Latencies;
use kvfs_bench::units::Unit;
use rusqlite::Connection;
use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

/// Of a row (bytes), beside its number.
const BODY_BYTES: usize = 100;

/// Where `SQLite` keeps what it needs to take back or do again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum JournalMode {
    /// A write-ahead log
    Wal,
    /// A rollback journal that is deleted with each commit
    Delete,
}

impl JournalMode {
    pub(crate) const ALL: [Self; 2] = [Self::Wal, Self::Delete];

    /// As the pragma has it, and in keys.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Wal => "wal",
            Self::Delete => "delete",
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::Wal => "WAL",
            Self::Delete => "DELETE",
        }
    }
}

/// Inserts rows and checks that all are there.
pub(crate) fn measure(target: &Target, mode: JournalMode, setup: &Setup) -> Result<Measured> {
    let path = target.dir().join("rows.db");
    let connection = create(&path, mode)?;
    let mut insert = connection.prepare(INSERT)?;
    let mut latencies = Latencies::default();
    target.sync()?;
    let stats = StatsMeter::start(target)?;
    let mut meter = Meter::start(target.probe()?)?;
    let rows = setup.sizes.sqlite_rows;
    let limit = Duration::from_secs(setup.sizes.seconds);
    let mut done = 0;
    let start = Instant::now();
    while done < rows && start.elapsed() < limit {
        interrupt::check()?;
        done += 1;
        latencies.time(|| insert.execute((done, body(done))))?;
    }
    let elapsed = start.elapsed().as_secs_f64();
    meter.stop()?;
    let mut details = vec![
        detail("commits each second", Unit::Count, f64::from(done) / elapsed),
        detail("50 % of commits within", Unit::Seconds, latencies.below(500)),
        detail("99 % of commits within", Unit::Seconds, latencies.below(990)),
    ];
    details.extend(stats.finish(target, f64::from(done))?);
    target.sync()?;
    let usage = meter.finish()?;
    drop(insert);
    connection.close().map_err(|(_, error)| error)?;
    let found = check(&path)?;
    ensure!(found == done, "{done} rows were committed, {found} are there");
    // A slow device has not come to all of them.
    let seconds = elapsed * f64::from(rows) / f64::from(done);
    Ok(Measured { seconds, usage, details })
}

/// Inserts rows until it is killed, and prints the number of each when it is committed.
pub(crate) fn write_forever(path: &Path, mode: JournalMode) -> Result<()> {
    let connection = create(path, mode)?;
    let mut insert = connection.prepare(INSERT)?;
    let mut output = std::io::stdout().lock();
    for id in 1.. {
        insert.execute((id, body(id)))?;
        writeln!(output, "{id}")?;
        output.flush()?;
    }
    Ok(())
}

/// How many rows there are, all of which are as they were written, in a database that is sound.
pub(crate) fn check(path: &Path) -> Result<u32> {
    let connection = Connection::open(path).with_context(|| format!("cannot open {}", path.display()))?;
    let verdict: String = connection.query_row("PRAGMA integrity_check", [], |row| row.get(0))?;
    ensure!(verdict == "ok", "integrity_check: {verdict}");
    let counted =
        "SELECT count(*), coalesce(max(id), 0), coalesce(sum(CAST(body AS INTEGER) <> id), 0) FROM rows";
    let (rows, last, wrong): (u32, u32, u32) =
        connection.query_row(counted, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    ensure!(rows == last, "{rows} rows are there, the last is {last}");
    ensure!(wrong == 0, "{wrong} of {rows} rows hold something else");
    Ok(rows)
}

const INSERT: &str = "INSERT INTO rows (id, body) VALUES (?1, ?2)";

fn create(path: &Path, mode: JournalMode) -> Result<Connection> {
    let connection = Connection::open(path).with_context(|| format!("cannot make {}", path.display()))?;
    let name = mode.name();
    let found: String =
        connection.query_row(&format!("PRAGMA journal_mode = {name}"), [], |row| row.get(0))?;
    ensure!(found == name, "SQLite keeps journal_mode {found} instead of {name}");
    connection.execute_batch(
        "PRAGMA synchronous = FULL; CREATE TABLE rows (id INTEGER PRIMARY KEY, body TEXT NOT NULL)",
    )?;
    Ok(connection)
}

fn body(id: u32) -> String {
    format!("{id:0BODY_BYTES$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_finds_rows_that_are_missing_and_that_hold_something_else() {
        let dir = std::env::temp_dir().join(format!("kvfs-bench-sqlite-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("made");
        let path = dir.join("rows.db");
        let connection = create(&path, JournalMode::Delete).expect("made");
        for id in 1..=3 {
            connection.execute(INSERT, (id, body(id))).expect("inserted");
        }
        assert_eq!(check(&path).expect("sound"), 3);
        connection.execute("UPDATE rows SET body = ?1 WHERE id = 2", (body(7),)).expect("changed");
        assert!(check(&path).is_err());
        connection.execute("DELETE FROM rows WHERE id = 2", ()).expect("deleted");
        assert!(check(&path).is_err());
        std::fs::remove_dir_all(&dir).expect("removed");
    }
}
