//! Listing directories: one range scan of rows, decoded straight into the caller's buffer.

mod ascent;
mod cookies;
mod habits;

pub(crate) use ascent::Ascent;
pub(crate) use cookies::{CookieTable, Resume};
pub(crate) use habits::Habits;

use kvfs_store::{Keyspace, Read};
use kvfs_txn::{LockName, Want};

use crate::attr::AccessTimes;
use crate::namespace::Resolver;
use crate::node::{Node, NodeTable, Pin};
use crate::scan::{Foresight, ListedFile};
use crate::schema::Row;
use crate::types::ShownPrivileges;
use crate::view::{Locker, Origin};
use crate::{Attr, Caller, DirEntry, Entry, FileSystem, FileType, Fill, FsError, HeldNode, NodeId, Result};
use cookies::{OFFSET_DOT, OFFSET_DOT_DOT};

/// Takes entries until it is full.
type Sink<'a> = &'a mut dyn FnMut(&DirEntry<'_>) -> Fill;

/// What becomes of the nodes of what is listed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Nodes {
    /// They are not looked at.
    Unread,
    /// Each counts a lookup, and the sink is told its [`Entry`]: all but so many files.
    Counted { withheld: usize },
    /// They are kept with their names, where names are kept.
    Kept,
}

/// Walks over the rows of a directory.
struct Listing<'v> {
    origin: &'v Origin,
    locker: Locker<'v>,
    times: AccessTimes<'v>,
    resolver: Resolver<'v>,
    meta: Keyspace,
    nodes: &'v NodeTable,
    foresight: Foresight<'v>,
    habits: &'v Habits,
    shows: ShownPrivileges,
}

impl<'v> Listing<'v> {
    fn new(fs: &'v FileSystem) -> Self {
        Self {
            origin: &fs.origin,
            locker: fs.locker(),
            times: AccessTimes::new(fs),
            resolver: fs.resolver(),
            meta: fs.keyspaces.meta,
            nodes: &fs.nodes,
            foresight: Foresight::new(fs),
            habits: &fs.habits,
            shows: fs.shows,
        }
    }

    fn list(&self, caller: &Caller, node: NodeId, offset: u64, nodes: Nodes, sink: Sink<'_>) -> Result<()> {
        let (node, directory) = self.locker.pin_directory(node)?;
        if node.is_orphan() {
            return Ok(());
        }
        self.locker.lock_read(caller, &[Want::shared(LockName::Entries { directory: node.inode })])?;
        if offset == 0 {
            self.times.note(caller, &node);
        }
        let parent = if node.inode == self.nodes.root().0 { node.inode } else { node.header().parent };
        if !list_dots(&node, parent, offset, sink) {
            return Ok(());
        }
        let resume = directory.cookies.lock().resolve(offset);
        let resume = resume.ok_or(FsError::Invalid("a directory offset that was not given out"))?;
        // Attributes are locked one by one, when the caller looks at them.
        let nodes = if self.origin.locks_reads() { Nodes::Unread } else { nodes };
        let (mut has_entries, mut has_withheld, mut files) = (false, false, Vec::new());
        let result = self.list_entries(&node, (offset, &resume), nodes, &mut |entry, file| {
            let filled = sink(entry);
            if filled != Fill::Full {
                has_entries = true;
                has_withheld |= entry.entry.is_none();
                files.extend(file);
            }
            filled
        });
        if has_withheld && matches!(nodes, Nodes::Counted { .. }) {
            directory.set_withheld(caller.pid);
            self.habits.note_withheld(caller.pid);
        }
        self.foresight.listed(node.inode, offset == 0, &files);
        {
            let mut book = directory.cookies.lock();
            let (bytes_before, bytes) = book.tell_memory();
            self.nodes.note_resized(bytes_before, bytes);
        }
        // What was taken must reach the caller, whose lookups were counted; the next call meets the error.
        // Without counted lookups nothing is lost by answering the doom instead.
        self.origin.confirm_read()?;
        if has_entries { Ok(()) } else { result }
    }

    /// `from`: the offset after which the listing goes on, and where that is.
    fn list_entries(
        &self,
        node: &Pin<'_>,
        from: (u64, &Resume),
        nodes: Nodes,
        sink: &mut dyn FnMut(&DirEntry<'_>, Option<ListedFile>) -> Fill,
    ) -> Result<()> {
        let Some(directory) = &node.directory else { return Err(FsError::NotDirectory) };
        let (mut offset, resume) = from;
        let prefix_len = directory.placement.prefix_len();
        let listed = if nodes == Nodes::Kept { self.nodes.begin_listing() } else { None };
        let (is_counted, mut withheld) = match nodes {
            Nodes::Counted { withheld } => (true, withheld),
            Nodes::Unread | Nodes::Kept => (false, 0),
        };
        let epoch = self.nodes.epoch();
        let mut cursor =
            self.origin.read().cursor(self.meta, directory.placement.entries_after(&resume.after))?;
        let mut to_skip = resume.skip;
        loop {
            cursor.next()?;
            let Some((key, bytes)) = cursor.entry() else { return Ok(()) };
            if to_skip > 0 {
                to_skip -= 1;
                continue;
            }
            let name = &key[prefix_len..];
            let row = Row::decode(key, bytes)?;
            let (inode, kind) = (row.inode(), row.kind());
            let file = match &row {
                Row::Inode(header, _) => ListedFile::new(header),
                Row::Directory { .. } | Row::Link { .. } => None,
            };
            let is_withheld = withheld > 0 && kind != FileType::Directory;
            let is_counted = is_counted && !is_withheld;
            if !is_counted && listed.is_none() {
                offset = directory.cookies.lock().offset_of(name, offset);
                if sink(&DirEntry { name, inode, kind, offset, entry: None }, file) == Fill::Full {
                    return Ok(());
                }
                withheld = withheld.saturating_sub(1);
                continue;
            }
            let Some((pin, attr)) = self.listed_node(node, name, row, epoch)? else { continue };
            let entry = is_counted.then_some(Entry { node: NodeId(inode), generation: 0, attr });
            offset = directory.cookies.lock().offset_of(name, offset);
            if sink(&DirEntry { name, inode, kind, offset, entry }, file) == Fill::Full {
                return Ok(());
            }
            if let Some(listed) = listed {
                self.nodes.keep_listed(listed, node.inode, name, &pin);
            }
            if is_counted {
                pin.count_lookup();
            }
        }
    }

    /// The node of a scanned row; read again where the scan may be out of date. `None`: gone meanwhile.
    fn listed_node(
        &self,
        parent: &Pin<'_>,
        name: &[u8],
        row: Row<'_>,
        epoch: u64,
    ) -> Result<Option<(Pin<'v>, Attr)>> {
        let inode = row.inode();
        let pin = match self.resolver.intern_row(parent, name, row, epoch)? {
            Some(pin) => pin,
            None => match self.resolver.resolve(parent, name) {
                Ok(pin) => pin,
                Err(FsError::NotFound) => return Ok(None),
                Err(error) => return Err(error),
            },
        };
        let state = pin.state();
        let is_listed = pin.inode == inode && !state.is_orphan();
        let attr = self.shows.attr(state.header.attr());
        drop(state);
        Ok(is_listed.then_some((pin, attr)))
    }
}

impl FileSystem {
    /// Lists a directory from `offset` (0: the start; else a [`DirEntry::offset`]) on, in the order of names
    /// after `.` and `..`. Never parks. O(log n) to get to the offset, then one range scan.
    ///
    /// An entry that exists throughout is listed exactly once, whatever comes and goes meanwhile.
    ///
    /// # Errors
    /// `NotDirectory`; `Invalid` for an offset that was never given out; store errors.
    pub fn readdir(&self, caller: &Caller, node: NodeId, offset: u64, sink: Sink<'_>) -> Result<()> {
        Listing::new(self).list(caller, node, offset, Nodes::Unread, sink)
    }

    /// As [`Self::readdir`], with an [`Entry`] each whose lookup count goes up. Never parks. Files come
    /// without one for programs that do not look at files; one at a time to find out ([`Caller::pid`]).
    ///
    /// # Errors
    /// As [`Self::readdir`].
    pub fn readdirplus(&self, caller: &Caller, node: NodeId, offset: u64, sink: Sink<'_>) -> Result<()> {
        let withheld = self.habits.begin_listing(caller.pid, offset == 0);
        Listing::new(self).list(caller, node, offset, Nodes::Counted { withheld }, sink)
    }
}

impl HeldNode {
    /// As [`FileSystem::readdir`] of this directory. Where names are kept ([`NodeTable::keep_names`]) those
    /// that are listed are kept, too, with their nodes: for a caller that looks up what it lists.
    ///
    /// # Errors
    /// As [`FileSystem::readdir`].
    pub fn list(&self, caller: &Caller, offset: u64, sink: Sink<'_>) -> Result<()> {
        Listing::new(self.fs()).list(caller, self.node(), offset, Nodes::Kept, sink)
    }
}

/// Whether a directory has no entries, by looking.
pub(crate) fn is_empty(read: &dyn Read, meta: Keyspace, node: &Node) -> Result<bool> {
    let Some(directory) = &node.directory else { return Err(FsError::NotDirectory) };
    let mut cursor = read.cursor(meta, directory.placement.entries_after(b""))?;
    cursor.next()?;
    Ok(cursor.entry().is_none())
}

/// Lists `.` and `..` where they come after `offset`. Whether to go on.
fn list_dots(node: &Node, parent: u64, offset: u64, sink: Sink<'_>) -> bool {
    let kind = FileType::Directory;
    for (name, inode, own_offset) in [(&b"."[..], node.inode, OFFSET_DOT), (b"..", parent, OFFSET_DOT_DOT)] {
        let entry = DirEntry { name, inode, kind, offset: own_offset, entry: None };
        if offset < own_offset && sink(&entry) == Fill::Full {
            return false;
        }
    }
    true
}
