//! The connection of this process to its server, and the calls that go over it.
//!
//! A process connects with its first call. A child of fork finds an empty page and connects anew; a child of
//! vfork uses the connection of its parent, whose memory it shares, or one for a single call, if there is
//! none.
//!
//! Thread safety: any thread, signal handler, or child of vfork; nothing is allocated.
//!
//! Invariants: requests on the connection follow each other, with signals blocked, so that a handler can't
//! meet one half-done. A connection has a generation, and what was given to it (lanes, placeholders) is used
//! with that one alone.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};

use kvfs_lane::greeting::{self, Answer, Greeting, Request, VERSION};
use kvfs_lane::{Call, ClientLane, LaneError, LockRange, Reply, decode, encode};

use super::page::{Page, SPARES, page};
use super::{hidden, reach};
use crate::slow::Verdict;
use crate::sys;

/// Placeholders that are asked for first.
const SPARES_MIN: u32 = 8;

/// The user of the server that was connected to at last, and one; 0: none was.
static OWNER: AtomicU64 = AtomicU64::new(0);

/// An errno.
pub(super) type Errno = i32;

/// What it is told first.
static HELLO: OnceLock<Request> = OnceLock::new();

/// Keeps what this process says to its server: that it sees the file system at `place`, in the open
/// transaction `txn`, if any. Returns `false` if that was kept before.
#[must_use]
pub(super) fn set_up(place: &[u8], txn: u64) -> bool {
    let greeting = Greeting { place: place.to_vec(), txn, ..Greeting::default() };
    HELLO.set(Request::Hello { version: VERSION, greeting }).is_ok()
}

/// Whose memory and descriptors a call has.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Who {
    /// The process has both to itself.
    Own,
    /// A child of vfork: the memory is its parent's, the descriptors are its own.
    Child,
}

/// Who calls. The first call after a fork leaves what was the parent's.
pub(super) fn who(page: &Page) -> Who {
    let pid = sys::call(libc::SYS_getpid as u64, &[0; 6]) as i32;
    match page.pid.load(Relaxed) {
        0 => {
            page.pid.store(pid, Relaxed);
            hidden::leave_parent();
            Who::Own
        }
        known if known == pid => Who::Own,
        _ => Who::Child,
    }
}

/// Makes an empty page the one of this process: at its beginning, and, for `pthread_atfork`, in a child.
pub(super) extern "C" fn claim_page() {
    if let Some(page) = page() {
        who(page);
    }
}

/// One at a time asks on the connection, or gives a hidden descriptor another number: who asks has looked the
/// number up.
pub(super) struct Asking<'p> {
    page: &'p Page,
    signals: u64,
}

impl<'p> Asking<'p> {
    pub(super) fn begin(page: &'p Page) -> Self {
        let signals = mask(u64::MAX);
        while page.asking.compare_exchange(0, 1, Acquire, Relaxed).is_err() {
            sys::call(libc::SYS_sched_yield as u64, &[0; 6]);
        }
        Self { page, signals }
    }
}

impl Drop for Asking<'_> {
    fn drop(&mut self) {
        self.page.asking.store(0, Release);
        mask(self.signals);
    }
}

/// Sets which signals are blocked; returns those of before.
fn mask(signals: u64) -> u64 {
    let mut before = 0_u64;
    let (new, old) = (&raw const signals as u64, &raw mut before as u64);
    sys::call(libc::SYS_rt_sigprocmask as u64, &[libc::SIG_SETMASK as u64, new, old, 8, 0, 0]);
    before
}

fn errno(error: &std::io::Error) -> Errno {
    error.raw_os_error().unwrap_or(libc::EIO)
}

/// A new connection that is greeted.
fn connect() -> Result<OwnedFd, Errno> {
    let (socket, owner) = reach::connect()?;
    OWNER.store(u64::from(owner) + 1, Relaxed);
    let greeted = greeting::ask(&socket, HELLO.get().ok_or(libc::EIO)?);
    // There is no transaction any more.
    let ended = |errno| if errno == libc::ENOENT { libc::ESTALE } else { errno };
    greeted.map_err(|error| ended(errno(&error)))?;
    Ok(socket)
}

/// Whose server it is: the files of its directory of placeholders are that user's. `None`: there is none.
pub(super) fn owner() -> Option<u32> {
    if OWNER.load(Relaxed) == 0 && connection(page()?).ok()?.is_none() {
        connect().ok()?;
    }
    Some(OWNER.load(Relaxed).checked_sub(1)? as u32)
}

/// The connection that is kept.
#[derive(Clone, Copy)]
struct Kept {
    socket: BorrowedFd<'static>,
    generation: u32,
}

impl Kept {
    /// The one that there is.
    fn of(page: &Page) -> Option<Self> {
        loop {
            let generation = page.generation.load(SeqCst);
            let socket = page.socket.load(SeqCst);
            // Another one may have come in between.
            if page.generation.load(SeqCst) == generation {
                return (socket != 0).then(|| Self { socket: sys::borrow(socket - 1), generation });
            }
        }
    }

    /// The same one with the number that it has by now, if it is kept still.
    fn now(self, page: &Page) -> Option<Self> {
        Self::of(page).filter(|now| now.generation == self.generation)
    }

    fn lives(self, page: &Page) -> bool {
        while let Some(now) = self.now(page) {
            let lives = greeting::is_connected(now.socket);
            // Otherwise something else may have the number by now.
            let is_same = |then: Self| then.socket.as_raw_fd() == now.socket.as_raw_fd();
            if self.now(page).is_some_and(is_same) {
                return lives;
            }
        }
        false
    }

    /// Asks for something.
    fn ask(self, alone: &Asking<'_>, request: &Request) -> Result<Answer, Errno> {
        let now = self.now(alone.page).ok_or(libc::EIO)?;
        greeting::ask(now.socket, request).map_err(|error| {
            // A server that stops has ended the lanes already.
            if errno(&error) != libc::ENOTCONN && greeting::is_connected(now.socket) {
                return errno(&error);
            }
            alone.disconnect(self.generation);
            libc::EIO
        })
    }
}

/// The connection that is kept; `None`: a child of vfork has to make one for itself.
fn connection(page: &Page) -> Result<Option<Kept>, Errno> {
    // A fork has emptied the page.
    if let Some(kept) = Kept::of(page) {
        return Ok(Some(kept));
    }
    if who(page) == Who::Child {
        return Ok(None);
    }
    let _alone = Asking::begin(page);
    if page.socket.load(SeqCst) == 0 {
        page.socket.store(hidden::hide(connect()?) + 1, SeqCst);
        reserve(page);
    }
    Ok(Kept::of(page))
}

impl Asking<'_> {
    /// The server behind the connection is gone: the next call looks for another one.
    fn disconnect(&self, generation: u32) {
        let page = self.page;
        if who(page) != Who::Own || page.generation.load(SeqCst) != generation {
            return;
        }
        let socket = page.socket.swap(0, SeqCst);
        page.generation.store(generation.wrapping_add(1), SeqCst);
        page.spares.iter().for_each(|spare| spare.store(0, SeqCst));
        let directory = page.directory.swap(0, Acquire);
        [directory, socket]
            .into_iter()
            .filter(|number| *number != 0)
            .for_each(|number| hidden::end(number - 1));
    }
}

/// A hidden descriptor is about to have another number. Called by the one that [asks](Asking).
pub(super) fn has_moved(from: i32, to: i32) {
    let Some(page) = page() else { return };
    // What it was not, it stays.
    let _ = page.socket.compare_exchange(from + 1, to + 1, SeqCst, Relaxed);
    let _ = page.directory.compare_exchange(from + 1, to + 1, Release, Relaxed);
    let _ = page.reserve.compare_exchange(from + 1, to + 1, Relaxed, Relaxed);
}

/// Keeps a number for the memory of the next lane: a program that has used up its own must be able to call.
/// An event descriptor is at hand without a path. Where there is none left, there is no reserve.
fn reserve(page: &Page) {
    if page.reserve.load(Relaxed) == 0 {
        let made = sys::call(libc::SYS_eventfd2 as u64, &[0, libc::EFD_CLOEXEC as u64, 0, 0, 0, 0]) as i32;
        if made >= 0 {
            page.reserve.store(hidden::hide(sys::own(made)) + 1, Relaxed);
        }
    }
}

/// A lane of the connection that is kept. EMFILE: the kernel would drop its memory on the way, and the server
/// would keep the lane.
fn new_lane(page: &Page, kept: Kept) -> Result<ClientLane, Errno> {
    let asking = Asking::begin(page);
    if who(page) == Who::Child {
        return lane_of(kept.ask(&asking, &Request::Lane)?);
    }
    reserve(page);
    let number = page.reserve.swap(0, Relaxed);
    if number == 0 {
        return Err(libc::EMFILE);
    }
    hidden::end(number - 1);
    let lane = kept.ask(&asking, &Request::Lane).and_then(lane_of);
    reserve(page);
    lane
}

fn lane_of(mut granted: Answer) -> Result<ClientLane, Errno> {
    let memory = granted.descriptors.pop().ok_or(libc::EIO)?;
    ClientLane::attach(memory).map_err(|_| libc::ENOMEM)
}

/// A new lane on which a call has begun.
fn begun(new: impl Fn() -> Result<ClientLane, Errno>) -> Result<ClientLane, Errno> {
    loop {
        let mut lane = new()?;
        if lane.begin() {
            return Ok(lane);
        }
    }
}

/// Calls. `fill` puts the payload into its space and returns its length, or an error number below 0; `read`
/// gets the answer with its payload, behind which lies a zero.
pub(super) fn exchange<T>(
    call: &Call<'_>,
    fill: impl FnOnce(&mut [u8]) -> isize,
    read: impl FnOnce(Reply, &mut [u8]) -> T,
) -> Result<T, Errno> {
    let page = page().ok_or(libc::EIO)?;
    let Some(kept) = connection(page)? else {
        if matches!(call, Call::Lock { lock: LockRange { of_file: false, .. }, .. }) {
            // It would end with the connection.
            return Err(libc::ENOLCK);
        }
        let socket = connect()?;
        let ask = || greeting::ask(&socket, &Request::Lane).map_err(|error| errno(&error)).and_then(lane_of);
        let mut lane = begun(ask)?;
        return converse(&mut lane, || greeting::is_connected(&socket), call, fill, read)
            .map_err(Lost::errno);
    };
    let lives = || kept.lives(page);
    let done = if let Some(mut claimed) = page.claim(kept.generation) {
        // The server may have ended it while no call was under way.
        if !claimed.lane().is_some_and(ClientLane::begin) {
            claimed.put(begun(|| new_lane(page, kept))?);
        }
        let done = converse(claimed.lane().ok_or(libc::EIO)?, lives, call, fill, read);
        if matches!(done, Err(Lost::Server)) {
            claimed.lose();
        }
        done
    } else {
        let mut lane = begun(|| new_lane(page, kept))?;
        let done = converse(&mut lane, lives, call, fill, read);
        lane.end();
        done
    };
    if matches!(done, Err(Lost::Server)) {
        Asking::begin(page).disconnect(kept.generation);
    }
    done.map_err(Lost::errno)
}

/// Why there is no answer.
enum Lost {
    Server,
    /// Nothing was sent.
    Nothing(Errno),
}

impl Lost {
    fn errno(self) -> Errno {
        match self {
            Self::Server => libc::EIO,
            Self::Nothing(errno) => errno,
        }
    }
}

fn converse<T>(
    lane: &mut ClientLane,
    server_lives: impl Fn() -> bool,
    call: &Call<'_>,
    fill: impl FnOnce(&mut [u8]) -> isize,
    read: impl FnOnce(Reply, &mut [u8]) -> T,
) -> Result<T, Lost> {
    let head = encode(call, &[], lane.space()).map_err(|_| Lost::Nothing(libc::ENAMETOOLONG))?;
    let filled = fill(&mut lane.space()[head..]);
    let Ok(filled) = usize::try_from(filled) else { return Err(Lost::Nothing(-filled as Errno)) };
    let lost = |_: LaneError| Lost::Server;
    let len = lane.call(head + filled, server_lives).map_err(lost)?.len();
    let answer = lane.space();
    let (reply, payload) = decode::<Reply>(&answer[..len]).map_err(lost)?;
    let start = len - payload.len();
    if let Some(behind) = answer.get_mut(len) {
        *behind = 0;
    }
    Ok(read(reply, &mut answer[start..len]))
}

/// A placeholder for a file to be opened.
pub(super) struct Spare {
    pub(super) handle: u64,
    /// In which it is opened; one that is kept may get another number.
    directory: i32,
    /// Of the connection to which it was given; `None`: that one is not kept.
    generation: Option<u32>,
    /// That one, and the connection to which the placeholder was given, of a process that can't keep them.
    own: [Option<OwnedFd>; 2],
}

impl Spare {
    /// Opens it for the program: the descriptor with the lowest number.
    pub(super) fn open(&self, closes_on_exec: bool) -> Result<i32, Verdict> {
        let name = greeting::placeholder_name(self.handle);
        let flags = libc::O_WRONLY | libc::O_APPEND | if closes_on_exec { libc::O_CLOEXEC } else { 0 };
        let mut directory = self.directory;
        let opened = loop {
            let args = [directory as u64, name.as_ptr() as u64, flags as u64, 0, 0, 0];
            let opened = sys::call(libc::SYS_openat as u64, &args);
            let now = self.directory_now();
            // No other directory has such a file.
            if opened >= 0 || now == directory {
                break opened;
            }
            directory = now;
        };
        if opened < 0 {
            return Err(Verdict::Done(opened));
        }
        // All copies have it; while there are some, the file stays open.
        let lock = [opened as u64, libc::LOCK_SH as u64, 0, 0, 0, 0];
        while sys::call(libc::SYS_flock as u64, &lock) == -(libc::EINTR as isize) {}
        Ok(opened as i32)
    }

    fn directory_now(&self) -> i32 {
        let Some(page) = page().filter(|_| self.own[0].is_none()) else { return self.directory };
        let number = page.directory.load(SeqCst);
        let is_of_it = number != 0 && self.generation == Some(page.generation.load(SeqCst));
        if is_of_it { number - 1 } else { self.directory }
    }

    /// Opens it for the program, behind a call that has opened the file.
    pub(super) fn take(self, closes_on_exec: bool) -> Result<i32, Verdict> {
        self.open(closes_on_exec).inspect_err(|_| {
            // Without it the file can't stay open. If there is no server any more, it does not.
            let _ = exchange(&Call::Close { handle: self.handle }, |_| 0, |_, _| ());
        })
    }

    /// Nothing was opened.
    pub(super) fn give_back(self) {
        if let Some(page) = page()
            && let Some(generation) = self.generation
        {
            keep(page, self.handle, generation);
        }
    }
}

/// Keeps a placeholder that is not used; where there is no room for it, it ends with the connection. Another
/// server than that of its generation does not know it.
fn keep(page: &Page, handle: u64, generation: u32) {
    let is_known = || page.generation.load(SeqCst) == generation;
    let mut places = page.spares.iter();
    let is_kept = |place: &&AtomicU64| place.compare_exchange(0, handle, SeqCst, Relaxed).is_ok();
    if is_known()
        && let Some(place) = places.find(is_kept)
        && !is_known()
    {
        // The connection has ended meanwhile; what it had may have been cleared before.
        let _ = place.compare_exchange(handle, 0, Relaxed, Relaxed);
    }
}

/// A placeholder that is kept.
fn kept(page: &Page) -> Option<Spare> {
    let generation = Some(page.generation.load(SeqCst));
    let directory = page.directory.load(Acquire) - 1;
    if directory < 0 {
        return None;
    }
    let is_there = |handle: &u64| *handle != 0;
    let handle = page.spares.iter().map(|place| place.swap(0, Acquire)).find(is_there)?;
    Some(Spare { handle, directory, generation, own: [None, None] })
}

/// A placeholder. EMFILE: the user, or the process, has too many.
pub(super) fn spare() -> Result<Spare, Errno> {
    let page = page().ok_or(libc::EIO)?;
    let request = |count| Request::Placeholders { count };
    let Some(kept_connection) = connection(page)? else {
        let socket = lifted(connect()?);
        let mut given = greeting::ask(&socket, &request(1)).map_err(|error| errno(&error))?;
        return alone(&mut given, None, Some(socket));
    };
    if let Some(spare) = kept(page) {
        return Ok(spare);
    }
    let asking = Asking::begin(page);
    // Another thread may have asked meanwhile.
    if let Some(spare) = kept(page) {
        return Ok(spare);
    }
    let generation = kept_connection.generation;
    // A program that opens many is given many at a time.
    let count = (page.batch.load(Relaxed) * 2).clamp(SPARES_MIN, SPARES as u32);
    page.batch.store(count, Relaxed);
    let mut given = kept_connection.ask(&asking, &request(count))?;
    let is_shared = page.directory.load(Relaxed) == 0 && who(page) == Who::Child;
    let spare = if is_shared {
        alone(&mut given, Some(generation), None)?
    } else {
        let handle = given.handles.pop().ok_or(libc::EMFILE)?;
        if page.directory.load(Relaxed) == 0 {
            let directory = hidden::hide(given.descriptors.pop().ok_or(libc::EIO)?);
            page.directory.store(directory + 1, Release);
        }
        let directory = page.directory.load(Relaxed) - 1;
        Spare { handle, directory, generation: Some(generation), own: [None, None] }
    };
    given.handles.iter().for_each(|handle| keep(page, *handle, generation));
    Ok(spare)
}

/// A descriptor out of the way of the program's.
fn lifted(fd: OwnedFd) -> OwnedFd {
    sys::own(hidden::lift(fd, libc::F_DUPFD_CLOEXEC))
}

/// One that was given to a process that can't keep the directory: its memory is its parent's, its descriptors
/// are not.
fn alone(given: &mut Answer, generation: Option<u32>, connection: Option<OwnedFd>) -> Result<Spare, Errno> {
    let handle = given.handles.pop().ok_or(libc::EMFILE)?;
    let directory = lifted(given.descriptors.pop().ok_or(libc::EIO)?);
    Ok(Spare { handle, directory: directory.as_raw_fd(), generation, own: [Some(directory), connection] })
}

/// The memory of an open file.
pub(super) fn memory(handle: u64) -> Result<OwnedFd, Errno> {
    let request = Request::Memory { handle };
    let page = page().ok_or(libc::EIO)?;
    let given = match connection(page)? {
        Some(kept) => kept.ask(&Asking::begin(page), &request)?,
        None => greeting::ask(&connect()?, &request).map_err(|error| errno(&error))?,
    };
    let Answer { mut descriptors, .. } = given;
    descriptors.pop().ok_or(libc::EIO)
}
