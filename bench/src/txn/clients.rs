//! Small durable transactions by the key-value socket: what group commit brings there.
//!
//! Thread safety: one experiment at a time; each client is a thread with a connection of its own.

use std::path::Path;
use std::rc::Rc;
use std::thread;
use std::time::Instant;

use anyhow::{Result, anyhow};
use kvfs_bench::goals::Bound;
use kvfs_rpc::client::BeginOptions;
use kvfs_rpc::client::blocking::Store;

use crate::Experiment;
use crate::tree::Mount;

const KEYSPACE: &str = "bench-clients";

/// One client and sixteen, each with so many transactions of one pair.
pub(crate) fn experiments(mount: &Rc<Mount>, quick: bool) -> Vec<Experiment> {
    let commits = if quick { 50 } else { 1_000 };
    let base = "durable commits by the socket, 1 client";
    let variants =
        [(base, 1, None), ("durable commits by the socket, 16 clients", 16, Some(Bound::AtLeast(3.0)))];
    let experiment = |(name, clients, goal): (&str, usize, Option<Bound>)| {
        let mount = Rc::clone(mount);
        Experiment {
            name: name.into(),
            unit: "commits/s",
            against: (name != base).then(|| (base.to_owned(), goal)),
            goal: None,
            measure: Box::new(move || at_once(mount.dir(), clients, commits)),
        }
    };
    variants.into_iter().map(experiment).collect()
}

/// Commits a second of so many clients at once.
fn at_once(dir: &Path, clients: usize, commits: usize) -> Result<f64> {
    let start = Instant::now();
    thread::scope(|scope| {
        let work = |client| scope.spawn(move || commit(dir, client, commits));
        let threads: Vec<_> = (0..clients).map(work).collect();
        threads.into_iter().try_for_each(|thread| thread.join().map_err(|_| anyhow!("a client panicked"))?)
    })?;
    Ok((clients * commits) as f64 / start.elapsed().as_secs_f64())
}

fn commit(dir: &Path, client: usize, commits: usize) -> Result<()> {
    let mut store = Store::connect(dir)?;
    for number in 0..commits {
        let txn = store.call(async |client| client.begin(BeginOptions::default()).await)?;
        let mut inside = store.map(|client| client.in_txn(txn));
        inside.put(KEYSPACE, format!("{client}-{}", number % 100).as_bytes(), &[7; 100])?;
        inside.call(async |client| client.commit().await)?;
    }
    Ok(())
}
