//! Whether a store may be mounted on a directory.

use std::io::ErrorKind;
use std::path::Path;

use kvfs_fuse::mount::{self, MountError, PointState, Unmount};

use super::Plan;
use crate::error::{CliError, Code, Result};
use crate::mounts;
use crate::store_dir::StoreDir;

/// Refuses a directory that can't be mounted on. What a killed daemon left there is detached.
pub(super) fn check(plan: &Plan) -> Result<()> {
    let dir = &plan.dir;
    detach_stale(dir)?;
    let unfit = |what: &str| Err(CliError::new(Code::MountPoint, format!("{} {what}", dir.display())));
    match mount::state(dir) {
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
        Err(error) if error.kind() == ErrorKind::NotFound => {
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
    while mount::state(dir) == PointState::Stale {
        let ours = mounts::list()?.iter().any(|mounted| mounted.dir == dir);
        if !ours {
            return Ok(());
        }
        mount::unmount(dir, Unmount::Lazy).map_err(|error| explain_mount(&error))?;
        eprintln!("kvfs: detached what a daemon that was killed had left on {}", dir.display());
    }
    Ok(())
}

/// The daemon must never need its own mount: neither for the store directory nor for the device.
pub(super) fn check_apart(store: &StoreDir, dir: &Path) -> Result<()> {
    let device = store.device_path();
    let device = device.canonicalize().unwrap_or(device);
    let nested = |what: &str| {
        let message = format!("{what} {} lie inside each other; mount somewhere else", dir.display());
        Err(CliError::new(Code::MountPoint, message))
    };
    if store.path().starts_with(dir) || dir.starts_with(store.path()) {
        return nested(&format!("the store {} and the mount point", store.path().display()));
    }
    if device.starts_with(dir) {
        return nested(&format!("the device {} and the mount point", device.display()));
    }
    Ok(())
}

/// A mount error with its exit code.
pub(crate) fn explain_mount(error: &MountError) -> CliError {
    use rustix::io::Errno;
    let code = match error {
        MountError::Device { source } | MountError::Point { source, .. }
            if source.kind() == ErrorKind::PermissionDenied =>
        {
            Code::Denied
        }
        MountError::Mount { errno: Errno::PERM | Errno::ACCESS, .. } | MountError::NotPermitted { .. } => {
            Code::Denied
        }
        MountError::Fusermount { message, .. } if message.contains("user_allow_other") => {
            return CliError::new(
                Code::Denied,
                "-o allow_other needs the line user_allow_other in /etc/fuse.conf; root can add it",
            );
        }
        MountError::Fusermount { message, .. }
            if ["access", "ermission", "permitted"].iter().any(|word| message.contains(word)) =>
        {
            Code::Denied
        }
        MountError::Point { .. } | MountError::NotDirectory { .. } | MountError::Stale { .. } => {
            Code::MountPoint
        }
        MountError::Option { .. } => Code::Usage,
        MountError::Busy { .. } => Code::InUse,
        MountError::NotMounted { .. } => Code::NotMounted,
        _ => Code::Failed,
    };
    CliError::new(code, error.to_string())
}
