//! What is measured: each row of the tables is done on a file system of its own.
//!
//! Thread safety: plain values.

use crate::kill::{Database, Victim};
use crate::sqlite::JournalMode;
use crate::target::Target;
use clap::ValueEnum;
use kvfs_bench::counters::Usage;
use kvfs_bench::results::{Class, Detail, WorkloadInfo};
use kvfs_bench::units::{Unit, grouped};

/// Names for the parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum PartName {
    /// `SQLite`: one row a transaction, synchronous=FULL, WAL and DELETE
    Sqlite,
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
}

/// What a row does.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Job {
    Sqlite(JournalMode),
    Kill(Database, Victim),
}

impl Job {
    /// Whether it can be done there.
    pub(crate) fn fits(self, target: &Target) -> bool {
        match self {
            Self::Kill(_, victim) => victim == Victim::Server || target.has_daemon(),
            Self::Sqlite(_) => true,
        }
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

fn info(key: &str, title: String, group: &str) -> WorkloadInfo {
    WorkloadInfo { key: key.to_owned(), title, group: group.to_owned(), class: Class::SyncEach }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn keys_are_unique() {
        let rows = rows(&Sizes { image_bytes: 0, sqlite_rows: 1 });
        let keys: HashSet<&str> = rows.iter().map(|row| row.info.key.as_str()).collect();
        assert_eq!(keys.len(), rows.len());
    }
}
