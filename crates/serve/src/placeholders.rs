//! Placeholders: what stands for an open file in the tables of clients ([`kvfs_lane::greeting`]).
//!
//! Thread safety: one lock, held for a few instructions; a thread of its own waits for hang-ups.
//!
//! Invariants: an open file is kept as long as any copy of its placeholder is there, and is used by its user alone. A handle
//! is given out again only when the kernel has given the inode number to another socket, when no copy of the old one is left.

use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_posix::SharedFile;
use parking_lot::{Condvar, Mutex};
use rustix::buffer::spare_capacity;
use rustix::event::Timespec;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::fs::fstat;
use rustix::io::Errno;
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, send, socketpair};

use crate::images::Image;
use crate::session::Session;
use crate::shares::{Share, Shares};

/// By which the end of the thread is told.
const STOP: u64 = u64::MAX;

/// Hang-ups that are looked at together.
const EVENTS_MAX: usize = 256;

/// How long hang-ups gather.
const PAUSE: Duration = Duration::from_millis(1);

struct Placeholder {
    /// Its hang-up is the end.
    end: OwnedFd,
    _share: Share,
    uid: u32,
    /// None: given, not used yet.
    file: Option<SharedFile>,
    /// It is or was mapped.
    image: Option<Arc<Image>>,
    /// Connections with a descriptor of it.
    adopters: Vec<Weak<Session>>,
}

/// See the module.
pub(crate) struct Placeholders {
    known: Mutex<HashMap<u64, Placeholder>>,
    /// A descriptor each.
    shares: Arc<Shares>,
    epoll: OwnedFd,
    /// Closed to end the thread.
    stop: Mutex<Option<OwnedFd>>,
    stopped: Condvar,
    /// Its other end, which the thread watches.
    _stop_end: OwnedFd,
}

fn pair() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?)
}

impl Placeholders {
    pub(crate) fn new(shares: Arc<Shares>) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (stop, stopped) = pair()?;
        epoll::add(&epoll, &stopped, EventData::new_u64(STOP), EventFlags::HUP)?;
        Ok(Self {
            known: Mutex::default(),
            shares,
            epoll,
            stop: Mutex::new(Some(stop)),
            stopped: Condvar::new(),
            _stop_end: stopped,
        })
    }

    /// New ones, with their handles. EMFILE: the user has too many.
    pub(crate) fn give(&self, uid: u32, count: usize) -> io::Result<Vec<(u64, OwnedFd)>> {
        let mut given = Vec::with_capacity(count);
        for _ in 0..count {
            let share = self.shares.take(uid).or_else(|| {
                self.settle();
                self.shares.take(uid)
            });
            let share = share.ok_or(Errno::MFILE)?;
            let (end, theirs) = pair()?;
            // Programs that poll it find that it can be read and written, as a file.
            send(&end, &[0], SendFlags::NOSIGNAL)?;
            let handle = fstat(&theirs)?.st_ino;
            let given_out =
                Placeholder { end, _share: share, uid, file: None, image: None, adopters: Vec::new() };
            let (data, flags) = (EventData::new_u64(handle), EventFlags::HUP | EventFlags::RDHUP);
            let mut known = self.known.lock();
            epoll::add(&self.epoll, &given_out.end, data, flags)?;
            known.insert(handle, given_out);
            given.push((handle, theirs));
        }
        Ok(given)
    }

    /// Lets a placeholder that was given to this user stand for an open file.
    pub(crate) fn bind(&self, handle: u64, file: SharedFile, by: &Arc<Session>) -> Result<(), Errno> {
        let mut known = self.known.lock();
        let found = known.get_mut(&handle).filter(|one| one.uid == by.uid() && one.file.is_none());
        let found = found.ok_or(Errno::BADF)?;
        found.file = Some(file);
        found.adopters.push(Arc::downgrade(by));
        Ok(())
    }

    /// The open file of a placeholder, for a connection of the same user.
    pub(crate) fn adopt(&self, handle: u64, by: &Arc<Session>) -> Result<SharedFile, Errno> {
        let mut known = self.known.lock();
        let found = known.get_mut(&handle).filter(|one| one.uid == by.uid()).ok_or(Errno::BADF)?;
        let file = found.file.clone().ok_or(Errno::BADF)?;
        found.adopters.retain(|one| one.strong_count() > 0);
        found.adopters.push(Arc::downgrade(by));
        Ok(file)
    }

    /// Keeps the image of a mapped file for as long as the placeholder is there.
    pub(crate) fn keep_image(&self, handle: u64, image: Arc<Image>, by: &Session) -> Result<(), Errno> {
        let mut known = self.known.lock();
        let found = known.get_mut(&handle).filter(|one| one.uid == by.uid()).ok_or(Errno::BADF)?;
        found.image = Some(image);
        Ok(())
    }

    /// Body of the thread: ends open files whose last placeholder was closed. Those that are closed one soon after the other end
    /// together: a thread that wakes for each takes the processor from those that call.
    pub(crate) fn watch(&self) {
        let mut events = Vec::with_capacity(EVENTS_MAX);
        loop {
            match self.end_closed(&mut events, None) {
                Ok(()) | Err(Errno::INTR) => {}
                Err(errno) => {
                    tracing::error!(%errno, "closed files of clients are no longer noticed");
                    return;
                }
            }
            let mut stop = self.stop.lock();
            if stop.is_none() {
                return;
            }
            self.stopped.wait_for(&mut stop, PAUSE);
        }
    }

    /// Ends open files whose last placeholder is closed by now, for what is refused because of one.
    pub(crate) fn settle(&self) {
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        // If it fails, the thread says so.
        let _ = self.end_closed(&mut Vec::with_capacity(EVENTS_MAX), Some(&now));
    }

    fn end_closed(&self, events: &mut Vec<Event>, until: Option<&Timespec>) -> Result<(), Errno> {
        epoll::wait(&self.epoll, spare_capacity(events), until)?;
        for handle in events.drain(..).map(|event| event.data.u64()) {
            // Leaves the set with its last descriptor. What tells to stop is none of them.
            let ended = self.known.lock().remove(&handle);
            let Some(ended) = ended else { continue };
            for session in ended.adopters.iter().filter_map(Weak::upgrade) {
                session.lose(handle);
            }
        }
        Ok(())
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        *self.stop.lock() = None;
        self.stopped.notify_all();
    }

    /// All of them are gone: what they keep open ends.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut *self.known.lock());
        drop(all);
    }

    /// Open files.
    pub(crate) fn len(&self) -> usize {
        self.known.lock().values().filter(|one| one.file.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_end_before_the_descriptors_of_the_server_do() {
        let placeholders = Placeholders::new(Shares::new(4, 0)).expect("are made");
        let given = placeholders.give(1000, 2).expect("half of them");
        let refused = placeholders.give(1000, 1).expect_err("is too many");
        assert_eq!(refused.raw_os_error(), Some(Errno::MFILE.raw_os_error()));
        placeholders.give(1001, 1).expect("are another user's");
        drop(given);
        std::thread::scope(|scope| {
            scope.spawn(|| placeholders.watch());
            while !placeholders.known.lock().is_empty() {
                std::thread::yield_now();
            }
            placeholders.give(1000, 2).expect("came back");
            placeholders.stop();
        });
    }
}
