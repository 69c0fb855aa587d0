//! What of a change a caller asks for, and what of a comparison it may see.
//!
//! Thread safety: pure functions, and reads for threads that may block.

use kvfs_fs::{Area, Difference, FileSystem, Selection};
use kvfs_kv::Access;

use crate::authority::is_master;
use crate::caller::Caller;
use crate::error::Result;
use crate::lines::{PlaceLine, SelectionLine};

/// The same for the file system. By force only root changes files of others.
pub(crate) fn selected(caller: &Caller, selection: SelectionLine) -> Selection {
    let areas = |places: Vec<PlaceLine>| places.into_iter().map(area).collect();
    let SelectionLine { only, skip, force, keep } = selection;
    Selection {
        only: areas(only),
        skip: areas(skip),
        force: areas(force),
        keep: areas(keep),
        uid: Some(caller.uid).filter(|&uid| uid != 0),
    }
}

fn area(place: PlaceLine) -> Area {
    match place {
        PlaceLine::All => Area::All,
        PlaceLine::Path(path) => Area::path(&path),
        PlaceLine::Keys(prefix) => Area::Keys(prefix),
    }
}

/// What the caller may see of a comparison, on the side of `view`.
pub(crate) fn shown_to(
    caller: &Caller,
    view: &FileSystem,
    mut lines: Vec<Difference>,
) -> Result<Vec<Difference>> {
    if !is_master(view, caller.uid) {
        kvfs_fs::hide_unreadable(view, &mut lines, |owner| caller.may_use_keys(view, owner, Access::Read))?;
    }
    Ok(lines)
}
