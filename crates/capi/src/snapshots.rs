//! Named snapshots of a store.
//!
//! Thread safety: see the crate.

use std::ffi::c_int;

use kvfs_posix::{Identity, SnapshotView};
use libc::{gid_t, size_t, ssize_t, uid_t};

use crate::failure::{Failure, Result, call};
use crate::foreign::{Groups, Text, TextBuffer, missing};
use crate::process::{Process, identity, own_identity};
use crate::store::Store;

fn of(store: Option<&Store>) -> Result<&kvfs_fs::FileSystem> {
    Ok(store.ok_or_else(missing)?.inner.own()?.volume.file_system())
}

/// Gives the state of now a name; what open transactions have written is not in it.
///
/// EEXIST: the name is taken. EINVAL: it can't be one.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_create(store: Option<&Store>, name: Text) -> c_int {
    call(|| {
        of(store)?.snapshots().create(name.name()?, false)?;
        Ok(0)
    })
}

/// Takes the name of a snapshot away; what only it held is freed. ENOENT: there is none.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_delete(store: Option<&Store>, name: Text) -> c_int {
    call(|| {
        of(store)?.snapshots().delete(name.name()?)?;
        Ok(0)
    })
}

/// The names of all snapshots, oldest first, each with a zero byte behind it. Returns the length; size 0 asks
/// for it. ERANGE: the buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_list(store: Option<&Store>, mut buffer: TextBuffer, size: size_t) -> ssize_t {
    call(|| {
        let all = of(store)?.snapshots().shown_to(0);
        buffer.fill_names(size, all.into_iter().map(|info| info.name))
    })
}

fn inside(store: Option<&Store>, name: &Text, identity: &Identity) -> Result<Option<Box<Process>>> {
    let (store, name) = (&store.ok_or_else(missing)?.inner, name.name()?);
    let volume = &store.own()?.volume;
    let shown = volume.file_system().snapshots().shown_to(identity.uid);
    if !shown.iter().any(|info| info.name == name) {
        return Err(Failure::new(
            libc::ENOENT,
            format!("there is no snapshot \"{name}\" that the user may see"),
        ));
    }
    let view: SnapshotView = volume.open_snapshot(name)?;
    Ok(Some(Box::new(Process::new(view.process(identity), store))))
}

/// As `kvfs_process_new`, in a snapshot: its calls show what there was, files and keys, and change nothing
/// (EROFS). Set-id bits and devices are shown as none. ENOENT: there is none of that name.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_process(store: Option<&Store>, name: Text) -> Option<Box<Process>> {
    call(|| inside(store, &name, &own_identity()?))
}

/// As `kvfs_process_new_as`, in a snapshot.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_process_as(
    store: Option<&Store>,
    name: Text,
    uid: uid_t,
    gid: gid_t,
    groups: Groups,
    group_count: size_t,
) -> Option<Box<Process>> {
    call(|| inside(store, &name, &identity(uid, gid, &groups, group_count)?))
}
