//! The engine as a library: what transactions cost, and what they may do at the same time.
//!
//! Thread safety: experiments run one after the other; inside of one the threads share the store.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kvfs_bench::goals::Bound;
use kvfs_device::Rng;
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::{
    BLOCK_BYTES, Batch, Durability, Isolation, Keyspace, KeyspaceKind, Store, Transactions, TxnOptions,
};
use kvfs_txn::{Admission, LockName, LockOptions, Party, Refused, TxnTraits, Want};

use crate::Experiment;
use crate::rig::Rig;

/// Key and value of a pair together, as in figure 4.1 of the thesis.
const PAIR_BYTES: usize = 64;
const KEY_BYTES: usize = 16;

struct Sizes {
    pairs: u64,
    empty_txns: u64,
    durable_commits: u64,
    overlap_txns: u64,
    overlap_bytes: usize,
}

/// Every experiment, those to compare with first.
pub(crate) fn experiments(dir: &Path, quick: bool) -> Vec<Experiment> {
    let sizes = if quick {
        Sizes {
            pairs: 100_000,
            empty_txns: 2_000,
            durable_commits: 200,
            overlap_txns: 16,
            overlap_bytes: 1 << 20,
        }
    } else {
        Sizes {
            pairs: 4_000_000,
            empty_txns: 100_000,
            durable_commits: 5_000,
            overlap_txns: 96,
            overlap_bytes: 16 << 20,
        }
    };
    let mut all = Vec::new();
    all.push(empty(dir, &sizes));
    pairs(dir, &sizes, &mut all);
    group_commit(dir, &sizes, &mut all);
    overlap(dir, &sizes, &mut all);
    all
}

fn empty(dir: &Path, sizes: &Sizes) -> Experiment {
    let (dir, count) = (dir.to_owned(), sizes.empty_txns);
    Experiment {
        name: "begin + commit, empty, asynchronous".into(),
        unit: "us",
        against: None,
        goal: Some(Bound::AtMost(20.0)),
        measure: Box::new(move || {
            let rig = Rig::new(&dir, 1 << 30, 256 << 20)?;
            let start = Instant::now();
            for _ in 0..count {
                rig.db.begin(TxnOptions::default())?.commit(Durability::Buffered)?;
            }
            Ok(micros(start.elapsed()) / count as f64)
        }),
    }
}

/// Figure 4.1: pairs of 64 bytes at random keys, one at a time, until everything is visible and synced.
fn pairs(dir: &Path, sizes: &Sizes, all: &mut Vec<Experiment>) {
    let base = "64 B pairs, main line, 1 thread";
    let variants: [(&str, usize, Option<Isolation>, Option<Bound>); 5] = [
        (base, 1, None, None),
        ("64 B pairs, main line, 2 threads", 2, None, None),
        ("64 B pairs, 1 transaction", 1, Some(Isolation::Snapshot), Some(Bound::AtLeast(0.97))),
        (
            "64 B pairs, 2 transactions, a thread each",
            2,
            Some(Isolation::Snapshot),
            Some(Bound::AtLeast(1.3)),
        ),
        ("64 B pairs, 4 transactions, a thread each", 4, Some(Isolation::Snapshot), None),
    ];
    for (name, threads, isolation, goal) in variants {
        let (dir, pairs) = (dir.to_owned(), sizes.pairs);
        all.push(Experiment {
            name: name.into(),
            unit: "pairs/s",
            against: (name != base).then(|| (base.to_owned(), goal)),
            goal: None,
            measure: Box::new(move || {
                let rig = Rig::new(&dir, 8 << 30, 256 << 20)?;
                let keyspace = rig.db.open_keyspace("pairs", KeyspaceKind::Tuple, None)?;
                let start = Instant::now();
                in_threads(threads, |thread| {
                    insert_pairs(&*rig.db, keyspace, thread as u64, pairs / threads as u64, isolation)
                })?;
                rig.db.sync(rig.db.position())?;
                Ok(pairs as f64 / start.elapsed().as_secs_f64())
            }),
        });
    }
}

fn insert_pairs(
    store: &dyn Store,
    keyspace: Keyspace,
    thread: u64,
    count: u64,
    isolation: Option<Isolation>,
) -> Result<()> {
    let txn = isolation.map(|isolation| store.begin(TxnOptions { isolation })).transpose()?;
    let mut rng = Rng::new(thread + 1);
    for _ in 0..count {
        let mut pair = vec![0; PAIR_BYTES];
        rng.fill(&mut pair);
        pair[0] = thread as u8; // each thread in a part of its own
        let pair = bytes::Bytes::from(pair);
        let mut batch = Batch::new();
        batch.put(keyspace, pair.slice(..KEY_BYTES), pair.slice(KEY_BYTES..));
        match &txn {
            Some(txn) => txn.apply(batch)?,
            None => drop(store.apply(batch, Durability::Buffered)?),
        }
    }
    if let Some(txn) = txn {
        txn.commit(Durability::Buffered)?;
    }
    Ok(())
}

/// Small durable transactions: clients that come at the same time share a flush.
fn group_commit(dir: &Path, sizes: &Sizes, all: &mut Vec<Experiment>) {
    let base = "durable commits, 1 client";
    for (name, clients, goal) in
        [(base, 1, None), ("durable commits, 16 clients", 16, Some(Bound::AtLeast(8.0)))]
    {
        let (dir, commits) = (dir.to_owned(), sizes.durable_commits);
        all.push(Experiment {
            name: name.into(),
            unit: "commits/s",
            against: (name != base).then(|| (base.to_owned(), goal)),
            goal: None,
            measure: Box::new(move || {
                let rig = Rig::new(&dir, 1 << 30, 256 << 20)?;
                let keyspace = rig.db.open_keyspace("pairs", KeyspaceKind::Tuple, None)?;
                let next = AtomicU64::new(0);
                let start = Instant::now();
                in_threads(clients, |_| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= commits * clients as u64 {
                            return Ok(());
                        }
                        let txn = rig.db.begin(TxnOptions::default())?;
                        let mut batch = Batch::new();
                        batch.put(keyspace, number.to_be_bytes().to_vec(), vec![0; 100]);
                        txn.apply(batch)?;
                        txn.commit(Durability::Synced)?;
                    }
                })?;
                Ok((commits * clients as u64) as f64 / start.elapsed().as_secs_f64())
            }),
        });
    }
}

/// Figures 4.2 and 4.3: serializable transactions, some of which want what others have. The share of overlap
/// is that of transactions whose first blocks are the same ones.
fn overlap(dir: &Path, sizes: &Sizes, all: &mut Vec<Experiment>) {
    let base = "16 MiB of blocks each, 1 thread";
    let variants = [
        (base, 1, 0, None),
        ("16 MiB of blocks each, 2 threads, overlap 0 %", 2, 0, Some(Bound::AtLeast(1.6))),
        ("16 MiB of blocks each, 2 threads, overlap 25 %", 2, 25, None),
        ("16 MiB of blocks each, 2 threads, overlap 50 %", 2, 50, None),
        ("16 MiB of blocks each, 2 threads, overlap 75 %", 2, 75, None),
        ("16 MiB of blocks each, 2 threads, overlap 100 %", 2, 100, Some(Bound::AtLeast(0.9))),
    ];
    for (name, threads, percent, goal) in variants {
        let (dir, count, bytes) = (dir.to_owned(), sizes.overlap_txns, sizes.overlap_bytes);
        all.push(Experiment {
            name: name.into(),
            unit: "MiB/s",
            against: (name != base).then(|| (base.to_owned(), goal)),
            goal: None,
            measure: Box::new(move || {
                let rig = Rig::new(&dir, 8 << 30, 512 << 20)?;
                let keyspace = rig.db.open_keyspace("blocks", KeyspaceKind::Block, None)?;
                let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
                let admission = Admission::new(clock, LockOptions::default());
                let next = AtomicU64::new(0);
                let start = Instant::now();
                in_threads(threads, |_| {
                    loop {
                        let number = next.fetch_add(1, Ordering::Relaxed);
                        if number >= count {
                            return Ok(());
                        }
                        let file = if number % 100 * 37 % 100 < percent { 0 } else { number + 1 };
                        write_blocks(&*rig.db, &admission, keyspace, file, bytes)?;
                    }
                })?;
                rig.db.sync(rig.db.position())?;
                Ok((count * bytes as u64) as f64 / f64::from(1 << 20) / start.elapsed().as_secs_f64())
            }),
        });
    }
}

fn write_blocks(
    store: &dyn Store,
    admission: &Admission,
    keyspace: Keyspace,
    file: u64,
    bytes: usize,
) -> Result<()> {
    const REQUEST_BYTES: usize = 128 << 10;
    let txn = store.begin(TxnOptions { isolation: Isolation::Serializable })?;
    let owner = admission.begin(txn.id(), TxnTraits::default());
    let data = bytes::Bytes::from(vec![file as u8; REQUEST_BYTES]);
    let prefix = bytes::Bytes::copy_from_slice(&file.to_be_bytes());
    let blocks = (REQUEST_BYTES / BLOCK_BYTES) as u64;
    for first in (0..(bytes / BLOCK_BYTES) as u64).step_by(blocks as usize) {
        let want = Want::exclusive(LockName::Blocks { inode: file, first, end: first + blocks });
        let mut ticket = None;
        let guard = loop {
            match admission.try_acquire(Party::Txn(&owner), &[want], |_| true, ticket.as_ref()) {
                Ok(guard) => break guard,
                Err(Refused::Wait(again)) => ticket.insert(again).wait(),
                Err(Refused::Doomed(doom)) => return Err(anyhow!("doomed: {doom:?}")),
                Err(Refused::Full(share)) => return Err(anyhow!("the lock table is full: {share:?}")),
            }
        };
        let mut batch = Batch::new();
        batch.put_blocks(keyspace, prefix.clone(), first, data.clone());
        txn.apply(batch)?;
        drop(guard);
    }
    owner.begin_commit().map_err(|doom| anyhow!("doomed: {doom:?}"))?;
    owner.decide().map_err(|doom| anyhow!("doomed: {doom:?}"))?;
    txn.commit(Durability::Buffered)?;
    owner.end();
    Ok(())
}

/// Runs `work` in so many threads and returns the first error.
fn in_threads(count: usize, work: impl Fn(usize) -> Result<()> + Sync) -> Result<()> {
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = (0..count).map(|number| scope.spawn(move || work(number))).collect();
        threads
            .into_iter()
            .try_for_each(|thread| thread.join().unwrap_or_else(|_| Err(anyhow!("a thread panicked"))))
    })
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}
