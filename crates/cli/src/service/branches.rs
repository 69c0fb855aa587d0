//! Requests about branches.

use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use kvfs_fs::{BranchInfo, Durability, FsError};
use kvfs_store::clock::{Clock, SystemClock};

use super::{Service, page_of};
use crate::control::{BranchLine, BranchRequest, Peer, Response};
use crate::daemon::Branches;
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

impl Service {
    fn branches(&self) -> Option<&Branches> {
        self.branches.get().map(|branches| &**branches)
    }

    pub(super) fn answer_branch(
        &self,
        store: &OpenStore,
        peer: &Peer,
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
                let made = store.fs.create_branch(&name, peer.uid);
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
            BranchRequest::List => Ok(self.list_branches(store, peer)),
            BranchRequest::Mount { name, dir } => {
                let branches = self.branches().ok_or_else(|| {
                    CliError::new(
                        Code::NotMounted,
                        "a branch of a mounted store is mounted; `kvfs mount` first",
                    )
                })?;
                own(store, peer, &name)?;
                branches.mount(&name, &PathBuf::from(std::ffi::OsString::from_vec(dir)))?;
                Ok(Response::Done)
            }
            BranchRequest::Unmount { name } => {
                own(store, peer, &name)?;
                self.branches().map_or(Ok(()), |branches| branches.unmount(&name))?;
                Ok(Response::Done)
            }
            BranchRequest::Settle { dir } => {
                let dir = PathBuf::from(std::ffi::OsString::from_vec(dir));
                self.branches().map_or(Ok(()), |branches| branches.settle(&dir))?;
                Ok(Response::Done)
            }
            BranchRequest::Diff { name, from, limit } => {
                own(store, peer, &name)?;
                let mounted = self.branches().and_then(|branches| branches.view(&name));
                let view = match mounted {
                    Some(view) => view,
                    None => store.fs.open_branch(&name).map_err(|error| explain(&name, error))?,
                };
                Ok(page_of(&view.diff()?, from, limit))
            }
            BranchRequest::Merge { name } => self.merge_branch(store, peer, &name),
            BranchRequest::Delete { name } => {
                own(store, peer, &name)?;
                self.branches().map_or(Ok(()), |branches| branches.unmount(&name))?;
                store.fs.delete_branch(&name).map_err(|error| explain(&name, error))?;
                tracing::info!(name, "branch deleted");
                Ok(Response::Done)
            }
        }
    }

    fn list_branches(&self, store: &OpenStore, peer: &Peer) -> Response {
        let mounted = self.branches().map(Branches::mounted).unwrap_or_default();
        let line = |info: BranchInfo| BranchLine {
            dir: mounted.get(&info.name).map(|dir| dir.as_os_str().as_bytes().to_vec()).unwrap_or_default(),
            id: info.id.0,
            uid: info.uid,
            created: info.created,
            bytes: info.bytes,
            name: info.name,
        };
        let all = store.fs.branches().into_iter().filter(|info| peer.may_act_for(info.uid));
        Response::Branches { now: SystemClock::new().wall(), lines: all.map(line).collect() }
    }

    fn merge_branch(&self, store: &OpenStore, peer: &Peer, name: &str) -> Result<Response> {
        own(store, peer, name)?;
        let merged = if let Some(branches) = self.branches() {
            branches.unmount(name)?;
            branches.merge(name, peer.pid)
        } else {
            store.fs.begin_merge(name, peer.pid).and_then(|merging| {
                // Where no kernel has to hear of it.
                merging.freeze()?;
                merging.commit_plan()?;
                merging.commit(Durability::Synced, || ())?.durable
            })
        };
        merged.map_err(|error| explain(name, error))?;
        tracing::info!(name, "branch merged");
        Ok(Response::Done)
    }
}

/// The branch, if `peer` may use it.
fn own(store: &OpenStore, peer: &Peer, name: &str) -> Result<BranchInfo> {
    let info = store.fs.branch(name).map_err(|error| explain(name, error))?;
    if peer.may_act_for(info.uid) {
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
            let message = format!("branch \"{name}\" was not merged:\n  {}{more}", conflicts.join("\n  "));
            CliError::new(Code::Conflict, message)
        }
        FsError::Canceled(doom) => {
            let message = format!("branch \"{name}\" was not merged, try again later: {doom}");
            CliError::new(Code::Conflict, message)
        }
        FsError::Store(error) if matches!(*error, kvfs_store::StoreError::CheckpointOpen(_)) => {
            CliError::new(Code::InUse, format!("somebody works in branch \"{name}\""))
        }
        error => error.into(),
    }
}
