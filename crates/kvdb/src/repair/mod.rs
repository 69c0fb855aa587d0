//! Making a damaged store whole again: what is undamaged stays, what is lost is told.
//!
//! Purpose: reads everything, and builds a state of the manifest that refers to nothing but what is good.
//! Pieces are mended (`table/salvage`), the manifest is read around its damage (`version/salvage`), and of a
//! damaged journal counts what comes before the damage (`journal/salvage`), which is written out as runs.
//!
//! Crash order: the new epoch, in both superblocks → new pieces, in free zones → device flush → the new
//! manifest, in free zones → flush → the superblocks turn to it. Up to this last step nothing that the store
//! had is touched, so a repair that is cut off can be repeated; after it the store is repaired.
//!
//! Thread safety: one thread, and the store must not be open elsewhere.

mod lost;
mod pieces;
mod replay;

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_device::Device;
use kvfs_store::progress::{self, Unit};
use kvfs_store::{KeyspaceKind, Op, Result, Seqno, StoreError};

pub use lost::Lost;

use crate::cache::Policy;
use crate::devices::Found;
use crate::format::{Member, PieceDesc, PieceId, SECTOR_BYTES, Superblock, ZoneId};
use crate::open::read_superblock;
use crate::runtime::options::Options;
use crate::space::{MemberZones, Zones};
use crate::table::{Piece, RunContext, RunOptions, salvage};
use crate::version::salvage::{self as manifest_salvage, enter_nameless};
use crate::version::{Edit, KeyspaceState, Manifest, ManifestState, RunId};

/// Memory for caches and buffers of a repair (bytes).
const MEMORY_BYTES: u64 = 256 << 20;

/// What a repair found and did.
#[derive(Debug, Clone, Default)]
pub struct Repaired {
    /// What was wrong, one line each; empty: nothing, and no more was written than at any opening.
    pub findings: Vec<String>,
    /// What is gone.
    pub lost: Vec<Lost>,
    /// The manifest was damaged: what was deleted or overwritten lately may be there again.
    pub is_uncertain: bool,
    /// The newest change that is there.
    pub last_seqno: Seqno,
    /// Operations behind the damage of a journal that could be read and do not count, with their keyspaces;
    /// at most a thousand.
    pub dropped: Vec<(String, Op)>,
    /// How many there were.
    pub dropped_count: u64,
    /// Named snapshots that may hold less than they did, or more where [`Self::is_uncertain`] says so. They
    /// are created at another moment now, so that they are not taken for what they were.
    pub snapshots: BTreeSet<String>,
}

/// Repairs the store on `device`, which must not be open. `keyspaces` are the first ones of every store of
/// this kind, in the order in which they were made: their names are needed when the whole manifest is gone.
/// Reads everything.
///
/// # Errors
/// Not a store, another version, both superblocks damaged; other devices are missing; no space for what has
/// to be written; failed writes. Damage that can be repaired is no error.
pub fn repair(device: &Arc<dyn Device>, keyspaces: &[(&str, KeyspaceKind)]) -> Result<Repaired> {
    repair_joined(device, &[], keyspaces)
}

/// Whether the store has devices beside its first one: its manifest names them, or, where that is damaged,
/// labels of `others` do.
///
/// # Errors
/// As [`repair`], of the superblocks.
pub fn names_other_devices(first: &Arc<dyn Device>, others: &[Arc<dyn Device>]) -> Result<bool> {
    let superblock = Superblock::read_newest(first.as_ref())?;
    Ok(!salvaged_manifest(first, others, &superblock, &[]).state.members.is_empty())
}

fn salvaged_manifest<'k>(
    first: &Arc<dyn Device>,
    others: &[Arc<dyn Device>],
    superblock: &Superblock,
    keyspaces: &'k [(&'k str, KeyspaceKind)],
) -> manifest_salvage::SalvagedManifest<'k> {
    let mut found = manifest_salvage::salvage(first.as_ref(), superblock, keyspaces);
    if found.damage.is_some() {
        adopt_members(&mut found.state, others, superblock);
    }
    found
}

/// As [`repair`], of a store that has other devices, too ([`Db::add_device`](crate::Db::add_device)): those
/// among `others`, in any order.
///
/// # Errors
/// As [`repair`]; an I/O error with [`MissingDevices`](crate::MissingDevices) inside, and nothing was
/// written: what lies on them would be taken for lost.
pub fn repair_joined(
    first: &Arc<dyn Device>,
    others: &[Arc<dyn Device>],
    keyspaces: &[(&str, KeyspaceKind)],
) -> Result<Repaired> {
    let mut repaired = Repaired::default();
    let mut superblock = read_superblock(first.as_ref())?;
    repaired.findings.extend(Superblock::damaged_slots(first.as_ref()));
    let found = salvaged_manifest(first, others, &superblock, keyspaces);
    let mut state = found.state;
    let named: BTreeSet<u32> =
        state.keyspaces.keys().copied().filter(|id| !found.nameless.contains(id)).collect();
    if let Some(damage) = &found.damage {
        repaired.findings.push(format!("{damage}; the pieces that it named are looked for on the device"));
        repaired.is_uncertain = true;
    }
    let mut devices = Found::first(Arc::clone(first));
    let device = Arc::clone(&devices.joined) as Arc<dyn Device>;
    let ctx = context(&device, first.len_bytes(), &superblock, &[]);
    devices.join(&state, others, &ctx.zones, (superblock.uuid, false))?;
    superblock.epoch += 1;
    superblock.write_both(device.as_ref())?;
    repaired.findings.extend(devices.mend_labels(superblock.uuid, superblock.zone_bytes)?);

    let mut adopted = BTreeSet::new();
    if found.damage.is_some() {
        let is_lost = |id| id >= found.strays_from && !found.known.contains(&PieceId(id));
        adopted = adopt_strays(&ctx, &superblock, first, &mut state, &found.nameless, is_lost)?;
    }
    let zones_end = |zone| ctx.zones.zone_addr(zone) + ctx.zone_bytes();
    let zones_end = last_zone_of_first(&state, &superblock).map_or(0, zones_end);
    grow_over(first, &ctx, zones_end, &mut repaired)?;
    // The allocator counts the zones that the device has now.
    let ctx = context(&device, first.len_bytes(), &superblock, &ctx.zones.members()[1..]);
    superblock.manifest_zones.retain(|&zone| ctx.zones.claim_zone(zone).is_ok());

    let next_id = Arc::new(AtomicU64::new(next_id(&state)));
    let bound = replay::hold_places(&ctx, &superblock, &state);
    let mut repair = pieces::Repair::new(&ctx, &superblock, &next_id, &adopted);
    repair.all(&mut state)?;
    // Their space is in use until the new manifest stands.
    let (is_mended, mut kept) = repair.take(&mut repaired);
    let options = Options::with_memory(MEMORY_BYTES);
    let mut mending = replay::Mending {
        options: &options,
        next_id: &next_id,
        state: &mut state,
        repaired: &mut repaired,
        kept: &mut kept,
    };
    let journal_from = mending.state.flushed_seqno + 1;
    let is_replayed = replay::journal(&ctx, &superblock, &mut mending)?;
    tell_nameless(&state, &named, &mut repaired);
    let is_trimmed = forget_the_future(&mut state, &mut repaired);
    repaired.snapshots = lost::replace_snapshots(&mut state, &repaired, is_replayed.then_some(journal_from))?;
    if is_mended || is_replayed || is_trimmed || found.damage.is_some() {
        state.next_id = next_id.load(Ordering::Relaxed);
        // A merge that goes on relies on what its steps have done; what is left of its runs is merged anew.
        state.keyspaces.values_mut().for_each(|keyspace| keyspace.merges.clear());
        let flushed = device.flush();
        flushed.map_err(|error| StoreError::io("flushing what was repaired", error))?;
        Manifest::replace(device, Arc::clone(&ctx.zones), superblock, state)?;
    }
    drop((kept, bound));
    Ok(repaired)
}

/// `first_len`: the length of the first device (bytes); `others`: the zones of those beside it.
fn context(
    device: &Arc<dyn Device>,
    first_len: u64,
    superblock: &Superblock,
    others: &[MemberZones],
) -> Arc<RunContext> {
    let &Superblock { zone_bytes, capacity_bytes, .. } = superblock;
    let first_data = superblock.first_data_zone();
    let zones = Zones::of_first(Arc::clone(device), first_len, zone_bytes, capacity_bytes, first_data);
    for other in others {
        zones.add_member(other.clone());
    }
    let (salt, policy) = (superblock.salt(), Policy::default());
    RunContext::new(Arc::clone(device), zones, salt, MEMORY_BYTES, policy, RunOptions::default())
}

/// The manifest told which devices there are; their labels tell it, too.
fn adopt_members(state: &mut ManifestState, others: &[Arc<dyn Device>], superblock: &Superblock) {
    let label = |device: &Arc<dyn Device>| {
        Member::read(device.as_ref(), superblock.uuid, superblock.zone_bytes).ok().flatten()
    };
    let mut labels: Vec<Member> = others.iter().filter_map(label).collect();
    labels.sort_by_key(|member| member.first_zone);
    for member in labels.into_iter().filter(|member| is_behind_first(member.first_zone, superblock)) {
        // One that the manifest knows already, or whose zones are others' by now, is none.
        if state.members.iter().all(|known| known.member.id != member.id)
            && let Err(error) = state.apply(&Edit::AddMember(member))
        {
            tracing::warn!(%error, id = member.id, "a device is not taken for one of the store's");
        }
    }
}

fn is_behind_first(zone: ZoneId, superblock: &Superblock) -> bool {
    u64::from(zone.0) >= superblock.capacity_bytes / u64::from(superblock.zone_bytes)
}

fn tell_nameless(state: &ManifestState, named: &BTreeSet<u32>, repaired: &mut Repaired) {
    let nameless = state.keyspaces.iter().filter(|(id, _)| !named.contains(id));
    let finding = |(id, keyspace): (&u32, &KeyspaceState)| {
        format!("the name of keyspace {id} is lost: it is \"{}\" from now on", keyspace.name)
    };
    repaired.findings.extend(nameless.map(finding));
}

/// Gives the keyspaces among `nameless` their kinds, as their pieces tell them, above all those that an edit
/// names. `pieces` are all that were found.
fn settle_kinds(state: &mut ManifestState, nameless: &BTreeSet<u32>, pieces: &[salvage::Found]) {
    let named: HashMap<_, _> = all_pieces(state).map(|desc| (desc.id, desc.meta_crc)).collect();
    let is_named = |piece: &salvage::Found| named.get(&piece.desc.id) == Some(&piece.desc.meta_crc);
    let (told, others): (Vec<_>, Vec<_>) =
        pieces.iter().filter(|piece| nameless.contains(&piece.keyspace)).partition(|piece| is_named(piece));
    for piece in others.into_iter().chain(told) {
        if let (Some(kind), Some(keyspace)) = (piece.kind, state.keyspaces.get_mut(&piece.keyspace)) {
            keyspace.kind = kind;
        }
    }
    // Of one that holds nothing, the journal may tell the kind.
    let is_prepared = |id: u32| state.prepared.values().flatten().any(|&(of, _)| of == id);
    state.keyspaces.retain(|&id, keyspace| {
        let holds_nothing = keyspace.runs.iter().all(|run| run.pieces.is_empty()) && !is_prepared(id);
        !(nameless.contains(&id) && holds_nothing)
    });
}

/// Enters pieces whose edits are lost, each as a run of its own, and says which. Gives `nameless` keyspaces
/// their kinds.
fn adopt_strays(
    ctx: &Arc<RunContext>,
    superblock: &Superblock,
    first: &Arc<dyn Device>,
    state: &mut ManifestState,
    nameless: &BTreeSet<u32>,
    is_lost: impl Fn(u64) -> bool,
) -> Result<BTreeSet<PieceId>> {
    let present = (first.len_bytes() / u64::from(superblock.zone_bytes)) as u32;
    let of_first = superblock.first_data_zone().0..present;
    let of_others = ctx.zones.members().into_iter().skip(1).map(|member| member.zones);
    let zones: Vec<_> = std::iter::once(of_first).chain(of_others).flatten().map(ZoneId).collect();
    progress::stage("looking for pieces in all zones", Unit::Items, zones.len() as u64);
    let mut found =
        salvage::find_pieces(ctx, zones.into_iter(), superblock.has_stamps, || progress::advance(1));
    settle_kinds(state, nameless, &found);
    let mut adopted = BTreeSet::new();
    // What does not tell the kind of its keyspace comes when that is known.
    found.sort_by_key(|stray| stray.kind.is_none());
    for stray in found.into_iter().filter(|stray| is_lost(stray.desc.id.0)) {
        if let Some(kind) = stray.kind {
            enter_nameless(state, stray.keyspace, kind);
        }
        let (keyspace, run) = (stray.keyspace, RunId(stray.desc.id.0));
        if !pieces::is_possible(&stray.desc, superblock, &ctx.zones.members())
            || state
                .keyspaces
                .get(&keyspace)
                .is_none_or(|known| stray.kind.is_some_and(|kind| kind != known.kind))
        {
            continue;
        }
        state.apply(&Edit::AddRun { keyspace, run, age: stray.desc.seqno_max })?;
        adopted.insert(stray.desc.id);
        state.apply(&Edit::AddPiece { keyspace, run, piece: stray.desc })?;
    }
    Ok(adopted)
}

fn all_pieces(state: &ManifestState) -> impl Iterator<Item = &PieceDesc> {
    let runs = state.keyspaces.values().flat_map(|keyspace| &keyspace.runs);
    let prepared = state.prepared.values().flatten().map(|(_, run)| run);
    runs.chain(prepared).flat_map(|run| &run.pieces)
}

/// Of the first device.
fn last_zone_of_first(state: &ManifestState, superblock: &Superblock) -> Option<ZoneId> {
    state.zone_uses().map(|zone_use| zone_use.zone).filter(|&zone| !is_behind_first(zone, superblock)).max()
}

/// A number that no run and no piece has.
fn next_id(state: &ManifestState) -> u64 {
    let runs = state.keyspaces.values().flat_map(|keyspace| &keyspace.runs).map(|run| run.id.0);
    let prepared = state.prepared.values().flatten().map(|(_, run)| run.id.0);
    let pieces = all_pieces(state).map(|piece| piece.id.0);
    runs.chain(prepared).chain(pieces).max().map_or(1, |id| id + 1).max(state.next_id)
}

/// A device that was cut off is made as long as it was, so that what is missing reads as damage.
fn grow_over(device: &Arc<dyn Device>, ctx: &RunContext, end: u64, repaired: &mut Repaired) -> Result<()> {
    let journal_end = end.max(ctx.zones.zone_addr(ZoneId(1))).next_multiple_of(SECTOR_BYTES);
    let len = device.len_bytes();
    if len >= journal_end {
        return Ok(());
    }
    repaired.findings.push(format!("the device ends at byte {len}, and the store reaches to {journal_end}"));
    let grown = device.grow(journal_end);
    grown.map_err(|error| StoreError::io(format!("growing the device to {journal_end} bytes"), error))
}

/// Takes away what is named beyond the end of the history.
fn forget_the_future(state: &mut ManifestState, repaired: &mut Repaired) -> bool {
    let last = repaired.last_seqno;
    let mut findings = Vec::new();
    state.snapshots.retain(|name, snapshot| {
        if snapshot.seqno > last {
            findings
                .push(format!("snapshot \"{name}\" is lost: it was made after the damage of the journal"));
        }
        snapshot.seqno <= last
    });
    let undo_before = state.undo.len();
    state.undo.retain(|&after, _| after <= last);
    let gone: Vec<_> =
        state.checkpoints.iter().filter(|(_, saved)| saved.snapshot > last).map(|(&txn, _)| txn).collect();
    for txn in &gone {
        state.checkpoints.remove(txn);
        state.take_prepared(*txn);
        findings.push(format!("transaction {txn} is lost: it was begun after the damage of the journal"));
    }
    state.committed.retain(|&seqno, _| seqno <= last);
    let changed = !findings.is_empty() || state.undo.len() < undo_before;
    repaired.findings.append(&mut findings);
    changed
}

impl RunContext {
    fn zone_bytes(&self) -> u64 {
        self.zones.zone_bytes().into()
    }
}

/// Pieces that must not give their space back yet.
type Kept = Vec<Arc<Piece>>;
