//! The command line of `kvfs kv`.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::TableForm;
use crate::units::{parse_mode, parse_owner};

const KV_EXAMPLES: &str = "\
Examples:
  kvfs kv put tags song.mp3 'artist=…'     in the mount of the current directory
  kvfs kv -s ~/store get tags song.mp3     or of a store, mounted or not
  kvfs kv scan tags --prefix song --json
  kvfs kv delete-range tags --prefix song  all of them at once
  kvfs kv export tags >tags.json && kvfs kv import copy <tags.json
  kvfs kv --snapshot monday get tags song.mp3
  kvfs kv keyspaces
  kvfs kv chmod 640 tags                   others in its group may read

A keyspace belongs to the user that made it, and no other user gets in before a
chmod; root and the owner of the store always do.

Inside a transaction (`kvfs txn run`, `kvfs txn join`) the commands belong to
it; KVFS_TXN=17 puts them into transaction 17.";

/// Ordered key-value data beside the files.
#[derive(Debug, Args)]
#[command(after_help = KV_EXAMPLES)]
pub(crate) struct KvArgs {
    /// Store, or a directory on its mount (default: the mount of the current directory)
    #[arg(short = 's', long = "store", global = true, value_name = "STORE|DIR")]
    pub(crate) store: Option<PathBuf>,
    /// Read the keys of a named snapshot: get, scan, export, keyspaces
    #[arg(long, global = true, value_name = "NAME")]
    pub(crate) snapshot: Option<String>,
    /// What to do
    #[command(subcommand)]
    pub(crate) command: KvCommand,
}

/// Which keys.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct KvRange {
    /// Only keys that begin with this
    #[arg(long)]
    pub(crate) prefix: Option<OsString>,
    /// First key
    #[arg(long, value_name = "KEY")]
    pub(crate) start: Option<OsString>,
    /// First key behind
    #[arg(long, value_name = "KEY")]
    pub(crate) end: Option<OsString>,
}

#[derive(Debug, Subcommand)]
pub(crate) enum KvCommand {
    /// Set a key; the keyspace is made when missing
    #[command(after_help = "Examples:\n  kvfs kv put tags song.mp3 'artist=…'\n  \
        kvfs kv put covers song.mp3 <cover.jpg")]
    Put {
        /// Keyspace
        keyspace: String,
        /// Key
        key: OsString,
        /// Value; `-` or nothing: standard input
        value: Option<OsString>,
    },
    /// Print the value of a key; exit code 1 when there is none
    #[command(after_help = "Examples:\n  kvfs kv get tags song.mp3\n  \
        kvfs kv get covers song.mp3 --snapshot monday >cover.jpg")]
    Get {
        /// Keyspace
        keyspace: String,
        /// Key
        key: OsString,
    },
    /// Remove a key; exit code 1 when there is none
    #[command(after_help = "Example:\n  kvfs kv del tags song.mp3")]
    Del {
        /// Keyspace
        keyspace: String,
        /// Key
        key: OsString,
    },
    /// Remove all keys of a range at once
    #[command(after_help = "Examples:\n  kvfs kv delete-range tags --prefix song\n  \
        kvfs kv delete-range log --end 2024\n  kvfs kv delete-range tags --all",
        override_usage = "kvfs kv delete-range <KEYSPACE> <--all|--prefix P|--start K|--end K>",
        group = clap::ArgGroup::new("which").required(true).multiple(true).args(["prefix", "start", "end", "all"]))]
    DeleteRange {
        /// Keyspace
        keyspace: String,
        /// Which keys
        #[command(flatten)]
        range: KvRange,
        /// All keys; the keyspace stays
        #[arg(long, conflicts_with_all = ["prefix", "start", "end"])]
        all: bool,
    },
    /// Remove a keyspace with all its keys at once; named snapshots keep them
    #[command(after_help = "Example:\n  kvfs kv drop tags\n\n\
        Only its owner, root and the store's owner may; not inside a transaction.")]
    Drop {
        /// Keyspace
        keyspace: String,
    },
    /// Print keys and values in key order
    #[command(after_help = "Examples:\n  kvfs kv scan tags --prefix song\n  \
        kvfs kv scan log --reverse --limit 10 --json\n\n\
        In JSON what is no text has the member key_base64 or value_base64 beside it.")]
    Scan {
        /// Keyspace
        keyspace: String,
        /// Which keys
        #[command(flatten)]
        range: KvRange,
        /// At most this many
        #[arg(long, value_name = "N")]
        limit: Option<u64>,
        /// From the last key to the first
        #[arg(long)]
        reverse: bool,
        /// One JSON object a line
        #[arg(long)]
        json: bool,
    },
    /// Write the keys and values of one moment to standard output
    #[command(after_help = "Examples:\n  \
        kvfs kv export tags >tags.json\n  \
        kvfs kv export tags --snapshot monday\n\
        \n\
        One JSON object a line, as `kvfs kv scan --json` has them; `kvfs kv import`\n\
        reads them.")]
    Export {
        /// Keyspace
        keyspace: String,
        /// Which keys
        #[command(flatten)]
        range: KvRange,
    },
    /// Set the keys that standard input has, as `kvfs kv export` writes them: all or none
    #[command(after_help = "Example:\n  kvfs kv import tags <tags.json")]
    Import {
        /// Keyspace; made when missing
        keyspace: String,
    },
    /// List the keyspaces that you may use: mode, owner, group, name
    #[command(after_help = "Examples:\n  kvfs kv keyspaces\n  kvfs kv keyspaces --json")]
    Keyspaces {
        /// How it is shown
        #[command(flatten)]
        form: TableForm,
    },
    /// Change which users may read and write a keyspace
    #[command(after_help = "Example:\n  kvfs kv chmod 640 tags")]
    Chmod {
        /// Octal read and write bits for owner, group and others, such as 640
        #[arg(value_parser = parse_mode)]
        mode: u32,
        /// Keyspace
        keyspace: String,
    },
    /// Give a keyspace to another user or group
    #[command(after_help = "Examples:\n  kvfs kv chown 1000 tags\n  kvfs kv chown :100 tags")]
    Chown {
        /// Numbers: UID, UID:GID or :GID
        #[arg(value_parser = parse_owner, value_name = "UID[:GID]")]
        owner: (Option<u32>, Option<u32>),
        /// Keyspace
        keyspace: String,
    },
}
