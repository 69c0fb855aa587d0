//! What has changed since a transaction, of that which it changed itself.
//!
//! Three states are compared: before the transaction, after it, and now. Names that lead elsewhere now, keys
//! with other values, inodes of which both have changed the same part, and whatever is new in directories
//! that the transaction made, are in the way. A part of an inode is its content (with size and time of
//! change), its mode, its owner, its group, each extended attribute.
//!
//! What a [`Selection`] says about obstacles is applied to the plan (`resolve`), and the search begins anew,
//! until nothing changes any more.
//!
//! Thread safety: belongs to one search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{KeyDifference, KeyRange, Keyspace, UndoPoint};

use super::super::compare::{Place, Sides, key_of};
use super::super::diff::{DiffKind, Difference, key_place};
use super::super::paths::Paths;
use super::super::restore::{Alone, NameChange, Plan, Target};
use super::{Obstacle, Selection};
use crate::dir::Ascent;
use crate::schema::{Header, Placement, ROOT_INODE, RowFlags, inode_key};
use crate::{FileSystem, FileType, Project, Result};

/// Obstacles for which the transaction behind them is looked for: people read the first few.
const ASCRIBED_MAX: usize = 64;

/// Attributes and inline content.
type Inner = (Header, Bytes);

/// What of the plan meets an obstacle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Cause {
    /// A name leads elsewhere now.
    Name(Place),
    /// An entry, or (with the empty name) attributes, of a directory that the transaction made.
    Made(Place),
    /// An inode of which both changed the same part.
    Inode(u64, Place),
    /// A file that has gone, and where it was before the transaction.
    Gone(u64, Place),
    /// A directory of which both changed the same part.
    Directory(u64),
    /// A directory that has gone.
    NoDirectory(u64),
    /// A file that would lose its last name, or has lost it.
    Links(u64),
    /// A directory that would be inside of itself.
    Cycle(u64),
    /// Something in a tree that goes as a whole, by the inode of its top.
    Leaving(u64, Place),
    /// A key of this keyspace with another value.
    Key(Arc<str>),
}

/// An obstacle, the record that tells of it, and what it stands in the way of.
pub(super) struct Found {
    pub(super) what: Difference,
    pub(super) record: (Keyspace, Bytes),
    pub(super) cause: Cause,
}

/// A path; or keyspace, a slash, and a key, beside the keyspace: the text alone may mean several.
pub(super) type FoundAt = (Vec<u8>, Option<Arc<str>>);

/// A search for obstacles.
pub(super) struct Search<'f> {
    /// Before and after the transaction.
    pub(super) done: Sides<'f>,
    /// After the transaction and now.
    pub(super) since: Sides<'f>,
    plan: Plan,
    pub(super) alone: Alone,
    pub(super) selection: Selection,
    /// Before the transaction, after it, and now.
    pub(super) before: Paths<&'f FileSystem>,
    pub(super) then: Paths<&'f FileSystem>,
    pub(super) now: Paths<&'f FileSystem>,
    /// Of files with several names, all that they had before the transaction; `None`: not asked for yet.
    pub(super) names: Option<BTreeMap<u64, Vec<Place>>>,
    /// By where they are told.
    pub(super) found: BTreeMap<FoundAt, Found>,
    /// Obstacles that have been dealt with.
    pub(super) settled: BTreeSet<(FoundAt, String)>,
    /// What others have moved on or removed, and comes back by force: where the transaction left it.
    pub(super) moved_on: BTreeMap<u64, Place>,
    /// Directories in which a name stays as it is.
    pub(super) left: BTreeSet<u64>,
    /// Tops of detached trees that come back.
    pub(super) returning: BTreeSet<u64>,
    /// Directories of detached trees of which something has been removed.
    pub(super) dismantled: BTreeSet<u64>,
    seen: BTreeSet<u64>,
}

impl<'f> Search<'f> {
    pub(super) fn new(done: Sides<'f>, now: &'f FileSystem, selection: &Selection) -> Result<Self> {
        if let Some(txn) = now.txn() {
            txn.begin_restore();
        }
        // Of a branch of a directory, that.
        let root = done.before.nodes.root().0;
        Ok(Self {
            done,
            since: Sides { before: done.after, after: now },
            plan: Plan::new(done)?,
            alone: Alone { selection: selection.clone(), ..Alone::default() },
            selection: selection.clone(),
            before: Paths::below(done.before, root),
            then: Paths::below(done.after, root),
            now: Paths::below(now, root),
            names: None,
            found: BTreeMap::new(),
            settled: BTreeSet::new(),
            moved_on: BTreeMap::new(),
            left: BTreeSet::new(),
            returning: BTreeSet::new(),
            dismantled: BTreeSet::new(),
            seen: BTreeSet::new(),
        })
    }

    /// Everything in the way, and what is needed when there is nothing.
    pub(super) fn run(mut self) -> Result<(Vec<Obstacle>, Alone, Plan)> {
        let mut plan = std::mem::take(&mut self.plan);
        self.bring_detached(&mut plan)?;
        self.limit(&mut plan)?;
        self.drop_what_is_back(&mut plan)?;
        loop {
            self.look(&plan)?;
            if !self.resolve(&mut plan)? {
                break;
            }
            self.found.clear();
            self.seen.clear();
            self.alone.moved.clear();
            self.alone.mtimes.clear();
        }
        let found = std::mem::take(&mut self.found);
        Ok((self.ascribe(found)?, self.alone, plan))
    }

    /// Names that lead where they led before, with the others of the same file: an undo of a part has been
    /// there.
    fn drop_what_is_back(&self, plan: &mut Plan) -> Result<()> {
        let now_at = |change: &NameChange| Target::at(self.view(), &change.place);
        let mut back = BTreeSet::new();
        for change in plan.names.iter().filter(|change| change.then.is_some()) {
            if now_at(change)? == change.then {
                back.extend(inode_of(change.then));
            }
        }
        let mut names = Vec::with_capacity(plan.names.len());
        for change in std::mem::take(&mut plan.names) {
            let is_of_one = [change.then, change.now].into_iter().flatten().any(|t| back.contains(&t.inode));
            if !is_of_one || now_at(&change)? != change.then {
                names.push(change);
            }
        }
        plan.names = names;
        plan.rename();
        Ok(())
    }

    /// Whether an inode is what it was before the transaction.
    fn is_back(&self, then: &Inner, now: &Inner) -> Result<bool> {
        // What a branch has not written says nothing of the main line.
        if self.done.before.origin.is_branch() {
            return Ok(false);
        }
        let back = Sides { before: self.done.before, after: self.view() };
        Ok(!parts_differ(&back, then, now)?)
    }

    fn look(&mut self, plan: &Plan) -> Result<()> {
        self.look_for_removed(plan)?;
        for change in &plan.names {
            self.look_at_name(plan, &change.place, change.now)?;
        }
        let before: BTreeMap<u64, Place> =
            plan.names.iter().filter_map(|change| Some((change.then?.inode, change.place.clone()))).collect();
        for (inode, place) in &plan.touched {
            self.look_inside(plan, *inode, [place; 3])?;
        }
        for change in &plan.names {
            let Some(target) = change.now else { continue };
            if let Some(place) = before.get(&target.inode) {
                let after = self.moved_on.get(&target.inode).unwrap_or(&change.place).clone();
                self.alone.moved.entry(target.inode).or_insert_with(|| after.clone());
                if target.kind != FileType::Directory {
                    self.look_inside(plan, target.inode, [place, &after, &change.place])?;
                }
            }
        }
        self.look_at_links(plan)?;
        self.look_into_leaving(plan)?;
        for &directory in &plan.directories {
            self.look_at_directory(directory)?;
        }
        self.look_for_cycles(plan)?;
        self.look_at_keys()
    }

    pub(super) fn view(&self) -> &'f FileSystem {
        self.since.after
    }

    fn add(
        &mut self,
        (kind, file): (DiffKind, Option<FileType>),
        path: Vec<u8>,
        record: (Keyspace, Bytes),
        cause: Cause,
    ) {
        let keyspace = if let Cause::Key(keyspace) = &cause { Some(Arc::clone(keyspace)) } else { None };
        let (place, at) = (path.clone(), (path, keyspace.clone()));
        if self.settled.contains(&settled_key(&at, &cause)) {
            return;
        }
        let [before, after] = [None, None];
        let what = Difference { kind, file, keyspace, place, from: None, bytes: None, before, after };
        self.found.entry(at).or_insert(Found { what, record, cause });
    }

    pub(super) fn add_place(
        &mut self,
        kind: DiffKind,
        file: FileType,
        place: &Place,
        cause: Cause,
    ) -> Result<()> {
        self.add_named(kind, file, place, place, cause)
    }

    /// As [`Self::add_place`], told by another name.
    fn add_named(
        &mut self,
        kind: DiffKind,
        file: FileType,
        name: &Place,
        place: &Place,
        cause: Cause,
    ) -> Result<()> {
        let names = match kind {
            DiffKind::Removed => &mut self.then,
            // A directory that is not there has a path where it comes from.
            _ if self.since.after.rows().has_own(name.0)? => &mut self.now,
            _ => &mut self.before,
        };
        let path = names.path(name)?;
        let record = (self.view().keyspaces.meta, key_of(place));
        self.add((kind, Some(file)), path, record, cause);
        Ok(())
    }

    /// A name that the transaction gave, took or turned: `after` is where it led.
    fn look_at_name(&mut self, plan: &Plan, place: &Place, after: Option<Target>) -> Result<()> {
        let now = Target::at(self.view(), place)?;
        let cause = Cause::Name(place.clone());
        match (after, now) {
            (None, Some(now)) => self.add_place(DiffKind::Added, now.kind, place, cause),
            (Some(after), None) => self.add_place(DiffKind::Removed, after.kind, place, cause),
            (Some(after), Some(now)) if after.inode != now.inode => {
                self.add_place(DiffKind::Changed, now.kind, place, cause)
            }
            (Some(after), Some(_)) if is_made(plan, after) => self.look_at_made(place, after),
            _ => Ok(()),
        }
    }

    /// A file that the transaction gave or took names, and that others have taken names since: it must not
    /// lose its last one, and there must be something to give a name back to.
    fn look_at_links(&mut self, plan: &Plan) -> Result<()> {
        // Names to be given back less those to be taken away, and a place for the message.
        let mut balance: BTreeMap<u64, (i64, &Place, FileType)> = BTreeMap::new();
        for change in plan.names.iter().filter(|change| inode_of(change.then) != inode_of(change.now)) {
            for (target, given) in [(change.then, 1), (change.now, -1)] {
                let kept =
                    target.filter(|target| target.kind != FileType::Directory && !is_made(plan, *target));
                let Some(target) = kept.filter(|target| plan.touched.contains_key(&target.inode)) else {
                    continue;
                };
                balance.entry(target.inode).or_insert((0, &change.place, target.kind)).0 += given;
            }
        }
        for (inode, (given, place, kind)) in balance {
            let now = self.view().rows().at(&(inode, Bytes::new()))?;
            let names = now.filter(|(now, _)| now.inode == inode).map(|(now, _)| i64::from(now.nlink));
            let is_lost = match names {
                Some(names) => names + given < 1,
                // It has gone with its last name; or it never had two, and is only moved.
                None => given > 0,
            };
            if is_lost {
                self.add_place(DiffKind::Changed, kind, place, Cause::Links(inode))?;
            }
        }
        Ok(())
    }

    /// Of what the transaction made, everything counts.
    fn look_at_made(&mut self, place: &Place, target: Target) -> Result<()> {
        if target.kind == FileType::Directory {
            return self.look_into_made(target.inode);
        }
        if self.is_file_changed(place, target.inode)? {
            self.add_place(DiffKind::Changed, target.kind, place, Cause::Name(place.clone()))?;
        }
        Ok(())
    }

    /// Whether anything of a file has changed since the transaction.
    pub(super) fn is_file_changed(&self, place: &Place, inode: u64) -> Result<bool> {
        let sides = [self.since.before.rows().at(place)?, self.since.after.rows().at(place)?];
        let [Some(then), Some(now)] = sides else { return Ok(false) };
        // Of names in a tree that comes back some may have gone.
        let are_all_there = self.returning.is_empty();
        let links = |header: &Header| if are_all_there { header.nlink } else { 0 };
        let facts = |header: &Header| (rights(header), links(header), header.rdev);
        Ok(facts(&then.0) != facts(&now.0)
            || self.since.content_differs((&then.0, &then.1), (&now.0, &now.1))?
            || self.since.differ_in(self.view().keyspaces.xattr, inode)?)
    }

    /// Whether rights or extended attributes of a directory have changed since the transaction.
    pub(super) fn is_directory_changed(&self, directory: u64) -> Result<bool> {
        let own = (directory, Bytes::new());
        let sides = [self.since.before.rows().at(&own)?, self.since.after.rows().at(&own)?];
        let [Some((then, _)), Some((now, _))] = sides else { return Ok(false) };
        Ok(rights(&then) != rights(&now) || self.since.differ_in(self.view().keyspaces.xattr, directory)?)
    }

    /// Rights and extended attributes of a directory that the transaction made, and what came into it since.
    fn look_into_made(&mut self, directory: u64) -> Result<()> {
        if self.is_directory_changed(directory)? {
            let own = (directory, Bytes::new());
            self.add_place(DiffKind::Changed, FileType::Directory, &own, Cause::Made(own.clone()))?;
        }
        let range = Placement::own_subtree(directory).entries_after(b"");
        let mut rows = self.since.differences(self.view().keyspaces.meta, range)?;
        while let Some(KeyDifference { key, older, newer }) = rows.next()? {
            let (older, newer) = (Target::of(&key, older.as_ref())?, Target::of(&key, newer.as_ref())?);
            if let (None, Some(new), Some((_, name))) = (older, newer, Placement::parse_key(&key)) {
                let place = (directory, key.slice_ref(name));
                self.add_place(DiffKind::Added, new.kind, &place, Cause::Made(place.clone()))?;
            }
        }
        Ok(())
    }

    /// A file that is there before and after the transaction, and where: before it, after it, and now.
    fn look_inside(&mut self, plan: &Plan, inode: u64, [before, after, place]: [&Place; 3]) -> Result<()> {
        if !self.seen.insert(inode) {
            return Ok(());
        }
        let of = |inner: Option<Inner>| inner.filter(|(header, _)| header.inode == inode);
        let then = of(self.done.before.rows().at(before)?);
        let (Some(then), Some(after)) = (then, of(self.done.after.rows().at(after)?)) else { return Ok(()) };
        let now = match self.view().rows().get(&key_of(place))? {
            Some(_) => of(self.view().rows().at(place)?),
            None => None,
        };
        let Some(now) = now else {
            if parts_differ(&self.done, &then, &after)? {
                let cause = Cause::Gone(inode, before.clone());
                let name = self.name_of(plan, inode, place)?;
                self.add_named(DiffKind::Removed, after.0.kind, &name, place, cause)?;
            }
            return Ok(());
        };
        let is_content = |sides: &Sides<'_>, a: &Inner, b: &Inner| {
            Ok::<_, crate::FsError>(
                a.0.kind == FileType::Regular && sides.content_differs((&a.0, &a.1), (&b.0, &b.1))?,
            )
        };
        let both = rights_of_both(&then.0, &after.0, &now.0)
            || (is_content(&self.done, &then, &after)? && is_content(&self.since, &after, &now)?)
            || self.same_xattr(&after.0, &now.0)?;
        if both && !self.is_back(&then, &now)? {
            let name = self.name_of(plan, inode, place)?;
            let cause = Cause::Inode(inode, place.clone());
            self.add_named(DiffKind::Changed, now.0.kind, &name, place, cause)?;
        }
        Ok(())
    }

    /// `place`, or the first name of a file that has several, whose row tells none.
    fn name_of(&mut self, plan: &Plan, inode: u64, place: &Place) -> Result<Place> {
        if !place.1.is_empty() {
            return Ok(place.clone());
        }
        self.learn_names(plan)?;
        Ok(self.names_of(inode)?.into_iter().next().unwrap_or_else(|| place.clone()))
    }

    /// Whether an extended attribute that the transaction changed has changed again.
    fn same_xattr(&self, after: &Header, now: &Header) -> Result<bool> {
        if !(after.flags | now.flags).has(RowFlags::XATTRS) {
            return Ok(false);
        }
        let range = KeyRange::prefix(&inode_key(now.inode));
        let mut changed = self.done.differences(self.view().keyspaces.xattr, range)?;
        while let Some(KeyDifference { key, newer, .. }) = changed.next()? {
            if self.view().origin.read().get(self.view().keyspaces.xattr, &key)? != newer {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// A directory in which the transaction changed something, or that it changed itself.
    fn look_at_directory(&mut self, directory: u64) -> Result<()> {
        let own = (directory, Bytes::new());
        let (then, after) = (self.done.before.rows().at(&own)?, self.done.after.rows().at(&own)?);
        // What came or went with the transaction has a name that did, too.
        let (Some((then, _)), Some((after, _))) = (then, after) else { return Ok(()) };
        let Some((now, _)) = self.view().rows().at(&own)? else {
            let cause = Cause::NoDirectory(directory);
            return self.add_place(DiffKind::Removed, FileType::Directory, &own, cause);
        };
        if rights_of_both(&then, &after, &now) || self.same_xattr(&after, &now)? {
            self.add_place(DiffKind::Changed, FileType::Directory, &own, Cause::Directory(directory))?;
        }
        // Entries of others count: then it is theirs.
        let is_others = now.mtime != after.mtime && !self.dismantled.contains(&directory);
        let is_left = is_others || self.left.contains(&directory);
        let mtime = if is_left { now.mtime } else { then.mtime };
        self.alone.mtimes.insert(directory, mtime);
        Ok(())
    }

    /// A directory can't go back to a place that is below it by now.
    fn look_for_cycles(&mut self, plan: &Plan) -> Result<()> {
        let moved: BTreeMap<u64, &Place> = plan
            .names
            .iter()
            .filter_map(|change| Some((change.then.filter(|then| plan.is_kept(*then))?, &change.place)))
            .filter(|(then, _)| then.kind == FileType::Directory)
            .map(|(then, place)| (then.inode, place))
            .collect();
        for (&directory, &place) in &moved {
            let (mut at, mut ascent) = (place.0, Ascent::default());
            while at != ROOT_INODE && at != directory {
                ascent.step(at)?;
                at = match moved.get(&at) {
                    Some(place) => place.0,
                    None => match self.view().rows().at(&(at, Bytes::new()))? {
                        Some((header, _)) => header.parent,
                        // It is made again, above something that was there.
                        None => match self.done.before.rows().at(&(at, Bytes::new()))? {
                            Some((header, _)) => header.parent,
                            None => ROOT_INODE,
                        },
                    },
                };
            }
            if at == directory {
                let own = (place.0, Bytes::new());
                self.add_place(DiffKind::Renamed, FileType::Directory, &own, Cause::Cycle(directory))?;
            }
        }
        Ok(())
    }

    fn look_at_keys(&mut self) -> Result<()> {
        let view = self.view();
        for info in view.shared.keyspaces.user_keyspaces() {
            let name: Arc<str> = Arc::from(info.name);
            let mut keys = self.done.differences(info.keyspace, KeyRange::all())?;
            while let Some(KeyDifference { key, older, newer }) = keys.next()? {
                if !self.alone.takes_key(info.keyspace, &name, &key) {
                    continue;
                }
                let now = view.origin.read().get(info.keyspace, &key)?;
                let kind = match (&newer, &now) {
                    (newer, now) if newer == now || older == *now => continue,
                    (None, _) => DiffKind::Added,
                    (_, None) => DiffKind::Removed,
                    _ => DiffKind::Changed,
                };
                let place = key_place(&name, &key);
                self.add((kind, None), place, (info.keyspace, key), Cause::Key(Arc::clone(&name)));
            }
        }
        Ok(())
    }

    /// The author of each: the last transaction since that is known and has changed the record.
    fn ascribe(&self, found: BTreeMap<FoundAt, Found>) -> Result<Vec<Obstacle>> {
        let store = &self.view().store;
        let after = self.done.after.origin.pinned()?;
        let mut later: Vec<(UndoPoint, _)> = Vec::new();
        if !found.is_empty() {
            for point in store.undo_points().into_iter().filter(|point| point.before.0 >= after) {
                // One that goes just now is not known any more.
                if let Ok(views) = store.open_undo(point.txn) {
                    later.insert(0, (point, views));
                }
            }
        }
        let mut obstacles = Vec::with_capacity(found.len());
        for (at, Found { what, record: (keyspace, key), .. }) in found.into_values().enumerate() {
            let mut by = None;
            for (point, views) in later.iter().filter(|_| at < ASCRIBED_MAX) {
                if views.before.get(keyspace, &key)? != views.after.get(keyspace, &key)? {
                    by = Some(point.clone());
                    break;
                }
            }
            obstacles.push(Obstacle { what, by });
        }
        Ok(obstacles)
    }
}

/// Whether the transaction changed anything but the number of names.
fn parts_differ(sides: &Sides<'_>, a: &Inner, b: &Inner) -> Result<bool> {
    let differs = rights(&a.0) != rights(&b.0)
        || (a.0.kind == FileType::Regular && sides.content_differs((&a.0, &a.1), (&b.0, &b.1))?);
    Ok(differs || sides.differ_in(sides.after.keyspaces.xattr, a.0.inode)?)
}

/// Under what an obstacle is remembered that has been dealt with.
pub(super) fn settled_key(at: &FoundAt, cause: &Cause) -> (FoundAt, String) {
    (at.clone(), format!("{cause:?}"))
}

/// Whether the transaction made it.
fn is_made(plan: &Plan, target: Target) -> bool {
    !plan.is_kept(target) && !plan.touched.contains_key(&target.inode)
}

fn inode_of(target: Option<Target>) -> Option<u64> {
    target.map(|target| target.inode)
}

/// What of an inode says who may do what with it, and how its content is stored.
pub(super) fn rights(header: &Header) -> (u32, u32, u32, Project, RowFlags) {
    (header.mode, header.uid, header.gid, header.project(), header.flags.only(RowFlags::HANDED_DOWN))
}

/// Whether the mode, the owner, the group, the project or how content is stored was changed, and changed
/// again.
fn rights_of_both(then: &Header, after: &Header, now: &Header) -> bool {
    let both = |of: fn(&Header) -> u32| of(then) != of(after) && of(after) != of(now);
    let owners = both(|header| header.mode) || both(|header| header.uid) || both(|header| header.gid);
    let settings = [RowFlags::COMPRESSION, RowFlags::TIER].into_iter().any(|of| {
        let of = |header: &Header| header.flags.only(of);
        of(then) != of(after) && of(after) != of(now)
    });
    let project = Header::project;
    owners || settings || (project(then) != project(after) && project(after) != project(now))
}
