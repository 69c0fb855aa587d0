//! The command line of `kvfs trace`.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use clap::builder::PossibleValuesParser;
use kvfs_fs::operations::OperationKind;

use super::TableForm;
use crate::units::parse_duration;

const TRACE_EXAMPLES: &str = "\
Examples:
  kvfs trace ~/mnt                         all operations, until Ctrl-C
  kvfs trace --slower 10ms ~/mnt           those that take long
  kvfs trace --kind read,write --pid 4711 ~/mnt
  kvfs trace --json ~/mnt | jq 'select(.errno != 0)'

For root and the store's owner, since it shows what all users do. Times are UTC.
What the kernel answers from its caches is not seen. Operations of this command
itself are left out, unless --pid names it. A reader that is too slow loses
operations, and a line says how many; no operation waits for a reader.";

/// `kvfs trace`.
#[derive(Debug, Args)]
#[command(after_help = TRACE_EXAMPLES)]
pub(crate) struct TraceArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// Only those that took as long, such as 10ms
    #[arg(long, value_name = "TIME", value_parser = parse_duration)]
    pub(crate) slower: Option<Duration>,
    /// Only these kinds, separated by commas
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kinds())]
    pub(crate) kind: Vec<String>,
    /// Only those of one process
    #[arg(long)]
    pub(crate) pid: Option<u32>,
    /// How it is shown; in JSON one object a line
    #[command(flatten)]
    pub(crate) form: TableForm,
}

fn kinds() -> PossibleValuesParser {
    OperationKind::ALL.iter().map(|kind| kind.name()).collect::<Vec<_>>().into()
}
