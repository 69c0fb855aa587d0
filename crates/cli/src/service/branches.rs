//! Requests about branches.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use kvfs_fs::{BranchInfo, Durability, FsError, Owner, Selection};
use kvfs_service::{Branches, Caller, begin_merge, end_merged};
use kvfs_store::clock::{Clock, SystemClock};

use super::undo::selected;
use super::{Service, page_of};
use crate::control::{BranchLine, BranchRequest, Response};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

impl Service {
    fn branches(&self) -> Option<&Branches> {
        self.branches.get().map(|branches| &**branches)
    }

    pub(super) fn answer_branch(
        &self,
        store: &OpenStore,
        caller: &Caller,
        request: BranchRequest,
    ) -> Result<Response> {
        let changes_files = matches!(
            request,
            BranchRequest::Create { .. } | BranchRequest::Mount { .. } | BranchRequest::Merge { .. }
        );
        if let (true, Some(branches)) = (changes_files, self.branches()) {
            branches.check_files()?;
        }
        match request {
            BranchRequest::Create { name, flush } => {
                if let (true, Ok(transactions)) = (flush, self.transactions()) {
                    transactions.flush_main_line()?;
                }
                let made = store.fs.branches().create(&name, caller.uid);
                let made = made.map_err(|error| match error {
                    FsError::Exists => {
                        CliError::new(Code::Failed, format!("branch \"{name}\" exists already"))
                    }
                    FsError::Invalid(what) => CliError::new(Code::Usage, what),
                    other => other.into(),
                })?;
                tracing::info!(name, id = made.id.0, "branch created");
                Ok(Response::Done)
            }
            BranchRequest::List => Ok(self.list_branches(store, caller)),
            BranchRequest::Mount { name, dir } => {
                let branches = self.branches().ok_or_else(|| {
                    CliError::new(
                        Code::NotMounted,
                        "a branch of a mounted store is mounted; `kvfs mount` first",
                    )
                })?;
                own(store, caller, &name)?;
                branches.mount(&name, &PathBuf::from(std::ffi::OsString::from_vec(dir)), caller)?;
                Ok(Response::Done)
            }
            BranchRequest::Unmount { name } => {
                own(store, caller, &name)?;
                self.branches().map_or(Ok(()), |branches| branches.unmount(&name))?;
                Ok(Response::Done)
            }
            BranchRequest::Settle { dir } => {
                let dir = PathBuf::from(std::ffi::OsString::from_vec(dir));
                self.branches().map_or(Ok(()), |branches| branches.settle(&dir))?;
                Ok(Response::Done)
            }
            BranchRequest::Diff { name, from, limit } => {
                own(store, caller, &name)?;
                let mounted = self.branches().and_then(|branches| branches.view(&name));
                let view = match mounted {
                    Some(view) => view,
                    None => store.fs.open_branch(&name).map_err(|error| explain(&name, error))?,
                };
                Ok(page_of(&kvfs_fs::diff(&view)?, from, limit))
            }
            BranchRequest::Merge { name, selection } => {
                let selection = selection.map(|choice| selected(caller, choice));
                self.merge_branch(store, caller, &name, selection.as_ref())
            }
            BranchRequest::Delete { name } => {
                own(store, caller, &name)?;
                self.branches().map_or(Ok(()), |branches| branches.unmount(&name))?;
                store.fs.branches().delete(&name).map_err(|error| explain(&name, error))?;
                tracing::info!(name, "branch deleted");
                Ok(Response::Done)
            }
        }
    }

    fn list_branches(&self, store: &OpenStore, caller: &Caller) -> Response {
        let mounted = self.branches().map(Branches::mounted).unwrap_or_default();
        let line = |info: BranchInfo| BranchLine {
            dir: mounted.get(&info.name).map(|dir| dir.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
            id: info.id.0,
            uid: info.uid,
            created: info.created,
            bytes: info.bytes,
            name: info.name,
        };
        let all = store.fs.branches().all().into_iter().filter(|info| caller.may_act_for(info.uid));
        Response::Branches { now: SystemClock::new().wall(), lines: all.map(line).collect() }
    }

    /// A branch that is not merged is as it was: mounted again where it was mounted.
    fn merge_branch(
        &self,
        store: &OpenStore,
        caller: &Caller,
        name: &str,
        selection: Option<&Selection>,
    ) -> Result<Response> {
        own(store, caller, name)?;
        let owner = Owner { uid: caller.uid, pid: caller.pid, name: format!("merge of branch {name}") };
        let merged = if let Some(branches) = self.branches() {
            let dir = branches.mounted().remove(name);
            branches.unmount(name)?;
            let merged = branches.merge(name, owner, selection);
            if let (Err(_), Some(dir)) = (&merged, dir)
                && let Err(error) = branches.mount(name, &dir, caller)
            {
                tracing::error!(name, %error, "a branch that was not merged is not mounted any more");
            }
            merged
        } else {
            begin_merge(&store.fs, name, owner, selection)
                .and_then(|merging| {
                    // Where no kernel has to hear of it.
                    merging.freeze()?;
                    merging.commit_plan()?;
                    merging.commit(Durability::Synced, || ())?.durable
                })
                .and_then(|()| end_merged(&store.fs, name, selection.is_some()))
        };
        merged.map_err(|error| explain(name, error))?;
        tracing::info!(name, "branch merged");
        Ok(Response::Done)
    }
}

/// The branch, if `caller` may use it.
fn own(store: &OpenStore, caller: &Caller, name: &str) -> Result<BranchInfo> {
    let info = store.fs.branches().get(name).map_err(|error| explain(name, error))?;
    if caller.may_act_for(info.uid) {
        return Ok(info);
    }
    let message = format!("branch \"{name}\" belongs to user {}; only that user and root may", info.uid);
    Err(CliError::new(Code::Denied, message))
}

fn explain(name: &str, error: FsError) -> CliError {
    match error {
        FsError::NotFound => CliError::new(
            Code::Failed,
            format!("there is no branch \"{name}\"; `kvfs branch list` shows them"),
        ),
        FsError::MergeRefused { conflicts, more } => {
            let more = if more == 0 { String::new() } else { format!("\n  and {more} more changes") };
            let message = format!(
                "branch \"{name}\" was not merged, and is as it was:\n  {}{more}\n`kvfs branch merge {name} --prefer \
                 branch` takes the branch's side of these, `--prefer main` leaves them as they are outside; with \
                 paths behind it only there",
                conflicts.join("\n  ")
            );
            CliError::new(Code::Conflict, message)
        }
        FsError::Canceled(doom) => {
            let message = format!("branch \"{name}\" was not merged, try again later: {doom}");
            CliError::new(Code::Conflict, message)
        }
        FsError::Store(error) if matches!(*error, kvfs_store::StoreError::CheckpointOpen(_)) => {
            CliError::new(Code::InUse, format!("branch \"{name}\" is in use"))
        }
        error => error.into(),
    }
}
