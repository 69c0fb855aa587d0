//! Arguments of `kvfs mkfs`, and what all commands ask that make a store.

use std::path::PathBuf;

use clap::Args;
use clap::builder::{StringValueParser, TypedValueParser};
use kvfs_kvdb::Placement;
use kvfs_open::EngineKind;

use super::tier::{DeviceArg, device_parser};
use crate::units::parse_size;

const EXAMPLES: &str = "\
Examples:
  kvfs mkfs ~/store                        a file inside that grows with use
  kvfs mkfs ~/store --size 20G             at most 20 GiB
  kvfs mkfs ~/store --device /dev/sdb1     a block device; ~/store names it
  kvfs mkfs ~/store --device fast:/dev/nvme0n1p3 --device slow:/dev/sdb
                                           a small SSD and a large disk
  kvfs mkfs /run/scratch --engine memory   in memory, empty at each mount";

const URL_HELP: &str = "Where object storage holds the data, such as s3://bucket/prefix; credentials come \
    from the environment, such as AWS_ACCESS_KEY_ID, or from the machine";

const ENDPOINT_HELP: &str = "A server that speaks S3, such as http://localhost:9000 (default: Amazon's)";

#[derive(Debug, Args)]
#[command(after_help = after_help())]
pub(crate) struct MkfsArgs {
    /// Directory of the store; made when missing, must be empty; one in object storage also by its URL
    pub(crate) store: PathBuf,
    #[command(flatten)]
    pub(crate) new: NewStoreArgs,
    /// Files up to this size live inside their row, such as 4K; 0 = never
    #[arg(long, value_parser = parse_size, default_value = "4K")]
    pub(crate) inline: u64,
}

/// What a new store is to be.
#[derive(Debug, Args)]
pub(crate) struct NewStoreArgs {
    /// What keeps the data, see below (default: kvdb; of a copy, as before)
    #[arg(long, value_name = "ENGINE", value_parser = engine_parser())]
    pub(crate) engine: Option<EngineKind>,
    /// File or block device that holds the data, instead of a file inside the directory; several,
    /// fast:PATH and slow:PATH: see `kvfs tier --help`; files behind the first device get all their
    /// space at once
    #[arg(long, value_name = "[TIER:]PATH", value_parser = device_parser())]
    pub(crate) device: Vec<DeviceArg>,
    /// Most bytes its first device may take, such as 20G (default: the block device, or what is free
    /// now)
    #[arg(long, value_parser = parse_size)]
    pub(crate) size: Option<u64>,
    /// Where content goes in a store of fast and slow devices, such as hot-cold: see `kvfs tier
    /// --help`
    #[arg(long, value_name = "POLICY")]
    pub(crate) placement: Option<Placement>,
    #[arg(long, help = URL_HELP, hide = !EngineKind::SlateDb.is_built())]
    pub(crate) url: Option<String>,
    #[arg(long, help = ENDPOINT_HELP, value_name = "URL", requires = "url", hide = !EngineKind::SlateDb.is_built())]
    pub(crate) endpoint: Option<String>,
    /// Overwrite a file or block device that holds anything
    #[arg(long)]
    pub(crate) force: bool,
}

fn after_help() -> String {
    format!("{EXAMPLES}\n\n{}", engines_help(|_| true))
}

/// The engines of this build that are wanted.
pub(super) fn engines_help(is_wanted: impl Fn(EngineKind) -> bool) -> String {
    let wanted = EngineKind::built().filter(|&kind| is_wanted(kind));
    let engines: Vec<_> = wanted.map(|kind| format!("  {:8} {}", kind.name(), about(kind))).collect();
    format!("Engines:\n{}", engines.join("\n"))
}

fn about(kind: EngineKind) -> &'static str {
    match kind {
        EngineKind::Kvdb => "kvfs's own: transactions, snapshots, undo, devices, repair",
        EngineKind::RocksDb => {
            "RocksDB, in files: transactions in memory; no branches, snapshots,\n           undo, compression, devices or repair"
        }
        EngineKind::LevelDb => {
            "LevelDB, in files: transactions in memory; no branches, snapshots,\n           undo, compression, devices or repair; opened by one process at a\n           time"
        }
        EngineKind::SlateDb => {
            "SlateDB, in object storage (--url): transactions in memory,\n           snapshots; no branches, undo, compression, devices or repair"
        }
        EngineKind::Memory => {
            "no file at all: what it holds, as much as --memory of the mount\n           leaves, ends with the unmount; no undo, compression,\n           devices or repair"
        }
    }
}

fn engine_parser() -> impl TypedValueParser<Value = EngineKind> {
    StringValueParser::new().try_map(|name| {
        EngineKind::of_name(&name).ok_or_else(|| {
            let built: Vec<_> = EngineKind::built().map(EngineKind::name).collect();
            format!("there is no such engine; this kvfs has {}", built.join(", "))
        })
    })
}
