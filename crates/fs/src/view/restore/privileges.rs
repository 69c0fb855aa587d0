//! Which privileges a file has after a transaction was taken back.
//!
//! Set-id bits and capabilities vouch for one content with one owner. A restore of a snapshot brings all of
//! that back together. Taking back one transaction brings a part back, beside what others have changed since,
//! and each of its writes would have taken privileges away. So a privilege is there in the end only if the
//! file has it with this content and this owner before the transaction, or now: else a member of a group
//! could write a program, overwrite it in a transaction, have the owner lend that privileges, and take the
//! transaction back.
//!
//! Thread safety: belongs to one restore.

use bytes::Bytes;

use super::super::compare::Sides;
use super::Restore;
use crate::attr::{CAPABILITY, SET_ID};
use crate::file::Contents;
use crate::schema::{Header, xattr_key};
use crate::{FileSystem, FileType, Result, settled};

/// A file as the view had it before anything was taken back.
pub(super) struct Present {
    header: Header,
    capability: Option<Bytes>,
}

fn capability(view: &FileSystem, inode: u64) -> Result<Option<Bytes>> {
    Ok(view.origin.read().get(view.keyspaces.xattr, &xattr_key(inode, CAPABILITY))?)
}

fn owner(header: &Header) -> (u32, u32) {
    (header.uid, header.gid)
}

impl Restore<'_> {
    /// The caller must call this before it changes anything of the file.
    pub(super) fn present(&self, inode: u64) -> Result<Present> {
        Ok(Present { header: self.header_now(inode)?, capability: capability(self.now(), inode)? })
    }

    /// Takes the capabilities away that `wish`, the attributes which the file is to have, do not go with, and
    /// returns `wish` without such set-id bits. `then` is of the state before the transaction, `after` with
    /// its content of that after it; `brings_content` says whether the content has been brought back.
    /// Everything but the attributes is as it will be.
    pub(super) fn without_strange_privileges(
        &self,
        present: &Present,
        then: &Header,
        after: (&Header, &Bytes),
        brings_content: bool,
        wish: Header,
    ) -> Result<Header> {
        let inode = wish.inode;
        let found = capability(self.now(), inode)?;
        if wish.kind == FileType::Directory || (wish.mode & SET_ID == 0 && found.is_none()) {
            return Ok(wish);
        }
        let as_present = !brings_content && owner(&wish) == owner(&present.header);
        let as_then = owner(&wish) == owner(then) && (brings_content || self.is_content_unchanged(after)?);
        let of_present = if as_present { present.header.mode } else { 0 };
        let of_then = if as_then { then.mode } else { 0 };
        let is_meant = (as_present && found == present.capability)
            || (as_then && found == capability(self.then(), then.inode)?);
        if found.is_some() && !is_meant {
            settled(|caller| self.now().removexattr(caller, crate::NodeId(inode), CAPABILITY))?;
        }
        Ok(Header { mode: wish.mode & (!SET_ID | of_present | of_then), ..wish })
    }

    /// Whether a file's content is what it was right after the transaction.
    fn is_content_unchanged(&self, (after, content): (&Header, &Bytes)) -> Result<bool> {
        if after.kind != FileType::Regular {
            return Ok(true);
        }
        let node = self.now().locker().pin(crate::NodeId(after.inode))?;
        let (now, content_now) = (node.header(), Contents::new(self.now()).inline_content(&node)?);
        let since = Sides { before: self.sides.after, after: self.now() };
        Ok(!since.content_differs((after, content), (&now, &content_now))?)
    }
}
