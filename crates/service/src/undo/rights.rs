//! Whether a user other than root and the store's owner may take back a transaction: only what that user
//! could do by hand.
//!
//! The transaction was that user's, but rights may have been taken away since. So every file and directory
//! that would be made, removed, moved or changed must belong to the user, now and in the state that comes
//! back; every directory whose names would change must be writable, and the way to it open; keyspaces must be
//! writable. Of a tree that was removed as a whole the changes tell only the top; what comes back with it is
//! looked through. A file comes back with the right to act as a group only if the user is of it, as chmod(2)
//! has it. That is asked of the transaction's changes, before anything is planned, and then of what the plan
//! does in the present (`check_effects`), which may be more, and may meet files under other names.
//!
//! Thread safety: for threads that may block. Not atomic with what follows, as no check of a path is.

use kvfs_fs::{
    Attr, DiffKind, Difference, Effects, FileSystem, FileType, FsError, KnownNode, NodeId, TreeError,
    TreeRights, settled,
};
use kvfs_kv::{Access, KeyspaceOwner};

use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};

const SEARCH: u32 = 1;
const WRITE: u32 = 2;
const SET_GROUP_ID: u32 = 0o2000;

/// The kernel's name of an access-control list.
const ACL: &[u8] = b"system.posix_acl_access";

/// Whether `peer` may do to `now` what leads to `then`.
pub(super) struct Rights<'r> {
    now: &'r FileSystem,
    then: &'r FileSystem,
    peer: &'r Caller,
    /// The last tree that was looked through.
    tree: Option<Vec<u8>>,
}

impl<'r> Rights<'r> {
    pub(super) fn new(now: &'r FileSystem, then: &'r FileSystem, peer: &'r Caller) -> Self {
        Self { now, then, peer, tree: None }
    }

    /// Refuses the first of `changes`, which are in the order of their places, that `peer` may not make.
    pub(super) fn check(&mut self, changes: &[Difference]) -> Result<()> {
        let Self { now, then, peer, .. } = *self;
        for change in changes {
            if let Some(keyspace) = &change.keyspace {
                check_key(now, peer, keyspace, &change.place)?;
                continue;
            }
            let comes = change.kind == DiffKind::Added && change.file == Some(FileType::Directory);
            if comes && !self.tree.as_ref().is_some_and(|tree| change.place.starts_with(tree)) {
                check_tree(then, peer, &change.place)?;
                self.tree = Some([&change.place[..], b"/"].concat());
            }
            let moves = change.kind != DiffKind::Changed;
            for path in std::iter::once(&change.place).chain(&change.from) {
                let denied = || denied(path);
                if !is_reachable(now, peer, path, moves)? {
                    return Err(denied());
                }
                let [is, comes] = [find(now, path)?, find(then, path)?];
                if [&is, &comes].into_iter().flatten().any(|attr| attr.uid != peer.uid) {
                    return Err(denied());
                }
                let acts_for = is.filter(acts_for_group).map(|attr| attr.gid);
                if comes.is_some_and(|attr| acts_for != Some(attr.gid) && !may_act_for_group(peer, &attr)) {
                    return Err(denied());
                }
            }
        }
        Ok(())
    }
}

/// Refuses what `peer` could not do by hand to the present `view`.
pub(super) fn check_effects(view: &FileSystem, peer: &Caller, effects: &Effects) -> Result<()> {
    if let Some((path, _)) = effects.owned.iter().find(|(_, uid)| *uid != peer.uid) {
        return Err(denied(path));
    }
    for directory in &effects.directories {
        let inside = [directory, &b"/."[..]].concat();
        if find(view, directory)?.is_none() || !is_reachable(view, peer, &inside, true)? {
            return Err(denied(directory));
        }
    }
    Ok(())
}

/// Whether a program in it would run with the rights of its group.
fn acts_for_group(attr: &Attr) -> bool {
    attr.kind == FileType::Regular && attr.mode & SET_GROUP_ID != 0
}

/// Whether `peer` could give a file these bits.
fn may_act_for_group(peer: &Caller, attr: &Attr) -> bool {
    !acts_for_group(attr) || peer.is_of_group(attr.gid)
}

/// What may come back with a tree: what belongs to the user.
struct Own<'p>(&'p Caller);

impl TreeRights for Own<'_> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_directory(&self, _: NodeId, _: &Attr) -> Result<(), FsError> {
        Ok(())
    }

    fn depends_on_entries(&self, _: &Attr) -> bool {
        true
    }

    fn check_entry(&self, _: &Attr, entry: &Attr) -> Result<(), FsError> {
        if entry.uid == self.0.uid && may_act_for_group(self.0, entry) {
            Ok(())
        } else {
            Err(FsError::NotPermitted("it is another user's, or acts for another group"))
        }
    }
}

/// Refuses a tree of `then` with something in it that is not the user's.
fn check_tree(then: &FileSystem, peer: &Caller, path: &[u8]) -> Result<()> {
    let names = parts(path);
    let Some((last, above)) = names.split_last() else { return Ok(()) };
    let above = settled(|caller| {
        let mut at = KnownNode::root(then);
        for name in above {
            at = at.lookup(caller, name)?;
        }
        Ok(at)
    })?;
    kvfs_fs::look_through(then, (above.node(), last), &Own(peer)).map_err(|TreeError { below, error }| {
        match *error {
            FsError::NotPermitted(_) => denied(&[path, b"/", &below].concat()),
            error => error.into(),
        }
    })
}

fn denied(place: &[u8]) -> ServiceError {
    let place = String::from_utf8_lossy(place);
    let message = format!(
        "{place} is not yours, or not open to you any more, so only root and the store's owner may take this \
         transaction back; nothing was done"
    );
    ServiceError::new(ErrorKind::Denied, message)
}

fn check_key(now: &FileSystem, peer: &Caller, keyspace: &str, place: &[u8]) -> Result<()> {
    match now.keys().keyspace(keyspace)? {
        Some(entry) if peer.may_use_keys(now, &entry.owner, Access::Write) => Ok(()),
        _ => Err(denied(place)),
    }
}

fn allows(peer: &Caller, owner: &KeyspaceOwner, access: u32) -> bool {
    let groups = if peer.is_of_group(owner.gid) { vec![owner.gid] } else { Vec::new() };
    owner.allows(peer.uid, &groups, access)
}

fn parts(path: &[u8]) -> Vec<&[u8]> {
    path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()).collect()
}

/// Whether the directories above `path` can be passed, and, if `writes`, the last one be written to. One that
/// is missing is among the changes itself.
fn is_reachable(fs: &FileSystem, peer: &Caller, path: &[u8], writes: bool) -> Result<bool> {
    let names = parts(path);
    let Some((_, directories)) = names.split_last() else { return Ok(true) };
    let done = settled(|caller| {
        let mut at = KnownNode::root(fs);
        for depth in 0..=directories.len() {
            let access = if depth == directories.len() && writes { SEARCH | WRITE } else { SEARCH };
            if !permits(fs, caller, peer, at.node(), access)? {
                return Ok(false);
            }
            let Some(name) = directories.get(depth) else { break };
            match at.lookup(caller, name) {
                Ok(known) => at = known,
                Err(FsError::NotFound | FsError::NotDirectory) => break,
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    });
    Ok(done?)
}

/// A list can take rights away that the mode shows, from all but the owner.
fn permits(
    fs: &FileSystem,
    caller: &kvfs_fs::Caller,
    peer: &Caller,
    node: NodeId,
    access: u32,
) -> Result<bool, FsError> {
    let Attr { uid, gid, mode, .. } = fs.getattr(caller, node)?;
    let has_list = || match fs.getxattr(caller, node, ACL) {
        Ok(_) => Ok(true),
        Err(FsError::NoAttribute) => Ok(false),
        Err(error) => Err(error),
    };
    Ok(allows(peer, &KeyspaceOwner { uid, gid, mode }, access) && (uid == peer.uid || !has_list()?))
}

/// What is at a path, if anything is.
fn find(fs: &FileSystem, path: &[u8]) -> Result<Option<Attr>> {
    let done = settled(|caller| {
        let mut at = KnownNode::root(fs);
        for name in parts(path) {
            match at.lookup(caller, name) {
                Ok(known) => at = known,
                Err(FsError::NotFound | FsError::NotDirectory) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        at.attr(caller).map(Some)
    });
    Ok(done?)
}
