//! Merging a branch where one side is preferred: what the merge as such refuses.
//!
//! Purpose: the records of a branch fit the main line only where nothing has changed there. Where something
//! has, the branch's changes are done once more, by operations, on the main line of now: the branch and its
//! snapshot are the two states of an undo ([`super::undo`]), the other way round. So names, links and
//! counters stay right whatever has changed. Content of what is done again is copied, and files that are made
//! again have other inode numbers. For a branch of a branch, that one is the main line, and the state in
//! which they parted the snapshot.
//!
//! Thread safety: as [`FileSystem`]; for threads that may block. Invariant: the branch is as it was; after
//! the commit the caller deletes it.

use std::sync::Arc;
use std::time::Duration;

use kvfs_txn::{Owner, Rival};

use super::branch::{BranchInfo, Opened};
use super::compare::Sides;
use super::merge::{CONFLICTS_MAX, LOCK_WAIT_MAX, changed_outside, check_directory};
use super::undo::{Obstacle, Planned, Selection, TakenBack, owner_of_note};
use super::{BeginOptions, DiffKind};
use crate::{FileSystem, FsError, Result};

/// A transaction of `owner` that does what the branch has changed on the main line of now, and the branch,
/// which is open. `selection` says what becomes of conflicts (`force`: the branch's side stays, `keep`: the
/// main line's). Commit the view like that of every transaction, and then delete the branch
/// ([`crate::Branches::delete_open`]): nothing else gets at it meanwhile. O(what the branch and the main line
/// have changed).
///
/// # Errors
/// [`FsError::MergeRefused`] with the conflicts that are left; as [`FileSystem::open_branch`] and
/// [`crate::restore`].
pub fn begin_merge_preferring(
    main: &Arc<FileSystem>,
    branch: &BranchInfo,
    owner: Owner,
    selection: &Selection,
) -> Result<[Arc<FileSystem>; 2]> {
    let branch = Opened::resume(main, branch, |_, _| None)?.into_view(main)?;
    main.branches().expect_mergeable(&branch)?;
    check_directory(main, &branch)?;
    let base = main.view_of(branch.expect_txn()?.txn.base()?)?;
    // At work from here on, also while it only compares.
    let merging = main.begin(&BeginOptions {
        lock_wait_max: Some(LOCK_WAIT_MAX),
        idle_max: Some(Duration::MAX),
        owner,
        ..BeginOptions::default()
    })?;
    let sides = Sides { before: &branch, after: &base };
    do_again(sides, &merging, selection, changed_outside)?;
    Ok([merging, branch])
}

/// Does in `view` what leads from `after` to `before` of the `sides`. `tell` says of a place, and of a party,
/// that it was changed outside of the branch, by that.
///
/// # Errors
/// As [`begin_merge_preferring`]; a part of it may have been done then.
pub(super) fn do_again(
    sides: Sides<'_>,
    view: &FileSystem,
    selection: &Selection,
    tell: impl Fn(&str, Option<Rival>) -> String,
) -> Result<()> {
    let TakenBack::Refused(obstacles) = Planned::new(sides, view, selection)?.carry_out()? else {
        return Ok(());
    };
    let more = obstacles.len().saturating_sub(CONFLICTS_MAX) as u64;
    let conflicts = obstacles.iter().take(CONFLICTS_MAX).map(|obstacle| describe(obstacle, &tell)).collect();
    Err(FsError::MergeRefused { conflicts, more })
}

fn describe(obstacle: &Obstacle, tell: impl Fn(&str, Option<Rival>) -> String) -> String {
    let Obstacle { what, by } = obstacle;
    let place = String::from_utf8_lossy(&what.place);
    let place = if what.file.is_none() { format!("key {place}") } else { place.into_owned() };
    if what.kind == DiffKind::Renamed {
        return format!("{place} would be inside of itself, as directories were moved outside");
    }
    let by = by.as_ref().map(|point| Rival::Txn { id: point.txn, owner: owner_of_note(&point.note) });
    tell(&place, by)
}
