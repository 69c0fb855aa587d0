//! Each row for itself: what can't be decoded goes, what contradicts itself is put right, and of several rows
//! of one inode one stays.

use std::collections::HashMap;

use bytes::Bytes;

use super::edit::{Edit, Place};
use crate::schema::{
    Header, Placement, ROOT_INODE, Row, Superblock, check_name, decode_private, decode_received,
    decode_receiving, encode_directory_link, encode_inode_link, inode_key, is_keyspace_key,
    parse_private_key, parse_received_key, receiving_key, superblock_key,
};
use crate::{FileType, FsError, INODE_MAX, MkfsOptions, Result, Timestamp};
use kvfs_kv::KeyspaceOwner;

/// A row of an inode that has several.
struct DuplicateRow {
    keyspace: kvfs_store::Keyspace,
    key: Bytes,
    place: String,
    is_own: bool,
    is_orphan: bool,
    header: Header,
}

pub(super) fn repair(edit: &mut Edit<'_>) -> Result<()> {
    own_records(edit)?;
    let mut inodes: Vec<u64> = Vec::new();
    // Also of what only names and entries tell of: it gets a row.
    let mut highest = ROOT_INODE;
    let (meta, orphans) = (edit.keyspaces.meta, edit.keyspaces.orphans);
    edit.for_each("reading rows", meta, |edit, key, value| {
        if key.starts_with(&inode_key(0)) {
            return Ok(());
        }
        if let (Some((directory, _)), Some(row)) = (Placement::parse_key(key), Row::parse(value)) {
            highest = [directory, row.inode()]
                .into_iter()
                .filter(|&inode| inode < INODE_MAX)
                .fold(highest, u64::max);
        }
        inodes.extend(meta_row(edit, key, value)?);
        Ok(())
    })?;
    edit.for_each("reading orphans", orphans, |edit, key, value| {
        inodes.extend(orphan_row(edit, key, value)?);
        Ok(())
    })?;
    inodes.sort_unstable();
    reserve_inodes(edit, inodes.last().map_or(highest, |&last| last.max(highest)))?;
    let is_double = |pair: &&[u64]| pair[0] == pair[1];
    let doubles: Vec<u64> = inodes.windows(2).filter(is_double).map(|pair| pair[0]).collect();
    if doubles.is_empty() { Ok(()) } else { resolve_doubles(edit, &doubles) }
}

/// The records of the file system itself.
fn own_records(edit: &mut Edit<'_>) -> Result<()> {
    let meta = edit.keyspaces.meta;
    edit.for_each("reading the file system's records", meta, |edit, key, value| {
        let verdict = if is_keyspace_key(key) {
            KeyspaceOwner::decode(&key.escape_ascii().to_string(), value).map(drop).map_err(FsError::from)
        } else if let Some(name) = parse_received_key(key) {
            decode_received(name, value).map(drop)
        } else if let Some(name) = parse_private_key(key) {
            decode_private(name, value)
        } else if key == &receiving_key()[..] {
            decode_receiving(value).map(drop)
        } else {
            Ok(())
        };
        if let Err(error) = verdict {
            edit.lost(format!("record {}", key.escape_ascii()), error.to_string());
            edit.delete(meta, Bytes::copy_from_slice(key))?;
        }
        Ok(())
    })
}

/// The superblock record, and that it knows of every inode number up to `highest`.
fn reserve_inodes(edit: &mut Edit<'_>, highest: u64) -> Result<()> {
    let meta = edit.keyspaces.meta;
    let known = edit.txn.get(meta, &superblock_key())?;
    let decoded = known.as_ref().map(|bytes| Superblock::decode(bytes));
    let mut superblock = match decoded {
        Some(Ok(superblock)) => superblock,
        // Of another version, not damaged.
        Some(Err(error @ FsError::Format(_)))
            if known.as_deref().is_some_and(Superblock::bears_signature) =>
        {
            return Err(error);
        }
        Some(Err(_)) | None => {
            edit.fixed("file system", "its superblock record was lost; made anew");
            let has_quotas = edit.has_quotas;
            Superblock { inode_next: 0, has_quotas, ..Superblock::new(&MkfsOptions::default())? }
        }
    };
    if edit.has_projects && !superblock.has_projects {
        edit.fixed("file system", "its superblock record did not tell of projects");
        superblock.has_projects = true;
        edit.put(meta, superblock_key(), superblock.encode())?;
    }
    edit.inode_next = superblock.inode_next.max(highest + 1).max(16);
    if edit.inode_next != superblock.inode_next {
        if superblock.inode_next > 0 {
            edit.fixed("file system", format!("inode {highest} had never been given out"));
        }
        superblock.inode_next = edit.inode_next;
        edit.put(meta, superblock_key(), superblock.encode())?;
    }
    Ok(())
}

/// Gives the inode whose attributes the row has.
fn meta_row(edit: &mut Edit<'_>, key: &[u8], value: &[u8]) -> Result<Option<u64>> {
    let meta = edit.keyspaces.meta;
    let place = || format!("row {}", key.escape_ascii());
    let (Some((directory, name)), Some(row)) = (Placement::parse_key(key), Row::parse(value)) else {
        edit.lost(place(), "it can't be decoded");
        edit.delete(meta, Bytes::copy_from_slice(key))?;
        return Ok(None);
    };
    let is_own = name.is_empty();
    match row {
        Row::Inode(header, _) if is_own != (header.inode == directory) || misplaced(&header, is_own) => {
            edit.lost(place(), format!("it holds inode {} of another place", header.inode));
            edit.delete(meta, Bytes::copy_from_slice(key))?;
            Ok(None)
        }
        row if !is_own && check_name(name).is_err() => take_name_away(edit, key, &row),
        Row::Inode(mut header, content) => {
            edit.has_projects |= header.project != 0;
            let is_changed = settle(&mut header, content.len() as u64, !is_own);
            if is_changed {
                edit.fixed(place(), "its counters did not fit its content");
                let content = if header.is_inline() { content } else { b"" };
                edit.put_row(Bytes::copy_from_slice(key), &header, content)?;
            }
            Ok(Some(header.inode))
        }
        Row::Directory { inode, placement } if !is_own => {
            if placement != Placement::own_subtree(inode) {
                edit.fixed(place(), "it was not its own subtree");
                let row = encode_directory_link(inode, &Placement::own_subtree(inode));
                edit.put(meta, Bytes::copy_from_slice(key), row)?;
            }
            Ok(None)
        }
        Row::Link { .. } if !is_own => Ok(None),
        other => {
            edit.lost(place(), format!("it holds {other:?}"));
            edit.delete(meta, Bytes::copy_from_slice(key))?;
            Ok(None)
        }
    }
}

/// An entry with a name that no file may have. A row with attributes becomes the own row of its inode, unless
/// there is one: what has no name then goes to `lost+found`.
fn take_name_away(edit: &mut Edit<'_>, key: &[u8], row: &Row<'_>) -> Result<Option<u64>> {
    let meta = edit.keyspaces.meta;
    let place = format!("row {}", key.escape_ascii());
    edit.fixed(place, "no file may have this name; taken away, and what it led to is in lost+found");
    edit.delete(meta, Bytes::copy_from_slice(key))?;
    let Row::Inode(mut header, content) = *row else { return Ok(None) };
    edit.has_projects |= header.project != 0;
    let own_key = Placement::own_subtree(header.inode).own_key();
    if edit.txn.get(meta, &own_key)?.is_none() {
        settle(&mut header, content.len() as u64, true);
        edit.put_row(own_key, &header, if header.is_inline() { content } else { b"" })?;
    }
    Ok(Some(header.inode))
}

/// A directory's attributes are in its own row alone.
fn misplaced(header: &Header, is_own: bool) -> bool {
    header.kind == FileType::Directory && !is_own
}

/// Says whether it changed.
fn settle(header: &mut Header, content_len: u64, is_only_name: bool) -> bool {
    let before = *header;
    if is_only_name {
        header.nlink = 1;
    }
    match header.kind {
        FileType::Regular | FileType::Symlink if header.is_inline() => header.size = content_len,
        _ => {}
    }
    let is_crowded = content_len > 0 && !(header.is_inline() && header.kind != FileType::Directory);
    *header != before || is_crowded
}

fn orphan_row(edit: &mut Edit<'_>, key: &[u8], value: &[u8]) -> Result<Option<u64>> {
    let orphans = edit.keyspaces.orphans;
    match Row::parse(value) {
        Some(Row::Inode(header, content)) if inode_key(header.inode) == key => {
            edit.has_projects |= header.project != 0;
            let mut settled = header;
            let is_changed = settle(&mut settled, content.len() as u64, false);
            settled.nlink = 0;
            if is_changed || header.nlink != 0 {
                edit.fixed(format!("orphan {}", header.inode), "its counters did not fit");
                let content = if settled.is_inline() { content } else { b"" };
                edit.put(orphans, Bytes::copy_from_slice(key), crate::schema::encode_row(&settled, content))?;
            }
            Ok(Some(header.inode))
        }
        _ => {
            edit.lost(format!("orphan {}", key.escape_ascii()), "it can't be decoded");
            edit.delete(orphans, Bytes::copy_from_slice(key))?;
            Ok(None)
        }
    }
}

/// Of several rows of an inode the own row stays, else the one that was changed last.
fn resolve_doubles(edit: &mut Edit<'_>, doubles: &[u64]) -> Result<()> {
    let mut found: HashMap<u64, Vec<DuplicateRow>> = HashMap::new();
    edit.for_each_row("looking for inodes with several rows", |_, place, row| {
        let Row::Inode(header, _) = row else { return Ok(()) };
        if doubles.binary_search(&header.inode).is_ok() {
            found.entry(header.inode).or_default().push(DuplicateRow {
                keyspace: place.keyspace,
                key: place.key(),
                place: describe(place),
                is_own: place.is_own() && !place.is_orphan,
                is_orphan: place.is_orphan,
                header,
            });
        }
        Ok(())
    })?;
    for (inode, mut rows) in found {
        rows.sort_by_key(|row| (row.is_own, !row.is_orphan, when(row.header.ctime), when(row.header.mtime)));
        let Some(kept) = rows.pop() else { continue };
        for row in rows {
            let place = format!("{} (inode {inode})", row.place);
            if kept.is_own && !row.is_orphan && kept.header.kind != FileType::Directory {
                edit.fixed(place, "an older state of a file that has several names; it is one of them now");
                edit.put(row.keyspace, row.key, encode_inode_link(inode, kept.header.kind))?;
            } else {
                edit.fixed(place, format!("an older state of the file at {}; taken away", kept.place));
                edit.delete(row.keyspace, row.key)?;
            }
        }
    }
    Ok(())
}

fn when(time: Timestamp) -> (i64, u32) {
    (time.seconds, time.nanos)
}

fn describe(place: &Place<'_>) -> String {
    match (place.is_orphan, place.is_own()) {
        (true, _) => "an orphan".to_owned(),
        (false, true) => "its own row".to_owned(),
        (false, false) => {
            format!("name {} in directory inode {}", place.name.escape_ascii(), place.directory)
        }
    }
}
