//! The command line of what is around a store: `kvfs sync`, `kvfs completions`, and the pages of the manual.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

const SYNC_EXAMPLES: &str = "\
Examples:
  kvfs sync                                the mount of the current directory
  kvfs sync ~/mnt && echo safe

Everything that any program has done in files and keys before, as far as it was answered, survives a
power cut when this returns; so do branches that are mounted. What a transaction has written becomes
durable with its commit. On a store that a killed daemon has left, it makes what is there durable.";

/// `kvfs sync`.
#[derive(Debug, Args)]
#[command(after_help = SYNC_EXAMPLES)]
pub(crate) struct SyncArgs {
    /// A directory on the mount, or the store (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(kvfs completions bash)
  kvfs completions zsh >~/.zfunc/_kvfs
  kvfs completions fish >~/.config/fish/completions/kvfs.fish

`make install` and the package put them in place for everybody.";

/// `kvfs completions`.
#[derive(Debug, Args)]
#[command(after_help = COMPLETIONS_EXAMPLES)]
pub(crate) struct CompletionsArgs {
    /// The shell
    pub(crate) shell: Shell,
}

/// `kvfs pages`.
#[derive(Debug, Args)]
pub(crate) struct PagesArgs {
    /// Directory; made when missing
    pub(crate) dir: PathBuf,
}
