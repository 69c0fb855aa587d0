//! The table of descriptors of a process.
//!
//! Thread safety: one lock, held for a few instructions. Invariants: the lowest free number is given out; a
//! process that is bounded has as many descriptors as its user's share was taken for. Those of the program
//! have numbers below [`DESCRIPTORS_MAX`]; hidden ones, from there on, are reached by no number that the
//! program gives, and end with the process. One that is closed is not given out again at once: a call that is
//! under way would find another open file.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use kvfs_locks::{Mutex, class};
use kvfs_socket::Share;
use rustix::io::Errno;

use crate::bounds::Bounds;
use crate::error::{PosixError, Result, refuse};
use crate::open_file::OpenFile;
use crate::place::Fd;

/// Most descriptors that a process has. The numbers that its program names are smaller.
pub const DESCRIPTORS_MAX: usize = 1 << 20;

/// Those that a program names.
const NUMBERS: Range<i32> = 0..DESCRIPTORS_MAX as i32;

/// The hidden ones, from there on.
const HIDDEN_COUNT: i32 = i32::MAX - NUMBERS.end;

#[derive(Debug, Clone)]
struct Slot {
    file: Arc<OpenFile>,
    closes_on_exec: bool,
}

#[derive(Debug, Default)]
struct Slots {
    by_number: BTreeMap<i32, Slot>,
    /// The hidden number that is tried next, counted from the first one.
    next_hidden: i32,
    /// Of a process that is bounded: one for each.
    share: Option<Share>,
}

impl Slots {
    /// Under the lowest free number of these.
    fn insert(&mut self, file: Arc<OpenFile>, numbers: Range<i32>, closes_on_exec: bool) -> Result<Fd> {
        let mut free = numbers.start;
        for (&number, _) in self.by_number.range(numbers.clone()) {
            if number != free {
                break;
            }
            free += 1;
        }
        if !numbers.contains(&free) {
            return refuse(Errno::MFILE, "too many open files");
        }
        self.take_share()?;
        self.by_number.insert(free, Slot { file, closes_on_exec });
        Ok(Fd(free))
    }

    /// For one more.
    fn take_share(&mut self) -> Result<()> {
        let is_taken = self.share.as_mut().is_none_or(|share| share.grow(1));
        if is_taken { Ok(()) } else { refuse(Errno::MFILE, "too many open files of the user") }
    }

    /// Of one that is gone.
    fn give_back(&mut self) {
        if let Some(share) = &mut self.share {
            share.shrink(1);
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Descriptors {
    slots: Mutex<Slots, class::PosixDescriptorsSlots>,
}

impl Descriptors {
    /// None yet, of a process that is bounded.
    pub(crate) fn bounded(bounds: &Bounds) -> Self {
        Self { slots: Mutex::new(Slots { share: bounds.descriptors(0), ..Slots::default() }) }
    }

    /// Those of a child: the same open files, but for hidden ones.
    ///
    /// # Errors
    /// EMFILE: the user has too many.
    pub(crate) fn forked(&self, bounds: Option<&Bounds>) -> Result<Self> {
        let slots = self.slots.lock();
        let by_number: BTreeMap<_, _> =
            slots.by_number.range(NUMBERS).map(|(number, slot)| (*number, slot.clone())).collect();
        let too_many = PosixError::new(Errno::MFILE, "too many open files of the user");
        let share = bounds.map(|bounds| bounds.descriptors(by_number.len()).ok_or(too_many)).transpose()?;
        Ok(Self { slots: Mutex::new(Slots { by_number, share, next_hidden: 0 }) })
    }

    /// Whether one more is refused now: what is opened may be made or cut before its descriptor is.
    ///
    /// # Errors
    /// EMFILE.
    pub(crate) fn check_room(&self) -> Result<()> {
        let mut slots = self.slots.lock();
        if slots.by_number.len() >= DESCRIPTORS_MAX {
            return refuse(Errno::MFILE, "too many open files");
        }
        slots.take_share()?;
        slots.give_back();
        Ok(())
    }

    /// Under the lowest number from `min` on.
    pub(crate) fn insert(&self, file: Arc<OpenFile>, min: i32, closes_on_exec: bool) -> Result<Fd> {
        if !NUMBERS.contains(&min) {
            return refuse(Errno::INVAL, "no number of a descriptor");
        }
        self.slots.lock().insert(file, min..NUMBERS.end, closes_on_exec)
    }

    /// Under a number that no call of the program names.
    pub(crate) fn insert_hidden(&self, file: Arc<OpenFile>) -> Result<Fd> {
        let mut slots = self.slots.lock();
        let next = slots.next_hidden;
        slots.next_hidden = (next + 1) % HIDDEN_COUNT;
        slots.insert(file, NUMBERS.end + next..NUMBERS.end + HIDDEN_COUNT, false)
    }

    /// Under this number; returns what was there.
    ///
    /// # Errors
    /// EBADF; EMFILE: the user has too many.
    pub(crate) fn replace(
        &self,
        file: Arc<OpenFile>,
        at: Fd,
        closes_on_exec: bool,
    ) -> Result<Option<Arc<OpenFile>>> {
        if !NUMBERS.contains(&at.0) {
            return refuse(Errno::BADF, "no number of a descriptor");
        }
        let mut slots = self.slots.lock();
        if !slots.by_number.contains_key(&at.0) {
            slots.take_share()?;
        }
        let old = slots.by_number.insert(at.0, Slot { file, closes_on_exec });
        Ok(old.map(|slot| slot.file))
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn get(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        match self.slots.lock().by_number.get(&fd.0) {
            Some(slot) => Ok(Arc::clone(&slot.file)),
            None => refuse(Errno::BADF, "not an open descriptor"),
        }
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn remove(&self, fd: Fd) -> Result<Arc<OpenFile>> {
        let mut slots = self.slots.lock();
        let Some(slot) = slots.by_number.remove(&fd.0) else {
            return refuse(Errno::BADF, "not an open descriptor");
        };
        slots.give_back();
        Ok(slot.file)
    }

    /// Whether one of them, be it hidden or not, is so.
    pub(crate) fn has(&self, is_so: impl Fn(&OpenFile) -> bool) -> bool {
        self.slots.lock().by_number.values().any(|slot| is_so(&slot.file))
    }

    /// Those of the program, ascending.
    pub(crate) fn numbers(&self) -> Vec<Fd> {
        self.slots.lock().by_number.range(NUMBERS).map(|(number, _)| Fd(*number)).collect()
    }

    /// The hidden ones.
    pub(crate) fn hidden_numbers(&self) -> Vec<Fd> {
        self.slots.lock().by_number.range(NUMBERS.end..).map(|(number, _)| Fd(*number)).collect()
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn closes_on_exec(&self, fd: Fd) -> Result<bool> {
        match self.slots.lock().by_number.get(&fd.0) {
            Some(slot) => Ok(slot.closes_on_exec),
            None => refuse(Errno::BADF, "not an open descriptor"),
        }
    }

    /// # Errors
    /// EBADF.
    pub(crate) fn set_closes_on_exec(&self, fd: Fd, closes_on_exec: bool) -> Result<()> {
        match self.slots.lock().by_number.get_mut(&fd.0) {
            Some(slot) => slot.closes_on_exec = closes_on_exec,
            None => return refuse(Errno::BADF, "not an open descriptor"),
        }
        Ok(())
    }
}
