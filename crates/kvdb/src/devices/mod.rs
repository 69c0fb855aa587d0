//! The devices of a store: the first one, which has superblocks, journal and manifest, and others, fast or slow, that come and go
//! while it is open.
//!
//! Thread safety: any thread; devices come and go one at a time. Crash order: a new device has its label, flushed, and the
//! superblocks announce several devices, before the manifest names it; one that goes is empty before the manifest forgets it, and
//! loses its label after that. So whatever a crash leaves, every zone that something lies in is on a device that the manifest names.

use std::io;
use std::sync::Arc;

use kvfs_device::{Device, JoinedDevice, MissingDevice, Segment};
use kvfs_store::{Result, StoreError, Tier};
use parking_lot::Mutex;

use crate::format::{Feature, MEMBER_DATA_FROM, Member, Superblock, ZoneId};
use crate::live::LiveSet;
use crate::merge::Merger;
use crate::merge::drain::drain;
use crate::runtime::options::new_uuid;
use crate::space::{MemberSpace, MemberZones, Zones};
use crate::version::{Edit, ManifestState, MemberState};

/// A device of an open store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
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
    /// Whether anything new goes there; false: it is being drained, or was.
    pub takes_new: bool,
}

/// Why a store with several devices was not opened: some are not there.
#[derive(Debug, Clone, thiserror::Error)]
#[error("{} of the store {} missing: {}; give {}", plural(.0.len(), "a device", "devices"), plural(.0.len(), "is", "are"),
    .0.iter().map(name_of).collect::<Vec<_>>().join(", "), plural(.0.len(), "it", "them"))]
pub struct MissingDevices(pub Vec<Member>);

fn plural<'a>(count: usize, one: &'a str, more: &'a str) -> &'a str {
    if count == 1 { one } else { more }
}

fn name_of(member: &Member) -> String {
    format!("the {} device {}", member.tier, member.id)
}

/// See the module.
pub(crate) struct Devices {
    live: Arc<LiveSet>,
    merger: Arc<Merger>,
    joined: Arc<JoinedDevice>,
    store: [u8; 16],
    /// Those beside the first one. Held while one comes or goes.
    others: Mutex<Vec<(Member, Arc<dyn Device>)>>,
}

impl Devices {
    pub(crate) fn new(merger: &Arc<Merger>, found: Found, store: [u8; 16]) -> Self {
        let Found { joined, others } = found;
        Self {
            live: Arc::clone(&merger.live),
            merger: Arc::clone(merger),
            joined,
            store,
            others: Mutex::new(others),
        }
    }

    fn zones(&self) -> &Zones {
        &self.live.runtime.ctx.zones
    }

    /// All of them, the first one first. O(zones).
    pub(crate) fn list(&self) -> Vec<DeviceInfo> {
        let zone_bytes = u64::from(self.zones().zone_bytes());
        let info = |(member, space): (MemberZones, MemberSpace)| DeviceInfo {
            id: member.id,
            tier: member.tier,
            bytes_total: u64::from(space.zones_total) * zone_bytes,
            bytes_free: u64::from(space.zones_free) * zone_bytes,
            bytes_live: space.bytes_live,
            takes_new: member.takes_new,
        };
        self.zones().members_space().into_iter().map(info).collect()
    }

    /// Takes `device` into the store, whatever was on it; its number. Two flushes of it, and two or three of the first one.
    pub(crate) fn add(&self, device: Arc<dyn Device>, tier: Tier) -> Result<u32> {
        let mut others = self.others.lock();
        self.live.runtime.check_accepting()?;
        let zone_bytes = self.zones().zone_bytes();
        let zones = Member::zones_of(device.len_bytes(), zone_bytes);
        let members = self.zones().members();
        let first_zone = members.iter().map(|member| member.zones.end).max().unwrap_or(0);
        let id = members.iter().map(|member| member.id).max().unwrap_or(0) + 1;
        if zones == 0 || first_zone.checked_add(zones).is_none() {
            let message =
                format!("a device needs at least {} bytes", MEMBER_DATA_FROM + u64::from(zone_bytes));
            return Err(refused("adding a device", message));
        }
        if self.is_own(device.as_ref(), &others)? {
            return Err(refused("adding a device", "it is one of the store's already".to_owned()));
        }
        let member = Member { id, uuid: new_uuid()?, tier, first_zone: ZoneId(first_zone), zones };
        member.write(device.as_ref(), self.store, zone_bytes)?;
        self.live.announce(Feature::Members)?;
        self.live.install(vec![Edit::AddMember(member)], &[], &[], |view| view)?;
        join(&self.joined, self.zones(), &MemberState { member, takes_new: true }, &device);
        others.push((member, device));
        drop(others);
        // What found no space may find some now.
        self.live.note_garbage();
        self.live.runtime.work.notify();
        self.live.runtime.progress.notify();
        Ok(id)
    }

    /// Whether `device` is the first one, or among `others`.
    fn is_own(&self, device: &dyn Device, others: &[(Member, Arc<dyn Device>)]) -> Result<bool> {
        let superblock = Superblock::read_newest(device);
        let label = Member::read(device, self.store, self.zones().zone_bytes())?;
        Ok(superblock.is_ok_and(|superblock| superblock.uuid == self.store)
            || label.is_some_and(|label| others.iter().any(|(member, _)| *member == label)))
    }

    /// Nothing new goes to the device from now on, and what it holds is moved to others, until `goes_on`, which is told how many
    /// bytes are left, says no. True: it holds nothing. Goes on after a restart where it is called again.
    pub(crate) fn drain(&self, id: u32, goes_on: &mut dyn FnMut(u64) -> bool) -> Result<bool> {
        let zones = {
            let _others = self.others.lock();
            self.live.runtime.check_accepting()?;
            let member = self.member(id, "draining a device")?;
            if member.takes_new {
                self.live.install(vec![Edit::FillMember { id, takes_new: false }], &[], &[], |view| view)?;
                self.zones().set_takes_new(id, false);
            }
            member.zones
        };
        drain(&self.merger, &zones, goes_on)
    }

    /// The device is filled again.
    pub(crate) fn refill(&self, id: u32) -> Result<()> {
        let _others = self.others.lock();
        self.live.runtime.check_accepting()?;
        self.member(id, "filling a device")?;
        self.live.install(vec![Edit::FillMember { id, takes_new: true }], &[], &[], |view| view)?;
        self.zones().set_takes_new(id, true);
        Ok(())
    }

    /// Lets go of a device that was drained.
    pub(crate) fn remove(&self, id: u32) -> Result<()> {
        let what = "removing a device";
        let mut others = self.others.lock();
        self.live.runtime.check_accepting()?;
        let member = self.member(id, what)?;
        let info = self.list().into_iter().find(|info| info.id == id);
        if member.takes_new || info.is_none_or(|info| info.bytes_free < info.bytes_total) {
            return Err(refused(what, format!("device {id} holds data; drain it first")));
        }
        self.live.install(vec![Edit::DropMember { id }], &[], &[], |view| view)?;
        self.zones().drop_member(id);
        if let Some(at) = others.iter().position(|(member, _)| member.id == id) {
            let (member, device) = others.remove(at);
            self.joined.remove(u64::from(member.first_zone.0) * u64::from(self.zones().zone_bytes()));
            if let Err(error) = Member::wipe(device.as_ref()) {
                tracing::warn!(id, %error, "a device that has left the store keeps its label");
            }
        }
        Ok(())
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
    others: Vec<(Member, Arc<dyn Device>)>,
}

impl Found {
    /// The first one.
    pub(crate) fn first(device: Arc<dyn Device>) -> Self {
        Self { joined: Arc::new(JoinedDevice::new(device)), others: Vec::new() }
    }

    /// Joins those that `state` names, which are among `candidates`. Where the store is only read, a slow one may be missing: what
    /// lies there can't be read.
    ///
    /// # Errors
    /// [`MissingDevices`] inside of an I/O error; a label can't be read; zones that overlap.
    pub(crate) fn join(
        &mut self,
        state: &ManifestState,
        candidates: &[Arc<dyn Device>],
        zones: &Zones,
        (store, is_read_only): ([u8; 16], bool),
    ) -> Result<()> {
        let zone_bytes = zones.zone_bytes();
        let labels: Result<Vec<_>> =
            candidates.iter().map(|device| Member::read(device.as_ref(), store, zone_bytes)).collect();
        let labels = labels?;
        let mut missing = Vec::new();
        for known in &state.members {
            let member = known.member;
            let behind_first = zones.members().iter().all(|other| other.zones.end <= member.first_zone.0);
            if !behind_first {
                let detail = format!("device {} has zones of others", member.id);
                return Err(StoreError::corrupt("the manifest", detail));
            }
            let len_min = MEMBER_DATA_FROM + u64::from(member.zones) * u64::from(zone_bytes);
            let found = labels.iter().zip(candidates).find(|(label, _)| **label == Some(member));
            let device = match found {
                Some((_, device)) if device.len_bytes() >= len_min => Arc::clone(device),
                _ => {
                    missing.push(member);
                    Arc::new(MissingDevice::new(name_of(&member), len_min)) as Arc<dyn Device>
                }
            };
            join(&self.joined, zones, known, &device);
            self.others.push((member, device));
        }
        let is_usable = is_read_only && missing.iter().all(|member| member.tier == Tier::Slow);
        if missing.is_empty() || is_usable {
            return Ok(());
        }
        let missing = MissingDevices(missing);
        Err(StoreError::io("opening the store", io::Error::new(io::ErrorKind::NotFound, missing)))
    }
}

fn join(joined: &JoinedDevice, zones: &Zones, state: &MemberState, device: &Arc<dyn Device>) {
    let MemberState { member, takes_new } = *state;
    let zone_bytes = u64::from(zones.zone_bytes());
    joined.append(Segment {
        start: u64::from(member.first_zone.0) * zone_bytes,
        device: Arc::clone(device),
        offset: MEMBER_DATA_FROM,
        len: u64::from(member.zones) * zone_bytes,
    });
    let own = member.first_zone.0..member.end();
    zones.add_member(MemberZones { id: member.id, zones: own, tier: member.tier, takes_new });
}

#[cfg(test)]
mod tests;
