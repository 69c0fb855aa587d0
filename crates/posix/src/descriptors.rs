//! The table of descriptors of a process.
//!
//! Thread safety: one lock, held for a few instructions. Invariant: the lowest free number is given out.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use rustix::io::Errno;

use crate::Fd;
use crate::error::{Result, refuse};
use crate::open_file::OpenFile;

/// Most descriptors that a process has.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

#[derive(Debug, Clone)]
struct Slot {
    file: Arc<OpenFile>,
    closes_on_exec: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    slots: Mutex<BTreeMap<i32, Slot>, class::PosixDescriptorsSlots>,
}

impl Descriptors {
    /// Those of a child: the same open files.
    pub(crate) fn forked(&self) -> Self {
        Self { slots: Mutex::new(self.slots.lock().clone()) }
    }

    /// Under the lowest number from `min` on.
    pub(crate) fn insert(&self, file: Arc<OpenFile>, min: i32, closes_on_exec: bool) -> Result<Fd> {
        if min < 0 || min as usize >= DESCRIPTORS_MAX {
            return refuse(Errno::INVAL, "no number of a descriptor");
        }
        let mut slots = self.slots.lock();
        let mut free = min;
        for (&number, _) in slots.range(min..) {
            if number != free {
                break;
            }
            free += 1;
        }
        if free as usize >= DESCRIPTORS_MAX {
            return refuse(Errno::MFILE, "too many open files");
        }
        slots.insert(free, Slot { file, closes_on_exec });
        Ok(Fd(free))
    }

    /// Under this number; returns what was there.
    pub(crate) fn replace(
        &self,
        file: Arc<OpenFile>,
        at: Fd,
        closes_on_exec: bool,
    ) -> Result<Option<Arc<OpenFile>>> {
        if at.0 < 0 || at.0 as usize >= DESCRIPTORS_MAX {
            return refuse(Errno::BADF, "no number of a descriptor");
        }
        let old = self.slots.lock().insert(at.0, Slot { file, closes_on_exec });
        Ok(old.map(|slot| slot.file))
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn get(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        match self.slots.lock().get(&fd.0) {
            Some(slot) => Ok(Arc::clone(&slot.file)),
            None => refuse(Errno::BADF, "not an open descriptor"),
        }
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn remove(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        match self.slots.lock().remove(&fd.0) {
            Some(slot) => Ok(slot.file),
            None => refuse(Errno::BADF, "not an open descriptor"),
        }
    }

    /// All of them, ascending.
    pub(crate) fn numbers(&self) -> Vec<Fd> {
        self.slots.lock().keys().copied().map(Fd).collect()
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn closes_on_exec(&self, fd: Fd) -> Result<bool> {
        match self.slots.lock().get(&fd.0) {
            Some(slot) => Ok(slot.closes_on_exec),
            None => refuse(Errno::BADF, "not an open descriptor"),
        }
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn set_closes_on_exec(&self, fd: Fd, closes_on_exec: bool) -> Result<()> {
        match self.slots.lock().get_mut(&fd.0) {
            Some(slot) => slot.closes_on_exec = closes_on_exec,
            None => return refuse(Errno::BADF, "not an open descriptor"),
        }
        Ok(())
    }
}
