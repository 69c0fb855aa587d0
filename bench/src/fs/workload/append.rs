//! A log that is synced record by record.

use super::{Job, Scenario, ScenarioName, Start, Workload, nothing, number};
use anyhow::{Result, ensure};
use kvfs_bench::interrupt;
use kvfs_bench::results::Class;
use std::fs::OpenOptions;
use std::io::Write;

const RECORD_BYTES: usize = 512;

pub(super) const SCENARIO: Scenario = Scenario {
    name: ScenarioName::Append,
    workloads: &[Workload {
        key: "append-fsync",
        title: |sizes| format!("{} x append + fsync", number(sizes.appends)),
        class: Class::SyncEach,
        start: Start::Settled,
        prepare: nothing,
        run: append,
    }],
};

fn append(job: &Job) -> Result<()> {
    let mut file = OpenOptions::new().create_new(true).append(true).open(job.dir.join("log"))?;
    let record = [0x5a; RECORD_BYTES];
    for number in 0..job.sizes.appends {
        if number % 64 == 0 {
            interrupt::check()?;
        }
        file.write_all(&record)?;
        file.sync_all()?;
    }
    let len = file.metadata()?.len();
    ensure!(len == u64::from(job.sizes.appends) * RECORD_BYTES as u64, "the log is {len} bytes long");
    Ok(())
}
