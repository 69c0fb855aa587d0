//! Whether a store may be mounted on a directory.

use std::io;
use std::path::Path;

use kvfs_fuse::mount::{self, MountError, MountOptions, PointState, Unmount};
use kvfs_service::{ErrorKind, ServiceError};

use super::Plan;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// Refuses a directory that can't be mounted on. What a killed daemon left there is detached.
pub(super) fn check(plan: &Plan, dir: &Path) -> Result<()> {
    detach_stale(dir)?;
    let unfit = |what: &str| Err(CliError::new(Code::MountPoint, format!("{} {what}", dir.display())));
    match mounts::state(dir)? {
        PointState::Free => {}
        PointState::Stale => return unfit("is a mount whose daemon has died, and could not be detached"),
        PointState::Mounted(found) if found.fs_type == mounts::FS_TYPE => {
            let source = found.source.display();
            if found.source == plan.store {
                let message = format!("{source} is mounted on {} already", dir.display());
                return Err(CliError::new(Code::InUse, message));
            }
            return unfit(&format!("is a mount point already: the store {source} is mounted there"));
        }
        PointState::Mounted(_) if plan.nonempty => {}
        PointState::Mounted(found) => {
            return unfit(&format!(
                "is a mount point already ({} from {}); -o nonempty mounts over it",
                found.fs_type,
                found.source.display()
            ));
        }
    }
    match std::fs::metadata(dir) {
        Ok(found) if found.is_dir() => {}
        Ok(_) => return unfit("is not a directory"),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            return unfit("does not exist; make it with mkdir");
        }
        Err(error) => return Err(CliError::io("look at", dir, &error)),
    }
    if plan.nonempty {
        return Ok(());
    }
    match std::fs::read_dir(dir).map(|mut entries| entries.next().is_some()) {
        Ok(false) => Ok(()),
        Ok(true) => unfit("is not empty; choose an empty directory, or hide what is there with -o nonempty"),
        Err(error) => Err(CliError::io("look into", dir, &error)),
    }
}

/// A dead kvfs mount has nothing that could be lost. Several may lie on top of each other.
fn detach_stale(dir: &Path) -> Result<()> {
    while mounts::state(dir)? == PointState::Stale {
        let ours = mounts::list()?.iter().any(|mounted| mounted.dir == dir);
        if !ours {
            return Ok(());
        }
        mount::unmount(dir, Unmount::Lazy).map_err(|error| explain_mount(&error))?;
        eprintln!("kvfs: detached what a daemon that was killed had left on {}", dir.display());
    }
    Ok(())
}

/// Takes away what a daemon that was killed has left of its transactions and branches. The caller must own
/// the store, so that no other daemon serves them.
pub(super) fn detach_dead_views(store: &StoreDir) -> Result<()> {
    let views = mounts::list_all()?.into_iter().filter(|mount| mount.is_view && mount.store == store.path());
    // What was mounted last lies on top.
    for view in views.collect::<Vec<_>>().into_iter().rev() {
        if !view.is_own() || mount::state(&view.dir) != PointState::Stale {
            continue;
        }
        match mount::unmount(&view.dir, Unmount::Lazy) {
            Ok(()) => {
                tracing::info!(dir = %view.dir.display(), "detached the view of a daemon that was killed");
            }
            Err(error) => tracing::warn!(%error, "the view of a daemon that was killed stays mounted"),
        }
        let id = view.dir.file_name().and_then(|name| name.to_str()?.parse().ok());
        if let Some(id) = id
            && view.dir == store.view_name(id)
            && let Err(error) = store.remove_view(id)
        {
            tracing::debug!(%error, "the directory of a view stays");
        }
    }
    Ok(())
}

/// The daemon must never need its own mount: neither for the store directory, nor for a device, nor for
/// objects that are files.
pub(super) fn check_apart(store: &StoreDir, dir: &Path) -> Result<()> {
    let nested = |what: &str| {
        let message = format!("{what} {} lie inside each other; mount somewhere else", dir.display());
        Err(CliError::new(Code::MountPoint, message))
    };
    if store.path().starts_with(dir) || dir.starts_with(store.path()) {
        return nested(&format!("the store {} and the mount point", store.path().display()));
    }
    let others = store.other_devices().map_err(|error| CliError::io("look into", store.path(), &error))?;
    let targets = std::iter::once(store.device()).chain(others).map(|device| device.target());
    if let Some(device) = targets.into_iter().find(|target| target.starts_with(dir)) {
        return nested(&format!("the device {} and the mount point", device.display()));
    }
    match store.objects_directory()? {
        // Also those of other objects are listed on the way.
        Some(objects) if objects.starts_with(dir) || dir.starts_with(&objects) => {
            nested(&format!("the objects in {} and the mount point", objects.display()))
        }
        _ => Ok(()),
    }
}

/// The options of a mount of the main line on `dir`, with what a remount has changed of them: that the kernel
/// alone knows.
pub(super) fn options_now(options: &MountOptions, store: &Path, dir: &Path) -> MountOptions {
    let (mut all, mut now) = (options.clone(), MountOptions::default());
    if let Ok(Some(mount)) = mount::on_top_of(dir)
        && mounts::of_ours(mount.clone()).is_some_and(|ours| !ours.is_view && ours.store == store)
        && now.apply(&mount.options).is_ok()
    {
        (all.noexec, all.nosuid, all.nodev) = (now.noexec, now.nosuid, now.nodev);
    }
    all
}

/// The mount of a view differs from the main line's in what the mount table shows, and gives a user nothing
/// that the main line has taken back since: the view of user `owner` has the set-id bits and device nodes of
/// its begin.
pub(super) fn view_options(main: &MountOptions, store: &Path, owner: u32) -> MountOptions {
    MountOptions {
        nosuid: main.nosuid || owner != 0,
        nodev: main.nodev || owner != 0,
        source: store.to_owned(),
        subtype: mounts::VIEW_SUBTYPE.to_owned(),
        ..main.clone()
    }
}

/// A mount error, of the kind that it stands for.
pub(crate) fn explain_mount(error: &MountError) -> ServiceError {
    use rustix::io::Errno;
    let kind = match error {
        MountError::Device { source } | MountError::Point { source, .. }
            if source.kind() == io::ErrorKind::PermissionDenied =>
        {
            ErrorKind::Denied
        }
        MountError::Mount { errno: Errno::PERM, .. } if rustix::process::geteuid().is_root() => {
            let message = format!(
                "{error}; root has no CAP_SYS_ADMIN here, which mounting needs: in a container, add it, and /dev/fuse"
            );
            return ServiceError::new(ErrorKind::Denied, message);
        }
        MountError::Mount { errno: Errno::PERM | Errno::ACCESS, .. } | MountError::NotPermitted { .. } => {
            ErrorKind::Denied
        }
        MountError::Fusermount { message, .. } if message.contains("user_allow_other") => {
            return ServiceError::new(
                ErrorKind::Denied,
                "-o allow_other needs the line user_allow_other in /etc/fuse.conf; root can add it",
            );
        }
        error @ MountError::Fusermount { .. } if error.is_denied() => ErrorKind::Denied,
        MountError::Point { .. } | MountError::NotDirectory { .. } | MountError::Stale { .. } => {
            ErrorKind::MountPoint
        }
        MountError::Option { .. } => ErrorKind::Usage,
        MountError::Busy { .. } => ErrorKind::InUse,
        MountError::NotMounted { .. } => ErrorKind::NotMounted,
        _ => ErrorKind::Failed,
    };
    ServiceError::new(kind, error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn view_of_a_user_takes_no_set_id_bits_or_devices_back() {
        let main = MountOptions::default();
        let of = |main: &MountOptions, owner| {
            let options = view_options(main, Path::new("/store"), owner);
            (options.nosuid, options.nodev)
        };
        assert_eq!((of(&main, 0), of(&main, 1000)), ((false, false), (true, true)));
        let careful = MountOptions { nosuid: true, nodev: true, ..main };
        assert_eq!(of(&careful, 0), (true, true));
    }
}
