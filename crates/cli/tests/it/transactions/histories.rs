//! Histories of transactions on a mount, made by client processes, judged by an independent checker.
//!
//! As `adya run exec` does it: clients are processes that get a transaction per line and answer what they saw
//! (`examples/history.rs`). Lists are files in the transactions' views, keys of the socket, or both.
//! `KVFS_HISTORY_TXNS` says how many transactions a history has.

use std::path::PathBuf;

use adya::r#gen::GenOpts;
use adya::run::RunOpts;
use adya::{History, Opts, Valid, Workload};

use crate::world::{KVFS, World, can_mount, kvfs};

const LISTS: [&str; 3] = ["files", "keys", "both"];

/// The client, which cargo builds beside the command.
fn client() -> String {
    let client = PathBuf::from(KVFS).with_file_name("examples").join("history");
    assert!(client.exists(), "{} is missing: cargo build -p kvfs-cli --examples", client.display());
    client.to_str().unwrap().to_owned()
}

/// A history on the mount at `dir`, over fresh lists.
fn history(dir: &str, level: &str, lists: &str, seed: u64) -> String {
    let lists_dir = format!("{dir}/{level}-{lists}-{seed}");
    std::fs::create_dir(&lists_dir).unwrap();
    let command = format!("exec {} {lists_dir} {level} {lists}", client());
    let connect = move || adya::db::exec::connect(&command);
    let txns = std::env::var("KVFS_HISTORY_TXNS").map_or(250, |text| text.parse().unwrap());
    let r#gen = GenOpts { key_count: 4, max_txn_len: 5, ..GenOpts::default() };
    let options = RunOpts { processes: 6, txns, r#gen, seed, ..RunOpts::default() };
    let (history, stats) = adya::run::run(&connect, &options).unwrap();
    eprintln!("{level}, {lists}, seed {seed}: {} committed, {} refused", stats.ok, stats.fail);
    assert_eq!(stats.info, 0, "neither committed nor refused: {history}");
    history
}

/// The anomalies in it that `model` forbids.
fn anomalies(history: &str, model: &str) -> Vec<String> {
    let parsed = History::from_json(history).unwrap();
    let options = Opts { models: vec![model.into()], ..Opts::default() };
    let report = adya::check(&parsed, Workload::ListAppend, &options);
    assert_ne!(report.valid, Valid::Unknown, "{history}");
    report.anomaly_types
}

#[test]
fn histories_of_clients_on_a_mount_keep_their_level_and_snapshots_skew() {
    if !can_mount("histories_of_clients_on_a_mount_keep_their_level_and_snapshots_skew") {
        return;
    }
    let world = World::new();
    let (_, dir) = world.mounted();
    for lists in LISTS {
        let found = history(&dir, "serializable", lists, 1);
        assert_eq!(anomalies(&found, "strict-serializable"), Vec::<String>::new(), "{found}");

        // What the snapshot level allows must show up, or the other verdicts show nothing.
        let mut is_skewed = false;
        for seed in 1..=20 {
            let found = history(&dir, "si", lists, seed);
            assert_eq!(anomalies(&found, "strong-snapshot-isolation"), Vec::<String>::new(), "{found}");
            is_skewed |= anomalies(&found, "serializable").iter().any(|kind| kind.starts_with("G2"));
            if is_skewed {
                break;
            }
        }
        assert!(is_skewed, "{lists}: twenty histories without write skew show nothing");
    }
    kvfs(&["umount", &dir]).ok();
}
