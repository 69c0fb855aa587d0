//! What differs between two snapshots, a page at a time.
//!
//! Purpose: a comparison of any size takes bounded memory and linear work. The rows that differ are walked in
//! the order of their keys, directory by directory, and a page goes on where the one before ended. Only which
//! files have another name must be known beforehand: two walks find out. As many of them as [`INODES_MAX`]
//! and [`MOVED_BYTES_MAX`] allow are told as renamed, the others as removed and added.
//!
//! Thread safety: a plain value. Both views are pinned, see [`Sides`].

use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyDifference, KeyRange};

use super::DiffKind;
use super::compare::{Place, Sides, key_of};
use super::diff::{Difference, Found, differ, difference, found, key_line};
use super::paths::Paths;
use crate::schema::{Placement, ROOT_INODE, Row};
use crate::{FileSystem, Result};

/// Inodes of names that come, and of names that go, that are looked for on the other side.
const INODES_MAX: usize = 1 << 18;

/// Memory of what is remembered of files with another name (bytes, about).
const MOVED_BYTES_MAX: usize = 8 << 20;

/// Names of one file that are remembered on each side.
const NAMES_MAX: usize = 64;

/// What a name takes beside its bytes.
const NAME_BYTES: usize = 160;

/// Where the next page goes on.
enum At {
    /// At this row.
    Names(Bytes),
    /// At this key of the first keyspace whose name is not less.
    Keys(String, Bytes),
    End,
}

/// The inodes whose names differ, with those that went and those that came; the first of each belong
/// together.
#[derive(Default)]
struct Moved(HashMap<u64, [Vec<Place>; 2]>);

impl Moved {
    /// The name that `inode` had instead of this new one.
    fn name_before(&self, inode: u64, place: &Place) -> Option<&Place> {
        let [gone, come] = self.0.get(&inode)?;
        gone.get(come.iter().position(|name| name == place)?)
    }

    /// Whether `inode` has another name instead of this old one.
    fn has_moved(&self, inode: u64, place: &Place) -> bool {
        let Some([gone, come]) = self.0.get(&inode) else { return false };
        gone.iter().position(|name| name == place).is_some_and(|index| index < come.len())
    }
}

/// See the module. `F` refers to the two views.
pub struct DiffStream<F> {
    before: F,
    after: F,
    moved: Option<Moved>,
    then: Paths<F>,
    now: Paths<F>,
    /// The last directory that is on one side only (the side before, the side after), and the one under its
    /// path on the other side.
    twins: [Option<(u64, Option<u64>)>; 2],
    at: At,
    position: u64,
}

/// Lines, until there are enough.
struct Page {
    lines: Vec<Difference>,
    lines_max: usize,
    bytes_left: usize,
}

impl Page {
    fn is_full(&self) -> bool {
        self.lines.len() >= self.lines_max || self.bytes_left == 0
    }

    fn push(&mut self, line: Difference) {
        self.bytes_left = self.bytes_left.saturating_sub(line.bytes_told());
        self.lines.push(line);
    }
}

impl<F: Deref<Target = FileSystem> + Clone> DiffStream<F> {
    /// What leads from `before` to `after`.
    pub fn new(before: F, after: F) -> Self {
        Self {
            then: Paths::new(before.clone()),
            now: Paths::new(after.clone()),
            before,
            after,
            moved: None,
            twins: [None; 2],
            at: At::Names(Bytes::new()),
            position: 0,
        }
    }

    /// How many lines were given.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Whether there are no more.
    pub fn is_through(&self) -> bool {
        matches!(self.at, At::End)
    }

    /// The next lines, at most so many, and of so many bytes, about: names, in the order of their paths
    /// within the page, then keys. Empty at the end alone.
    ///
    /// # Errors
    /// The main line, or a transaction that locks what it reads; store errors.
    pub fn next_page(&mut self, lines_max: usize, bytes_max: usize) -> Result<Vec<Difference>> {
        let (before, after) = (self.before.clone(), self.after.clone());
        let sides = Sides { before: &before, after: &after };
        let mut page = Page { lines: Vec::new(), lines_max, bytes_left: bytes_max };
        self.add_names(sides, &mut page)?;
        page.lines.sort_by(|a, b| a.place.cmp(&b.place));
        self.add_keys(sides, &mut page)?;
        self.position += page.lines.len() as u64;
        Ok(page.lines)
    }

    fn add_names(&mut self, sides: Sides<'_>, page: &mut Page) -> Result<()> {
        let At::Names(start) = &self.at else { return Ok(()) };
        let range = KeyRange { start: start.clone(), end: None };
        if self.moved.is_none() {
            self.moved = Some(self.find_moved(sides)?);
        }
        let mut rows = sides.differences(sides.after.keyspaces.meta, range)?;
        while !page.is_full() {
            let Some(row) = rows.next_touched()? else {
                self.at = At::Keys(String::new(), Bytes::new());
                break;
            };
            self.at = At::Names(behind(&row.key));
            if let Some(line) = self.line(sides, row)? {
                page.push(line);
            }
        }
        Ok(())
    }

    fn add_keys(&mut self, sides: Sides<'_>, page: &mut Page) -> Result<()> {
        let At::Keys(keyspace, start) = &self.at else { return Ok(()) };
        let (first, mut start) = (keyspace.clone(), start.clone());
        let mut keyspaces: Vec<_> = sides.after.shared.keyspaces.user_keyspaces().collect();
        keyspaces.sort_by(|a, b| a.name.cmp(&b.name));
        for info in keyspaces.into_iter().filter(|info| info.name >= first) {
            let name = Arc::from(&*info.name);
            if info.name != first {
                start = Bytes::new();
            }
            let range = KeyRange { start: std::mem::take(&mut start), end: None };
            let mut keys = sides.differences(info.keyspace, range)?;
            loop {
                if page.is_full() {
                    return Ok(());
                }
                let Some(KeyDifference { key, older, newer }) = keys.next()? else { break };
                self.at = At::Keys(info.name.clone(), behind(&key));
                if let Some(line) = key_line(&name, &key, older.as_ref(), newer.as_ref()) {
                    page.push(line);
                }
            }
        }
        self.at = At::End;
        Ok(())
    }

    /// Of the rows under a name on the two sides, those that are there: in a detached tree there are none.
    fn attached(&mut self, place: &Place, [older, newer]: [Option<Bytes>; 2]) -> Result<[Option<Bytes>; 2]> {
        let is_older = older.is_some() && !self.then.is_detached(place)?;
        let is_newer = newer.is_some() && !self.now.is_detached(place)?;
        Ok([older.filter(|_| is_older), newer.filter(|_| is_newer)])
    }

    /// Calls `each` for every name that leads to another inode on the two sides.
    fn each_name(&mut self, sides: Sides<'_>, mut each: impl FnMut(Place, [Option<u64>; 2])) -> Result<()> {
        sides.each_touched_row(|KeyDifference { key, older, newer }| {
            let Some((directory, name)) = Placement::parse_key(&key).filter(|(_, name)| !name.is_empty())
            else {
                return Ok(());
            };
            let place = (directory, Bytes::copy_from_slice(name));
            let [older, newer] = self.attached(&place, [older, newer])?;
            let inode = |bytes: Option<Bytes>| -> Result<Option<u64>> {
                bytes.map(|bytes| Ok(Row::decode(&key, &bytes)?.inode())).transpose()
            };
            let inodes = [inode(older)?, inode(newer)?];
            if inodes[0] != inodes[1] {
                each(place, inodes);
            }
            Ok(())
        })
    }

    fn find_moved(&mut self, sides: Sides<'_>) -> Result<Moved> {
        let mut seen = [HashSet::new(), HashSet::new()];
        self.each_name(sides, |_, inodes| {
            for (inode, seen) in inodes.into_iter().zip(&mut seen) {
                if seen.len() < INODES_MAX {
                    seen.extend(inode);
                }
            }
        })?;
        let [gone, mut come] = seen;
        come.retain(|inode| gone.contains(inode));
        let mut moved = Moved::default();
        if come.is_empty() {
            return Ok(moved);
        }
        let mut bytes = 0;
        self.each_name(sides, |place, inodes| {
            for (side, inode) in inodes.into_iter().enumerate() {
                let Some(inode) = inode.filter(|inode| come.contains(inode)) else { continue };
                let names = &mut moved.0.entry(inode).or_default()[side];
                if names.len() < NAMES_MAX && bytes < MOVED_BYTES_MAX {
                    bytes += NAME_BYTES + place.1.len();
                    names.push(place.clone());
                }
            }
        })?;
        Ok(moved)
    }

    /// What there is to say of a row.
    fn line(&mut self, sides: Sides<'_>, row: KeyDifference) -> Result<Option<Difference>> {
        let KeyDifference { key, older, newer } = row;
        let Some((directory, name)) = Placement::parse_key(&key) else { return Ok(None) };
        let place = (directory, Bytes::copy_from_slice(name));
        let [older, newer] = self.attached(&place, [older, newer])?;
        match (found(sides.before, &key, older)?, found(sides.after, &key, newer)?) {
            (Some(old), Some(new)) if old.inode == new.inode => {
                let is_told = old.is_reference && new.is_reference;
                if is_told || !differ(&old, &new) && !sides.differ_inside(&old, &new)? {
                    return Ok(None);
                }
                let facts = (old.facts(sides.before)?, new.facts(sides.after)?);
                Ok(Some(difference(DiffKind::Changed, &new, self.now.path(&place)?, facts)))
            }
            // A row of its own comes and goes with names.
            _ if place.1.is_empty() => Ok(None),
            (old, Some(new)) => self.come(sides, &place, &new, old).map(Some),
            (Some(old), None) => self.gone(sides, &place, &old),
            (None, None) => Ok(None),
        }
    }

    /// A name leads to another file than before, which was `old`.
    fn come(
        &mut self,
        sides: Sides<'_>,
        place: &Place,
        new: &Found,
        old: Option<Found>,
    ) -> Result<Difference> {
        let (path, facts) = (self.now.path(place)?, new.facts(sides.after)?);
        let moved = self.moved.as_ref().and_then(|moved| moved.name_before(new.inode, place));
        if let Some(from) = moved.cloned() {
            let key = key_of(&from);
            let old = found(sides.before, &key, sides.before.rows().get(&key)?)?;
            let before = old.map(|old| old.facts(sides.before)).transpose()?.flatten();
            let from = Some(self.then.path(&from)?);
            return Ok(Difference { from, ..difference(DiffKind::Renamed, new, path, (before, facts)) });
        }
        let old = match old {
            Some(old) => Some(old),
            None => self.twin(sides, 1, place)?,
        };
        let kind = if old.is_some() { DiffKind::Changed } else { DiffKind::Added };
        let before = old.map(|old| old.facts(sides.before)).transpose()?.flatten();
        Ok(difference(kind, new, path, (before, facts)))
    }

    /// A name leads nowhere any more.
    fn gone(&mut self, sides: Sides<'_>, place: &Place, old: &Found) -> Result<Option<Difference>> {
        let has_moved = self.moved.as_ref().is_some_and(|moved| moved.has_moved(old.inode, place));
        if has_moved || self.twin(sides, 0, place)?.is_some() {
            // Told where it is now, or has changed.
            return Ok(None);
        }
        let facts = (old.facts(sides.before)?, None);
        Ok(Some(difference(DiffKind::Removed, old, self.then.path(place)?, facts)))
    }

    /// In a directory that was removed and made again, a name goes in the one and comes in the other: then it
    /// has changed. What is on the other side of `side` (0: before, 1: after) under the path of this name.
    fn twin(&mut self, sides: Sides<'_>, side: usize, (directory, name): &Place) -> Result<Option<Found>> {
        let views = [sides.before, sides.after];
        let (own, other) = (views[side], views[1 - side]);
        let known = self.twins[side].filter(|(of, _)| of == directory);
        let twin = if let Some((_, twin)) = known {
            twin
        } else if other.rows().has_own(*directory)? {
            None
        } else {
            let paths = if side == 0 { &mut self.then } else { &mut self.now };
            let twin = directory_at(other, &paths.path(&(*directory, Bytes::new()))?)?;
            match twin {
                // It was moved, and has its names still.
                Some(twin) if own.rows().has_own(twin)? => None,
                twin => twin,
            }
        };
        self.twins[side] = Some((*directory, twin));
        let Some(twin) = twin else { return Ok(None) };
        let place = (twin, name.clone());
        let key = key_of(&place);
        let Some(found) = found(other, &key, other.rows().get(&key)?)? else { return Ok(None) };
        let moved = self.moved.as_ref();
        let is_moved = moved.is_some_and(|moved| match side {
            0 => moved.name_before(found.inode, &place).is_some(),
            _ => moved.has_moved(found.inode, &place),
        });
        Ok((!is_moved).then_some(found))
    }
}

/// The least key behind `key`.
fn behind(key: &[u8]) -> Bytes {
    [key, b"\0"].concat().into()
}

fn directory_at(side: &FileSystem, path: &[u8]) -> Result<Option<u64>> {
    let Some(names) = path.strip_prefix(b"/") else { return Ok(None) };
    let mut at = ROOT_INODE;
    for name in names.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let key = key_of(&(at, Bytes::copy_from_slice(name)));
        let Some(bytes) = side.rows().get(&key)? else { return Ok(None) };
        let Row::Directory { inode, .. } = Row::decode(&key, &bytes)? else { return Ok(None) };
        at = inode;
    }
    Ok(Some(at))
}
