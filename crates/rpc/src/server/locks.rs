//! Locks that a client takes for its transaction.
//!
//! Thread safety: as [`Shared`]. Invariant: a lock needs the right to use what it is on: a shared one the
//! right to read, an exclusive one that to write, as permission bits and access-control lists give it, and
//! the right to search each directory on the way.

use std::sync::Arc;

use kvfs_fs::{Attr, Caller, FileSystem, FileType, FsError, KnownNode};
use kvfs_kv::Access;
use kvfs_store::KeyRange;
use tonic::Status;

use super::Shared;
use super::call::Call;
use super::failure::Failure;
use super::keys::range_of;
use super::peer::Peer;
use crate::proto;
use crate::proto::lock_request::What;

const SEARCH: u32 = 1;
const WRITE: u32 = 2;
const READ: u32 = 4;

impl Shared {
    pub(super) async fn lock(
        self: &Arc<Self>,
        call: &Call,
        request: proto::LockRequest,
    ) -> Result<(), Status> {
        if request.txn == 0 {
            return Err(Status::invalid_argument("a lock is held by a transaction: begin one, and name it"));
        }
        let is_exclusive = request.mode() == proto::LockMode::LockExclusive;
        let (access, key_access) = if is_exclusive { (WRITE, Access::Write) } else { (READ, Access::Read) };
        let what = request.what.ok_or_else(|| Status::invalid_argument("a lock on nothing"))?;
        self.settle(call, move |shared, peer, caller| {
            let fs = shared.view(peer, request.txn)?;
            let locked = match &what {
                What::Keys(keys) => {
                    let Some(keyspace) = shared.existing(peer, &keys.keyspace, key_access)? else {
                        let message = format!("there is no keyspace \"{}\"", keys.keyspace);
                        return Err(Status::not_found(message).into());
                    };
                    let range = KeyRange::prefix(&keys.prefix).within(&range_of(keys.range.clone()));
                    fs.user_locks().keys(caller, keyspace, &range, is_exclusive)
                }
                What::File(file) => lock_path(&fs, peer, caller, file, access),
            };
            locked.map_err(|error| Failure::of(&fs, error))
        })
        .await
    }
}

/// Locks what is at a path from the root of the view. Symbolic links are not followed.
fn lock_path(
    fs: &FileSystem,
    peer: &Peer,
    caller: &Caller,
    file: &proto::FileLock,
    access: u32,
) -> Result<(), FsError> {
    let is_exclusive = access == WRITE;
    let mut at = KnownNode::root(fs);
    let mut attr = at.attr(caller)?;
    for name in file.path.split(|&byte| byte == b'/').filter(|name| !name.is_empty() && name != b".") {
        check(&at, peer, caller, &attr, SEARCH)?;
        if name == b".." {
            return Err(FsError::Invalid("a path from the root, without \"..\""));
        }
        at = at.lookup(caller, name)?;
        attr = at.attr(caller)?;
    }
    check(&at, peer, caller, &attr, access)?;
    if attr.kind == FileType::Directory {
        return fs.user_locks().entries(caller, at.node(), is_exclusive);
    }
    fs.user_locks().file(caller, at.node(), file.offset, file.length, is_exclusive)
}

fn check(at: &KnownNode<'_>, peer: &Peer, caller: &Caller, attr: &Attr, access: u32) -> Result<(), FsError> {
    if peer.is_master {
        return Ok(());
    }
    match at.check_access(caller, &peer.groups, attr, access) {
        Err(FsError::AccessDenied(_)) => {
            let why = "a lock needs the right to read the file, or to write it for an exclusive lock";
            Err(FsError::NotPermitted(why))
        }
        checked => checked,
    }
}
