//! A connection: a process to the file system.
//!
//! Thread safety: everything is `&self`; the table of handles is locked for a few instructions.
//!
//! Invariant: a handle of the table is a descriptor of the process, the same one as long as it is there.

use std::collections::HashMap;
use std::sync::Arc;

use kvfs_lane::{LaneEnd, NUMBERED};
use kvfs_locks::{Mutex, class};
use kvfs_posix::{Fd, Process, SharedFile, interrupt};
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

    /// The connection ends: so do its lanes, and what they wait for.
    pub(crate) fn end(self: &Arc<Self>) {
        self.cut();
        self.placeholders.leave(self);
    }

    /// The descriptor of a handle; adopts the open file of a placeholder that came from elsewhere.
    pub(crate) fn descriptor(self: &Arc<Self>, handle: u64) -> kvfs_posix::Result<Fd> {
        if handle & NUMBERED != 0 {
            // The process refuses what is no descriptor.
            return Ok(Fd((handle & !NUMBERED) as i32));
        }
        let mut table = self.table.lock();
        if let Some(fd) = table.get(&handle) {
            return Ok(*fd);
        }
        let file = self.placeholders.adopt(handle, self).map_err(refused)?;
        let fd = file.adopt(&self.process, true)?;
        table.insert(handle, fd);
        Ok(fd)
    }

    /// The descriptor of a handle that a call has used.
    pub(crate) fn opened(&self, handle: u64) -> Option<Fd> {
        if handle & NUMBERED != 0 {
            return Some(Fd((handle & !NUMBERED) as i32));
        }
        self.table.lock().get(&handle).copied()
    }

    /// The memory of an open file, for mappings that are shared.
    pub(crate) fn map(self: &Arc<Self>, handle: u64) -> kvfs_posix::Result<Arc<Image>> {
        let fd = self.descriptor(handle)?;
        let flags = self.process.flags(fd)?;
        if flags.intersection(OFlags::RWMODE) != OFlags::RDWR || flags.contains(OFlags::APPEND) {
            return Err(refused(Errno::NODEV));
        }
        let image = self.images.open(&self.process, fd, self.uid())?;
        self.placeholders.keep_image(handle, Arc::clone(&image), self).map_err(refused)?;
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

    /// Names what was opened.
    pub(crate) fn name(self: &Arc<Self>, fd: Fd, handle: Option<u64>) -> kvfs_posix::Result<u64> {
        let Some(handle) = handle else { return Ok(NUMBERED | fd.0 as u64) };
        let file = SharedFile::of(&self.process, fd)?;
        let mut table = self.table.lock();
        let bound = self.placeholders.bind(handle, file, self).map_err(refused);
        match bound {
            Ok(()) => table.insert(handle, fd),
            Err(error) => {
                drop(table);
                self.process.close(fd)?;
                return Err(error);
            }
        };
        Ok(handle)
    }

    /// The program has closed a descriptor.
    pub(crate) fn close(&self, handle: u64) -> kvfs_posix::Result<()> {
        if handle & NUMBERED != 0 {
            return self.process.close(Fd((handle & !NUMBERED) as i32));
        }
        let fd = self.table.lock().remove(&handle);
        // Others may still have the open file; of this process the locks end.
        fd.map_or(Ok(()), |fd| self.process.close(fd))
    }

    /// The program has closed a descriptor, or could not open the placeholder of a file.
    pub(crate) fn close_or_abandon(&self, handle: u64) -> kvfs_posix::Result<()> {
        self.close(handle)?;
        self.placeholders.abandon(handle, self);
        Ok(())
    }

    /// Files end that clients have closed.
    pub(crate) fn settle(&self) {
        self.placeholders.settle();
    }

    /// Files end that clients have closed, and what was written into mapped memory reaches its file.
    pub(crate) fn settle_all(&self) -> kvfs_posix::Result<()> {
        self.settle();
        self.images.write_all(self.uid())
    }

    /// The last placeholder was closed.
    pub(crate) fn lose(&self, handle: u64) {
        // It is the process's own.
        let _ = self.close(handle);
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.placeholders.exit(self.uid());
        tracing::debug!(uid = self.uid(), "a connection has ended");
    }
}

/// A refusal of this crate.
pub(crate) fn refused(errno: Errno) -> kvfs_posix::PosixError {
    kvfs_posix::PosixError::Refused { errno, reason: "no open file of this connection" }
}
