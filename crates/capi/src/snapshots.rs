//! Named snapshots of a store.
//!
//! Thread safety: see the crate.

use std::ffi::c_int;

use libc::{size_t, ssize_t};

use crate::failure::{Result, call};
use crate::foreign::{Text, TextBuffer, missing};
use crate::store::Store;

fn of(store: Option<&Store>) -> Result<&kvfs_fs::FileSystem> {
    Ok(store.ok_or_else(missing)?.inner.volume.file_system())
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

/// The names of all snapshots, oldest first, each with a zero byte behind it. Returns the length; size 0 asks for it. ERANGE: the
/// buffer is too small.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_snapshot_list(store: Option<&Store>, mut buffer: TextBuffer, size: size_t) -> ssize_t {
    call(|| {
        let all = of(store)?.snapshots().shown_to(0);
        let list: Vec<u8> =
            all.into_iter().flat_map(|info| info.name.into_bytes().into_iter().chain([0])).collect();
        buffer.room().fill_whole(size, &list)
    })
}
