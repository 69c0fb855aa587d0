//! Placeholders: what stands for an open file in the tables of clients ([`kvfs_lane::greeting`]).
//!
//! Each user has a directory of empty files. A client opens one for an open file, and takes a shared lock
//! (`flock`) on it, which all copies of the descriptor have. The kernel reports that it was opened, and that
//! the last copy was closed (inotify), or that of another program, which has opened it a second time: it is
//! closed when there is no lock any more. The directory goes when no file of it is in use and the user has no
//! connection.
//!
//! Thread safety: a lock for the table, held for a few instructions, and one around it while closed files
//! end; a thread of its own waits for reports.
//!
//! Invariants: an open file is kept as long as any copy of its placeholder is there, and is used by its user
//! alone. A handle is given out again only when no copy of the old one is left, and no connection has a
//! descriptor for it.

use std::collections::HashMap;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Weak};
use std::time::Duration;

use kvfs_locks::{Condvar, Mutex, class};
use kvfs_posix::SharedFile;
use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::inotify::{ReadFlags, Reader};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::time::Timespec;

use crate::images::Image;
use crate::places::{Directory, Links, Places};
use crate::session::Session;
use crate::shares::{Share, Shares};

/// Reports are read in pieces of so many bytes.
const REPORT_BYTES: usize = 16 << 10;

/// How long reports gather.
const PAUSE: Duration = Duration::from_millis(1);

/// When what was reported as closed and has a lock is looked at again: the kernel reports before it unlocks.
const AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };

/// Of the inotify instances that the kernel grants to the user of the server, one in so many is for users of
/// the file system: other programs of that user need some, too.
const INSTANCES_SHARE: usize = 4;

/// What Linux grants unless told otherwise.
const INSTANCES_MAX: usize = 128;

/// How many inotify instances a user may have.
fn instances_max() -> usize {
    let told = std::fs::read_to_string("/proc/sys/fs/inotify/max_user_instances").ok();
    told.and_then(|told| told.trim().parse().ok()).unwrap_or(INSTANCES_MAX)
}

struct Placeholder {
    _share: Share,
    uid: u32,
    /// The connection that it was given to.
    giver: Weak<Session>,
    /// The client has opened it.
    is_open: bool,
    /// None: given, not used yet.
    file: Option<SharedFile>,
    /// It is or was mapped.
    image: Option<Arc<Image>>,
    adopters: Adopters,
}

/// Connections with a descriptor of an open file, each once, by where it lies.
struct Adopters<S = Session>(HashMap<usize, Weak<S>>);

impl<S> Default for Adopters<S> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<S> Adopters<S> {
    fn add(&mut self, session: &Arc<S>) {
        if self.0.len() == self.0.capacity() {
            self.0.retain(|_, one| one.strong_count() > 0);
        }
        // While it is kept here, no other one lies there.
        self.0.entry(Arc::as_ptr(session).addr()).or_insert_with(|| Arc::downgrade(session));
    }

    fn living(&self) -> impl Iterator<Item = Arc<S>> {
        self.0.values().filter_map(Weak::upgrade)
    }
}

#[derive(Default)]
struct Table {
    known: HashMap<u64, Placeholder>,
    users: HashMap<u32, Places>,
    /// Of each user that has some.
    connections: HashMap<u32, usize>,
}

impl Table {
    /// The files of a user that uses none and has gone: to be removed when the table is free.
    fn take_unused(&mut self, uid: u32) -> Option<Places> {
        let is_used = self.connections.contains_key(&uid) || self.users.get(&uid)?.is_used();
        if is_used { None } else { self.users.remove(&uid) }
    }

    fn of(&mut self, handle: u64, by: &Session) -> Result<&mut Placeholder, Errno> {
        self.known.get_mut(&handle).filter(|one| one.uid == by.uid()).ok_or(Errno::BADF)
    }

    fn unused(&mut self, handle: u64, by: &Session) -> Result<&mut Placeholder, Errno> {
        self.of(handle, by).and_then(|one| if one.file.is_none() { Ok(one) } else { Err(Errno::BADF) })
    }

    /// Takes the reports of the kernel.
    fn take_reports(&mut self, Ending { buffer, reported }: &mut Ending) {
        for (uid, places) in &self.users {
            let mut reader = Reader::new(places.reports(), buffer);
            loop {
                let report = match reader.next() {
                    Ok(report) => report,
                    Err(Errno::INTR) => continue,
                    Err(Errno::AGAIN) => break,
                    Err(errno) => {
                        tracing::error!(%errno, "closed files of clients are not noticed");
                        break;
                    }
                };
                if report.events().contains(ReadFlags::QUEUE_OVERFLOW) {
                    tracing::error!(uid, "files that clients have closed stay open until the server ends");
                }
                let Some(handle) = report.file_name().and_then(Places::handle_of) else { continue };
                let Some(found) = self.known.get_mut(&handle).filter(|one| one.uid == *uid) else { continue };
                if report.events().contains(ReadFlags::OPEN) {
                    found.is_open = true;
                } else if found.is_open {
                    reported.entry(handle).or_insert_with(|| places.links());
                }
            }
        }
    }
}

/// See [`Placeholders::ending`].
struct Ending {
    /// What reports are read into.
    buffer: Vec<MaybeUninit<u8>>,
    /// Those that were reported as closed: whether they are is to be seen.
    reported: HashMap<u64, Arc<Links>>,
}

/// See the module.
pub(crate) struct Placeholders {
    table: Mutex<Table, class::ServePlaceholdersTable>,
    /// One for each placeholder.
    shares: Shares,
    /// Held while closed files end.
    ending: Mutex<Ending, class::ServePlaceholdersEnding>,
    epoll: OwnedFd,
    /// Wakes the thread.
    nudge: OwnedFd,
    /// Closed to end the thread.
    stop: Mutex<Option<OwnedFd>, class::ServePlaceholdersStop>,
    stopped: Condvar,
    /// Its other end, which the thread watches.
    _stop_end: OwnedFd,
    directory: Directory,
    own_uid: u32,
    /// Most users that have some, but for root and the server's own.
    users_max: usize,
}

impl Placeholders {
    /// One for each of `shares`, on the server of user `own_uid`.
    pub(crate) fn new(shares: Shares, own_uid: u32) -> io::Result<Self> {
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        let (stop, stopped) =
            socketpair(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        epoll::add(&epoll, &stopped, EventData::new_u64(0), EventFlags::HUP)?;
        let nudge = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &nudge, EventData::new_u64(0), EventFlags::IN | EventFlags::ET)?;
        Ok(Self {
            table: Mutex::default(),
            shares,
            ending: Mutex::new(Ending {
                buffer: vec![MaybeUninit::uninit(); REPORT_BYTES],
                reported: HashMap::new(),
            }),
            epoll,
            nudge,
            stop: Mutex::new(Some(stop)),
            stopped: Condvar::new(),
            _stop_end: stopped,
            directory: Directory::make()?,
            own_uid,
            users_max: instances_max() / INSTANCES_SHARE,
        })
    }

    /// Whether a user has some, or may.
    fn admits(&self, users: &HashMap<u32, Places>, uid: u32) -> bool {
        [0, self.own_uid].contains(&uid) || users.contains_key(&uid) || users.len() < self.users_max
    }

    /// A user has one more connection.
    pub(crate) fn enter(&self, uid: u32) {
        *self.table.lock().connections.entry(uid).or_default() += 1;
    }

    /// A connection is gone.
    pub(crate) fn exit(&self, uid: u32) {
        let mut table = self.table.lock();
        if let Some(count) = table.connections.get_mut(&uid) {
            *count -= 1;
            if *count == 0 {
                table.connections.remove(&uid);
            }
        }
        let unused = table.take_unused(uid);
        drop(table);
        drop(unused);
    }

    /// At most `count` new ones for a connection: the directory of its user, and their handles. EMFILE: the
    /// user has too many.
    pub(crate) fn give(&self, by: &Arc<Session>, count: usize) -> io::Result<(Arc<OwnedFd>, Vec<u64>)> {
        let uid = by.uid();
        let mut given = Vec::with_capacity(count);
        while given.len() < count {
            let share = self.shares.take(uid, 1).or_else(|| {
                self.settle();
                self.shares.take(uid, 1)
            });
            let Some(share) = share else { break };
            let mut table = self.table.lock();
            let Table { known, users, .. } = &mut *table;
            if !self.admits(users, uid) {
                break;
            }
            let places = match users.entry(uid) {
                std::collections::hash_map::Entry::Occupied(places) => places.into_mut(),
                std::collections::hash_map::Entry::Vacant(vacant) => {
                    let places = self.directory.places()?;
                    epoll::add(&self.epoll, places.reports(), EventData::new_u64(0), EventFlags::IN)?;
                    vacant.insert(places)
                }
            };
            let handle = places.take()?;
            let placeholder = Placeholder {
                _share: share,
                uid,
                giver: Arc::downgrade(by),
                is_open: false,
                file: None,
                image: None,
                adopters: Adopters::default(),
            };
            known.insert(handle, placeholder);
            given.push(handle);
        }
        let table = self.table.lock();
        let places = table.users.get(&uid).filter(|_| !given.is_empty()).ok_or(Errno::MFILE)?;
        Ok((places.directory(), given))
    }

    /// Whether a placeholder was given to this user and stands for no open file.
    pub(crate) fn check_unused(&self, handle: u64, by: &Session) -> Result<(), Errno> {
        self.table.lock().unused(handle, by).map(drop)
    }

    /// Lets a placeholder that was given to this user stand for an open file.
    pub(crate) fn bind(&self, handle: u64, file: SharedFile, by: &Arc<Session>) -> Result<(), Errno> {
        let mut table = self.table.lock();
        let found = table.unused(handle, by)?;
        found.file = Some(file);
        found.adopters.add(by);
        Ok(())
    }

    /// The open file of a placeholder, for a connection of the same user.
    pub(crate) fn adopt(&self, handle: u64, by: &Arc<Session>) -> Result<SharedFile, Errno> {
        let mut table = self.table.lock();
        let found = table.of(handle, by)?;
        let file = found.file.clone().ok_or(Errno::BADF)?;
        found.adopters.add(by);
        Ok(file)
    }

    /// The open file of a placeholder, for a connection of the same user, which gets no descriptor of it.
    pub(crate) fn file(&self, handle: u64, by: &Session) -> Result<SharedFile, Errno> {
        self.table.lock().of(handle, by)?.file.clone().ok_or(Errno::BADF)
    }

    /// Keeps the image of a mapped file for as long as the placeholder is there.
    pub(crate) fn keep_image(&self, handle: u64, image: &Arc<Image>, by: &Session) -> Result<(), Errno> {
        self.table.lock().of(handle, by)?.image = Some(Arc::clone(image));
        Ok(())
    }

    /// Body of the thread: ends open files whose last placeholder was closed. Those that are closed one soon
    /// after the other end together: a thread that wakes for each takes the processor from those that call.
    pub(crate) fn watch(&self) {
        let mut events: Vec<Event> = Vec::with_capacity(16);
        let mut is_settled = true;
        loop {
            events.clear();
            let again = (!is_settled).then_some(&AGAIN);
            match epoll::wait(&self.epoll, spare_capacity(&mut events), again) {
                Ok(_) => is_settled = self.end_closed(|_, _| false),
                Err(Errno::INTR) => {}
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

    /// Ends open files whose last placeholder is closed by now.
    pub(crate) fn settle(&self) {
        self.end_with(|_, _| false);
    }

    /// A connection ends, and with it what it was given and has not opened. What it has opened others may
    /// have, too.
    pub(crate) fn leave(&self, session: &Arc<Session>) {
        self.end_with(|_, one| std::ptr::eq(one.giver.as_ptr(), Arc::as_ptr(session)));
    }

    /// A client could not open what it was given, for which a file is open already.
    pub(crate) fn abandon(&self, handle: u64, by: &Session) {
        let is_open = self.table.lock().known.get(&handle).is_none_or(|one| one.is_open);
        if !is_open && self.table.lock().of(handle, by).is_ok() {
            self.end_one(handle);
        }
    }

    fn end_one(&self, handle: u64) {
        self.end_with(|number, _| number == handle);
    }

    fn end_with(&self, is_so: impl Fn(u64, &Placeholder) -> bool) {
        if !self.end_closed(is_so) {
            // One that fails is one of many: the thread wakes.
            let _ = rustix::io::write(&self.nudge, &1_u64.to_ne_bytes());
        }
    }

    /// Ends what is closed, and of those that no client has opened what is so. `false`: some were reported as
    /// closed and are not.
    fn end_closed(&self, is_so: impl Fn(u64, &Placeholder) -> bool) -> bool {
        let mut ending = self.ending.lock();
        let mut table = self.table.lock();
        table.take_reports(&mut ending);
        let mut ended: Vec<_> =
            table.known.extract_if(|handle, one| !one.is_open && is_so(*handle, one)).collect();
        drop(table);
        // None is given out meanwhile, and a client opens what it was given once.
        for (handle, _) in ending.reported.extract_if(|handle, links| links.is_closed(*handle)) {
            ended.extend(self.table.lock().known.remove_entry(&handle));
        }
        let unused = self.end(ended);
        let is_settled = ending.reported.is_empty();
        drop(ending);
        drop(unused);
        is_settled
    }

    /// Returns what users have used of the file system, to be removed when no lock is held.
    fn end(&self, ended: Vec<(u64, Placeholder)>) -> Vec<Places> {
        let mut unused = Vec::new();
        for (handle, placeholder) in ended {
            for session in placeholder.adopters.living() {
                session.lose(handle);
            }
            // Only now: until here the handle was known to connections.
            let mut table = self.table.lock();
            if let Some(places) = table.users.get_mut(&placeholder.uid) {
                places.put(handle);
            }
            unused.extend(table.take_unused(placeholder.uid));
        }
        unused
    }

    /// Ends the thread.
    pub(crate) fn stop(&self) {
        *self.stop.lock() = None;
        self.stopped.notify_all();
    }

    /// All of them are gone: what they keep open ends.
    pub(crate) fn clear(&self) {
        let all = std::mem::take(&mut self.table.lock().known);
        drop(all);
    }

    /// Open files. Those that are ending have ended when it returns, and their handles are free.
    pub(crate) fn len(&self) -> usize {
        let _ending = self.ending.lock();
        self.table.lock().known.values().filter(|one| one.file.is_some()).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shares::shares;

    #[test]
    fn connection_that_adopts_an_open_file_again_and_again_is_kept_once_and_those_that_are_gone_go() {
        let mut adopters = Adopters::default();
        let session = Arc::new(0_u32);
        for _ in 0..1000 {
            adopters.add(&session);
            adopters.add(&Arc::new(1));
        }
        assert!(adopters.living().eq([session]) && adopters.0.len() < 32, "{}", adopters.0.len());
    }

    #[test]
    fn users_beyond_the_share_of_inotify_instances_are_refused_but_for_root_and_the_servers_own() {
        let mut placeholders = Placeholders::new(shares(8, 1000), 1000).expect("makes");
        assert!(placeholders.users_max > 0 && placeholders.users_max * 2 < instances_max());
        placeholders.users_max = 2;
        let mut users = HashMap::new();
        for uid in [1001, 1002] {
            assert!(placeholders.admits(&users, uid));
            users.insert(uid, placeholders.directory.places().expect("makes"));
        }
        assert_eq!(
            [1001, 1003, 0, 1000].map(|uid| placeholders.admits(&users, uid)),
            [true, false, true, true]
        );
    }
}
