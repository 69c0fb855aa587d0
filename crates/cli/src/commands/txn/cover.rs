//! Every mount of a store shows the transaction, in the mount namespace of `kvfs txn run` and
//! `kvfs txn join`.
//!
//! A mount of the main line is known by the device number of the file system, so bind mounts count, of parts
//! as well: each gets the same part of the view. What other file systems have mounted on the main line stays
//! where it was. Branches and other transactions of the store are other trees, which the view can't stand
//! for: they can be read only.
//!
//! Invariants: after [`Cover::show`] neither a path nor the working directory leads to the main line; else it
//! is an error, and the command must not run. No symbolic link is followed: places are opened without any,
//! and used by descriptor, because the directories on the way may be those of another user.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kvfs_fuse::mount::{Mount, open_place};
use rustix::fs::{Mode, OFlags, ResolveFlags, fstat, major, minor, openat2};

use crate::error::{CliError, Code, Result};
use crate::mounts::{self, MountedStore};
use crate::namespace;

/// What the kernel adds to the root of a mount whose directory was removed.
const REMOVED: &str = "//deleted";

/// What is mounted where the main line can be seen.
enum Part {
    /// The main line, or a part of it.
    Main(Mount),
    /// Another file system on a mount of the main line, and what is mounted on that.
    Other(PathBuf, OwnedFd),
}

/// The mounts that are to be covered.
pub(super) struct Cover {
    device: (u32, u32),
    /// In mount order.
    parts: Vec<Part>,
    /// Other views of the store.
    views: Vec<Mount>,
    /// The working directory, if it is on the main line.
    here: Option<PathBuf>,
}

impl Cover {
    /// Finds the mounts of the file system that `main` is a mount of. For a process that is in its own mount
    /// namespace.
    pub(super) fn of(main: &MountedStore) -> Result<Self> {
        let here = working_directory(main.device)?;
        let seen: Vec<Mount> = mounts::table()?.into_iter().filter(|mount| mount.open().is_some()).collect();
        let is_main = |mount: &Mount| mount.device == main.device;
        if !seen.iter().any(is_main) {
            let message = format!("no mount of the store {} can be seen from here", main.store.display());
            return Err(CliError::new(Code::NotMounted, message));
        }
        let mut parts = Vec::new();
        for mount in &seen {
            if is_main(mount) {
                parts.push(Part::Main(mount.clone()));
            } else if below(&seen, mount).is_some_and(is_main)
                && let Some(root) = mount.open()
            {
                let copy = namespace::take_copy(&root, true, &mount.point)?;
                parts.push(Part::Other(mount.point.clone(), copy));
            }
        }
        let is_view = |mount: &Mount| {
            !is_main(mount)
                && mounts::of_ours(mount.clone()).is_some_and(|of| of.is_view && of.store == main.store)
        };
        let views = seen.iter().filter(|mount| is_view(mount)).cloned().collect();
        Ok(Self { device: main.device, parts, views, here })
    }

    /// Takes away the mount in the place of which the view is to be mounted; returns its point, and what is
    /// there now.
    pub(super) fn uncover(&self, main: &MountedStore) -> Result<(PathBuf, OwnedFd)> {
        let point = self.point(main);
        let open = || open_place(&point).map_err(|error| CliError::io("mount the view on", &point, &error));
        namespace::uncover(&open()?);
        let place = open()?;
        Ok((point, place))
    }

    /// Where the view is to be mounted: the whole main line, if that is to be seen, else a part of it.
    fn point(&self, main: &MountedStore) -> PathBuf {
        let all = self.parts.iter().filter_map(|part| match part {
            Part::Main(mount) => Some(mount),
            Part::Other(..) => None,
        });
        let best = all.max_by_key(|mount| (mount.root == Path::new("/"), mount.point == main.dir));
        best.map_or_else(|| main.dir.clone(), |mount| mount.point.clone())
    }

    /// Shows `view`, the root of the transaction's files, on every mount; on `shown` it is mounted already.
    pub(super) fn show(&self, view: &OwnedFd, shown: Option<&Path>) -> Result<()> {
        let device =
            device_of(view).map_err(|error| CliError::io("look at", Path::new("the view"), &error))?;
        for part in &self.parts {
            match part {
                Part::Other(point, copy) => namespace::attach(copy, &self.place(point, device)?, point)?,
                Part::Main(mount) if Some(&*mount.point) == shown && mount.root == Path::new("/") => {}
                Part::Main(mount) if is_removed(mount) => {
                    if let Some(root) = mount.open() {
                        namespace::uncover(&root);
                    }
                }
                Part::Main(mount) => {
                    let part = open_beneath(view, &mount.root, OFlags::PATH)
                        .map_err(|error| CliError::io("show in the transaction", &mount.point, &error))?;
                    let copy = namespace::take_copy(&part, false, &mount.root)?;
                    namespace::attach(&copy, &self.place(&mount.point, device)?, &mount.point)?;
                    namespace::set_flags(&copy, &mount.options, false, &mount.point)?;
                }
            }
        }
        for other in self.views.iter().filter(|other| other.device != device) {
            if let Some(root) = other.open() {
                namespace::set_flags(&root, &other.options, true, &other.point)?;
            }
        }
        if let Some(here) = &self.here {
            open_place(here)
                .and_then(|opened| expect(opened, &[device]))
                .and_then(|opened| Ok(rustix::process::fchdir(opened)?))
                .map_err(|error| CliError::io("enter the transaction's", here, &error))?;
        }
        self.check(device)
    }

    /// The place of a mount: a part of the main line, or of the view on `device` that lies on it by now.
    fn place(&self, point: &Path, device: (u32, u32)) -> Result<OwnedFd> {
        open_place(point)
            .and_then(|opened| expect(opened, &[self.device, device]))
            .map_err(|error| CliError::io("show the transaction on", point, &error))
    }

    /// The invariant; the view is of the file system `device`.
    fn check(&self, device: (u32, u32)) -> Result<()> {
        let covered = self.parts.iter().filter_map(|part| match part {
            Part::Main(mount) if !is_removed(mount) => Some(&*mount.point),
            _ => None,
        });
        // Another file system may have been mounted on the same place later.
        let others: Vec<&Path> = self.others().collect();
        for point in covered.filter(|point| !others.contains(point)) {
            open_place(point)
                .and_then(|opened| expect(opened, &[device]))
                .map_err(|error| CliError::io("show the transaction on", point, &error))?;
        }
        let left =
            mounts::table()?.into_iter().find(|mount| mount.device == self.device && mount.open().is_some());
        if let Some(mount) = left {
            let message = format!(
                "{} shows the store outside of the transaction, and can't be made to show the transaction; unmount it",
                mount.point.display()
            );
            return Err(CliError::new(Code::Failed, message));
        }
        match working_directory(self.device)? {
            None => Ok(()),
            Some(here) => Err(CliError::new(
                Code::Failed,
                format!(
                    "the working directory {} stays outside of the transaction; run it from another one",
                    here.display()
                ),
            )),
        }
    }

    fn others(&self) -> impl Iterator<Item = &Path> {
        self.parts.iter().filter_map(|part| match part {
            Part::Other(point, _) => Some(&**point),
            Part::Main(_) => None,
        })
    }
}

/// The root of a view that is mounted on `dir`, for [`Cover::show`].
pub(super) fn open_view(dir: &Path) -> Result<OwnedFd> {
    let failed = |error| CliError::io("enter", dir, &error);
    let view = open_place(dir).map_err(failed)?;
    let device = device_of(&view).map_err(failed)?;
    let mount = mounts::list_all()?.into_iter().find(|mount| mount.device == device);
    if mount.is_some_and(|mount| mount.is_view) {
        return Ok(view);
    }
    let message = format!("the view of the transaction is not mounted on {} any more", dir.display());
    Err(CliError::new(Code::NotMounted, message))
}

/// Opens `path` (from the root of the store) in the view or main line that `root` is the root of. No symbolic
/// link is followed, and nothing that is mounted on it is entered.
pub(super) fn open_beneath(root: &OwnedFd, path: &Path, flags: OFlags) -> io::Result<OwnedFd> {
    let inside = path.strip_prefix("/").unwrap_or(path);
    let inside = if inside.as_os_str().is_empty() { Path::new(".") } else { inside };
    let resolve = ResolveFlags::BENEATH
        | ResolveFlags::NO_SYMLINKS
        | ResolveFlags::NO_MAGICLINKS
        | ResolveFlags::NO_XDEV;
    Ok(openat2(root, inside, flags | OFlags::CLOEXEC, Mode::empty(), resolve)?)
}

/// What is open, if it is of one of the file systems.
fn expect(opened: OwnedFd, devices: &[(u32, u32)]) -> io::Result<OwnedFd> {
    if devices.contains(&device_of(&opened)?) {
        return Ok(opened);
    }
    Err(io::Error::other("its path leads to another file system by now"))
}

fn device_of(opened: &OwnedFd) -> io::Result<(u32, u32)> {
    let found = fstat(opened)?;
    Ok((major(found.st_dev), minor(found.st_dev)))
}

/// Whether the directory that was mounted has been removed since.
fn is_removed(mount: &Mount) -> bool {
    mount.root.to_string_lossy().ends_with(REMOVED)
}

/// The working directory, if it is of the file system `device`.
fn working_directory(device: (u32, u32)) -> Result<Option<PathBuf>> {
    let Ok(found) = std::fs::metadata(".") else { return Ok(None) };
    if (major(found.dev()), minor(found.dev())) != device {
        return Ok(None);
    }
    let here = std::env::current_dir().ok().filter(|here| here.starts_with("/"));
    here.map(Some).ok_or_else(|| {
        let message =
            "the working directory was removed, or its mount was: it can't be that of the transaction";
        CliError::new(Code::Usage, message)
    })
}

/// The mount that `mount` lies on.
fn below<'m>(seen: &'m [Mount], mount: &Mount) -> Option<&'m Mount> {
    let others = seen.iter().filter(|other| other.id != mount.id && mount.point.starts_with(&other.point));
    others.max_by_key(|other| other.point.as_os_str().len())
}
