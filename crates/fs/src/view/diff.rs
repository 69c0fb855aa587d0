//! What an open transaction would change, in words of files and keys; what [`DiffStream`] tells of snapshots.
//!
//! A transaction is compared with the main line of now: what a commit would do, if it can be done. Paths are
//! those of its view: from the directory that it is a branch of, if it is one of a directory.
//!
//! Thread safety: as [`FileSystem`]; what is changed on the main line meanwhile may or may not be in the
//! list.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_kv::KeyspaceOwner;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{BLOCK_BYTES, Change};

use super::compare::{Place, Sides, key_of};
use super::paths::Paths;
use super::publish::each_change;
use crate::schema::{DETACHED_INODE, Header, Placement, Row, block_prefix};
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
    /// The keyspace of a key, whose name may contain slashes; `None`: a file.
    pub keyspace: Option<Arc<str>>,
    /// Path from the root of the view, beginning with a slash; or keyspace, a slash, and the key.
    pub place: Vec<u8>,
    /// The path before.
    pub from: Option<Vec<u8>>,
    /// Size of a file or value (bytes).
    pub bytes: Option<u64>,
    /// What was there; `None`: nothing.
    pub before: Option<Facts>,
    /// What is there; `None`: nothing.
    pub after: Option<Facts>,
}

/// What a line takes beside its names and values (bytes).
const LINE_BYTES: usize = 256;

impl Difference {
    /// What it takes in memory and in an answer (bytes, about).
    pub fn bytes_told(&self) -> usize {
        let values = [&self.before, &self.after].into_iter().flatten().map(|facts| match facts {
            Facts::File { target, .. } => target.as_ref().map_or(0, Bytes::len),
            Facts::Key { value, .. } => value.len(),
        });
        LINE_BYTES + self.place.len() + self.from.as_ref().map_or(0, Vec::len) + values.sum::<usize>()
    }
}

/// Most bytes of a value that [`Facts`] hold: enough to tell it from another one.
pub const FACTS_VALUE_LEN_MAX: usize = 256;

/// What is told of a file or key on one side of a comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Facts {
    /// A file of any kind.
    File {
        /// Permission bits.
        mode: u32,
        /// User id.
        uid: u32,
        /// Group id.
        gid: u32,
        /// Size, or length of a symbolic link's target (bytes).
        bytes: u64,
        /// Where a symbolic link leads.
        target: Option<Bytes>,
    },
    /// A key.
    Key {
        /// The first [`FACTS_VALUE_LEN_MAX`] bytes of its value.
        value: Bytes,
        /// Length of the value (bytes).
        bytes: u64,
    },
}

/// What is known of an inode on one side.
pub(super) struct Found {
    pub(super) inode: u64,
    kind: FileType,
    header: Option<Header>,
    /// The row leads to the inode's own row, which tells what it is.
    pub(super) is_reference: bool,
    /// What the row itself holds.
    content: Bytes,
}

impl Found {
    /// Content of files is not kept; a target is.
    fn without_content(self) -> Self {
        if self.kind == FileType::Symlink {
            return Self { content: Bytes::copy_from_slice(&self.content), ..self };
        }
        Self { content: Bytes::new(), ..self }
    }

    /// What is told of it, on the side where it is.
    pub(super) fn facts(&self, side: &FileSystem) -> Result<Option<Facts>> {
        let own = match self.header {
            Some(header) => Some(header),
            // A directory's row is not under its name.
            None => side.rows().at(&(self.inode, Bytes::new()))?.map(|(header, _)| header),
        };
        let target = (self.kind == FileType::Symlink).then(|| self.content.clone());
        Ok(own.map(|Header { mode, uid, gid, size, .. }| Facts::File { mode, uid, gid, bytes: size, target }))
    }

    /// All content of a file that is small enough to be in its row on one of the sides.
    fn whole(&self, side: &FileSystem) -> Result<Bytes> {
        let Some(header) = self.header.filter(|header| !header.is_inline()) else {
            return Ok(self.content.clone());
        };
        let mut content = vec![0; (header.size as usize).next_multiple_of(BLOCK_BYTES)];
        side.origin.read().read_blocks(side.keyspaces.data, &block_prefix(self.inode), 0, &mut content)?;
        content.truncate(header.size as usize);
        Ok(content.into())
    }
}

/// What was found so far.
struct Comparison<'f> {
    sides: Sides<'f>,
    names: Names,
}

#[derive(Default)]
struct Names {
    appeared: BTreeMap<u64, Vec<(Place, Found)>>,
    disappeared: BTreeMap<u64, Vec<(Place, Found)>>,
    changed: Vec<(Place, Found, Found)>,
}

/// What the transaction whose view this is would change: names in the order of their paths, then keys.
/// O(changes), and O(n) in the entries of directories whose paths are unknown.
///
/// # Errors
/// Not a transaction; `Stale`; store errors.
pub fn diff(fs: &FileSystem) -> Result<Vec<Difference>> {
    let view = fs.origin.txn().ok_or(FsError::Invalid("only transactions are compared"))?;
    view.check_alive()?;
    let changed = view.changed_state()?;
    let mut comparison = Comparison::new(&changed, fs);
    progress::stage("comparing", Unit::Items, 0);
    each_change(view.changes(fs.keyspaces.meta)?, |change| match change {
        Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. } => {
            let [before, after] = [changed.rows().get(&key)?, fs.rows().get(&key)?];
            comparison.take_key(&key, before, after)
        }
        Change::DeleteRange { .. } | Change::Blocks { .. } => Ok(()),
    })?;
    let mut lines = comparison.name_lines()?;
    for info in fs.shared.keyspaces.user_keyspaces() {
        let name = Arc::from(info.name);
        each_change(view.changes(info.keyspace)?, |change| {
            let (key, value) = match change {
                Change::Put { key, value } => (key, Some(value)),
                Change::Delete { key } => (key, None),
                _ => return Ok(()),
            };
            let before = changed.origin.read().get(info.keyspace, &key)?;
            lines.extend(key_line(&name, &key, before.as_ref(), value.as_ref()));
            Ok(())
        })?;
    }
    Ok(lines)
}

/// Takes out of `lines` what they tell of keys of `view` that `may_read` does not let their reader see, with
/// the owners that [`kvfs_kv::Keys::readable_keyspace`] names: values, their lengths, and whether there was
/// one. A user that may only write learns nothing but what it has done.
///
/// # Errors
/// As [`kvfs_kv::Keys::readable_keyspace`].
pub fn hide_unreadable(
    view: &FileSystem,
    lines: &mut [Difference],
    may_read: impl Fn(&KeyspaceOwner) -> bool,
) -> Result<()> {
    let mut known = HashMap::new();
    for line in lines {
        let Some(keyspace) = &line.keyspace else { continue };
        let is_readable = match known.entry(Arc::clone(keyspace)) {
            Entry::Occupied(known) => *known.get(),
            Entry::Vacant(place) => {
                let owners = view.keys().readable_keyspace(keyspace)?;
                *place.insert(owners.is_some_and(|(_, owners)| owners.iter().all(&may_read)))
            }
        };
        if !is_readable {
            let kind = if line.kind == DiffKind::Added { DiffKind::Changed } else { line.kind };
            (line.kind, line.bytes, line.before, line.after) = (kind, None, None, None);
        }
    }
    Ok(())
}

impl<'f> Comparison<'f> {
    fn new(before: &'f FileSystem, after: &'f FileSystem) -> Self {
        Self { sides: Sides { before, after }, names: Names::default() }
    }

    /// Compares what both sides have under a row's key.
    fn take_key(&mut self, key: &[u8], before: Option<Bytes>, after: Option<Bytes>) -> Result<()> {
        let Some((directory, name)) = Placement::parse_key(key) else { return Ok(()) };
        if directory == DETACHED_INODE {
            return Ok(());
        }
        let place = (directory, Bytes::copy_from_slice(name));
        let Sides { before: then, after: now } = self.sides;
        let (before, after) = (found(then, key, before)?, found(now, key, after)?);
        match (before, after) {
            (Some(before), Some(after)) if before.inode == after.inode => {
                if differ(&before, &after) {
                    self.names.changed.push((place, before.without_content(), after.without_content()));
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

    fn name_lines(&mut self) -> Result<Vec<Difference>> {
        let mut names = std::mem::take(&mut self.names);
        let root = self.sides.after.nodes.root().0;
        let mut then = Paths::below(self.sides.before, root);
        let mut now = Paths::below(self.sides.after, root);
        let mut lines = Vec::new();
        let Sides { before: older, after: newer } = self.sides;
        for (place, before, after) in names.changed {
            if now.is_detached(&place)? {
                continue;
            }
            let facts = (before.facts(older)?, after.facts(newer)?);
            lines.push(difference(DiffKind::Changed, &after, now.path(&place)?, facts));
        }
        // What another file takes the place of is changed, not removed and added.
        let appeared = names.appeared.values().flatten();
        let replaced: BTreeSet<Place> = appeared.map(|(place, _)| place.clone()).collect();
        for (inode, appeared) in names.appeared {
            let mut gone = names.disappeared.remove(&inode).unwrap_or_default().into_iter();
            for (place, after) in appeared {
                if now.is_detached(&place)? {
                    continue;
                }
                let path = now.path(&place)?;
                let new = after.facts(newer)?;
                if let Some((from, before)) = gone.next() {
                    let facts = (before.facts(older)?, new);
                    let from = Some(then.path(&from)?);
                    lines.push(Difference { from, ..difference(DiffKind::Renamed, &after, path, facts) });
                    continue;
                }
                let key = key_of(&place);
                let before = found(older, &key, older.rows().get(&key)?)?;
                let kind = if before.is_some() { DiffKind::Changed } else { DiffKind::Added };
                let old = before.map(|before| before.facts(older)).transpose()?.flatten();
                lines.push(difference(kind, &after, path, (old, new)));
            }
            for (place, before) in gone {
                let facts = (before.facts(older)?, None);
                lines.push(difference(DiffKind::Removed, &before, then.path(&place)?, facts));
            }
        }
        for (place, before) in names.disappeared.into_values().flatten() {
            if !replaced.contains(&place) && !then.is_detached(&place)? {
                let facts = (before.facts(older)?, None);
                lines.push(difference(DiffKind::Removed, &before, then.path(&place)?, facts));
            }
        }
        lines.sort_by(|a, b| a.place.cmp(&b.place));
        join_pairs(&mut lines);
        Ok(lines)
    }
}

impl Sides<'_> {
    /// Whether content or extended attributes differ that the attributes don't tell of.
    pub(super) fn differ_inside(&self, before: &Found, after: &Found) -> Result<bool> {
        let Sides { before: then, after: now } = self;
        let is_inline = |found: &Found| found.header.is_none_or(|header| header.is_inline());
        let differs = if is_inline(before) == is_inline(after) {
            before.content != after.content || self.differ_in(now.keyspaces.data, after.inode)?
        } else {
            before.whole(then)? != after.whole(now)?
        };
        Ok(differs || self.differ_in(now.keyspaces.xattr, after.inode)?)
    }
}

/// In a directory that was removed and made again, a name may go in the one and come in the other: then it
/// has changed. The lines are in order.
fn join_pairs(lines: &mut Vec<Difference>) {
    lines.dedup_by(|second, first| {
        let kinds = [first.kind, second.kind];
        let is_pair = kinds.contains(&DiffKind::Added) && kinds.contains(&DiffKind::Removed);
        let joins = is_pair && first.place == second.place;
        if joins {
            let (added, removed) =
                if first.kind == DiffKind::Added { (&*first, &*second) } else { (&*second, &*first) };
            let joined =
                Difference { before: removed.before.clone(), kind: DiffKind::Changed, ..added.clone() };
            *first = joined;
        }
        joins
    });
}

/// What is under a row's key on one side.
pub(super) fn found(side: &FileSystem, key: &[u8], bytes: Option<Bytes>) -> Result<Option<Found>> {
    let Some(bytes) = bytes else { return Ok(None) };
    let row = Row::decode(key, &bytes)?;
    let (inode, kind) = (row.inode(), row.kind());
    let is_reference = !matches!(row, Row::Inode(..));
    let mut found = Found { inode, kind, header: None, is_reference, content: Bytes::new() };
    match row {
        Row::Inode(header, content) => {
            found.header = Some(header);
            found.content = bytes.slice_ref(content);
        }
        Row::Directory { .. } => {}
        Row::Link { .. } => {
            if let Some(own) = side.rows().get(&Placement::own_subtree(inode).own_key())? {
                let (header, content) = Row::decode_own(inode, &own)?;
                (found.header, found.content) = (Some(header), own.slice_ref(content));
            }
        }
    }
    Ok(Some(found))
}

/// Where a key is, as lines tell it. Keys of two keyspaces may be told alike.
pub(super) fn key_place(keyspace: &str, key: &[u8]) -> Vec<u8> {
    [keyspace.as_bytes(), b"/", key].concat()
}

pub(super) fn key_line(
    keyspace: &Arc<str>,
    key: &[u8],
    before: Option<&Bytes>,
    after: Option<&Bytes>,
) -> Option<Difference> {
    let kind = match (before, after) {
        (None, Some(_)) => DiffKind::Added,
        (Some(before), Some(after)) if before != after => DiffKind::Changed,
        (Some(_), None) => DiffKind::Removed,
        _ => return None,
    };
    let (place, keyspace) = (key_place(keyspace, key), Some(Arc::clone(keyspace)));
    let facts = |value: &Bytes| Facts::Key {
        value: Bytes::copy_from_slice(&value[..value.len().min(FACTS_VALUE_LEN_MAX)]),
        bytes: value.len() as u64,
    };
    let bytes = after.map(|value| value.len() as u64);
    let (before, after) = (before.map(facts), after.map(facts));
    Some(Difference { kind, file: None, keyspace, place, from: None, bytes, before, after })
}

/// Whether a reader would see another file. Directories change with their entries, which are listed.
pub(super) fn differ(before: &Found, after: &Found) -> bool {
    let (Some(before), Some(after)) = (before.header, after.header) else { return false };
    let rights = |header: &Header| (header.mode, header.uid, header.gid, header.project());
    let content = |header: &Header| (header.size, header.mtime);
    rights(&before) != rights(&after)
        || (after.kind != FileType::Directory && content(&before) != content(&after))
}

pub(super) fn difference(
    kind: DiffKind,
    found: &Found,
    place: Vec<u8>,
    (before, after): (Option<Facts>, Option<Facts>),
) -> Difference {
    let bytes = found.header.filter(|header| header.kind == FileType::Regular).map(|header| header.size);
    let file = Some(found.kind);
    Difference { kind, file, keyspace: None, place, from: None, bytes, before, after }
}
