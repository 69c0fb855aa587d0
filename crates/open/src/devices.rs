//! The devices of an open store: where each of them is, and how they come and go.
//!
//! Thread safety: any thread; the list has a short lock of its own. Crash order: the store's directory names
//! a device before the engine takes it in, and until the engine has let go of it; a name too many does no
//! harm, wherever it leads: what can't be opened by it counts only if the engine misses a device.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kvfs_device::{Device, DeviceTraffic, FileDevice, OpenError, WatchedDevice};
use kvfs_kvdb::format::{Member, Superblock};
use kvfs_kvdb::{Db, MissingDevices};
use kvfs_locks::{Mutex, class};
use kvfs_service::{ErrorKind, ServiceError, units::human_bytes};
use kvfs_store::{Store, StoreError, Tier};

use crate::contents;
use crate::error::{Error, Result, explain_device, explain_open};
use crate::store_dir::{DevicePlace, StoreDir, open_target};

/// A file or block device that becomes one of a store's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NewDevice {
    /// Where it is.
    pub path: PathBuf,
    /// How quick it is.
    pub tier: Tier,
    /// How much of it is used (bytes); `None`: all of a block device, and of a file what it has. Of the first
    /// device of a store what its file system has room for, since that grows with use.
    pub size_bytes: Option<u64>,
    /// What it holds is overwritten.
    pub force: bool,
}

/// Whether the devices of a store work.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceHealth {
    /// Reads, writes and flushes that have failed; one more if devices are missing.
    pub failures: u64,
    /// What failed first, and why.
    pub first_failure: Option<String>,
}

type Watched = WatchedDevice<Arc<FileDevice>>;

/// A device beside the first one.
struct Other {
    place: DevicePlace,
    /// It has no label of the store.
    is_foreign: bool,
    watched: Arc<Watched>,
}

/// Names of devices in a store's directory that lead to none of the store, as far as is known.
#[derive(Debug, Clone, Default)]
pub struct Unopened {
    /// Where there is nothing, or nothing that can be read.
    lost: Vec<PathBuf>,
    /// What has no label of the store.
    foreign: Vec<PathBuf>,
    /// Why the first one was not opened that is there.
    refusal: Option<Error>,
}

impl Unopened {
    /// What an engine that can't be opened means to the user. If it misses a device, one that is there and
    /// could not be opened is the reason.
    pub fn explain(&self, dir: &StoreDir, error: StoreError) -> Error {
        if !is_about_missing(&error) {
            return explain_open(dir, error);
        }
        if let Some(refusal) = &self.refusal {
            return refusal.clone();
        }
        let error = explain_open(dir, error);
        let mut message = error.to_string();
        for (what, paths) in [("not found", &self.lost), ("no device of this store", &self.foreign)] {
            let paths: Vec<_> = paths.iter().map(|path| path.display().to_string()).collect();
            if !paths.is_empty() {
                message = format!("{message}; {what}: {}", paths.join(", "));
            }
        }
        Error::new(error.kind(), message)
    }

    /// Whether a device that is there could not be opened.
    pub(crate) fn has_refused(&self) -> bool {
        self.refusal.is_some()
    }

    fn note(&mut self, target: PathBuf, error: &OpenError, explain: impl FnOnce(&OpenError) -> Error) {
        if matches!(error, OpenError::NotFound { .. } | OpenError::Io { .. }) {
            self.lost.push(target);
        } else if self.refusal.is_none() {
            self.refusal = Some(explain(error));
        }
    }
}

/// See the module.
pub struct StoreDevices {
    dir: StoreDir,
    first: Arc<FileDevice>,
    /// The same, as the engine uses it.
    watched: Arc<Watched>,
    others: Mutex<Vec<Other>, class::OpenDevicesOthers>,
    unopened: Unopened,
    /// See [`StoreDevices::missing`].
    missing: Option<String>,
    /// Held while one comes or goes.
    changing: Mutex<(), class::OpenDevicesChanging>,
}

impl StoreDevices {
    /// The first one alone.
    pub(crate) fn over(dir: &StoreDir, first: FileDevice) -> Self {
        let first = Arc::new(first);
        let watched = Arc::new(WatchedDevice::over(Arc::clone(&first)));
        Self {
            dir: dir.clone(),
            first,
            watched,
            others: Mutex::default(),
            unopened: Unopened::default(),
            missing: None,
            changing: Mutex::default(),
        }
    }

    /// Opens and locks all that `dir` names, each once. Those beside the first one that can't be opened are
    /// passed over: the engine knows whether it needs them, and [`Unopened`] why they were not.
    ///
    /// # Errors
    /// One is not what the directory's owner may have there. The first one is in use, not there, or may not
    /// be opened, or has another store than the directory names; I/O errors.
    pub fn open(dir: &StoreDir, read_only: bool) -> Result<Self> {
        let explain = |error: &OpenError| explain_device(dir.path(), error);
        let first = dir.device().open(read_only).map_err(|error| explain(&error))?;
        // What can't be read is for the engine to tell.
        let superblock = Superblock::read_newest(&first).ok();
        if let Some(superblock) = &superblock {
            dir.check_identity(&superblock.uuid)?;
        }
        let has_no_label = |device: &FileDevice| {
            superblock.as_ref().is_some_and(|superblock| {
                let label = Member::read(device, superblock.uuid, superblock.zone_bytes);
                matches!(label, Ok(None))
            })
        };
        let places = dir.other_devices().map_err(|error| Error::io("look into", dir.path(), &error))?;
        let (mut others, mut unopened) = (Vec::new(), Unopened::default());
        let mut opened = Vec::from_iter(dir.device().look().map_err(|error| explain(&error))?);
        for place in places {
            let found = place.look().map_err(|error| explain(&error))?;
            if found.is_some_and(|found| opened.contains(&found)) {
                continue;
            }
            match place.open(read_only) {
                Ok(device) => {
                    opened.extend(found);
                    let is_foreign = has_no_label(&device);
                    if is_foreign {
                        unopened.foreign.push(place.target());
                    }
                    let watched = Arc::new(WatchedDevice::over(Arc::new(device)));
                    others.push(Other { place, is_foreign, watched });
                }
                Err(error) => {
                    tracing::warn!(%error, "a device that the store's directory names can't be opened");
                    unopened.note(place.target(), &error, explain);
                }
            }
        }
        Ok(Self { others: Mutex::new(others), unopened, ..Self::over(dir, first) })
    }

    /// As the engine uses them: the first one, and the others.
    pub fn for_engine(&self) -> (Arc<dyn Device>, Vec<Arc<dyn Device>>) {
        let others = self.others.lock();
        let others = others.iter().map(|other| Arc::clone(&other.watched) as _).collect();
        (Arc::clone(&self.watched) as _, others)
    }

    /// Which names of devices lead to none of the store.
    pub fn unopened(&self) -> &Unopened {
        &self.unopened
    }

    /// The engine has opened the store on them: lets go of what it does not use, a name that a crash has left
    /// or the device of another store, and notes what it misses, which stays so until the store is closed. A
    /// directory that does not name the store yet does from now on; names that lead to what is none of its
    /// devices go.
    ///
    /// # Errors
    /// It misses a device, and one that is there could not be opened.
    pub(crate) fn note_opened(&mut self, db: &Db) -> Result<()> {
        let is_read_only = self.first.is_read_only();
        if !is_read_only && let Err(error) = self.dir.note_identity(&db.uuid()) {
            tracing::warn!(%error, "the store's directory does not name the store");
        }
        self.missing = missing_in(db);
        if let Some(refusal) = self.unopened.refusal.as_ref().filter(|_| self.missing.is_some()) {
            return Err(refusal.clone());
        }
        self.others.lock().retain(|other| {
            let is_used = id_of(db, &other.watched).is_some();
            if !is_used {
                tracing::warn!(path = %other.place.target().display(), "it is no device of this store, and is not used");
                if other.is_foreign && !is_read_only {
                    take_away(&other.place);
                }
            }
            is_used
        });
        Ok(())
    }

    /// The directory of the store.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Which devices of the store are missing, in words; `None`: none.
    pub fn missing(&self) -> Option<&str> {
        self.missing.as_deref()
    }

    /// The first one.
    pub fn first(&self) -> &FileDevice {
        &self.first
    }

    /// Where the device of that number in `db` is; `None`: it is missing.
    pub fn target(&self, db: &Db, id: u32) -> Option<PathBuf> {
        if id == 0 {
            return Some(self.dir.device().target());
        }
        let others = self.others.lock();
        others.iter().find(|other| id_of(db, &other.watched) == Some(id)).map(|other| other.place.target())
    }

    /// Whether the device of that number works, and what was read and written there.
    pub fn state_of(&self, db: &Db, id: u32) -> (DeviceHealth, DeviceTraffic) {
        let state = |watched: &Watched| (health_of(watched), watched.traffic());
        if id == 0 {
            return state(&self.watched);
        }
        let others = self.others.lock();
        let other = others.iter().find(|other| id_of(db, &other.watched) == Some(id));
        other.map_or_else(Default::default, |other| state(&other.watched))
    }

    /// Whether all of them work.
    pub fn health(&self) -> DeviceHealth {
        let mut health = health_of(&self.watched);
        for other in &*self.others.lock() {
            let own = health_of(&other.watched);
            let place = other.place.target();
            health.failures += own.failures;
            let named = own.first_failure.map(|failure| format!("{}: {failure}", place.display()));
            health.first_failure = health.first_failure.or(named);
        }
        if let Some(missing) = &self.missing {
            health.failures += 1;
            health.first_failure.get_or_insert_with(|| missing.clone());
        }
        health
    }

    /// Takes a file or block device into the store that `db` is; its number. It is given up again where that
    /// fails.
    ///
    /// # Errors
    /// It holds something, and `force` is not set; it is in use, too small, or not what the owner of the
    /// store's directory may have there; I/O errors.
    pub fn add(&self, db: &Db, new: &NewDevice) -> Result<u32> {
        let _changing = self.changing.lock();
        let explain = |error: OpenError| explain_device(self.dir.path(), &error);
        let (device, file) = prepare(new)?;
        let place = self.dir.place_for_device();
        let place = place.map_err(|error| Error::io("look into", self.dir.path(), &error))?;
        place.link(&new.path, &file).map_err(explain)?;
        drop(file);
        let watched = Arc::new(WatchedDevice::over(device));
        match db.add_device(Arc::clone(&watched) as _, new.tier) {
            Ok(id) => {
                self.others.lock().push(Other { place, is_foreign: false, watched });
                Ok(id)
            }
            Err(error) => {
                // Behind a failure the manifest may name it.
                if db.failure().is_none() {
                    take_away(&place);
                }
                Err(refused(&new.path, error))
            }
        }
    }

    /// Lets go of a device that holds nothing.
    ///
    /// # Errors
    /// As [`Db::remove_device`].
    pub fn remove(&self, db: &Db, id: u32) -> Result<(), StoreError> {
        let _changing = self.changing.lock();
        let find = |other: &Other| id_of(db, &other.watched) == Some(id);
        let place = self.others.lock().iter().find(|other| find(other)).map(|other| other.place.clone());
        db.remove_device(id)?;
        if let Some(place) = &place {
            take_away(place);
        }
        self.others.lock().retain(|other| id_of(db, &other.watched).is_some());
        Ok(())
    }
}

pub(crate) fn is_about_missing(error: &StoreError) -> bool {
    match error {
        StoreError::Io { source, .. } => {
            matches!(source.get_ref(), Some(inner) if inner.is::<MissingDevices>())
        }
        _ => false,
    }
}

fn missing_in(db: &Db) -> Option<String> {
    let missing = db.devices().into_iter().filter(|device| device.is_missing);
    let names: Vec<_> = missing.map(|device| format!("{} device {}", device.tier, device.id)).collect();
    let are = if names.len() == 1 { "is" } else { "are" };
    let joined = names.join(", the ");
    (!names.is_empty()).then(|| format!("the {joined} {are} missing; what lies there can't be read"))
}

/// The number that the engine has given it.
fn id_of(db: &Db, watched: &Arc<Watched>) -> Option<u32> {
    db.device_id(&(Arc::clone(watched) as Arc<dyn Device>))
}

fn health_of(watched: &Watched) -> DeviceHealth {
    let first_failure = watched.first_failure().map(str::to_owned);
    DeviceHealth { failures: watched.failed(), first_failure }
}

fn take_away(place: &DevicePlace) {
    if let Err(error) = place.remove() {
        tracing::warn!(path = %place.target().display(), %error, "the store's directory still names it");
    }
}

/// What keeps the engine from taking in the device at `path`.
fn refused(path: &Path, error: StoreError) -> Error {
    let error = ServiceError::of_order(error);
    match error.kind() {
        ErrorKind::Usage => {
            Error::new(ErrorKind::Usage, format!("{} can't be added: {error}", path.display()))
        }
        _ => error.into(),
    }
}

/// Opens and locks it, and makes it as long as is to be used; the same as a file to look into.
fn prepare(new: &NewDevice) -> Result<(Arc<FileDevice>, File)> {
    let NewDevice { path, size_bytes, force, .. } = new;
    let (device, file) = open_target(path).map_err(|error| explain_target(new, &error))?;
    if !force {
        check_blank(path, &file)?;
    }
    fit(&device, *size_bytes).map_err(|error| Error::io("use", path, &error))?;
    Ok((Arc::new(device), file))
}

/// Refuses to overwrite what `file`, which messages call `path`, holds.
///
/// # Errors
/// It holds something; I/O errors.
pub(crate) fn check_blank(path: &Path, file: &File) -> Result<()> {
    let found = contents::find(file).map_err(|error| Error::io("read", path, &error))?;
    found.map_or(Ok(()), |found| {
        let message = format!("{} holds {found}; --force overwrites it", path.display());
        Err(Error::new(ErrorKind::InUse, message))
    })
}

/// A file becomes as long as is to be used, and all of that has its space: a zone that could not be written
/// to would be a failure of the store, not a lack of space.
fn fit(device: &FileDevice, size_bytes: Option<u64>) -> io::Result<()> {
    let now = device.len_bytes();
    if device.is_block_device() {
        return match size_bytes {
            Some(size) if size != now => Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                "a block device is used as a whole; leave out its size",
            )),
            _ => Ok(()),
        };
    }
    let wanted = size_bytes.unwrap_or(now);
    if wanted == 0 {
        let message = "it is empty; `,size=100G` behind the path makes it a file of 100 GiB";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    if wanted < now {
        let message = format!("it is longer than that: it has {now} bytes");
        return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
    }
    let len_max = device.file_len_max()?;
    if wanted > len_max {
        let [wanted, len_max, missing] = [wanted, len_max, wanted - len_max].map(human_bytes);
        let message = format!(
            "it gets all its {wanted} at once, and its file system has room for {len_max}: {missing} are missing; nothing was changed"
        );
        return Err(io::Error::new(io::ErrorKind::StorageFull, message));
    }
    if !device.reserve(wanted)? {
        let path = device.path().display();
        tracing::warn!(%path, "its file system can't set space aside; without space there the store fails");
    }
    Ok(())
}

/// What a file or block device that can't be opened means to the user.
pub(crate) fn explain_target(new: &NewDevice, error: &OpenError) -> Error {
    match error {
        OpenError::NotFound { path } => {
            let path = path.display();
            let made = match new.size_bytes {
                Some(_) => {
                    format!("`touch {path}` makes an empty file, which becomes as large as was asked for")
                }
                None => format!("`truncate -s 100G {path}` makes a file of 100 GiB"),
            };
            Error::new(ErrorKind::Failed, format!("{error}; {made}"))
        }
        _ => Error::new(explain_device(&new.path, error).kind(), error.to_string()),
    }
}

#[cfg(test)]
mod tests;
