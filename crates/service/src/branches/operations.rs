//! What callers do with branches, mounted or not.
//!
//! Thread safety: for threads that may block. Invariants: a branch is used by its user and root alone; a
//! daemon of root's mounts and unmounts nothing for the owner of a store, whom it does not trust outside of
//! the store.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use kvfs_fs::{BranchInfo, BranchRoot, Difference, FileSystem, FsError, Owner};
use kvfs_store::StoreError;

use super::Merging;
use super::into_branch::merge_into_parent;
use crate::authority::{authorize, authorize_server, is_server};
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::lines::{BranchLine, DirectoryLine, SelectionLine};
use crate::selection::selected;
use crate::served::{ServedStore, commit_unseen};

impl ServedStore<'_> {
    /// Makes a branch of everything that was acknowledged in the directory to which `path` leads, from the
    /// root of the store; with `flush`, of dirty pages of shared mappings, too; with a `snapshot`, of what
    /// that holds. The root's is one of everything, keys as well.
    ///
    /// # Errors
    /// The caller may not; the name is taken, or none; there is no such directory; as a sync.
    pub fn create_branch(
        &self,
        caller: &Caller,
        name: &str,
        (path, snapshot): (&[u8], Option<&str>),
        flush: bool,
    ) -> Result<()> {
        admit(self.fs, caller)?;
        self.check_branch_files()?;
        if let (true, Some(transactions)) = (flush, self.transactions) {
            transactions.flush_main_line()?;
        }
        let shown = String::from_utf8_lossy(path);
        let made =
            self.fs.branches().create_of(name, caller.uid, path, snapshot).map_err(|error| match error {
                FsError::NotFound => ServiceError::new(
                    ErrorKind::Usage,
                    format!(
                        "there is no directory {shown} in the {}",
                        snapshot.map_or("store", |_| "snapshot")
                    ),
                ),
                FsError::NotDirectory => ServiceError::new(
                    ErrorKind::Usage,
                    format!("{shown} is no directory, of which there may be a branch"),
                ),
                other => not_made(name, other),
            })?;
        tracing::info!(name, id = made.id.0, directory = %shown, "branch created");
        Ok(())
    }

    /// Makes a branch of a branch of the caller's, for the user of that, of everything that was acknowledged
    /// there; with `flush`, of dirty pages of shared mappings, too.
    ///
    /// # Errors
    /// The caller may not; the name is taken, or none; the other one is in use without being mounted; as a
    /// checkpoint.
    pub fn fork_branch(&self, caller: &Caller, name: &str, parent: &str, flush: bool) -> Result<()> {
        admit(self.fs, caller)?;
        self.check_branch_files()?;
        let of = self.own_branch(caller, parent)?;
        let of_mounted = self.branches.map_or(Ok(None), |branches| branches.fork(name, of.id, flush))?;
        let made = if let Some(made) = of_mounted {
            made
        } else {
            let view = kvfs_fs::open_branch(self.fs, &of).map_err(|error| explain(parent, error))?;
            view.branches().fork(name, of.uid).map_err(|error| not_made(name, error))?
        };
        tracing::info!(name, id = made.id.0, parent, "branch created");
        Ok(())
    }

    /// The branches that the caller may use. Every user may ask.
    ///
    /// # Errors
    /// Store errors.
    pub fn list_branches(&self, caller: &Caller) -> Result<Vec<BranchLine>> {
        let is_mine = |info: &BranchInfo| caller.may_act_for(info.uid);
        let not_kept: BTreeMap<_, _> = self.branches.map_or_else(BTreeMap::new, |branches| {
            let mine = self.fs.branches().all().into_iter().filter(is_mine);
            mine.filter_map(|info| Some((info.id, branches.why_not_kept(info.id)?))).collect()
        });
        let mounted = self.branches.map(super::Branches::mounted).unwrap_or_default();
        let place = |root: BranchRoot| -> Result<_> {
            let now = self.fs.branches().place_now(&root)?;
            Ok(DirectoryLine { path: root.path, now })
        };
        let all = self.fs.branches().all();
        let name_of = |id| all.iter().find(|info| info.id == id).map(|info| info.name.clone());
        let line = |info: BranchInfo| -> Result<_> {
            Ok(BranchLine {
                not_kept: not_kept.get(&info.id).cloned(),
                dir: mounted.get(&info.id).map(|dir| raw(dir)).unwrap_or_default(),
                id: info.id.0,
                uid: info.uid,
                created: info.created,
                bytes: info.bytes,
                name: info.name,
                directory: info.root.map(place).transpose()?,
                parent: info.parent.and_then(name_of),
            })
        };
        all.iter().filter(|info| is_mine(info)).cloned().map(line).collect()
    }

    /// Mounts a branch of the caller's on an empty directory of the caller's.
    ///
    /// # Errors
    /// The caller may not; the store is not mounted; as [`Branches::mount`](super::Branches::mount).
    pub fn mount_branch(&self, caller: &Caller, name: &str, dir: &Path) -> Result<()> {
        admit(self.fs, caller)?;
        authorize_server(caller, "mount and unmount branches")?;
        self.check_branch_files()?;
        let branches = self.branches.ok_or_else(|| {
            let message = "a branch of a mounted store is mounted; `kvfs mount` first";
            ServiceError::new(ErrorKind::NotMounted, message)
        })?;
        branches.mount(&self.own_branch(caller, name)?, dir, caller)
    }

    /// Unmounts a branch of the caller's, if it is mounted; it is checkpointed when this returns.
    ///
    /// # Errors
    /// The caller may not; it is in use; it can't be checkpointed.
    pub fn unmount_branch(&self, caller: &Caller, name: &str) -> Result<()> {
        admit(self.fs, caller)?;
        authorize_server(caller, "mount and unmount branches")?;
        let branch = self.own_branch(caller, name)?;
        self.unmount_for(caller, &branch)
    }

    /// What was mounted on a directory has been unmounted: if it was a branch, that is checkpointed when this
    /// returns.
    ///
    /// # Errors
    /// The caller may not; it can't be checkpointed.
    pub fn settle_branch(&self, caller: &Caller, dir: &Path) -> Result<()> {
        admit(self.fs, caller)?;
        authorize_server(caller, "mount and unmount branches")?;
        self.branches.map_or(Ok(()), |branches| branches.settle(dir))
    }

    /// What a branch of the caller's has changed.
    ///
    /// # Errors
    /// The caller may not; it is in use; store errors.
    pub fn branch_diff(&self, caller: &Caller, name: &str) -> Result<Vec<Difference>> {
        admit(self.fs, caller)?;
        let branch = self.own_branch(caller, name)?;
        let view_of = |branches: &super::Branches| {
            // The view of one that can't be kept yet has all that was done, as that of a mounted one.
            let _ = branches.keep_unmounted(branch.id);
            branches.view(branch.id)
        };
        let view = match self.branches.and_then(view_of) {
            Some(view) => view,
            None => kvfs_fs::open_branch(self.fs, &branch).map_err(|error| explain(name, error))?,
        };
        Ok(kvfs_fs::diff(&view)?)
    }

    /// Merges a branch of the caller's into what it is a branch of, the main line or another branch: without
    /// a selection only if nothing is in the way. A branch that is not merged is as it was, mounted again
    /// where it was mounted. One that is mounted is merged for those alone that may unmount it.
    ///
    /// # Errors
    /// The caller may not; it is in use; something is in the way; as a commit.
    pub fn merge_branch(&self, caller: &Caller, name: &str, selection: Option<SelectionLine>) -> Result<()> {
        admit(self.fs, caller)?;
        self.check_branch_files()?;
        let branch = self.own_branch(caller, name)?;
        expect_childless(self.fs, &branch)?;
        let selection = selection.map(|choice| selected(caller, choice));
        if branch.parent.is_some() {
            return merge_into_parent(self, caller, &branch, selection.as_ref());
        }
        let owner = Owner { uid: caller.uid, pid: caller.pid, name: format!("merge of branch {name}") };
        let merged = if let Some(branches) = self.branches {
            let dir = branches.mounted().remove(&branch.id);
            self.unmount_for(caller, &branch)?;
            let merged = branches.merge(&branch, owner, selection.as_ref());
            if merged.is_err() {
                mount_again(self, caller, &branch, dir);
            }
            merged
        } else {
            Merging::begin(self.fs, &branch, owner, selection.as_ref()).and_then(|merging| {
                commit_unseen(&merging.view)?;
                merging.end()
            })
        };
        merged.map_err(|error| match error {
            FsError::MergeRefused { conflicts, more } => refused(name, &conflicts, more, selection.is_some()),
            error => explain(name, error),
        })?;
        tracing::info!(name, "branch merged");
        Ok(())
    }

    /// Deletes a branch of the caller's. One that is mounted is deleted for those alone that may unmount it.
    ///
    /// # Errors
    /// The caller may not; it is in use.
    pub fn delete_branch(&self, caller: &Caller, name: &str) -> Result<()> {
        admit(self.fs, caller)?;
        let branch = self.own_branch(caller, name)?;
        expect_childless(self.fs, &branch)?;
        let explained = |error| explain(name, error);
        // On a full store this makes room: it needs no checkpoint.
        let is_deleted = self.branches.map_or(Ok(false), |branches| branches.delete_unmounted(branch.id));
        if !is_deleted.map_err(explained)? {
            self.unmount_for(caller, &branch)?;
            self.fs.branches().delete(&branch).map_err(explained)?;
        }
        tracing::info!(name, "branch deleted");
        Ok(())
    }

    /// The branch that has this name now, if the caller may use it.
    fn own_branch(&self, caller: &Caller, name: &str) -> Result<BranchInfo> {
        let branch = self.fs.branches().get(name).map_err(|error| explain(name, error))?;
        expect_own(caller, &branch).map(|()| branch)
    }

    /// Unmounts a branch, if it is mounted; one that was is kept by now. For the owner of the store nothing
    /// is unmounted: it is not mounted, or refused; one that is mounted after this look is in use.
    pub(super) fn unmount_for(&self, caller: &Caller, branch: &BranchInfo) -> Result<()> {
        let Some(branches) = self.branches else { return Ok(()) };
        branches.keep_unmounted(branch.id)?;
        if is_server(caller.uid) {
            return branches.unmount(branch.id);
        }
        if branches.mounted().contains_key(&branch.id) {
            authorize_server(caller, "unmount branches; this one is mounted")?;
        }
        Ok(())
    }

    /// Where the kernel keeps changes of files to itself, a branch would lack some.
    fn check_branch_files(&self) -> Result<()> {
        self.branches.map_or(Ok(()), super::Branches::check_files)
    }
}

/// Refuses a caller that may not use the branch.
pub(super) fn expect_own(caller: &Caller, branch: &BranchInfo) -> Result<()> {
    let BranchInfo { name, uid, .. } = branch;
    if caller.may_act_for(*uid) {
        return Ok(());
    }
    let message = format!("branch \"{name}\" belongs to user {uid}; only that user and root may");
    Err(ServiceError::new(ErrorKind::Denied, message))
}

/// Before it is unmounted; when it is open this is looked at once more.
fn expect_childless(fs: &FileSystem, info: &BranchInfo) -> Result<()> {
    fs.branches().expect_childless(info.id).map_err(|error| explain(&info.name, error))
}

/// Mounts a branch where it was mounted before a merge, if it was.
pub(super) fn mount_again(
    store: &ServedStore<'_>,
    caller: &Caller,
    branch: &BranchInfo,
    dir: Option<PathBuf>,
) {
    if let (Some(branches), Some(dir)) = (store.branches, dir)
        && is_server(caller.uid)
        && let Err(error) = branches.mount(branch, &dir, caller)
    {
        tracing::error!(name = branch.name, %error, "a branch is not mounted any more after a merge");
    }
}

fn admit(fs: &FileSystem, caller: &Caller) -> Result<()> {
    authorize(fs, caller, "work with branches")
}

fn raw(dir: &Path) -> Vec<u8> {
    PathBuf::from(dir).into_os_string().into_encoded_bytes()
}

fn on_one_line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escape).collect()
}

pub(super) fn not_made(name: &str, error: FsError) -> ServiceError {
    match error {
        FsError::Exists => ServiceError::new(ErrorKind::Failed, format!("branch \"{name}\" exists already")),
        FsError::Invalid(what) => ServiceError::new(ErrorKind::Usage, what),
        other => other.into(),
    }
}

/// What is in the way of a merge, and what to do about it; `is_preferring`: sides were preferred already.
pub(super) fn refused(name: &str, conflicts: &[String], more: u64, is_preferring: bool) -> ServiceError {
    let more = if more == 0 { String::new() } else { format!("\n  and {more} more changes") };
    // One line for each, whatever is in names.
    let conflicts: Vec<_> = conflicts.iter().map(|line| on_one_line(line)).collect();
    let advice = if is_preferring {
        "no path behind `--prefer` covers these, or they can't be overwritten, or not by this user; `--prefer main \
         PATH` leaves a place as it is outside"
            .to_owned()
    } else {
        format!(
            "`kvfs branch merge {name} --prefer branch` takes the branch's side of these, `--prefer main` leaves them \
             as they are outside; with paths behind it only there"
        )
    };
    let message = format!(
        "branch \"{name}\" was not merged, and is as it was:\n  {}{more}\n{advice}",
        conflicts.join("\n  ")
    );
    ServiceError::new(ErrorKind::Conflict, message)
}

pub(super) fn explain(name: &str, error: FsError) -> ServiceError {
    match error {
        FsError::NotFound => ServiceError::new(
            ErrorKind::Failed,
            format!("there is no branch \"{name}\"; `kvfs branch list` shows them"),
        ),
        FsError::DirectoryGone { .. } => {
            let message = format!(
                "branch \"{name}\" was not merged, and is as it was: {error}; copy out of its mount what is needed, and delete it"
            );
            ServiceError::new(ErrorKind::Failed, message)
        }
        FsError::Canceled(doom) => {
            let message = format!("branch \"{name}\" was not merged, try again later: {doom}");
            ServiceError::new(ErrorKind::Conflict, message)
        }
        FsError::Store(error) if matches!(*error, StoreError::CheckpointOpen(_)) => {
            ServiceError::new(ErrorKind::InUse, format!("branch \"{name}\" is in use"))
        }
        FsError::HasBranches { names } => {
            let message = format!(
                "there are branches of branch \"{name}\": {}; merge or delete these first",
                names.join(", ")
            );
            ServiceError::new(ErrorKind::InUse, message)
        }
        error => error.into(),
    }
}

#[cfg(test)]
mod tests;
