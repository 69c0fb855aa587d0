//! What it costs to begin and to end a transaction with nothing in it, by each way into a mounted store.
//!
//! Thread safety: one experiment at a time, each with a descriptor or connection of its own.

use std::path::PathBuf;
use std::rc::Rc;
use std::time::Instant;

use anyhow::Result;
use kvfs_bench::goals::Bound;
use kvfs_rpc::client::BeginOptions;
use kvfs_rpc::client::blocking::Store;
use kvfs_rpc::client::calls::Mount as Calls;

use crate::Experiment;
use crate::tree::Mount;

/// Microseconds of one round on a mount.
type Way = Box<dyn Fn(PathBuf) -> Result<f64>>;

/// By ioctl and by the key-value socket; microseconds of one begin and commit, asynchronous.
pub(crate) fn experiments(mount: &Rc<Mount>, quick: bool) -> Vec<Experiment> {
    let count = if quick { 1_000 } else { 10_000 };
    let by_ioctl = move |dir: PathBuf| {
        let calls = Calls::open(&dir)?;
        mean_us(count, || {
            let txn = calls.begin(&BeginOptions::default())?;
            Ok(calls.commit(txn, false)?)
        })
    };
    let by_socket = move |dir: PathBuf| {
        let mut store = Store::connect(&dir)?.map(kvfs_rpc::client::Client::asynchronous);
        mean_us(count, || {
            let txn = store.call(async |client| client.begin(BeginOptions::default()).await)?;
            Ok(store.map(|client| client.in_txn(txn)).call(async |client| client.commit().await)?)
        })
    };
    let ways: [(&str, f64, Way); 2] = [
        ("begin + commit, empty, by ioctl", 60.0, Box::new(by_ioctl)),
        ("begin + commit, empty, by the socket", 400.0, Box::new(by_socket)),
    ];
    let experiment = |(name, us_max, way): (&str, f64, Way)| {
        let mount = Rc::clone(mount);
        Experiment {
            name: name.into(),
            unit: "us",
            against: None,
            goal: Some(Bound::AtMost(us_max)),
            measure: Box::new(move || way(mount.dir().to_owned())),
        }
    };
    ways.into_iter().map(experiment).collect()
}

/// Mean of so many rounds, after some to warm up.
fn mean_us(count: u32, mut round: impl FnMut() -> Result<()>) -> Result<f64> {
    for _ in 0..count / 10 {
        round()?;
    }
    let start = Instant::now();
    for _ in 0..count {
        round()?;
    }
    Ok(start.elapsed().as_secs_f64() * 1e6 / f64::from(count))
}
