//! What an open transaction would change, and what differs between two snapshots, in words of files and keys.
//!
//! A transaction is compared with the main line of now: what a commit would do, if it can be done.
//!
//! Thread safety: as [`FileSystem`]; what is changed on the main line meanwhile may or may not be in the list.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{BLOCK_BYTES, Change, KeyDifference, KeyRange};

use super::compare::{Place, Sides, key_of};
use super::publish::each_change;
use crate::schema::{Header, Placement, ROOT_INODE, Row, block_prefix};
use crate::{FileSystem, FileType, FsError, Result};

/// What happens to a name or key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiffKind {
    /// It is new.
    Added,
    /// It is gone.
    Removed,
    /// Its content, owner or mode is another.
    Changed,
    /// It had another name.
    Renamed,
}

/// One line of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Difference {
    /// What happens.
    pub kind: DiffKind,
    /// Of what kind the file is; `None`: a key.
    pub file: Option<FileType>,
    /// Path from the root, beginning with a slash; or keyspace, a slash, and the key.
    pub place: Vec<u8>,
    /// The path before.
    pub from: Option<Vec<u8>>,
    /// Size of a file or value (bytes).
    pub bytes: Option<u64>,
}

/// What is known of an inode on one side.
struct Found {
    inode: u64,
    kind: FileType,
    header: Option<Header>,
    /// What the row itself holds.
    content: Bytes,
}

impl Found {
    fn without_content(self) -> Self {
        Self { content: Bytes::new(), ..self }
    }

    /// All content of a file that is small enough to be in its row on one of the sides.
    fn whole(&self, side: &FileSystem) -> Result<Bytes> {
        let Some(header) = self.header.filter(|header| !header.is_inline()) else {
            return Ok(self.content.clone());
        };
        let mut content = vec![0; (header.size as usize).next_multiple_of(BLOCK_BYTES)];
        side.read_view().read_blocks(side.keyspaces.data, &block_prefix(self.inode), 0, &mut content)?;
        content.truncate(header.size as usize);
        Ok(content.into())
    }
}

/// What was found so far.
struct Comparison<'f> {
    sides: Sides<'f>,
    /// Whether content counts that the attributes don't tell of.
    looks_inside: bool,
    names: Names,
}

#[derive(Default)]
struct Names {
    appeared: BTreeMap<u64, Vec<(Place, Found)>>,
    disappeared: BTreeMap<u64, Vec<(Place, Found)>>,
    changed: Vec<(Place, Found)>,
}

/// Paths of directories on one side, found once.
pub(crate) struct Paths<'f> {
    fs: &'f FileSystem,
    known: HashMap<u64, Vec<u8>>,
}

impl FileSystem {
    /// What the transaction would change: names in the order of their paths, then keys. O(changes), and O(n)
    /// in the entries of directories whose paths nobody knows.
    ///
    /// # Errors
    /// Not a transaction; `Stale`; store errors.
    pub fn diff(&self) -> Result<Vec<Difference>> {
        let view = self.txn_view().ok_or(FsError::Invalid("only transactions are compared"))?;
        view.check_alive()?;
        let mut comparison = Comparison::new(&view.main, self, false);
        progress::stage("comparing", Unit::Items, 0);
        each_change(view.txn.changes(self.keyspaces.meta)?, |change| match change {
            Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => {
                let [before, after] = [view.main.row(&key)?, self.row(&key)?];
                comparison.take_key(&key, before, after)
            }
            Change::DeleteRange { .. } | Change::Blocks { .. } => Ok(()),
        })?;
        let mut lines = comparison.name_lines()?;
        for info in self.user_keyspaces() {
            each_change(view.txn.changes(info.keyspace)?, |change| {
                let (key, value) = match change {
                    Change::Put { key, value } => (key, Some(value)),
                    Change::Delete { key } => (key, None),
                    _ => return Ok(()),
                };
                let before = self.store.get(info.keyspace, &key)?;
                lines.extend(key_line(&info.name, &key, before.as_ref(), value.as_ref()));
                Ok(())
            })?;
        }
        Ok(lines)
    }

    /// What differs in this view of a snapshot, or of a transaction that has written nothing yet, from
    /// `before`, a view of another snapshot: names in the order of their paths, then keys. O(what was written
    /// in between), and O(n) in the entries of directories in which something differs.
    ///
    /// # Errors
    /// The main line, or a transaction that locks what it reads; store errors.
    pub fn diff_from(&self, before: &Self) -> Result<Vec<Difference>> {
        let mut comparison = Comparison::new(before, self, true);
        let sides = comparison.sides;
        sides.each_touched_row(|row| comparison.take_key(&row.key, row.older, row.newer))?;
        let mut lines = comparison.name_lines()?;
        for info in self.user_keyspaces() {
            let mut keys = comparison.sides.differences(info.keyspace, KeyRange::all())?;
            while let Some(KeyDifference { key, older, newer }) = keys.next()? {
                lines.extend(key_line(&info.name, &key, older.as_ref(), newer.as_ref()));
            }
        }
        Ok(lines)
    }
}

impl<'f> Comparison<'f> {
    fn new(before: &'f FileSystem, after: &'f FileSystem, looks_inside: bool) -> Self {
        Self { sides: Sides { before, after }, looks_inside, names: Names::default() }
    }

    /// Compares what both sides have under a row's key.
    fn take_key(&mut self, key: &[u8], before: Option<Bytes>, after: Option<Bytes>) -> Result<()> {
        let Some((directory, name)) = Placement::parse_key(key) else { return Ok(()) };
        let place = (directory, Bytes::copy_from_slice(name));
        let Sides { before: then, after: now } = self.sides;
        let (before, after) = (found(then, key, before)?, found(now, key, after)?);
        match (before, after) {
            (Some(before), Some(after)) if before.inode == after.inode => {
                if differ(&before, &after) || self.differ_inside(&before, &after)? {
                    self.names.changed.push((place, after.without_content()));
                }
            }
            // A row of its own comes and goes with names.
            _ if name.is_empty() => {}
            (before, after) => {
                if let Some(found) = before {
                    let gone = self.names.disappeared.entry(found.inode).or_default();
                    gone.push((place.clone(), found.without_content()));
                }
                if let Some(found) = after {
                    self.names
                        .appeared
                        .entry(found.inode)
                        .or_default()
                        .push((place, found.without_content()));
                }
            }
        }
        Ok(())
    }

    fn differ_inside(&self, before: &Found, after: &Found) -> Result<bool> {
        if !self.looks_inside {
            return Ok(false);
        }
        let Sides { before: then, after: now } = self.sides;
        let is_inline = |found: &Found| found.header.is_none_or(|header| header.is_inline());
        let differs = if is_inline(before) == is_inline(after) {
            before.content != after.content || self.sides.differ_in(now.keyspaces.data, after.inode)?
        } else {
            before.whole(then)? != after.whole(now)?
        };
        Ok(differs || self.sides.differ_in(now.keyspaces.xattr, after.inode)?)
    }

    fn name_lines(&mut self) -> Result<Vec<Difference>> {
        let mut names = std::mem::take(&mut self.names);
        let mut then = Paths::new(self.sides.before);
        let mut now = Paths::new(self.sides.after);
        let mut lines = Vec::new();
        for (place, found) in names.changed {
            let path = now.path(&place)?;
            lines.push(difference(DiffKind::Changed, &found, path, None));
        }
        // What another file takes the place of is changed, not removed and added.
        let appeared = names.appeared.values().flatten();
        let replaced: BTreeSet<Place> = appeared.map(|(place, _)| place.clone()).collect();
        for (inode, appeared) in names.appeared {
            let mut gone = names.disappeared.remove(&inode).unwrap_or_default().into_iter();
            for (place, found) in appeared {
                let path = now.path(&place)?;
                if let Some((from, _)) = gone.next() {
                    let from = then.path(&from)?;
                    lines.push(difference(DiffKind::Renamed, &found, path, Some(from)));
                    continue;
                }
                let existed = self.sides.before.row(&key_of(&place))?.is_some();
                let kind = if existed { DiffKind::Changed } else { DiffKind::Added };
                lines.push(difference(kind, &found, path, None));
            }
            for (place, found) in gone {
                lines.push(difference(DiffKind::Removed, &found, then.path(&place)?, None));
            }
        }
        for (place, found) in names.disappeared.into_values().flatten() {
            if !replaced.contains(&place) {
                lines.push(difference(DiffKind::Removed, &found, then.path(&place)?, None));
            }
        }
        lines.sort_by(|a, b| a.place.cmp(&b.place));
        join_pairs(&mut lines);
        Ok(lines)
    }
}

/// In a directory that was removed and made again, a name may go in the one and come in the other: then it has
/// changed. The lines are in order.
fn join_pairs(lines: &mut Vec<Difference>) {
    lines.dedup_by(|second, first| {
        let kinds = [first.kind, second.kind];
        let is_pair = kinds.contains(&DiffKind::Added) && kinds.contains(&DiffKind::Removed);
        let joins = is_pair && first.place == second.place;
        if joins {
            let added = if first.kind == DiffKind::Added { first.bytes } else { second.bytes };
            (first.kind, first.bytes) = (DiffKind::Changed, added);
        }
        joins
    });
}

/// What is under a row's key on one side.
fn found(side: &FileSystem, key: &[u8], bytes: Option<Bytes>) -> Result<Option<Found>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let row = Row::decode(key, &bytes)?;
    let (inode, kind) = (row.inode(), row.kind());
    let mut found = Found { inode, kind, header: None, content: Bytes::new() };
    match row {
        Row::Inode(header, content) => {
            found.header = Some(header);
            found.content = bytes.slice_ref(content);
        }
        Row::Directory { .. } => {}
        Row::Link { .. } => {
            if let Some(own) = side.row(&Placement::own_subtree(inode).own_key())? {
                let (header, content) = Row::decode_own(inode, &own)?;
                (found.header, found.content) = (Some(header), own.slice_ref(content));
            }
        }
    }
    Ok(Some(found))
}

fn key_line(keyspace: &str, key: &[u8], before: Option<&Bytes>, after: Option<&Bytes>) -> Option<Difference> {
    let kind = match (before, after) {
        (None, Some(_)) => DiffKind::Added,
        (Some(before), Some(after)) if before != after => DiffKind::Changed,
        (Some(_), None) => DiffKind::Removed,
        _ => return None,
    };
    let place = [keyspace.as_bytes(), b"/", key].concat();
    let bytes = after.map(|value| value.len() as u64);
    Some(Difference { kind, file: None, place, from: None, bytes })
}

/// Whether somebody would see another file. Directories change with their entries, which are listed.
fn differ(before: &Found, after: &Found) -> bool {
    let (Some(before), Some(after)) = (before.header, after.header) else { return false };
    let rights = |header: &Header| (header.mode, header.uid, header.gid, header.project());
    let content = |header: &Header| (header.size, header.mtime);
    rights(&before) != rights(&after)
        || (after.kind != FileType::Directory && content(&before) != content(&after))
}

fn difference(kind: DiffKind, found: &Found, place: Vec<u8>, from: Option<Vec<u8>>) -> Difference {
    let bytes = found.header.filter(|header| header.kind == FileType::Regular).map(|header| header.size);
    Difference { kind, file: Some(found.kind), place, from, bytes }
}

impl<'f> Paths<'f> {
    pub(crate) fn new(fs: &'f FileSystem) -> Self {
        Self { fs, known: HashMap::new() }
    }

    /// Path of a name; with the empty name, of the directory itself.
    pub(crate) fn path(&mut self, (directory, name): &Place) -> Result<Vec<u8>> {
        let directory = self.directory(*directory)?;
        if name.is_empty() {
            return Ok(if directory.is_empty() { b"/".to_vec() } else { directory });
        }
        Ok([&directory[..], b"/", name].concat())
    }

    /// Path of a directory, without a slash at the end; of a file with several names, its number.
    fn directory(&mut self, inode: u64) -> Result<Vec<u8>> {
        if inode == ROOT_INODE {
            return Ok(Vec::new());
        }
        if let Some(path) = self.known.get(&inode) {
            return Ok(path.clone());
        }
        let path = match self.fs.known_path(inode) {
            Some(path) => path,
            None => self.climb(inode)?,
        };
        self.known.insert(inode, path.clone());
        Ok(path)
    }

    /// Looks for the name in the parent.
    fn climb(&mut self, inode: u64) -> Result<Vec<u8>> {
        let (meta, read) = (self.fs.keyspaces.meta, self.fs.read_view());
        let unknown = || format!("(inode {inode})").into_bytes();
        let Some(bytes) = read.get(meta, &Placement::own_subtree(inode).own_key())? else {
            return Ok(unknown());
        };
        let (header, _) = Row::decode_own(inode, &bytes)?;
        if header.kind != FileType::Directory {
            // Its names are anywhere; the main line may know one.
            return Ok(self.fs.path_of(inode).map_or_else(unknown, String::into_bytes));
        }
        let parent = Placement::own_subtree(header.parent);
        let mut entries = read.cursor(meta, parent.entries_after(b""))?;
        entries.next()?;
        while let Some((key, bytes)) = entries.entry() {
            if Row::decode(key, bytes)?.inode() == inode {
                let name = key[parent.prefix_len()..].to_vec();
                return Ok([&self.directory(header.parent)?[..], b"/", &name].concat());
            }
            entries.next()?;
        }
        Ok(unknown())
    }
}
