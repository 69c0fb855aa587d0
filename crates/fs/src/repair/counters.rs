//! What directories say of themselves: number of entries, link count, parent.

use super::edit::Edit;
use super::survey::Survey;
use crate::Result;
use crate::schema::{ROOT_INODE, Superblock, superblock_key};

pub(super) fn repair(edit: &mut Edit<'_>) -> Result<()> {
    let survey = Survey::of(edit)?;
    for (&inode, directory) in &survey.directories {
        let Some(mut header) = directory.header else { continue };
        let before = header;
        header.size = directory.entries;
        header.nlink = directory.subdirectories + 2;
        header.parent = directory.names.first().map_or(ROOT_INODE, |name| name.parent);
        if header != before {
            if edit.lost_found.as_ref().is_none_or(|found| found.inode != inode) {
                let (entries, nlink) = (before.size, before.nlink);
                edit.fixed(
                    survey.path(inode),
                    format!(
                        "{} entries, {} links, parent {} (was {entries}, {nlink}, {})",
                        header.size, header.nlink, header.parent, before.parent
                    ),
                );
            }
            edit.put_own_row(&header)?;
        }
    }
    give_out(edit)
}

/// The superblock knows of the inode numbers that the repair has given out.
fn give_out(edit: &mut Edit<'_>) -> Result<()> {
    edit.apply()?;
    let meta = edit.keyspaces.meta;
    let Some(bytes) = edit.txn.get(meta, &superblock_key())? else { return Ok(()) };
    let superblock = Superblock::decode(&bytes)?;
    if superblock.inode_next < edit.inode_next {
        let superblock = Superblock { inode_next: edit.inode_next, ..superblock };
        edit.put(meta, superblock_key(), superblock.encode())?;
    }
    Ok(())
}
