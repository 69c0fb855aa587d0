//! What an open transaction would change, in words of files and keys.
//!
//! Compared with the main line of now: what a commit would do, if it can be done.
//!
//! Thread safety: as [`FileSystem`]; what is changed meanwhile may or may not be in the list.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use bytes::Bytes;
use kvfs_store::{Change, KeyspaceKind, Read};

use super::TxnView;
use super::publish::each_change;
use crate::schema::{Header, Placement, ROOT_INODE, Row};
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

/// Directory and name.
type Place = (u64, Bytes);

/// What is known of an inode on one side.
#[derive(Clone, Copy)]
struct Found {
    kind: FileType,
    header: Option<Header>,
}

#[derive(Default)]
struct Names {
    appeared: BTreeMap<u64, Vec<(Place, Found)>>,
    disappeared: BTreeMap<u64, Vec<(Place, Found)>>,
    changed: Vec<(Place, Found)>,
}

/// Paths of directories on one side, found once.
struct Paths<'f> {
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
        let names = self.changed_names(view)?;
        let mut lines = self.name_lines(view, names)?;
        lines.sort_by(|a, b| a.place.cmp(&b.place));
        self.key_lines(view, &mut lines)?;
        Ok(lines)
    }

    fn changed_names(&self, view: &TxnView) -> Result<Names> {
        let mut names = Names::default();
        let meta = self.keyspaces.meta;
        each_change(view.txn.changes(meta)?, |change| {
            let (Change::Put { key, .. } | Change::Delete { key } | Change::Merge { key, .. }) = change
            else {
                return Ok(());
            };
            let Some((directory, name)) = Placement::parse_key(&key) else { return Ok(()) };
            let before = self.found(&*self.store, &key)?;
            let after = self.found(&*view.txn, &key)?;
            if name.is_empty() {
                // Of a file with several names, or of a directory itself.
                if let (Some((_, before)), Some((_, after))) = (before, after)
                    && differ(before, after)
                {
                    names.changed.push(((directory, Bytes::new()), after));
                }
                return Ok(());
            }
            let place = (directory, Bytes::copy_from_slice(name));
            match (before, after) {
                (Some((old, before)), Some((new, after))) if old == new => {
                    if differ(before, after) {
                        names.changed.push((place, after));
                    }
                }
                (before, after) => {
                    if let Some((inode, found)) = before {
                        names.disappeared.entry(inode).or_default().push((place.clone(), found));
                    }
                    if let Some((inode, found)) = after {
                        names.appeared.entry(inode).or_default().push((place, found));
                    }
                }
            }
            Ok(())
        })?;
        Ok(names)
    }

    /// What is under a row's key on one side.
    fn found(&self, side: &dyn Read, key: &[u8]) -> Result<Option<(u64, Found)>> {
        let Some(bytes) = side.get(self.keyspaces.meta, key)? else { return Ok(None) };
        let row = Row::decode(key, &bytes)?;
        let (inode, kind) = (row.inode(), row.kind());
        let header = match row {
            Row::Inode(header, _) => Some(header),
            Row::Directory { .. } => None,
            Row::Link { .. } => {
                let own = side.get(self.keyspaces.meta, &Placement::own_subtree(inode).own_key())?;
                own.map(|own| Row::decode_own(inode, &own).map(|(header, _)| header)).transpose()?
            }
        };
        Ok(Some((inode, Found { kind, header })))
    }

    fn name_lines(&self, view: &TxnView, mut names: Names) -> Result<Vec<Difference>> {
        let mut then = Paths { fs: &view.main, known: HashMap::new() };
        let mut now = Paths { fs: self, known: HashMap::new() };
        let mut lines = Vec::new();
        for (place, found) in names.changed {
            let path = now.path(&place)?;
            lines.push(difference(DiffKind::Changed, found, path, None));
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
                    lines.push(difference(DiffKind::Renamed, found, path, Some(from)));
                    continue;
                }
                let existed = view.main.store.get(self.keyspaces.meta, &key_of(&place))?.is_some();
                let kind = if existed { DiffKind::Changed } else { DiffKind::Added };
                lines.push(difference(kind, found, path, None));
            }
            for (place, found) in gone {
                lines.push(difference(DiffKind::Removed, found, then.path(&place)?, None));
            }
        }
        for (place, found) in names.disappeared.into_values().flatten() {
            if !replaced.contains(&place) {
                lines.push(difference(DiffKind::Removed, found, then.path(&place)?, None));
            }
        }
        Ok(lines)
    }

    fn key_lines(&self, view: &TxnView, lines: &mut Vec<Difference>) -> Result<()> {
        for info in self.store.keyspaces() {
            if info.kind != KeyspaceKind::Tuple || crate::KEYSPACES.contains(&info.name.as_str()) {
                continue;
            }
            each_change(view.txn.changes(info.keyspace)?, |change| {
                let (key, value) = match change {
                    Change::Put { key, value } => (key, Some(value)),
                    Change::Delete { key } => (key, None),
                    _ => return Ok(()),
                };
                let before = self.store.get(info.keyspace, &key)?;
                let kind = match (&before, &value) {
                    (None, Some(_)) => DiffKind::Added,
                    (Some(before), Some(value)) if before != value => DiffKind::Changed,
                    (Some(_), None) => DiffKind::Removed,
                    _ => return Ok(()),
                };
                let place = [info.name.as_bytes(), b"/", &key].concat();
                let bytes = value.map(|value| value.len() as u64);
                lines.push(Difference { kind, file: None, place, from: None, bytes });
                Ok(())
            })?;
        }
        Ok(())
    }
}

fn key_of(place: &Place) -> Bytes {
    Placement::own_subtree(place.0).key(&place.1)
}

/// Whether somebody would see another file. Directories change with their entries, which are listed.
fn differ(before: Found, after: Found) -> bool {
    let (Some(before), Some(after)) = (before.header, after.header) else { return false };
    let rights = |header: &Header| (header.mode, header.uid, header.gid);
    let content = |header: &Header| (header.size, header.mtime);
    rights(&before) != rights(&after)
        || (after.kind != FileType::Directory && content(&before) != content(&after))
}

fn difference(kind: DiffKind, found: Found, place: Vec<u8>, from: Option<Vec<u8>>) -> Difference {
    let bytes = found.header.filter(|header| header.kind == FileType::Regular).map(|header| header.size);
    Difference { kind, file: Some(found.kind), place, from, bytes }
}

impl Paths<'_> {
    fn path(&mut self, (directory, name): &Place) -> Result<Vec<u8>> {
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
            return Ok(unknown());
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
