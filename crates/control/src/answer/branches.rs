//! Requests about branches.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use kvfs_service::{Caller, Compared, Result, ServedStore};
use kvfs_store::clock::{Clock, SystemClock};

use super::RequestHandler;
use crate::protocol::{BranchRequest, Response};

impl RequestHandler {
    pub(super) fn answer_branch(
        &self,
        store: &ServedStore<'_>,
        caller: &Caller,
        request: BranchRequest,
    ) -> Result<Response> {
        let path = |dir: Vec<u8>| PathBuf::from(OsString::from_vec(dir));
        match request {
            BranchRequest::Create { name, directory, from, flush } => {
                store.create_branch(caller, &name, (&directory, from.as_deref()), flush)?;
            }
            BranchRequest::Fork { name, parent, flush } => {
                store.fork_branch(caller, &name, &parent, flush)?;
            }
            BranchRequest::List => {
                let lines = store.list_branches(caller)?;
                return Ok(Response::Branches { now: SystemClock::new().wall(), lines });
            }
            BranchRequest::Mount { name, dir } => store.mount_branch(caller, &name, &path(dir))?,
            BranchRequest::Unmount { name } => store.unmount_branch(caller, &name)?,
            BranchRequest::Settle { dir } => store.settle_branch(caller, &path(dir))?,
            BranchRequest::Diff { name, from, limit } => {
                let begin = || Ok(store.branch_diff(caller, &name)?.into());
                return self.answer_comparison(caller, Compared::Branch(name.clone()), (from, limit), begin);
            }
            BranchRequest::Merge { name, selection } => store.merge_branch(caller, &name, selection)?,
            BranchRequest::Delete { name } => store.delete_branch(caller, &name)?,
        }
        Ok(Response::Done)
    }
}
