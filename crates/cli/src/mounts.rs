//! Which kvfs mount a path lies on, read from the kernel's mount table.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kvfs_fuse::mount::{self, MOUNT_TABLE, Mount, PointState};

use crate::error::{CliError, Code, Result};
use crate::killed_daemon;
use crate::procs;

/// File system type in the mount table.
pub(crate) const FS_TYPE: &str = "fuse.kvfs";

/// The same for views of transactions, behind `fuse.`.
pub(crate) const VIEW_SUBTYPE: &str = "kvfs-txn";

/// One mounted store.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct MountedStore {
    pub(crate) dir: PathBuf,
    pub(crate) store: PathBuf,
    /// Of the file system: its mounts have it in common, bind mounts included.
    pub(crate) device: (u32, u32),
    /// What it shows, as a path from the root: not everything, where it is a bind mount.
    pub(crate) root: PathBuf,
    /// Options of this mount, separated by commas.
    pub(crate) options: String,
    /// Those of the file system.
    pub(crate) fs_options: String,
    /// The view of a transaction rather than the main line.
    pub(crate) is_view: bool,
}

/// The mounts of stores that this process can see, in mount order; without views.
pub(crate) fn list() -> Result<Vec<MountedStore>> {
    Ok(list_all()?.into_iter().filter(|mount| !mount.is_view).collect())
}

/// As [`list`], and, with a process of each, what it sees of other mount namespaces, as far as this
/// process may look.
pub(crate) fn everywhere() -> Result<Vec<(MountedStore, Option<u32>)>> {
    let mut found: Vec<_> = list()?.into_iter().map(|mount| (mount, None)).collect();
    let own = fs::metadata("/proc/self/ns/mnt").map_or(0, |namespace| namespace.ino());
    let mut namespaces = BTreeSet::from([own]);
    for pid in procs::pids() {
        let namespace = fs::metadata(format!("/proc/{pid}/ns/mnt")).map(|namespace| namespace.ino());
        if namespace.is_ok_and(|namespace| namespaces.insert(namespace)) {
            let table = mount::table_in(Path::new(&format!("/proc/{pid}/mountinfo"))).unwrap_or_default();
            let table = table.into_iter().filter_map(of_ours).filter(|mount| !mount.is_view);
            found.extend(table.map(|mount| (mount, Some(pid))));
        }
    }
    Ok(found)
}

/// Whether process `pid` sees the view of a transaction at `dir`, where others see a mount.
pub(crate) fn is_in_view(pid: u32, dir: &Path) -> bool {
    let table = mount::table_in(Path::new(&format!("/proc/{pid}/mountinfo"))).unwrap_or_default();
    let topmost = table.into_iter().rfind(|mount| mount.point == dir);
    topmost.and_then(of_ours).is_some_and(|mount| mount.is_view)
}

/// What is at a mount point. A daemon that was killed and can't end is made to, since what is asked on its
/// mount would wait as it does.
pub(crate) fn state(dir: &Path) -> Result<PointState> {
    if let Some(mount) = containing(dir)? {
        killed_daemon::end_of(&mount)?;
    }
    Ok(mount::state(dir))
}

/// As [`list`], with views.
pub(crate) fn list_all() -> Result<Vec<MountedStore>> {
    Ok(table()?.into_iter().filter_map(of_ours).collect())
}

/// `path` without symbolic links and dots, also when its last part is missing or a dead mount.
pub(crate) fn resolve(path: &Path) -> Result<PathBuf> {
    let failed = |error: std::io::Error| CliError::io("resolve", path, &error);
    if let Ok(resolved) = path.canonicalize() {
        return Ok(resolved);
    }
    let absolute = std::path::absolute(path).map_err(failed)?;
    match (absolute.parent().map(Path::canonicalize), absolute.file_name()) {
        (Some(Ok(parent)), Some(name)) => Ok(parent.join(name)),
        _ => Ok(absolute),
    }
}

/// The mount that `path` lies on, if it is one of ours, or a view of one. Asks nothing of the file system at
/// `path`, so it answers for a dead mount too.
pub(crate) fn containing(path: &Path) -> Result<Option<MountedStore>> {
    on(&resolve(path)?)
}

/// As [`containing`], for a path without symbolic links and dots.
pub(crate) fn on(resolved: &Path) -> Result<Option<MountedStore>> {
    let below = table()?.into_iter().filter(|mount| resolved.starts_with(&mount.point));
    // What is mounted later lies on top; other file systems may lie on a mount of ours.
    Ok(below.max_by_key(|mount| mount.point.as_os_str().len()).and_then(of_ours))
}

/// Everything that is mounted, in mount order.
pub(crate) fn table() -> Result<Vec<Mount>> {
    mount::table().map_err(|error| CliError::io("read", MOUNT_TABLE.as_ref(), &error))
}

impl MountedStore {
    /// Whether this mount is read-only, be it all of the file system or not.
    pub(crate) fn is_read_only(&self) -> bool {
        self.options.split(',').any(|option| option == "ro")
    }

    /// Whether this user has mounted it. Another user's daemon may call its mounts what it likes, and answer
    /// nothing that it is asked.
    pub(crate) fn is_own(&self) -> bool {
        self.is_of(rustix::process::geteuid().as_raw())
    }

    /// Whether this user or root has mounted it.
    pub(crate) fn is_trusted(&self) -> bool {
        self.is_of(0) || self.is_own()
    }

    fn is_of(&self, uid: u32) -> bool {
        let owner = self.fs_options.split(',').find_map(|option| option.strip_prefix("user_id="));
        owner.is_some_and(|owner| owner.parse() == Ok(uid))
    }

    /// What `path`, on this mount and without symbolic links above its name, is from the root of the store,
    /// as raw bytes.
    pub(crate) fn path_in_store(&self, path: &Path) -> Vec<u8> {
        let below = path.strip_prefix(&self.dir).unwrap_or(path);
        self.root.join(below).into_os_string().into_vec()
    }

    /// What has happened to a mount whose daemon ended without unmounting it, and what to do; `None`: it
    /// answers.
    pub(crate) fn obituary(&self) -> Option<String> {
        if mount::state(&self.dir) != PointState::Stale {
            return None;
        }
        let (dir, store) = (self.dir.display(), self.store.display());
        let again = if self.is_view {
            "the transaction ended with it".to_owned()
        } else {
            format!("`kvfs mount {store} {dir}` mounts it again")
        };
        Some(format!(
            "the daemon of the mount on {dir} has died ({store}/kvfs.log may tell why); {again}, `kvfs umount {dir}` \
             takes the dead mount away"
        ))
    }
}

/// As [`containing`], or the error that says that nothing is mounted there.
pub(crate) fn required(path: &Path) -> Result<MountedStore> {
    containing(path)?.ok_or_else(|| {
        CliError::new(Code::NotMounted, format!("{} is not on a mounted kvfs store", path.display()))
    })
}

/// Where `store` is mounted, as far as this process can see.
pub(crate) fn of_store(store: &Path) -> Result<Option<PathBuf>> {
    Ok(list()?.into_iter().find(|mount| mount.store == store).map(|mount| mount.dir))
}

/// The mount, if it is one of ours.
pub(crate) fn of_ours(mount: Mount) -> Option<MountedStore> {
    let Mount { device, root, point, fs_type, source, options, fs_options, .. } = mount;
    let is_view = fs_type.strip_prefix("fuse.") == Some(VIEW_SUBTYPE);
    let is_ours = is_view || fs_type == FS_TYPE;
    is_ours.then_some(MountedStore { dir: point, store: source, device, root, options, fs_options, is_view })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_mounts_are_known_by_their_type() {
        let of = |fs_type: &str| {
            let (fs_type, options) = (fs_type.to_owned(), "rw".to_owned());
            of_ours(Mount {
                id: 1,
                device: (0, 52),
                root: "/".into(),
                point: "/mnt".into(),
                fs_type,
                source: "/store".into(),
                options,
                fs_options: "rw,user_id=0".into(),
            })
        };
        assert!(of("fuse.kvfs").is_some_and(|mount| !mount.is_view && mount.store == Path::new("/store")));
        assert!(of("fuse.kvfs-txn").is_some_and(|mount| mount.is_view));
        assert_eq!(of("ext4"), None);
    }

    #[test]
    fn missing_names_resolve_through_their_parents() {
        let root = std::env::temp_dir().join(format!("cli-resolve-{}", std::process::id()));
        fs::create_dir_all(root.join("real")).expect("makes directories");
        std::os::unix::fs::symlink("real", root.join("link")).expect("links");
        let base = root.canonicalize().expect("resolves");
        assert_eq!(resolve(&root.join("link/../link/new")).expect("resolves"), base.join("real/new"));
        fs::remove_dir_all(&root).expect("cleans up");
    }
}
