//! Where directories are on one side of a comparison, and paths made of that.
//!
//! Thread safety: plain values. Invariants: of each directory its parent and name are kept, not its path, so
//! memory does not depend on how deep a tree is, and has a bound: above it everything is learned anew, and of
//! a directory with more subdirectories than fit the others are told by number. A circle is an error.

use std::collections::{HashMap, HashSet};
use std::ops::Deref;

use bytes::Bytes;

use super::compare::Place;
use crate::dir::Ascent;
use crate::schema::{DETACHED_INODE, Placement, ROOT_INODE, Row};
use crate::{FileSystem, FileType, Result};

/// Memory of what was learned, and of what was found by the way (bytes, about).
const PLACES_BYTES_MAX: usize = 8 << 20;

/// Directories of which it is remembered in which detached tree they are.
const TREES_MAX: usize = 1 << 16;

/// Of those on the way up from one, the lowest.
const PASSED_MAX: usize = 64;

/// What a directory takes beside its name.
const PLACE_BYTES: usize = 96;

/// Longest path that is told from the root on (bytes, about): system calls take a quarter of it.
const PATH_LEN_MAX: usize = 16 << 10;

/// Where something is.
enum Above {
    /// In this directory, under this name.
    In(u64, Bytes),
    /// A file with several names: one of them.
    Path(Vec<u8>),
    Unknown,
}

/// What paths outside of their root begin with.
const OUTSIDE: &[u8] = b"(outside)";

/// What was learned.
struct Places {
    /// Paths begin here.
    root: u64,
    above: HashMap<u64, Above>,
    bytes: usize,
}

impl Places {
    fn new(root: u64) -> Self {
        Self { root, above: HashMap::new(), bytes: 0 }
    }

    /// Path of a name; with the empty name, of the directory itself. Where the way to the root is not known,
    /// or longer than a reader takes in, it begins with a number. O(its length).
    fn path(&self, (directory, name): &Place) -> Vec<u8> {
        let (mut names, mut bytes, mut at) = (Vec::new(), 0, *directory);
        let mut path = loop {
            match self.above.get(&at) {
                _ if at == self.root => break Vec::new(),
                _ if at == ROOT_INODE => break OUTSIDE.to_vec(),
                _ if at == DETACHED_INODE => break b"(removed)".to_vec(),
                Some(Above::In(parent, name)) if bytes <= PATH_LEN_MAX => {
                    bytes += name.len() + 1;
                    names.push(name);
                    at = *parent;
                }
                Some(Above::Path(path)) => break path.clone(),
                _ => break format!("(inode {at})").into_bytes(),
            }
        };
        for name in names.into_iter().rev().chain(Some(name).filter(|name| !name.is_empty())) {
            path.push(b'/');
            path.extend_from_slice(name);
        }
        if path.is_empty() { b"/".to_vec() } else { path }
    }
}

/// Paths on one side.
pub(crate) struct Paths<F> {
    fs: F,
    /// Whether there are detached trees; `None`: that was not asked yet.
    has_detached: Option<bool>,
    /// In which of them directories are, if in any, as far as that is remembered.
    trees: HashMap<u64, Option<u64>>,
    places: Places,
    /// Directories whose subdirectories were listed.
    listed: HashSet<u64>,
    /// Names of subdirectories that were listed and not asked for yet.
    found: HashMap<u64, Bytes>,
    found_bytes: usize,
}

impl<F: Deref<Target = FileSystem>> Paths<F> {
    /// From the root of the view.
    pub(crate) fn new(fs: F) -> Self {
        let root = fs.nodes.root().0;
        Self::below(fs, root)
    }

    /// From the directory with this inode. What is not below it has a path that begins with `(outside)`.
    pub(crate) fn below(fs: F, root: u64) -> Self {
        let (places, listed, found) = (Places::new(root), HashSet::new(), HashMap::new());
        Self { fs, has_detached: None, trees: HashMap::new(), places, listed, found, found_bytes: 0 }
    }

    /// Whether a name is in a detached tree: as far as paths go, it is not there.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub(crate) fn is_detached(&mut self, place: &Place) -> Result<bool> {
        Ok(self.detached_tree(place.0)?.is_some())
    }

    /// The detached tree that a directory is in, by the inode of its top.
    ///
    /// # Errors
    /// As [`Self::path`].
    pub(crate) fn detached_tree(&mut self, directory: u64) -> Result<Option<u64>> {
        let has_detached = match self.has_detached {
            Some(known) => known,
            None => *self.has_detached.insert(self.fs.rows().has_own(DETACHED_INODE)?),
        };
        if !has_detached {
            return Ok(None);
        }
        // By what directories say themselves: of names only some are known.
        let (mut at, mut below, mut ascent) = (directory, directory, Ascent::default());
        let mut passed = Vec::new();
        let tree = loop {
            if at == DETACHED_INODE {
                break Some(below);
            }
            if let Some(tree) = self.trees.get(&at) {
                break *tree;
            }
            let Some((header, _)) = self.fs.rows().at(&(at, Bytes::new()))? else { break None };
            if at == ROOT_INODE || header.kind != FileType::Directory {
                break None;
            }
            ascent.step(at)?;
            if passed.len() < PASSED_MAX {
                passed.push(at);
            }
            (below, at) = (at, header.parent);
        };
        if self.trees.len() > TREES_MAX {
            self.trees.clear();
        }
        self.trees.extend(passed.into_iter().map(|directory| (directory, tree)));
        Ok(tree)
    }

    /// See [`Places::path`].
    ///
    /// # Errors
    /// As [`Self::learn`].
    pub(crate) fn path(&mut self, place: &Place) -> Result<Vec<u8>> {
        self.learn(place.0)?;
        Ok(self.places.path(place))
    }

    /// Learns where the directory is, and all above it. O(directories above that are not known), and O(n) in
    /// the entries of each, once.
    ///
    /// # Errors
    /// Store errors; `Corrupt` where a directory is inside of itself.
    fn learn(&mut self, directory: u64) -> Result<()> {
        if self.places.bytes > PLACES_BYTES_MAX || self.found_bytes > PLACES_BYTES_MAX {
            self.places = Places::new(self.places.root);
            (self.listed, self.found, self.found_bytes) = (HashSet::new(), HashMap::new(), 0);
        }
        let (mut at, mut ascent, mut levels) = (directory, Ascent::default(), 0);
        // Of those further above no path is told.
        while ![self.places.root, ROOT_INODE, DETACHED_INODE].contains(&at)
            && !self.places.above.contains_key(&at)
            && levels <= PATH_LEN_MAX / 2
        {
            ascent.step(at)?;
            levels += 1;
            let above = self.look(at)?;
            let (parent, bytes) = match &above {
                Above::In(parent, name) => (*parent, name.len()),
                Above::Path(path) => (ROOT_INODE, path.len()),
                Above::Unknown => (ROOT_INODE, 0),
            };
            self.places.bytes += PLACE_BYTES + bytes;
            self.places.above.insert(at, above);
            at = parent;
        }
        Ok(())
    }

    fn look(&mut self, inode: u64) -> Result<Above> {
        let (meta, read) = (self.fs.keyspaces.meta, self.fs.origin.read());
        let Some(bytes) = read.get(meta, &Placement::own_subtree(inode).own_key())? else {
            return Ok(Above::Unknown);
        };
        let (header, _) = Row::decode_own(inode, &bytes)?;
        if header.kind != FileType::Directory {
            // Its names are anywhere; the main line may know one.
            let is_of_view = self.places.root == self.fs.nodes.root().0;
            let path = if self.places.root == ROOT_INODE {
                self.fs.lock_words().path_of(inode)
            } else {
                let path = is_of_view.then(|| self.fs.nodes.path_of(inode)).flatten();
                path.map(|path| String::from_utf8_lossy(&path).into_owned())
            };
            return Ok(path.map_or(Above::Unknown, |path| Above::Path(path.into_bytes())));
        }
        self.list(header.parent)?;
        let Some(name) = self.found.remove(&inode) else { return Ok(Above::Unknown) };
        self.found_bytes = self.found_bytes.saturating_sub(PLACE_BYTES + name.len());
        Ok(Above::In(header.parent, name))
    }

    /// Notes the names of all subdirectories that fit, once.
    fn list(&mut self, parent: u64) -> Result<()> {
        if !self.listed.insert(parent) {
            return Ok(());
        }
        let (meta, read) = (self.fs.keyspaces.meta, self.fs.origin.read());
        let placement = Placement::own_subtree(parent);
        let mut entries = read.cursor(meta, placement.entries_after(b""))?;
        entries.next()?;
        while let Some((key, bytes)) = entries.entry() {
            if let Row::Directory { inode, .. } = Row::decode(key, bytes)?
                && self.found_bytes <= 2 * PLACES_BYTES_MAX
            {
                let name = Bytes::copy_from_slice(&key[placement.prefix_len()..]);
                self.found_bytes += PLACE_BYTES + name.len();
                self.found.insert(inode, name);
            }
            entries.next()?;
        }
        Ok(())
    }
}
