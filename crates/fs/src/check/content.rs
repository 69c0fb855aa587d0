//! Blocks and extended attributes against their owners.

use kvfs_store::blocks::block_key;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{BLOCK_BYTES, ExtentKind, KeyRange, Keyspace, Read};

use super::rows::{Owner, Rows};
use super::{CheckReport, Unread};
use crate::Result;
use crate::acl::{Acl, AclKind, PERMISSIONS};
use crate::schema::{Keyspaces, RowFlags};

/// What was seen of one inode's blocks.
#[derive(Default)]
struct Seen {
    inode: u64,
    blocks: u64,
}

fn split(key: &[u8]) -> Option<(u64, &[u8])> {
    let (inode, rest) = key.split_first_chunk::<8>()?;
    Some((u64::from_be_bytes(*inode), rest))
}

fn inode_and_block(key: &[u8]) -> Option<(u64, u64)> {
    let (inode, rest) = split(key)?;
    Some((inode, u64::from_be_bytes(rest.try_into().ok()?)))
}

fn owner(rows: &Rows, inode: u64) -> Option<&Owner> {
    rows.owners.binary_search_by_key(&inode, |owner| owner.inode).ok().map(|index| &rows.owners[index])
}

/// Every block has an owner that counts it; nothing lies beyond the end of a file.
pub(super) fn check_blocks<R: Read + ?Sized>(
    read: &R,
    keyspaces: &Keyspaces,
    (rows, unread): (&Rows, &Unread),
    report: &mut CheckReport,
) -> Result<()> {
    let mut counts: Vec<Seen> = Vec::new();
    // Rows may claim any number.
    let blocks = rows.owners.iter().fold(0_u64, |sum, owner| sum.saturating_add(owner.blocks));
    progress::stage("comparing blocks", Unit::Bytes, blocks.saturating_mul(BLOCK_BYTES as u64));
    let mut see = |key: &[u8], value: &[u8]| {
        report.blocks += 1;
        progress::advance(BLOCK_BYTES as u64);
        let Some((inode, block)) = inode_and_block(key) else {
            return report
                .problem(format!("block {}", key.escape_ascii()), "the key is no inode and block number");
        };
        match counts.last_mut() {
            Some(seen) if seen.inode == inode => seen.blocks += 1,
            _ => counts.push(Seen { inode, blocks: 1 }),
        }
        check_block((rows, unread), inode, block, value, report);
    };
    if unread.is_empty() {
        let blocks_full = |inode| owner(rows, inode).map_or(0, |owner| owner.size / BLOCK_BYTES as u64);
        for_each_block(read, keyspaces.data, blocks_full, &mut see)?;
    } else {
        unread.for_each(read, (keyspaces.data, "data"), see)?;
    }
    let is_known =
        |owner: &&Owner| owner.flags.has(RowFlags::BLOCKS) && !unread.may_hold("data", owner.inode);
    for owner in rows.owners.iter().filter(is_known) {
        let found = counts
            .binary_search_by_key(&owner.inode, |seen| seen.inode)
            .map_or(0, |index| counts[index].blocks);
        let place = format!("inode {}", owner.inode);
        if found != owner.blocks {
            report.problem(&place, format!("it counts {} blocks and has {found}", owner.blocks));
        }
        let blocks_full = owner.size.div_ceil(BLOCK_BYTES as u64);
        if !owner.flags.has(RowFlags::SPARSE) && found != blocks_full {
            report.problem(place, format!("{found} blocks for {} bytes, but not marked sparse", owner.size));
        }
    }
    Ok(())
}

/// Shows `see` each block; with its content the first one of neighbours, and those that a file does not fill
/// to their end: the others say by their keys alone what there is to check, and the store has verified their
/// content. O(files), and blocks in memory.
fn for_each_block<R: Read + ?Sized>(
    read: &R,
    keyspace: Keyspace,
    blocks_full: impl Fn(u64) -> u64,
    see: &mut impl FnMut(&[u8], &[u8]),
) -> Result<()> {
    let mut cursor = read.cursor(keyspace, KeyRange::all())?;
    cursor.next()?;
    while let Some((key, value)) = cursor.entry() {
        progress::check_wanted()?;
        see(key, value);
        let Some((inode, block)) = inode_and_block(key) else {
            cursor.next()?;
            continue;
        };
        let (prefix, next) = (inode.to_be_bytes(), block.saturating_add(1));
        let extent = read.next_extent(keyspace, &prefix, next..blocks_full(inode), ExtentKind::Data)?;
        let end = extent.filter(|extent| extent.first == next).map_or(next, |extent| next + extent.count);
        for block in next..end {
            see(&block_key(&prefix, block), &[]);
        }
        if next < end {
            cursor.seek(&block_key(&prefix, end))?;
        } else {
            cursor.next()?;
        }
    }
    Ok(())
}

/// `value`: nothing, where the file fills the block.
fn check_block(
    (rows, unread): (&Rows, &Unread),
    inode: u64,
    block: u64,
    value: &[u8],
    report: &mut CheckReport,
) {
    let place = || format!("block {block} of inode {inode}");
    let Some(owner) = owner(rows, inode).filter(|owner| owner.flags.has(RowFlags::BLOCKS)) else {
        // Its file may be among what can't be read.
        if !unread.is_in("meta") {
            report.problem(place(), "no file owns it");
        }
        return;
    };
    let start = block.saturating_mul(BLOCK_BYTES as u64);
    if start >= owner.size {
        return report.problem(place(), format!("it is beyond the file's {} bytes", owner.size));
    }
    let used = (owner.size - start).min(BLOCK_BYTES as u64) as usize;
    if value.get(used..).is_some_and(|rest| rest.iter().any(|&byte| byte != 0)) {
        report.problem(place(), "bytes beyond the end of the file are not zero");
    }
}

/// Every extended attribute has an owner that says so; access-control lists are sound, fit the permission
/// bits, and are where their owners say.
pub(super) fn check_xattrs<R: Read + ?Sized>(
    read: &R,
    keyspaces: &Keyspaces,
    (rows, unread): (&Rows, &Unread),
    report: &mut CheckReport,
) -> Result<()> {
    let mut lists: Vec<(u64, AclKind)> = Vec::new();
    unread.for_each(read, (keyspaces.xattr, "xattr"), |key, value| {
        report.xattrs += 1;
        progress::advance(value.len() as u64);
        let place = || match split(key) {
            Some((inode, name)) => format!("extended attribute {} of inode {inode}", name.escape_ascii()),
            None => format!("extended attribute {}", key.escape_ascii()),
        };
        let found = split(key).and_then(|(inode, name)| Some((owner(rows, inode)?, name)));
        let Some((owner, name)) = found.filter(|(owner, _)| owner.flags.has(RowFlags::XATTRS)) else {
            if !unread.is_in("meta") {
                report.problem(place(), "no inode owns it");
            }
            return;
        };
        if let Some(kind) = AclKind::by_name(name) {
            lists.push((owner.inode, kind));
            if let Some(problem) = list_problem(owner, kind, value) {
                report.problem(place(), problem);
            }
        }
    })?;
    for owner in rows.owners.iter().filter(|owner| !unread.may_hold("xattr", owner.inode)) {
        for kind in AclKind::ALL {
            if owner.flags.has(kind.flag()) && lists.binary_search(&(owner.inode, kind)).is_err() {
                let name = kind.name().escape_ascii();
                report.problem(format!("inode {}", owner.inode), format!("{name} is missing"));
            }
        }
    }
    Ok(())
}

/// What is wrong with a list.
fn list_problem(owner: &Owner, kind: AclKind, value: &[u8]) -> Option<&'static str> {
    let Ok(Some(acl)) = Acl::parse(value) else { return Some("it is no access-control list") };
    if !owner.flags.has(kind.flag()) {
        return Some("its inode does not say that it has one");
    }
    let fits = kind == AclKind::Default || acl.permissions() == owner.mode & PERMISSIONS;
    (!fits).then_some("it does not fit the permission bits")
}
