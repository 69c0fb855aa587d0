//! What is measured: each row of the tables is done on a file system of its own.
//!
//! Thread safety: plain values.

use crate::kill::{Database, Victim};
use crate::mariadb::{self, Scale};
use crate::postgres;
use crate::server::Templates;
use crate::sqlite::JournalMode;
use crate::target::Target;
use clap::ValueEnum;
use kvfs_bench::counters::Usage;
use kvfs_bench::results::{Class, Detail, WorkloadInfo};
use kvfs_bench::units::{Unit, grouped};
use std::path::Path;

/// Names for the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartName {
    /// `SQLite`: one row a transaction, synchronous=FULL, WAL and DELETE
    Sqlite,
    /// `PostgreSQL` with pgbench
    Pgbench,
    /// `MariaDB` with TPC-C
    Tpcc,
    /// Server and daemon killed under load, and what is there afterwards
    Kill,
}

/// How much each part does.
#[derive(Clone, Debug)]
pub(crate) struct Sizes {
    /// Of the device that everything lies on.
    pub(crate) image_bytes: u64,
    /// Transactions of `SQLite`.
    pub(crate) sqlite_rows: u32,
    /// Of pgbench: so many times 100,000 accounts.
    pub(crate) pgbench_scale: u32,
    /// Scales of TPC-C, from the smallest on.
    pub(crate) warehouses: Vec<u32>,
    /// Of server and file system together (bytes); goals are for the first.
    pub(crate) memories: Vec<u64>,
    /// Clients of TPC-C.
    pub(crate) terminals: u32,
    /// How long servers are measured.
    pub(crate) seconds: u64,
}

/// What a row does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Sqlite(JournalMode),
    Pgbench,
    Tpcc(Scale),
    Kill(Database, Victim),
}

impl Job {
    /// Whether it can be done there.
    pub(crate) fn fits(self, target: &Target) -> bool {
        match self {
            Self::Kill(_, victim) => victim == Victim::Server || target.has_daemon(),
            Self::Tpcc(scale) => scale.has_slow || !target.is_slow(),
            Self::Sqlite(_) | Self::Pgbench => true,
        }
    }

    /// Whether its server is not installed; then a message names the package.
    pub(crate) fn lacks_server(self) -> bool {
        let (is_missing, package) = match self {
            Self::Pgbench | Self::Kill(Database::Postgres, _) => {
                (postgres::programs().is_none(), "postgresql, postgresql-contrib")
            }
            Self::Tpcc(_) | Self::Kill(Database::MariaDb, _) => {
                (!mariadb::is_there(), "mariadb-server, mariadb-client")
            }
            Self::Sqlite(_) | Self::Kill(Database::Sqlite(_), _) => (false, ""),
        };
        if is_missing {
            eprintln!("{self:?} is not measured: its server is missing (packages {package})");
        }
        is_missing
    }
}

/// A row, and what it does.
pub(crate) struct Row {
    pub(crate) info: WorkloadInfo,
    pub(crate) part: PartName,
    pub(crate) job: Job,
}

/// What all rows work with.
pub(crate) struct Setup<'a> {
    /// For logs and sockets; not measured.
    pub(crate) run_dir: &'a Path,
    pub(crate) templates: &'a Templates,
    pub(crate) sizes: &'a Sizes,
    /// Counted from 0.
    pub(crate) run: u32,
}

/// What a row has measured.
pub(crate) struct Measured {
    pub(crate) seconds: f64,
    pub(crate) usage: Usage,
    pub(crate) details: Vec<Detail>,
}

/// Something beside the time.
pub(crate) fn detail(name: &str, unit: Unit, value: f64) -> Detail {
    Detail { name: name.to_owned(), unit, value }
}

/// All rows, in the order of the tables.
pub(crate) fn rows(sizes: &Sizes) -> Vec<Row> {
    let mut rows = Vec::new();
    for mode in JournalMode::ALL {
        let count = grouped(sizes.sqlite_rows.into());
        rows.push(Row {
            info: info(
                &format!("sqlite-{}", mode.name()),
                format!("SQLite {}: {count} rows", mode.title()),
                "sqlite",
            ),
            part: PartName::Sqlite,
            job: Job::Sqlite(mode),
        });
    }
    rows.push(Row {
        info: info(
            "pgbench",
            format!("pgbench, scale {}: 1,000 transactions", sizes.pgbench_scale),
            "pgbench",
        ),
        part: PartName::Pgbench,
        job: Job::Pgbench,
    });
    tpcc_rows(sizes, &mut rows);
    for database in Database::ALL {
        for victim in Victim::ALL {
            let (key, title) = (database.name(), database.title());
            rows.push(Row {
                info: info(
                    &format!("kill-{key}-{}", victim.name()),
                    format!("{title}: {} killed", victim.title()),
                    "kill",
                ),
                part: PartName::Kill,
                job: Job::Kill(database, victim),
            });
        }
    }
    rows
}

/// About what a warehouse takes (bytes).
const WAREHOUSE_BYTES: u64 = 100_000_000;

/// Whether the database fits in the half of this memory that server and file system have for it.
fn fits(warehouses: u32, memory_bytes: u64) -> bool {
    u64::from(warehouses) * WAREHOUSE_BYTES <= memory_bytes / 2
}

/// Each scale in each memory. In the first one the smallest has the goal of what fits in memory, and the
/// largest that of what does not, if they are such.
fn tpcc_rows(sizes: &Sizes, rows: &mut Vec<Row>) {
    let (first, last) = (sizes.warehouses.first(), sizes.warehouses.last());
    for (index, &memory_bytes) in sizes.memories.iter().enumerate() {
        for warehouses in &sizes.warehouses {
            let mib = memory_bytes >> 20;
            let key = match index {
                0 if first == Some(warehouses) && fits(*warehouses, memory_bytes) => "tpcc-small".to_owned(),
                0 if last == Some(warehouses) && !fits(*warehouses, memory_bytes) => "tpcc-large".to_owned(),
                _ => format!("tpcc-{warehouses}-{mib}m"),
            };
            let title = format!("TPC-C {warehouses} W, {mib} MiB: 1,000 new orders");
            let scale = Scale { warehouses: *warehouses, memory_bytes, has_slow: index == 0 };
            rows.push(Row { info: info(&key, title, "tpcc"), part: PartName::Tpcc, job: Job::Tpcc(scale) });
        }
    }
}

fn info(key: &str, title: String, group: &str) -> WorkloadInfo {
    WorkloadInfo { key: key.to_owned(), title, group: group.to_owned(), class: Class::SyncEach }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn rows_of(warehouses: &[u32]) -> Vec<Row> {
        rows(&Sizes {
            image_bytes: 0,
            sqlite_rows: 1,
            pgbench_scale: 1,
            warehouses: warehouses.to_vec(),
            memories: vec![1 << 29, 1 << 30],
            terminals: 1,
            seconds: 1,
        })
    }

    #[test]
    fn goals_are_for_the_scale_that_fits_in_memory_and_the_one_that_does_not() {
        let keys_with_goals = |warehouses: &[u32]| -> Vec<String> {
            let keys = rows_of(warehouses).into_iter().map(|row| row.info.key);
            keys.filter(|key| ["tpcc-small", "tpcc-large"].contains(&key.as_str())).collect()
        };
        assert_eq!(keys_with_goals(&[2, 6, 15]), ["tpcc-small", "tpcc-large"]);
        assert_eq!(keys_with_goals(&[2, 5]), ["tpcc-small", "tpcc-large"]);
        assert_eq!(keys_with_goals(&[1]), ["tpcc-small"]);
        assert_eq!(keys_with_goals(&[15]), ["tpcc-large"]);
        assert_eq!(keys_with_goals(&[6, 15]), ["tpcc-large"]);
    }

    #[test]
    fn keys_are_unique() {
        let rows = rows_of(&[1, 4, 9]);
        assert!(rows.iter().any(|row| row.info.key == "tpcc-large"));
        let keys: HashSet<&str> = rows.iter().map(|row| row.info.key.as_str()).collect();
        assert_eq!(keys.len(), rows.len());
    }
}
