//! `kvfs txn lock`: a user's own locks.

use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use kvfs_rpc::client::LockOn;

use super::connect;
use crate::args::TxnLockArgs;
use crate::error::{CliError, Code, Result};
use crate::keys::{self, explain};
use crate::mounts::{self, MountedStore};
use crate::places::key_prefix;

pub(super) fn run(store: Option<&Path>, args: &TxnLockArgs) -> Result<ExitCode> {
    let (_, mount) = connect(store)?;
    let keys = keys::connect_to(&mount.store)?;
    let mut inside = keys.map(|client| client.in_txn(args.id));
    for target in &args.targets {
        let path: PathBuf;
        let what = if let Some((keyspace, prefix)) = key_prefix(target)? {
            LockOn::Prefix { keyspace, prefix: prefix.as_bytes() }
        } else {
            path = inside_of(&mount.store, Path::new(target))?;
            LockOn::File { path: &path, offset: args.offset, length: args.length }
        };
        let locked = inside.call(async |client| client.lock(what, args.exclusive).await);
        locked.map_err(|error| explain(&error))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The path from the root of the store: of the target as it is, not of what it leads to as a symbolic link.
/// It need not be there, because it may be in the transaction alone. Every mount of the store counts, views
/// and bind mounts of parts too.
fn inside_of(store: &Path, target: &Path) -> Result<PathBuf> {
    let full = without_links(target)?;
    let mounted = mounts::on(&full)?.filter(|mounted| mounted.store == store);
    mounted.as_ref().and_then(|mounted| from_root(mounted, &full)).ok_or_else(|| {
        let message = format!("{} is not on a mount of the store {}", target.display(), store.display());
        CliError::new(Code::Usage, message)
    })
}

/// The path from the root of the store of a path on one of its mounts.
fn from_root(mounted: &MountedStore, full: &Path) -> Option<PathBuf> {
    let root = mounted.root.strip_prefix("/").unwrap_or(&mounted.root);
    Some(root.join(full.strip_prefix(&mounted.dir).ok()?))
}

/// An absolute path without symbolic links on the way. Where directories are missing, they are taken as they
/// are named.
fn without_links(target: &Path) -> Result<PathBuf> {
    let full = std::path::absolute(target).map_err(|error| CliError::io("find", target, &error))?;
    let mut names = Vec::new();
    let mut at = full.as_path();
    loop {
        let is_link = names.is_empty() && at.symlink_metadata().is_ok_and(|found| found.is_symlink());
        if !is_link && let Ok(base) = at.canonicalize() {
            return Ok(names.iter().rev().fold(base, |path, name| path.join(name)));
        }
        let (Some(Component::Normal(name)), Some(parent)) = (at.components().next_back(), at.parent()) else {
            return Err(CliError::new(Code::Usage, format!("{}: without \"..\", please", target.display())));
        };
        names.push(name);
        at = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn target_on_any_mount_is_a_path_from_the_root_of_the_store() {
        let mount = |dir: &str, root: &str| MountedStore {
            dir: dir.into(),
            root: root.into(),
            ..MountedStore::default()
        };
        let from = |dir: &str, root: &str, path: &str| from_root(&mount(dir, root), Path::new(path));
        assert_eq!(from("/mnt", "/", "/mnt/a/b").expect("is there"), Path::new("a/b"));
        assert_eq!(from("/mnt", "/", "/mnt").expect("is there"), Path::new(""));
        assert_eq!(from("/bound", "/home/part", "/bound/a").expect("is there"), Path::new("home/part/a"));
        assert_eq!(from("/mnt", "/", "/etc"), None);
    }

    #[test]
    fn links_on_the_way_are_followed_and_the_last_is_not() {
        let dir = std::env::temp_dir().join(format!("cli-lock-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("real/sub")).expect("makes directories");
        let link = |to: &str, name: &str| std::os::unix::fs::symlink(to, dir.join(name)).expect("links");
        link("real", "way");
        link("sub", "real/last");
        let base = dir.canonicalize().expect("resolves");
        let of = |path: &str| without_links(&dir.join(path)).expect("resolves");
        assert_eq!(of("way/sub"), base.join("real/sub"));
        assert_eq!(of("way/last"), base.join("real/last"));
        assert_eq!(of("way/missing/more"), base.join("real/missing/more"));
        assert_eq!(of("way/../real"), base.join("real"));
        assert!(without_links(&dir.join("missing/../real")).is_err());
        std::fs::remove_dir_all(&dir).expect("cleans up");
    }
}
