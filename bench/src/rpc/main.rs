//! Times of the key-value socket of a mounted store: single calls, transactions, group commit.
//! usage: rpc DIR        a directory on the mount

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::client::{BeginOptions, Client};

const KEYSPACE: &str = "bench-rpc";
const VALUE: &[u8] = &[7; 64];
const CALLS: usize = 5000;
const COMMIT_TIME: Duration = Duration::from_secs(3);

/// Median and 99th percentile.
fn show(name: &str, mut times: Vec<Duration>) {
    times.sort_unstable();
    let at = |part: usize| times[times.len() * part / 100].as_secs_f64() * 1e6;
    println!("{name:<44} median {:>8.1} us   99 % {:>8.1} us", at(50), at(99));
}

fn timed(count: usize, mut call: impl FnMut(usize) -> anyhow::Result<()>) -> anyhow::Result<Vec<Duration>> {
    (0..count)
        .map(|number| {
            let begun = Instant::now();
            call(number)?;
            Ok(begun.elapsed())
        })
        .collect()
}

fn begun(store: &mut Store) -> anyhow::Result<u64> {
    Ok(store.call(async |client| client.begin(BeginOptions::default()).await)?)
}

/// Small commits a second of so many clients at once, each with its own connection.
fn commits(dir: &Path, clients: usize, in_txn: bool) -> anyhow::Result<f64> {
    let work = |client: usize, dir: PathBuf| {
        move || -> anyhow::Result<usize> {
            let mut store = Store::connect(&dir)?;
            let (begun_at, mut count) = (Instant::now(), 0);
            while begun_at.elapsed() < COMMIT_TIME {
                let key = format!("{client}-{}", count % 100);
                if in_txn {
                    let txn = begun(&mut store)?;
                    let mut inside = store.map(|client| client.in_txn(txn));
                    inside.put(KEYSPACE, key.as_bytes(), VALUE)?;
                    inside.call(async |client| client.commit().await)?;
                } else {
                    store.put(KEYSPACE, key.as_bytes(), VALUE)?;
                }
                count += 1;
            }
            Ok(count)
        }
    };
    let threads: Vec<_> =
        (0..clients).map(|client| std::thread::spawn(work(client, dir.to_owned()))).collect();
    let mut count = 0;
    for thread in threads {
        count += thread.join().map_err(|_| anyhow::anyhow!("a client panicked"))??;
    }
    Ok(count as f64 / COMMIT_TIME.as_secs_f64())
}

fn main() -> anyhow::Result<()> {
    let dir: PathBuf = std::env::args_os().nth(1).ok_or_else(|| anyhow::anyhow!("usage: rpc DIR"))?.into();
    let mut store = Store::connect(&dir)?;
    let mut fast = store.map(Client::asynchronous);
    let key = |number: usize| format!("{:05}", number * 7919 % 1000);
    fast.put(KEYSPACE, b"warm", VALUE)?;
    timed(1000, |number| Ok(fast.put(KEYSPACE, key(number).as_bytes(), VALUE)?))?;

    show("get", timed(CALLS, |number| Ok(fast.get(KEYSPACE, key(number).as_bytes()).map(drop)?))?);
    show("put, asynchronous", timed(CALLS, |n| Ok(fast.put(KEYSPACE, key(n).as_bytes(), VALUE)?))?);
    show("put, durable", timed(300, |n| Ok(store.put(KEYSPACE, key(n).as_bytes(), VALUE)?))?);
    let empty = timed(CALLS, |_| {
        let txn = begun(&mut fast)?;
        Ok(fast.map(|client| client.in_txn(txn)).call(async |client| client.commit().await)?)
    })?;
    show("empty begin + commit, asynchronous", empty);
    for (what, in_txn) in [("durable puts", false), ("durable transactions of one put", true)] {
        let (one, many) = (commits(&dir, 1, in_txn)?, commits(&dir, 16, in_txn)?);
        println!("{what:<44} 1 client {one:>7.0} /s   16 clients {many:>7.0} /s   {:.1} x", many / one);
    }
    Ok(())
}
