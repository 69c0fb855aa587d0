//! A connection: a process to the file system.
//!
//! Thread safety: everything is `&self`; the table of handles is locked for a few instructions.
//!
//! Invariant: a handle of the table is a descriptor of the process, the same one as long as it is there: a
//! hidden one, which no client reaches by a number.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_lane::{LaneEnd, NUMBERED};
use kvfs_locks::{Mutex, class};
use kvfs_posix::{DESCRIPTORS_MAX, Fd, Process, SharedFile, close_hidden, end_range_locks, interrupt};
use rustix::fs::OFlags;
use rustix::io::Errno;

use crate::begun::Begun;
use crate::images::{Image, Images};
use crate::placeholders::Placeholders;
use crate::server::Leaving;

/// See the module.
pub(crate) struct Session {
    process: Process,
    begun: Begun,
    placeholders: Arc<Placeholders>,
    images: Arc<Images>,
    /// Descriptors of placeholders.
    table: Mutex<HashMap<u64, Fd>, class::ServeSessionTable>,
    /// None: the connection has ended.
    lanes: Mutex<Option<Vec<LaneEnd>>, class::ServeSessionLanes>,
    /// The server waits for it.
    _leaving: Leaving,
}

impl Session {
    pub(crate) fn new(
        process: Process,
        begun: Begun,
        (placeholders, images): (Arc<Placeholders>, Arc<Images>),
        leaving: Leaving,
    ) -> Arc<Self> {
        placeholders.enter(begun.uid());
        let (table, lanes) = (Mutex::default(), Mutex::new(Some(Vec::new())));
        Arc::new(Self { process, begun, placeholders, images, table, lanes, _leaving: leaving })
    }

    pub(crate) fn process(&self) -> &Process {
        &self.process
    }

    pub(crate) fn uid(&self) -> u32 {
        self.begun.uid()
    }

    /// The transactions that it has begun.
    pub(crate) fn begun(&self) -> &Begun {
        &self.begun
    }

    /// A lane is to be ended with the connection.
    pub(crate) fn add_lane(&self, end: LaneEnd) -> Result<(), Errno> {
        let mut lanes = self.lanes.lock();
        let lanes = lanes.as_mut().ok_or(Errno::NOTCONN)?;
        // Clients may end theirs.
        lanes.retain(|lane| !lane.is_gone());
        lanes.push(end);
        Ok(())
    }

    /// No call is answered from now on, and none waits for a lock.
    pub(crate) fn cut(&self) {
        for lane in self.lanes.lock().take().into_iter().flatten() {
            lane.end();
        }
        interrupt(&self.process);
    }

    /// The connection ends: so do its lanes, what they wait for, and its locks.
    pub(crate) fn end(self: &Arc<Self>) {
        self.cut();
        end_range_locks(&self.process);
        self.placeholders.leave(self);
    }

    /// The descriptor of a handle; adopts the open file of a placeholder that came from elsewhere.
    pub(crate) fn descriptor(self: &Arc<Self>, handle: u64) -> kvfs_posix::Result<Fd> {
        if let Some(fd) = numbered(handle) {
            return Ok(fd);
        }
        let mut table = self.table.lock();
        if let Some(fd) = table.get(&handle) {
            return Ok(*fd);
        }
        let file = self.placeholders.adopt(handle, self).map_err(refused)?;
        let fd = file.adopt_hidden(&self.process)?;
        table.insert(handle, fd);
        Ok(fd)
    }

    /// The descriptor of a handle that a call has used.
    pub(crate) fn opened(&self, handle: u64) -> Option<Fd> {
        numbered(handle).or_else(|| self.table.lock().get(&handle).copied())
    }

    /// The memory of an open file, for mappings that are shared.
    pub(crate) fn map(self: &Arc<Self>, handle: u64) -> kvfs_posix::Result<Arc<Image>> {
        let file = self.placeholders.file(handle, self).map_err(refused)?;
        let flags = file.flags();
        if flags.intersection(OFlags::RWMODE) != OFlags::RDWR || flags.contains(OFlags::APPEND) {
            return Err(refused(Errno::NODEV));
        }
        file.check_view(&self.process)?;
        let image = self.images.open(&self.process, &file, self.uid())?;
        self.placeholders.keep_image(handle, &image, self).map_err(refused)?;
        Ok(image)
    }

    /// Memories of mapped files.
    pub(crate) fn images(&self) -> &Images {
        &self.images
    }

    /// Whether what is opened can be named by `handle`: what was given out by another server, or has a file,
    /// is refused before a file is made or truncated.
    pub(crate) fn check_unused(self: &Arc<Self>, handle: u64) -> kvfs_posix::Result<()> {
        self.placeholders.check_unused(handle, self).map_err(refused)
    }

    /// Names what was opened: by a number that it gets now, or by a placeholder.
    pub(crate) fn name(
        self: &Arc<Self>,
        file: SharedFile,
        closes_on_exec: bool,
        handle: Option<u64>,
    ) -> kvfs_posix::Result<u64> {
        let Some(handle) = handle else { return Ok(handle_of(file.adopt(&self.process, closes_on_exec)?)) };
        let mut table = self.table.lock();
        let fd = file.adopt_hidden(&self.process)?;
        let bound = self.placeholders.bind(handle, file, self).map_err(refused);
        match bound {
            Ok(()) => table.insert(handle, fd),
            Err(error) => {
                drop(table);
                close_hidden(&self.process, fd)?;
                return Err(error);
            }
        };
        Ok(handle)
    }

    /// The program closes a descriptor, or could not open the placeholder of a file. Where others have copies
    /// of that, calls of theirs may be under way: the handle stays, and locks of ranges that the process has
    /// on the file end.
    pub(crate) fn close(&self, handle: u64) -> kvfs_posix::Result<()> {
        if let Some(fd) = numbered(handle) {
            return self.process.close(fd);
        }
        self.placeholders.abandon(handle, self);
        if let Ok(file) = self.placeholders.file(handle, self) {
            file.end_range_locks(&self.process);
        }
        Ok(())
    }

    /// Files end that clients have closed.
    pub(crate) fn settle(&self) {
        self.placeholders.settle();
    }

    /// Files end that clients have closed, and what was written into mapped memory of the view reaches its
    /// file.
    pub(crate) fn settle_all(&self) -> kvfs_posix::Result<()> {
        self.settle();
        self.images.write_all(&self.process, self.uid())
    }

    /// The last placeholder was closed.
    pub(crate) fn lose(&self, handle: u64) {
        // Held on: a file that is opened meanwhile keeps the locks that are taken by it.
        let mut table = self.table.lock();
        if let Some(fd) = table.remove(&handle) {
            // It is the session's own.
            let _ = close_hidden(&self.process, fd);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.placeholders.exit(self.uid());
        tracing::debug!(uid = self.uid(), "a connection has ended");
    }
}

/// The handle of a descriptor that the client knows by its number.
pub(crate) fn handle_of(fd: Fd) -> u64 {
    NUMBERED | u64::from(fd.0 as u32)
}

/// The descriptor that a client names by its number; `None`: it names a placeholder. Those of placeholders
/// have no such number.
fn numbered(handle: u64) -> Option<Fd> {
    let number = (handle & NUMBERED != 0).then_some(handle & !NUMBERED)?;
    // The process refuses what is no descriptor.
    Some(Fd(if number < DESCRIPTORS_MAX as u64 { number as i32 } else { -1 }))
}

/// A refusal of this crate.
pub(crate) fn refused(errno: Errno) -> kvfs_posix::PosixError {
    kvfs_posix::PosixError::Refused { errno, reason: "no open file of this connection" }
}
