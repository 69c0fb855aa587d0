//! `kvfs txn lock`: a user's own locks.

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use kvfs_rpc::client::LockOn;
use kvfs_rpc::client::blocking::Store;

use super::connect;
use crate::args::TxnLockArgs;
use crate::error::{CliError, Code, Result};
use crate::keys::explain;
use crate::mounts::MountedStore;
use crate::store_dir::StoreDir;

pub(super) fn run(store: Option<&Path>, args: &TxnLockArgs) -> Result<ExitCode> {
    let (_, mount) = connect(store)?;
    let socket = StoreDir::open(&mount.store)?.keys_socket_path();
    let keys = Store::connect_to(&socket).map_err(|error| explain(&error))?;
    let mut inside = keys.map(|client| client.in_txn(args.id));
    for target in &args.targets {
        let path: PathBuf;
        let what = if let Some((keyspace, prefix)) = key_prefix(target)? {
            LockOn::Prefix { keyspace, prefix: prefix.as_bytes() }
        } else {
            path = inside_of(&mount, Path::new(target))?;
            LockOn::File { path: &path, offset: args.offset, length: args.length }
        };
        let locked = inside.call(async |client| client.lock(what, args.exclusive).await);
        locked.map_err(|error| explain(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Keyspace and prefix of `kv:KEYSPACE/PREFIX`; `None`: it is a path.
fn key_prefix(target: &str) -> Result<Option<(&str, &str)>> {
    let Some(keys) = target.strip_prefix("kv:") else { return Ok(None) };
    let (keyspace, prefix) = keys.split_once('/').unwrap_or((keys, ""));
    if keyspace.is_empty() {
        return Err(CliError::new(Code::Usage, format!("{target}: kv:KEYSPACE or kv:KEYSPACE/PREFIX")));
    }
    Ok(Some((keyspace, prefix)))
}

/// The path from the root of the store. What it leads to need not be on the main line.
fn inside_of(mount: &MountedStore, target: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(target).map_err(|error| CliError::io("find", target, &error))?;
    let outside = || {
        let message = format!("{} is not on the mount {}", target.display(), mount.dir.display());
        CliError::new(Code::Usage, message)
    };
    let below = full.strip_prefix(&mount.dir).map_err(|_| outside())?;
    if below.components().any(|part| part == Component::ParentDir) {
        return Err(CliError::new(Code::Usage, format!("{}: without \"..\", please", target.display())));
    }
    Ok(below.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_keys_or_paths_on_the_mount() {
        assert_eq!(key_prefix("kv:tags/song").expect("is valid"), Some(("tags", "song")));
        assert_eq!(key_prefix("kv:tags/a/b").expect("is valid"), Some(("tags", "a/b")));
        assert_eq!(key_prefix("kv:tags").expect("is valid"), Some(("tags", "")));
        assert_eq!(key_prefix("music/kv:x").expect("is valid"), None);
        assert!(key_prefix("kv:/x").is_err());
        let mount = MountedStore {
            dir: "/mnt".into(),
            store: "/store".into(),
            options: String::new(),
            is_view: false,
        };
        assert_eq!(inside_of(&mount, Path::new("/mnt/a/b")).expect("is there"), Path::new("a/b"));
        assert_eq!(inside_of(&mount, Path::new("/mnt")).expect("is there"), Path::new(""));
        assert!(inside_of(&mount, Path::new("/mnt/../etc")).is_err());
        assert!(inside_of(&mount, Path::new("/etc")).is_err());
    }
}
