//! The manifest: edits committed atomically, one flushed group each.
//!
//! When the zones are full, a snapshot of the state goes to fresh ones, then both superblock slots
//! turn to it, and only then the old zones are given back: at every moment each valid slot names a
//! manifest that is whole and holds every commit that returned.
//!
//! Failure is sticky, and spreads to the allocator: after a commit with unknown outcome, the pieces
//! that it names may be on the device for good, so no space may be used again.

use std::sync::Arc;

use kvfs_device::{AlignedBuf, Device};
use kvfs_locks::{Mutex, class};
use kvfs_store::{Result, StoreError};

use super::edit::Edit;
use super::group::{FLAG_SNAPSHOT_END, GroupLog, group_len};
use super::state::ManifestState;
use crate::format::{Decoder, MANIFEST_ZONES_MAX, SUPERBLOCK_ADDRS, SUPERBLOCK_BYTES, Superblock, ZoneId};
use crate::space::{Budget, Zones};

/// Edits of a snapshot per group (bytes), as a rule. Tests are to meet snapshots of many groups.
const SNAPSHOT_GROUP_BYTES: usize = if cfg!(test) { 8 << 10 } else { 1 << 20 };
/// A rewritten manifest has room for at least so many bytes of edits to come.
const ROOM_BYTES_MIN: u64 = 64 << 10;

/// The manifest of an open store.
pub(crate) struct Manifest {
    device: Arc<dyn Device>,
    zones: Arc<Zones>,
    inner: Mutex<Inner, class::KvdbVersionManifestInner>,
}

struct Inner {
    superblock: Superblock,
    log: GroupLog,
    state: ManifestState,
    rewrites: u64,
    /// Since it was opened.
    bytes_written: u64,
    failed: Option<Arc<str>>,
}

impl Manifest {
    /// Makes a store: wipes the superblocks, writes an empty manifest, and last the superblocks of
    /// `superblock` (its manifest's place is filled in). The journal area must have been cleared.
    /// The device holds no store until this returns.
    ///
    /// # Errors
    /// I/O errors; `Full` when there is no zone.
    pub(crate) fn create(device: Arc<dyn Device>, zones: Arc<Zones>, superblock: Superblock) -> Result<Self> {
        wipe_superblocks(device.as_ref())?;
        let log = GroupLog::new(&superblock);
        let inner = Inner {
            superblock,
            log,
            state: ManifestState::default(),
            rewrites: 0,
            bytes_written: 0,
            failed: None,
        };
        let manifest = Self { device, zones, inner: Mutex::new(inner) };
        manifest.locked(|manifest, inner| manifest.rewrite(inner, 0))?;
        Ok(manifest)
    }

    /// Reads the manifest that `superblock` names, and claims its zones from `zones`. Writes
    /// nothing: a writable opening goes on with [`Manifest::begin_epoch`].
    ///
    /// # Errors
    /// I/O errors and corruption.
    pub(crate) fn open(
        device: Arc<dyn Device>,
        superblock: Superblock,
        zones: Arc<Zones>,
    ) -> Result<(Self, ManifestState)> {
        let mut state = ManifestState::default();
        let log = read(device.as_ref(), &superblock, |edit| state.apply(edit))?;
        for &zone in &superblock.manifest_zones {
            zones.claim_zone(zone)?;
        }
        let zones_next = zones_needed(&superblock, log.end(), ROOM_BYTES_MIN);
        zones.set_manifest_zones(zones_next as u32);
        let inner =
            Inner { superblock, log, state: state.clone(), rewrites: 0, bytes_written: 0, failed: None };
        Ok((Self { device, zones, inner: Mutex::new(inner) }, state))
    }

    /// Starts a writable opening: counts the epoch up in both superblocks. Call it right after
    /// [`Manifest::open`], before anything else is written or allocated; it also repairs a
    /// superblock slot that is damaged or behind. Returns the new epoch, which the journal needs.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub(crate) fn begin_epoch(&self) -> Result<u64> {
        self.locked(|manifest, inner| {
            inner.superblock.epoch += 1;
            manifest.write_superblocks(inner)?;
            Ok(inner.superblock.epoch)
        })
    }

    /// The store may reach up to `capacity_bytes`: in both superblocks, durably, when this returns.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub(crate) fn set_capacity(&self, capacity_bytes: u64) -> Result<()> {
        self.locked(|manifest, inner| {
            inner.superblock.capacity_bytes = capacity_bytes;
            manifest.write_superblocks(inner)
        })
    }

    /// The store's format has this version from now on, durably when this returns; two flushes, if it had
    /// another one. The caller knows that nothing on the device needs a higher one.
    ///
    /// # Errors
    /// `Failed`; sticky.
    pub(crate) fn set_version(&self, format_version: u32) -> Result<()> {
        self.locked(|manifest, inner| {
            if inner.superblock.format_version == format_version {
                return Ok(());
            }
            inner.superblock.format_version = format_version;
            manifest.write_superblocks(inner)
        })
    }

    /// Applies `edits` wholly or not at all, durably when this returns. What they refer to must
    /// have been flushed before. One write and one flush, and at times a rewrite of the manifest.
    ///
    /// # Errors
    /// `Full` when a rewrite finds no zones: nothing has happened then. `Failed` after an I/O
    /// failure or an edit that contradicts the state; sticky.
    pub(crate) fn commit(&self, edits: &[Edit]) -> Result<()> {
        let mut payload = Vec::new();
        for edit in edits {
            edit.encode(&mut payload);
        }
        self.locked(|manifest, inner| {
            if !inner.log.has_room(payload.len()) {
                manifest.rewrite(inner, payload.len())?;
            }
            for edit in edits {
                inner.state.apply(edit).map_err(|error| manifest.fail(inner, &error))?;
            }
            let epoch = inner.superblock.epoch;
            let written = inner.log.append(manifest.device.as_ref(), epoch, &payload, 0);
            written.and_then(|()| manifest.flush()).map_err(|error| manifest.fail(inner, &error))?;
            inner.bytes_written += group_len(payload.len());
            Ok(())
        })
    }

    /// Puts `state` in the place of what the manifest says: it goes to fresh zones, then both superblocks
    /// turn to it. For repairs: the manifest zones of `superblock` have been claimed from `zones`, its epoch
    /// is on the device, and everything that `state` refers to has been flushed. Until the superblocks are
    /// written, nothing has changed.
    ///
    /// # Errors
    /// I/O errors; `Full` when there is no zone.
    pub(crate) fn replace(
        device: Arc<dyn Device>,
        zones: Arc<Zones>,
        superblock: Superblock,
        state: ManifestState,
    ) -> Result<()> {
        let log = GroupLog::new(&superblock);
        let inner = Inner { superblock, log, state, rewrites: 0, bytes_written: 0, failed: None };
        let manifest = Self { device, zones, inner: Mutex::new(inner) };
        manifest.locked(|manifest, inner| manifest.rewrite(inner, 0))
    }

    /// A copy of the superblock as it is now.
    #[cfg(test)]
    pub(crate) fn superblock(&self) -> Superblock {
        self.inner.lock().superblock.clone()
    }

    /// What is wrong with either slot of the superblock. None is written meanwhile.
    pub(crate) fn damaged_superblocks(&self) -> Vec<String> {
        let _inner = self.inner.lock();
        Superblock::damaged_slots(self.device.as_ref())
    }

    /// Bytes of the manifest, and how often it was rewritten since it was opened.
    #[cfg(test)]
    pub(crate) fn size(&self) -> (u64, u64) {
        let inner = self.inner.lock();
        (inner.log.end(), inner.rewrites)
    }

    /// Bytes written since it was opened, superblocks excluded.
    pub(crate) fn bytes_written(&self) -> u64 {
        self.inner.lock().bytes_written
    }

    fn locked<R>(&self, work: impl FnOnce(&Self, &mut Inner) -> Result<R>) -> Result<R> {
        let mut inner = self.inner.lock();
        match &inner.failed {
            Some(reason) => Err(StoreError::Failed { reason: reason.clone() }),
            None => work(self, &mut inner),
        }
    }

    /// Makes `error` sticky.
    fn fail(&self, inner: &mut Inner, error: &StoreError) -> StoreError {
        tracing::error!(%error, "the manifest takes nothing more");
        let reason: Arc<str> = error.to_string().into();
        inner.failed = Some(reason.clone());
        self.zones.fail(reason.clone());
        StoreError::Failed { reason }
    }

    fn flush(&self) -> Result<()> {
        self.device.flush().map_err(|error| StoreError::io("flushing the manifest", error))
    }

    fn write_superblocks(&self, inner: &mut Inner) -> Result<()> {
        let written = inner.superblock.write_both(self.device.as_ref());
        written.map_err(|error| self.fail(inner, &error))
    }

    /// Writes the state to fresh zones, with room for a group of `payload_len` bytes, and turns the
    /// superblocks to it.
    fn rewrite(&self, inner: &mut Inner, payload_len: usize) -> Result<()> {
        let groups = snapshot_groups(&inner.state);
        let snapshot_len = groups.iter().map(|group| group_len(group.len())).sum();
        let room = ROOM_BYTES_MIN.max(group_len(payload_len));
        let zones = self.allocate_zones(zones_needed(&inner.superblock, snapshot_len, room))?;

        let mut superblock = inner.superblock.clone();
        superblock.manifest_seq += 1;
        let zones_old = std::mem::replace(&mut superblock.manifest_zones, zones);
        let mut log = GroupLog::new(&superblock);
        let written = groups.iter().enumerate().try_for_each(|(index, group)| {
            let flags = if index + 1 == groups.len() { FLAG_SNAPSHOT_END } else { 0 };
            log.append(self.device.as_ref(), superblock.epoch, group, flags)
        });
        written.and_then(|()| self.flush()).map_err(|error| self.fail(inner, &error))?;

        inner.superblock = superblock;
        inner.log = log;
        self.write_superblocks(inner)?;
        inner.rewrites += 1;
        inner.bytes_written += snapshot_len;
        for zone in zones_old {
            self.zones.free_zone(zone);
        }
        self.zones.set_manifest_zones(inner.superblock.manifest_zones.len() as u32);
        Ok(())
    }

    /// So many zones, or none of them.
    fn allocate_zones(&self, len: usize) -> Result<Vec<ZoneId>> {
        if len > MANIFEST_ZONES_MAX {
            tracing::error!(len, "the manifest needs more zones than a superblock can name");
            return Err(StoreError::Full);
        }
        let mut zones = Vec::with_capacity(len);
        while zones.len() < len {
            match self.zones.allocate_zone(Budget::Reserve) {
                Ok(zone) => zones.push(zone),
                Err(error) => {
                    for zone in zones {
                        self.zones.free_zone(zone);
                    }
                    return Err(error);
                }
            }
        }
        Ok(zones)
    }
}

/// Reads the manifest that `superblock` names, without claiming anything: for stores that are
/// opened read-only, and for checks.
///
/// # Errors
/// I/O errors and corruption.
#[cfg(test)]
pub(crate) fn read_state(
    device: &dyn Device,
    superblock: &Superblock,
    mut each: impl FnMut(&Edit),
) -> Result<ManifestState> {
    let mut state = ManifestState::default();
    read(device, superblock, |edit| {
        each(edit);
        state.apply(edit)
    })?;
    Ok(state)
}

/// Calls `each` with all edits, in their order.
fn read(
    device: &dyn Device,
    superblock: &Superblock,
    mut each: impl FnMut(&Edit) -> Result<()>,
) -> Result<GroupLog> {
    let mut log = GroupLog::new(superblock);
    let mut is_whole = false;
    loop {
        let place = log.place();
        let Some(group) = log.read_next(device)? else { break };
        is_whole |= group.is_snapshot_end;
        let mut decoder = Decoder::new(&group.edits);
        while !decoder.is_empty() {
            let edit = Edit::decode(&mut decoder).map_err(|error| error.at(place.clone()))?;
            each(&edit)?;
        }
    }
    if is_whole { Ok(log) } else { Err(StoreError::corrupt(log.place(), "the snapshot ends before it")) }
}

/// Zones of a manifest with a snapshot of `snapshot_len` bytes: its log may grow to the same
/// length, and to `room` at least, so that rewrites cost a constant factor.
fn zones_needed(superblock: &Superblock, snapshot_len: u64, room: u64) -> usize {
    (snapshot_len + room.max(snapshot_len)).div_ceil(superblock.zone_bytes.into()) as usize
}

/// The state as groups of edits; at least one.
fn snapshot_groups(state: &ManifestState) -> Vec<Vec<u8>> {
    let mut groups = vec![Vec::new()];
    state.for_each_edit(|edit| {
        let is_full = groups.last().is_some_and(|group| group.len() + edit.len() > SNAPSHOT_GROUP_BYTES);
        if is_full {
            groups.push(Vec::new());
        }
        if let Some(group) = groups.last_mut() {
            group.extend_from_slice(edit);
        }
    });
    groups
}

/// A store that was here before must not come back when the new one is not complete yet.
fn wipe_superblocks(device: &dyn Device) -> Result<()> {
    let zeros = AlignedBuf::zeroed(SUPERBLOCK_BYTES);
    for addr in SUPERBLOCK_ADDRS {
        device
            .write_at(zeros.as_ref(), addr)
            .map_err(|error| StoreError::io(format!("clearing the superblock at byte {addr}"), error))?;
    }
    device.flush().map_err(|error| StoreError::io("clearing the superblocks", error))
}
