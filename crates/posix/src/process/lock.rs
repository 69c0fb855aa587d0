//! Advisory locks of files.

use std::ops::Range;
use std::sync::Arc;

use rustix::io::Errno;

use super::{Process, Scope};
use crate::Fd;
use crate::error::{Result, refuse};
use crate::locks::{LockOwner, LockSpace, Patience, RangeLock};
use crate::open_file::OpenFile;

impl Process {
    /// Locks a whole file for the open file (`flock`), in place of what it has: exclusively or not; `None`
    /// gives it up. A process that forks shares it.
    ///
    /// # Errors
    /// EBADF; EAGAIN: another one has it, unless this `waits`; ENOLCK: too many, if there are
    /// [`Bounds`](crate::Bounds).
    pub fn flock(&self, fd: Fd, is_exclusive: Option<bool>, waits: bool) -> Result<()> {
        let file = self.scope.file(fd)?;
        file.check_open()?;
        let (owner, place) = (LockOwner::File(file.id()), (file.held.node().0, LockSpace::Whole));
        let Some(is_exclusive) = is_exclusive else {
            self.scope.shared.locks.unlock_all(owner, place);
            return Ok(());
        };
        self.scope.shared.locks.lock(
            owner,
            place,
            &RangeLock { range: 0..u64::MAX, is_exclusive },
            &self.scope.patience(waits),
            self.scope.bounds.as_ref(),
        )
    }

    /// Locks a range of a file for this process (`F_SETLK`, `F_SETLKW`), or for the open file, if it is
    /// `of_file` (`F_OFD_SETLK`).
    ///
    /// # Errors
    /// EBADF: not open for reading, or, of an exclusive one, for writing; EAGAIN: another one has it, unless
    /// this `waits`; EDEADLK; EINVAL: an empty range; ENOLCK: too many, if there are
    /// [`Bounds`](crate::Bounds).
    pub fn lock_range(&self, fd: Fd, lock: &RangeLock, of_file: bool, waits: bool) -> Result<()> {
        let file = self.scope.file(fd)?;
        check_range(&lock.range)?;
        let is_open = if lock.is_exclusive { file.is_writable() } else { file.is_readable() };
        if !is_open {
            return refuse(Errno::BADF, "not open for what is locked");
        }
        let (owner, place) = self.owner_of(&file, of_file);
        let (patience, bounds) = (self.scope.patience(waits), self.scope.bounds.as_ref());
        self.scope.shared.locks.lock(owner, place, lock, &patience, bounds)?;
        let is_still = self.scope.descriptors.get(fd).is_ok_and(|now| Arc::ptr_eq(&now, &file))
            && !self.scope.waits().are_over();
        if !is_still && !of_file {
            // Closed meanwhile, or the process has ended: a lock that comes after that would stay.
            self.scope.shared.locks.unlock_all(owner, place);
            return refuse(Errno::BADF, "closed while it waited");
        }
        Ok(())
    }

    /// Gives up what this process, or the open file, has locked of a range.
    ///
    /// # Errors
    /// EBADF; EINVAL: an empty range; ENOLCK: too many that are left of one, if there are
    /// [`Bounds`](crate::Bounds).
    pub fn unlock_range(&self, fd: Fd, range: &Range<u64>, of_file: bool) -> Result<()> {
        let file = self.scope.file(fd)?;
        check_range(range)?;
        let (owner, place) = self.owner_of(&file, of_file);
        self.scope.shared.locks.unlock(owner, place, range)
    }

    /// A lock that would be in the way of `lock` (`F_GETLK`).
    ///
    /// # Errors
    /// EBADF; EINVAL: an empty range.
    pub fn find_lock(&self, fd: Fd, lock: &RangeLock, of_file: bool) -> Result<Option<RangeLock>> {
        let file = self.scope.file(fd)?;
        check_range(&lock.range)?;
        let (owner, place) = self.owner_of(&file, of_file);
        Ok(self.scope.shared.locks.find(owner, place, lock).map(|(_, found)| found))
    }

    fn owner_of(&self, file: &OpenFile, of_file: bool) -> (LockOwner, (u64, LockSpace)) {
        let owner = if of_file { LockOwner::File(file.id()) } else { LockOwner::Process(self.number) };
        (owner, (file.held.node().0, LockSpace::Ranges))
    }
}

impl Scope {
    fn patience(&self, waits: bool) -> Patience<'_> {
        if waits { Patience::Until(self.waits()) } else { Patience::None }
    }
}

/// Waits for locks, those of files and those of transactions, and removals of trees, of a process fail with
/// EINTR from now on, those under way, too: its program has ended.
pub fn interrupt(process: &Process) {
    process.scope.waits().end();
    process.scope.shared.locks.look_again();
}

/// Locks of ranges that a process has end, whatever calls of it are under way. It gets none any more once it
/// was [interrupted](interrupt).
pub fn end_range_locks(process: &Process) {
    let descriptors = &process.scope.descriptors;
    for fd in descriptors.numbers().into_iter().chain(descriptors.hidden_numbers()) {
        if let Ok(file) = process.scope.file(fd) {
            process.end_locks(&file);
        }
    }
}

/// Closes a hidden descriptor of an open file that the program has none of any more. Locks of ranges that the
/// process has on the file end, unless it has another descriptor of it: they may be of that one, taken since
/// the program has closed this one.
///
/// # Errors
/// EBADF.
pub fn close_hidden(process: &Process, fd: Fd) -> Result<()> {
    let file = process.scope.descriptors.remove(fd)?;
    let (owner, place) = process.owner_of(&file, false);
    let is_same = |other: &OpenFile| other.held.node() == file.held.node();
    if process.scope.shared.locks.has(owner, place) && !process.scope.descriptors.has(is_same) {
        process.end_locks(&file);
    }
    Ok(())
}

fn check_range(range: &Range<u64>) -> Result<()> {
    if range.is_empty() { refuse(Errno::INVAL, "an empty range") } else { Ok(()) }
}
