//! The devices of a store: the first one, which has superblocks, journal and manifest, and others, fast or
//! slow, that come and go while it is open.
//!
//! Thread safety: any thread; devices come and go one at a time. Crash order: a new device has its label,
//! flushed, and the superblocks announce several devices, before the manifest names it; one that goes is
//! empty before the manifest forgets it, and loses its label after that. So whatever a crash leaves, every
//! zone that something lies in is on a device that the manifest names.

mod drains;

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use kvfs_device::{Device, JoinedDevice, MissingDevice, Segment};
use kvfs_locks::{Mutex, class};
use kvfs_store::{Result, StoreError, Tier};

use crate::commits::Checkpoints;
use crate::format::{Feature, MEMBER_DATA_FROM, Member, SUPERBLOCK_ADDRS, Superblock, ZoneId};
use crate::live::LiveSet;
use crate::merge::Merger;
use crate::merge::drain::{Drained, drain};
use crate::runtime::options::{Background, new_uuid};
use crate::space::{DEVICE_ZONES_MAX, MemberSpace, MemberZones, Placement, Zones};
use crate::version::{Edit, ManifestState, MemberState};

pub use drains::DrainInfo;
use drains::Drains;

/// News of a drain that is waited for come at least this often.
const NEWS_WAIT_MAX: Duration = Duration::from_millis(250);

/// All devices beside the first one have at most so many zones: what is known of each is in memory.
const OTHERS_ZONES_MAX: u32 = 4 * DEVICE_ZONES_MAX;

/// A device of an open store.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number; the first one has 0.
    pub id: u32,
    /// How quick it is.
    pub tier: Tier,
    /// What it can hold (bytes).
    pub bytes_total: u64,
    /// What of that is in zones that hold nothing.
    pub bytes_free: u64,
    /// What is stored there (bytes).
    pub bytes_live: u64,
    /// It is not there: what it holds can't be read.
    pub is_missing: bool,
    /// It is being drained, or was: nothing new goes there.
    pub drain: Option<DrainInfo>,
}

impl DeviceInfo {
    /// Whether nothing at all is there.
    pub fn is_empty(&self) -> bool {
        self.bytes_free == self.bytes_total
    }
}

/// Why a store with several devices was not opened: some are not there.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{} of the store {} missing: {}", plural(.0.len(), "a device", "devices"), plural(.0.len(), "is", "are"),
    .0.iter().map(name_of).collect::<Vec<_>>().join(", "))]
pub struct MissingDevices(pub Vec<Member>);

fn plural<'a>(count: usize, one: &'a str, more: &'a str) -> &'a str {
    if count == 1 { one } else { more }
}

fn name_of(member: &Member) -> String {
    format!("the {} device {}", member.tier, member.id)
}

/// A device beside the first one; `None`: it is missing.
type Other = (Member, Option<Arc<dyn Device>>);

/// See the module.
pub(crate) struct Devices {
    live: Arc<LiveSet>,
    merger: Arc<Merger>,
    checkpoints: Arc<Checkpoints>,
    joined: Arc<JoinedDevice>,
    /// Of all fast ones (bytes).
    fast_written: Arc<AtomicU64>,
    store: [u8; 16],
    /// Held while one comes or goes, or the first one grows.
    others: Mutex<Vec<Other>, class::KvdbDevicesOthers>,
    drains: Drains,
}

impl Devices {
    pub(crate) fn new(
        merger: &Arc<Merger>,
        checkpoints: &Arc<Checkpoints>,
        found: Found,
        store: [u8; 16],
    ) -> Self {
        let Found { joined, fast_written, others } = found;
        Self {
            live: Arc::clone(&merger.live),
            checkpoints: Arc::clone(checkpoints),
            merger: Arc::clone(merger),
            joined,
            fast_written,
            store,
            others: Mutex::new(others),
            drains: Drains::default(),
        }
    }

    fn zones(&self) -> &Zones {
        &self.live.runtime.ctx.zones
    }

    /// All of them, the first one first. O(zones).
    pub(crate) fn list(&self) -> Vec<DeviceInfo> {
        self.list_with(&self.others.lock())
    }

    /// As [`Self::list`], where the caller holds `others`.
    fn list_with(&self, others: &[Other]) -> Vec<DeviceInfo> {
        let zone_bytes = u64::from(self.zones().zone_bytes());
        let is_missing = |id| others.iter().any(|(member, device)| member.id == id && device.is_none());
        let info = |(member, space): (MemberZones, MemberSpace)| DeviceInfo {
            id: member.id,
            tier: member.tier,
            bytes_total: u64::from(space.zones_total) * zone_bytes,
            bytes_free: u64::from(space.zones_free) * zone_bytes,
            bytes_live: space.bytes_live,
            is_missing: is_missing(member.id),
            drain: (!member.takes_new).then(|| self.drains.of(member.id)),
        };
        self.zones().members_space().into_iter().map(info).collect()
    }

    /// What is wrong with superblocks and labels that have another copy, one line each.
    pub(crate) fn damaged_labels(&self) -> Vec<String> {
        let mut findings = self.live.damaged_superblocks();
        let others = self.others.lock();
        let zone_bytes = self.zones().zone_bytes();
        findings.extend(others.iter().flat_map(|other| damaged_label(other, self.store, zone_bytes)));
        findings
    }

    /// Takes `device` into the store, whatever was on it; its number. Two flushes of it, and two or three of
    /// the first one.
    pub(crate) fn add(&self, device: Arc<dyn Device>, tier: Tier) -> Result<u32> {
        let mut others = self.others.lock();
        self.live.runtime.check_accepting()?;
        let zone_bytes = self.zones().zone_bytes();
        let zones = Member::zones_of(device.len_bytes(), zone_bytes);
        let members = self.zones().members();
        let first_zone = members.iter().map(|member| member.zones.end).max().unwrap_or(0);
        let id = members.iter().map(|member| member.id).max().unwrap_or(0) + 1;
        if zones == 0 {
            let message =
                format!("a device needs at least {} bytes", MEMBER_DATA_FROM + u64::from(zone_bytes));
            return Err(refused("adding a device", message));
        }
        // Zones are numbered by 32 bits.
        let zones_left = OTHERS_ZONES_MAX.saturating_sub(zones_of_others(&members));
        let zones_max = DEVICE_ZONES_MAX.min(zones_left).min(u32::MAX - first_zone);
        if zones > zones_max {
            let bytes_max = u64::from(zones_max) * u64::from(zone_bytes);
            let message = format!("it is too large: here a device may have {bytes_max} bytes");
            return Err(refused("adding a device", message));
        }
        if self.is_own(device.as_ref(), &others)? {
            return Err(refused("adding a device", "it is one of the store's already".to_owned()));
        }
        let member = Member { id, uuid: new_uuid()?, tier, first_zone: ZoneId(first_zone), zones };
        member.write(device.as_ref(), self.store, zone_bytes)?;
        self.live.announce(Feature::Members)?;
        self.live.install(vec![Edit::AddMember(member)], &[], &[], |view| view)?;
        let state = MemberState { member, takes_new: true };
        join(&self.joined, self.zones(), &state, &device, &self.fast_written);
        others.push((member, Some(device)));
        drop(others);
        // What found no space may find some now.
        self.drains.retry();
        self.live.runtime.drain_due.notify();
        self.live.note_garbage();
        self.live.runtime.work.notify();
        self.live.runtime.progress.notify();
        Ok(id)
    }

    /// The first device gets more zones, while none comes behind it: see [`Db::grow`](crate::Db::grow).
    pub(crate) fn grow(&self, capacity_bytes: u64) -> Result<u64> {
        let _others = self.others.lock();
        crate::live::grow::grow(&self.live, capacity_bytes)
    }

    /// Whether `device` is the first one, or among `others`.
    fn is_own(&self, device: &dyn Device, others: &[Other]) -> Result<bool> {
        let superblock = Superblock::read_newest(device);
        let label = Member::read(device, self.store, self.zones().zone_bytes())?;
        Ok(superblock.is_ok_and(|superblock| superblock.uuid == self.store)
            || label.is_some_and(|label| others.iter().any(|(member, _)| *member == label)))
    }

    /// The number of `device`, if it is one of those beside the first one.
    pub(crate) fn id_of(&self, device: &Arc<dyn Device>) -> Option<u32> {
        let others = self.others.lock();
        let is_it = |own: &Arc<dyn Device>| std::ptr::addr_eq(Arc::as_ptr(own), Arc::as_ptr(device));
        others.iter().find(|(_, own)| own.as_ref().is_some_and(is_it)).map(|(member, _)| member.id)
    }

    /// Nothing new goes to these devices from now on, and what they hold is moved to others, after a restart,
    /// too: by one edit, so that nothing moves from one of them to the next.
    pub(crate) fn begin_drain(&self, ids: &[u32]) -> Result<()> {
        let _others = self.others.lock();
        self.live.runtime.check_accepting()?;
        let members = ids.iter().map(|&id| self.member(id, "draining a device"));
        let members = members.collect::<Result<Vec<_>>>()?;
        let begun: Vec<_> =
            members.into_iter().filter(|member| member.takes_new).map(|member| member.id).collect();
        if !begun.is_empty() {
            let edits = begun.iter().map(|&id| Edit::FillMember { id, takes_new: false }).collect();
            self.live.install(edits, &[], &[], |view| view)?;
            for id in begun {
                self.zones().set_takes_new(id, false);
            }
        }
        for &id in ids {
            self.drains.forget(id);
        }
        self.live.runtime.drain_due.notify();
        Ok(())
    }

    /// Drains the device, and waits for that, until `goes_on`, which is told how many bytes are left, says
    /// no. True: it holds nothing. Where no thread does it, the caller does.
    pub(crate) fn drain(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        self.begin_drain(&[id])?;
        if self.live.runtime.options.background == Background::Manual {
            let member = self.member(id, "draining a device")?;
            return Ok(self.move_out(&member, goes_on)? == Drained::Empty);
        }
        loop {
            let seen = self.drains.news.count();
            self.live.runtime.check_accepting()?;
            let Some(info) = self.list().into_iter().find(|info| info.id == id) else { return Ok(false) };
            if info.is_empty() {
                return Ok(true);
            }
            let gets_on = info.drain.is_some_and(|drain| drain.trouble.is_none());
            if !gets_on || !goes_on(info.bytes_live) {
                return Ok(false);
            }
            self.drains.news.wait_after(seen, NEWS_WAIT_MAX);
        }
    }

    /// Drains all devices that are to be drained, as far as that gets on.
    pub(crate) fn advance_drains(&self) {
        // As a rule there are none: a look at all zones is spared.
        if self.zones().members().iter().all(|member| member.takes_new) {
            return;
        }
        let now = self.live.runtime.clock.monotonic();
        let waiting =
            |info: &DeviceInfo| info.drain.is_some() && !info.is_empty() && self.drains.is_due(info.id, now);
        for info in self.list().into_iter().filter(waiting) {
            let Ok(member) = self.member(info.id, "draining a device") else { continue };
            let mut is_wanted =
                |_| self.member(member.id, "draining a device").is_ok_and(|now| !now.takes_new);
            let is_new = info.drain.is_none_or(|drain| drain.trouble.is_none());
            match self.move_out(&member, &mut is_wanted) {
                Ok(Drained::Empty) => {
                    tracing::info!(id = member.id, "the device is empty and can be removed");
                }
                Err(error) if is_new => tracing::warn!(id = member.id, %error, "the device can't be drained"),
                Ok(_) | Err(_) => {}
            }
        }
    }

    /// Moves what lies on the device elsewhere, until `goes_on` says no.
    fn move_out(&self, member: &MemberZones, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<Drained> {
        let _moving = self.drains.begin();
        let clock = &self.live.runtime.clock;
        let mut before: Option<(u64, Duration)> = None;
        let outcome = drain(&self.merger, &member.zones, &mut |left| {
            let now = clock.monotonic();
            let (left_before, then) = before.replace((left, now)).unwrap_or((left, now));
            self.drains.advance(member.id, left_before.saturating_sub(left), now.saturating_sub(then));
            goes_on(left)
        });
        let outcome = outcome.map(|drained| match drained {
            Drained::Held if self.is_kept(member) => Drained::Kept,
            drained => drained,
        });
        if let Some((left, then)) = before.filter(|_| matches!(outcome, Ok(Drained::Empty))) {
            self.drains.advance(member.id, left, clock.monotonic().saturating_sub(then));
        }
        self.drains.end(member.id, &outcome, clock.monotonic());
        outcome
    }

    /// Whether checkpoints of transactions have anything on the device.
    fn is_kept(&self, member: &MemberZones) -> bool {
        let runs = self.checkpoints.runs();
        let pieces = runs.iter().flat_map(|(_, run)| &run.pieces);
        let mut uses = pieces.flat_map(|piece| &piece.desc().zones);
        uses.any(|zone_use| member.zones.contains(&zone_use.zone.0))
    }

    /// The device is filled again.
    pub(crate) fn refill(&self, id: u32) -> Result<()> {
        let _others = self.others.lock();
        self.live.runtime.check_accepting()?;
        self.member(id, "filling a device")?;
        self.live.install(vec![Edit::FillMember { id, takes_new: true }], &[], &[], |view| view)?;
        self.zones().set_takes_new(id, true);
        self.drains.forget(id);
        Ok(())
    }

    /// Lets go of a device that was drained.
    pub(crate) fn remove(&self, id: u32) -> Result<()> {
        let what = "removing a device";
        let mut others = self.others.lock();
        self.live.runtime.check_accepting()?;
        let member = self.member(id, what)?;
        let info = self.list_with(&others).into_iter().find(|info| info.id == id);
        if member.takes_new || info.is_none_or(|info| !info.is_empty()) {
            return Err(refused(what, format!("device {id} holds data; drain it first")));
        }
        self.live.install(vec![Edit::DropMember { id }], &[], &[], |view| view)?;
        self.zones().drop_member(id);
        self.drains.forget(id);
        let Some(at) = others.iter().position(|(member, _)| member.id == id) else { return Ok(()) };
        let (member, device) = others.remove(at);
        self.joined.remove(u64::from(member.first_zone.0) * u64::from(self.zones().zone_bytes()));
        let wiped = device.map_or(Ok(()), |device| Member::wipe(device.as_ref()));
        if let Err(error) = wiped {
            tracing::warn!(id, %error, "a device that has left the store keeps its label");
        }
        Ok(())
    }

    /// See [`Db::keep_placement`](crate::Db::keep_placement).
    pub(crate) fn keep_placement(&self, placement: Placement) -> Result<()> {
        let _others = self.others.lock();
        self.live.runtime.check_accepting()?;
        // A store of one device has nothing that other programs do not know, and is repaired.
        if !self.live.has_announced(Feature::Members) {
            let message =
                "the store has one device, so there is no choice; add a slow one first (`kvfs tier add`)";
            return Err(refused("keeping a placement", message.to_owned()));
        }
        self.zones().set_placement(placement);
        let edit = Edit::SetPlacement { name: placement.to_string() };
        self.live.install(vec![edit], &[], &[], |view| view)
    }

    /// A device that can be drained and removed: not the first one.
    fn member(&self, id: u32, what: &'static str) -> Result<MemberZones> {
        let member = self.zones().members().into_iter().find(|member| member.id == id);
        match member {
            None => Err(refused(what, format!("the store has no device {id}"))),
            Some(_) if id == 0 => Err(refused(
                what,
                "the first device has superblocks, journal and manifest, and stays".to_owned(),
            )),
            Some(member) => Ok(member),
        }
    }
}

fn refused(what: &'static str, message: String) -> StoreError {
    StoreError::io(what, io::Error::new(io::ErrorKind::InvalidInput, message))
}

/// The devices of a store that is being opened.
pub(crate) struct Found {
    pub(crate) joined: Arc<JoinedDevice>,
    /// What is written to all fast ones is added here (bytes).
    pub(crate) fast_written: Arc<AtomicU64>,
    others: Vec<Other>,
}

impl Found {
    /// The first one.
    pub(crate) fn first(device: Arc<dyn Device>) -> Self {
        let fast_written = Arc::<AtomicU64>::default();
        let joined = Arc::new(JoinedDevice::new(device, Arc::clone(&fast_written)));
        Self { joined, fast_written, others: Vec::new() }
    }

    /// Joins those that `state` names, which are among `candidates`. Where the store is only read, a slow one
    /// may be missing: what lies there can't be read.
    ///
    /// # Errors
    /// [`MissingDevices`] inside of an I/O error; zones that overlap.
    pub(crate) fn join(
        &mut self,
        state: &ManifestState,
        candidates: &[Arc<dyn Device>],
        zones: &Zones,
        (store, is_read_only): ([u8; 16], bool),
    ) -> Result<()> {
        let zone_bytes = zones.zone_bytes();
        let label = |device: &Arc<dyn Device>| {
            let label = Member::read(device.as_ref(), store, zone_bytes);
            // As good as missing.
            label.unwrap_or_else(|error| {
                tracing::warn!(%error, "the label of a device can't be read");
                None
            })
        };
        let labels: Vec<_> = candidates.iter().map(label).collect();
        let mut missing = Vec::new();
        for known in &state.members {
            let member = known.member;
            let behind_first = zones.members().iter().all(|other| other.zones.end <= member.first_zone.0);
            if !behind_first {
                let detail = format!("device {} has zones of others", member.id);
                return Err(StoreError::corrupt("the manifest", detail));
            }
            let zones_left = OTHERS_ZONES_MAX.saturating_sub(zones_of_others(&zones.members()));
            if member.zones > DEVICE_ZONES_MAX.min(zones_left) {
                let detail =
                    format!("device {} has {} zones, more than a store may", member.id, member.zones);
                return Err(StoreError::corrupt("the manifest", detail));
            }
            let len_min = MEMBER_DATA_FROM + u64::from(member.zones) * u64::from(zone_bytes);
            let found = labels.iter().zip(candidates).find(|(label, _)| **label == Some(member));
            let found = found.map(|(_, device)| Arc::clone(device));
            let found = found.filter(|device| device.len_bytes() >= len_min);
            if found.is_none() {
                missing.push(member);
            }
            let joined = found.clone();
            let joined =
                joined.unwrap_or_else(|| Arc::new(MissingDevice::new(name_of(&member), len_min)) as _);
            join(&self.joined, zones, known, &joined, &self.fast_written);
            self.others.push((member, found));
        }
        let is_usable = is_read_only && missing.iter().all(|member| member.tier == Tier::Slow);
        if missing.is_empty() || is_usable {
            return Ok(());
        }
        Err(missing_error(missing))
    }

    /// What a step of the opening has come to. Where it has failed and some devices do not answer any more,
    /// these are missing.
    ///
    /// # Errors
    /// [`MissingDevices`] inside of an I/O error; else that of the step.
    pub(crate) fn check_present<T>(&self, step: Result<T>) -> Result<T> {
        let error = match step {
            Err(error @ (StoreError::Io { .. } | StoreError::Failed { .. })) => error,
            other => return other,
        };
        let is_gone =
            |(_, device): &&Other| device.as_ref().is_some_and(|device| !device.answers(&SUPERBLOCK_ADDRS));
        let gone: Vec<_> = self.others.iter().filter(is_gone).map(|(member, _)| *member).collect();
        if gone.is_empty() {
            return Err(error);
        }
        tracing::warn!(%error, "a device has vanished while the store was being opened");
        Err(missing_error(gone))
    }

    /// Writes labels anew that have a damaged copy; what was wrong, one line each.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn mend_labels(&self, store: [u8; 16], zone_bytes: u32) -> Result<Vec<String>> {
        let mut findings = Vec::new();
        for other in &self.others {
            let damaged = damaged_label(other, store, zone_bytes);
            if !damaged.is_empty()
                && let (member, Some(device)) = other
            {
                member.write(device.as_ref(), store, zone_bytes)?;
            }
            findings.extend(damaged);
        }
        Ok(findings)
    }
}

fn missing_error(members: Vec<Member>) -> StoreError {
    let missing = MissingDevices(members);
    StoreError::io("opening the store", io::Error::new(io::ErrorKind::NotFound, missing))
}

/// What is wrong with the label of a device, if that is there.
fn damaged_label((member, device): &Other, store: [u8; 16], zone_bytes: u32) -> Vec<String> {
    let Some(device) = device else { return Vec::new() };
    let copies = member.damaged_copies(device.as_ref(), store, zone_bytes).into_iter();
    let name = name_of(member);
    copies
        .map(|addr| format!("the label at byte {addr} of {name} is damaged; the other one serves"))
        .collect()
}

/// Zones of all but the first device.
fn zones_of_others(members: &[MemberZones]) -> u32 {
    let others = members.iter().filter(|member| member.id != 0);
    others.map(|member| member.zones.end - member.zones.start).sum()
}

fn join(
    joined: &JoinedDevice,
    zones: &Zones,
    state: &MemberState,
    device: &Arc<dyn Device>,
    fast_written: &Arc<AtomicU64>,
) {
    let MemberState { member, takes_new } = *state;
    let zone_bytes = u64::from(zones.zone_bytes());
    joined.append(Segment {
        start: u64::from(member.first_zone.0) * zone_bytes,
        device: Arc::clone(device),
        offset: MEMBER_DATA_FROM,
        len: u64::from(member.zones) * zone_bytes,
        written: if member.tier == Tier::Fast { Arc::clone(fast_written) } else { Arc::default() },
    });
    let own = member.first_zone.0..member.end();
    zones.add_member(MemberZones { id: member.id, zones: own, tier: member.tier, takes_new });
}

#[cfg(test)]
mod tests;
