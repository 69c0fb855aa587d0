//! The command line of what is around a store: `kvfs sync`, `kvfs status`, `kvfs completions`, and the pages
//! of the manual.

use std::path::PathBuf;

use clap::Args;
use clap_complete::Shell;

const SYNC_EXAMPLES: &str = "\
Examples:
  kvfs sync                                the mount of the current directory
  kvfs sync ~/mnt && echo safe

Everything that any program has done in files and keys before, as far as it was
answered, survives a power cut when this returns; so do branches that are
mounted. What a transaction has written becomes durable with its commit. On a
store that a killed daemon has left, it makes what is there durable.";

/// `kvfs sync`.
#[derive(Debug, Args)]
#[command(after_help = SYNC_EXAMPLES)]
pub(crate) struct SyncArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
}

/// `kvfs status`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
        kvfs status\n  \
        kvfs status ~/mnt\n  \
        kvfs status --json\n\
        \n\
        All mounts that this user can see; root sees those of other mount namespaces,\n\
        too. Then the stores that this user and root serve without a mount. States:\n\
        serving, read-only, elsewhere (in another mount namespace), - (another user's,\n\
        whose daemon is out of reach here), silent (the daemon does not answer), dead\n\
        (it has died; `kvfs umount` takes the mount away), failing (the device has\n\
        refused reads or writes), failed (no more writes are accepted until the store\n\
        is mounted again). For the last four a line says why,\n\
        and the exit code is 1. A STORE that is neither mounted nor served: 9.")]
pub(crate) struct StatusArgs {
    /// Only this store, or the one with a mount at this directory
    pub(crate) target: Option<PathBuf>,
    /// The same
    #[arg(short = 's', long = "store", value_name = "STORE|DIR", conflicts_with = "target")]
    pub(crate) store: Option<PathBuf>,
    /// How it is shown
    #[command(flatten)]
    pub(crate) form: TableForm,
}

/// How a table with users or groups in it is shown.
#[derive(Debug, Clone, Copy, Args)]
pub(crate) struct TableForm {
    /// Numbers of users and groups, not their names
    #[arg(short = 'n', long)]
    pub(crate) numeric: bool,
    /// For machines
    #[arg(long)]
    pub(crate) json: bool,
}

const COMPLETIONS_EXAMPLES: &str = "\
Examples:
  source <(kvfs completions bash)
  kvfs completions zsh >~/.zfunc/_kvfs
  kvfs completions fish >~/.config/fish/completions/kvfs.fish

`make install` and the package put them in place for all users.";

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
