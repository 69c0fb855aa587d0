//! Stores on `SlateDB`: the directory `slatedb` beside the mark names where the objects are.
//!
//! Thread safety: functions. Invariants: the file `place` is there before an object is, and no object is
//! removed without it; it holds no secret; a store in another user's directory is refused, since what this
//! user puts there would lead this process, with its credentials, anywhere.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kvfs_engine_slatedb::{
    Claimant, JournalOptions, LEASES, ObjectPlace, SlateOptions, SlateStore, TIMEOUTS,
};
use kvfs_engine_transactions::Transacted;
use kvfs_fs::MkfsOptions;
use kvfs_kvdb::CreateOptions;
use kvfs_service::ErrorKind;
use kvfs_store::{EngineStore, Store, StoreError};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::{Objects, make_files};
use crate::error::{Error, Result, explain_open};
use crate::memory::MEMORY_BYTES_MIN;
use crate::open::OpenOptions;
use crate::store_dir::StoreDir;

/// The directory in that of the store, and the file in it.
const NAME: &str = "slatedb";
const PLACE: &str = "slatedb/place";

/// The directory of the local cache there.
const CACHE: &str = "slatedb/cache";

/// The directory of the journal on the local disk there.
const JOURNAL: &str = "slatedb/journal";

/// Bound of the local cache unless told otherwise (bytes).
const CACHE_BYTES: u64 = 1 << 30;

/// What tells this run of this machine from all others.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The first line of the file.
const MAGIC: &str = "kvfs-slatedb 1";

/// No place is longer (bytes).
const LEN_MAX: u64 = 8192;

/// As kvdb has it.
const COMMIT_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn open(dir: &StoreDir, options: &OpenOptions) -> Result<Arc<dyn EngineStore>> {
    check_own(dir)?;
    let place = read_place(dir)?.ok_or_else(|| damaged(dir, "it is missing"))?;
    let memory = options.memory;
    let memory_bytes = memory.engine_bytes(memory.reserve_bytes());
    let defaults = SlateOptions::with_memory(memory_bytes);
    let slate = SlateOptions {
        read_only: options.read_only,
        follows: options.follows,
        commit_interval: options.commit_interval.unwrap_or(COMMIT_INTERVAL),
        timeout: timeout(options, defaults.timeout)?,
        claimant: claimant(dir, options)?,
        cache: cache(dir, &place, options),
        journal: Some(journal(dir, options)),
        ..defaults
    };
    let opened = SlateStore::open(&place, &slate);
    let store = opened.map_err(|error| match &error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::ResourceBusy => {
            let message = format!("cannot open the store {}: {source}", dir.path().display());
            Error::new(ErrorKind::InUse, message)
        }
        _ => explain_open(dir, error),
    })?;
    Ok(Arc::new(Transacted::new(store, memory_bytes)))
}

/// `None`: for ever.
fn timeout(options: &OpenOptions, default: Option<Duration>) -> Result<Option<Duration>> {
    match options.timeout {
        None => Ok(default),
        Some(Duration::ZERO) => Ok(None),
        Some(timeout) if TIMEOUTS.contains(&timeout) => Ok(Some(timeout)),
        Some(timeout) => {
            let (least, most) = (TIMEOUTS.start().as_secs(), TIMEOUTS.end().as_secs() / 3600);
            let message =
                format!("timeout={timeout:?}: at least {least}s and at most {most}h, or 0 for ever");
            Err(Error::new(ErrorKind::Usage, message))
        }
    }
}

/// This process, which has the lock of the store's directory: a record of the same identity is of a process
/// that is gone.
fn claimant(dir: &StoreDir, options: &OpenOptions) -> Result<Claimant> {
    let failed = |error: &io::Error| Error::io("look at", dir.path(), error);
    let boot = std::fs::read_to_string(BOOT_ID).map_err(|error| failed(&error))?;
    let found = rustix::fs::fstat(dir.directory()).map_err(|errno| failed(&errno.into()))?;
    let lease = options.lease.unwrap_or(Claimant::default().lease);
    if !LEASES.contains(&lease) {
        let (least, most) = (LEASES.start().as_secs(), LEASES.end().as_secs() / 60);
        let message = format!("lease={lease:?}: at least {least}s and at most {most}m");
        return Err(Error::new(ErrorKind::Usage, message));
    }
    let host = rustix::system::uname();
    let path = dir.path().to_string_lossy().replace(|c: char| c.is_control(), "?");
    Ok(Claimant {
        name: format!("host {}, {path}, pid {}", host.nodename().to_string_lossy(), std::process::id()),
        identity: format!("{}:{}:{}", boot.trim(), found.st_dev, found.st_ino),
        takes_over: options.takes_over,
        lease,
    })
}

/// Where the local cache is, and its bound; `None`: there is none. Objects in a directory have one only if it
/// is asked for, and a store that is only read, which several processes may do, has none.
fn cache(dir: &StoreDir, place: &ObjectPlace, options: &OpenOptions) -> Option<(PathBuf, u64)> {
    let default = if place.is_local() { 0 } else { CACHE_BYTES };
    let bytes = options.cache_bytes.unwrap_or(default);
    (bytes > 0 && !options.read_only).then(|| (dir.path().join(CACHE), bytes))
}

/// Where the journal is. One that was left there counts, whatever is asked for now.
fn journal(dir: &StoreDir, options: &OpenOptions) -> JournalOptions {
    JournalOptions { dir: dir.path().join(JOURNAL), is_written: options.journals_locally }
}

fn place_of(objects: &Objects<'_>) -> Result<ObjectPlace> {
    let place = ObjectPlace::new(objects.url, objects.endpoint);
    place.map_err(|message| Error::new(ErrorKind::Usage, message))
}

/// The directory of the objects, if they are files.
pub(super) fn objects_directory(dir: &StoreDir) -> Result<Option<PathBuf>> {
    let Some(objects) = read_place(dir)?.and_then(|place| place.directory()) else { return Ok(None) };
    match objects.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        found => found.map(Some).map_err(|error| Error::io("find the objects in", &objects, &error)),
    }
}

/// What tells the place apart from all others, in one word.
pub(super) fn name_of(objects: &Objects<'_>) -> Result<String> {
    let place = place_of(objects)?;
    let url = place.url().trim_end_matches('/');
    Ok(place.endpoint().map_or_else(|| url.to_owned(), |endpoint| format!("{url}@{endpoint}")))
}

/// Refuses a place at which there is no store.
pub(super) fn expect_store(objects: &Objects<'_>) -> Result<()> {
    SlateStore::find(&place_of(objects)?).map_err(|error| match &error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::NotFound => {
            let message = format!("there is no kvfs store at {}; `kvfs mkfs` makes one", objects.url);
            Error::new(ErrorKind::NotAStore, message)
        }
        _ => error.into(),
    })
}

/// Has the directory name the store that is there. No object is touched.
pub(super) fn adopt(dir: &StoreDir, objects: &Objects<'_>) -> Result<()> {
    check_own(dir)?;
    let place = place_of(objects)?;
    write_place(dir, &place).map_err(|error| Error::io("name a store in", dir.path(), &error))
}

/// Makes the database where `objects` says, and an empty file system in it (`None`: nothing).
pub(super) fn make(dir: &StoreDir, objects: &Objects<'_>, files: Option<&MkfsOptions>) -> Result<()> {
    check_own(dir)?;
    let place = place_of(objects)?;
    let uuid = CreateOptions::with_new_uuid(0)?.uuid;
    let claimed = SlateStore::claim(&place, uuid);
    claimed.map_err(|error| match &error {
        StoreError::Io { source, .. } if source.kind() == io::ErrorKind::AlreadyExists => {
            Error::new(ErrorKind::InUse, error.to_string())
        }
        _ => error.into(),
    })?;
    if let Err(error) = write_place(dir, &place) {
        // Without the file nothing else would remove it.
        let _ = SlateStore::remove(&place);
        return Err(Error::io("make a store in", dir.path(), &error));
    }
    let claimant = claimant(dir, &OpenOptions::default())?;
    let options = SlateOptions { claimant, ..SlateOptions::with_memory(MEMORY_BYTES_MIN) };
    SlateStore::create(&place, &options, uuid)?;
    let Some(files) = files else { return Ok(()) };
    let store = Arc::new(SlateStore::open(&place, &options)?);
    make_files(&(Arc::clone(&store) as Arc<dyn Store>), dir, files)?;
    Ok(store.close()?)
}

/// Removes the objects, if any were made, and what is in the directory.
pub(super) fn remove(dir: &StoreDir) -> io::Result<()> {
    match dir.look(NAME) {
        Err(Errno::NOENT) => return Ok(()),
        found => found?,
    };
    let place = read_place(dir).map_err(|error| io::Error::other(error.to_string()))?;
    if let Some(place) = place {
        SlateStore::remove(&place).map_err(|error| io::Error::other(error.to_string()))?;
        for within in [CACHE, JOURNAL] {
            match std::fs::remove_dir_all(dir.path().join(within)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        rustix::fs::unlinkat(dir.directory(), PLACE, AtFlags::empty())?;
    }
    Ok(rustix::fs::unlinkat(dir.directory(), NAME, AtFlags::REMOVEDIR)?)
}

fn check_own(dir: &StoreDir) -> Result<()> {
    if !dir.is_foreign() {
        return Ok(());
    }
    let path = dir.path().display();
    let message = format!(
        "{path} belongs to user {}, and names where its objects are, which would be reached with the credentials of another one: \
         only that user can use it; a store of engine kvdb can be used by root, too",
        dir.uid()
    );
    Err(Error::new(ErrorKind::Denied, message))
}

fn write_place(dir: &StoreDir, place: &ObjectPlace) -> io::Result<()> {
    rustix::fs::mkdirat(dir.directory(), NAME, Mode::from_raw_mode(0o700))?;
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut file = File::from(rustix::fs::openat(dir.directory(), PLACE, flags, Mode::from_raw_mode(0o600))?);
    writeln!(file, "{MAGIC}\nurl {}", place.url())?;
    if let Some(endpoint) = place.endpoint() {
        writeln!(file, "endpoint {endpoint}")?;
    }
    file.sync_all()?;
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    for name in [NAME, "."] {
        let within = rustix::fs::openat(dir.directory(), name, flags, Mode::empty())?;
        rustix::fs::fsync(within)?;
    }
    Ok(())
}

/// `None`: no place is named.
fn read_place(dir: &StoreDir) -> Result<Option<ObjectPlace>> {
    let failed = |error: &io::Error| Error::io("read where the objects are of", dir.path(), error);
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match rustix::fs::openat(dir.directory(), PLACE, flags, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(None),
        opened => opened.map_err(|errno| failed(&errno.into()))?,
    };
    let mut text = String::new();
    File::from(file).take(LEN_MAX).read_to_string(&mut text).map_err(|error| failed(&error))?;
    parse(&text).map(Some).map_err(|message| damaged(dir, &message))
}

fn parse(text: &str) -> Result<ObjectPlace, String> {
    let mut lines = text.lines();
    match lines.next() {
        Some(MAGIC) => {}
        first => return Err(format!("it begins with {:?}, not {MAGIC:?}", first.unwrap_or_default())),
    }
    let (mut url, mut endpoint) = (None, None);
    for line in lines {
        match line.split_once(' ') {
            Some(("url", value)) => url = Some(value),
            Some(("endpoint", value)) => endpoint = Some(value),
            _ => return Err(format!("it says {line:?}, which this kvfs does not know")),
        }
    }
    ObjectPlace::new(url.ok_or("it names no URL")?, endpoint)
}

fn damaged(dir: &StoreDir, message: &str) -> Error {
    let path = dir.path().join(PLACE);
    let message =
        format!("cannot open the store {}: its file {}: {message}", dir.path().display(), path.display());
    Error::new(ErrorKind::NotAStore, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_read_as_they_were_written_and_others_are_refused() {
        let text = "kvfs-slatedb 1\nurl s3://bucket/prefix\nendpoint http://localhost:9000\n";
        let place = parse(text).unwrap();
        assert_eq!((place.url(), place.endpoint()), ("s3://bucket/prefix", Some("http://localhost:9000")));
        for (text, words) in [
            ("", "begins with"),
            ("kvfs-slatedb 2\nurl s3://b/p\n", "kvfs-slatedb 2"),
            ("kvfs-slatedb 1\n", "no URL"),
            ("kvfs-slatedb 1\nurl s3://b/p\ncolour red\n", "colour red"),
            ("kvfs-slatedb 1\nurl s3://b/p?x\n", "more than bucket and prefix"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(words), "{text:?}: {refused}");
        }
    }
}
