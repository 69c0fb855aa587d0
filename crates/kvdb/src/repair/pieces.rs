//! All pieces of a state, verified and mended.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use kvfs_store::progress::{self, Unit};
use kvfs_store::{KeyspaceKind, Result, Seqno, TxnId};

use crate::format::{PieceDesc, PieceId, SECTOR_BYTES, Superblock};
use crate::repair::{Kept, Lost, Repaired, all_pieces};
use crate::space::MemberZones;
use crate::table::salvage::{Salvaged, rebuild, salvage};
use crate::table::{LostPart, Piece, RunContext};
use crate::version::{KeyspaceState, ManifestState, RunState};

/// Whether such a piece can be at all: damage must not lead outside of the data zones.
pub(super) fn is_possible(desc: &PieceDesc, superblock: &Superblock, members: &[MemberZones]) -> bool {
    let is_of_data = |zone| {
        zone >= superblock.first_data_zone().0 && members.iter().any(|member| member.zones.contains(&zone))
    };
    let are_uses = desc.zones.iter().all(|zone_use| {
        is_of_data(zone_use.zone.0)
            && !superblock.manifest_zones.contains(&zone_use.zone)
            && zone_use.end <= superblock.zone_bytes
            && u64::from(zone_use.end).is_multiple_of(SECTOR_BYTES)
            && zone_use.bytes <= u64::from(zone_use.end).saturating_mul(references_max(desc))
    });
    let zone = |addr: u64| (addr / u64::from(superblock.zone_bytes)) as u32;
    are_uses && desc.meta.iter().all(|extent| is_of_data(zone(extent.addr)))
}

/// How often such a piece may refer to the same bytes: once for each prefix, where blocks were cloned. Its
/// metadata is there, too.
fn references_max(desc: &PieceDesc) -> u64 {
    desc.records.saturating_add(1)
}

/// Whose run it is.
#[derive(Clone, Copy)]
struct Owner<'a> {
    keyspace: u32,
    name: &'a str,
    kind: KeyspaceKind,
    txn: Option<TxnId>,
}

/// The work on the pieces of one store.
pub(super) struct Repair<'a> {
    ctx: &'a Arc<RunContext>,
    superblock: &'a Superblock,
    next_id: &'a Arc<AtomicU64>,
    /// Pieces that no manifest names.
    adopted: &'a BTreeSet<PieceId>,
    kept: Kept,
    /// What became of damaged pieces, for the other runs that have them: they share what is left, as before.
    mended: HashMap<PieceId, Salvaged>,
    findings: Vec<String>,
    lost: Vec<Lost>,
    is_mended: bool,
}

impl<'a> Repair<'a> {
    pub(super) fn new(
        ctx: &'a Arc<RunContext>,
        superblock: &'a Superblock,
        next_id: &'a Arc<AtomicU64>,
        adopted: &'a BTreeSet<PieceId>,
    ) -> Self {
        let (kept, findings, lost) = (Vec::new(), Vec::new(), Vec::new());
        let mended = HashMap::new();
        Self { ctx, superblock, next_id, adopted, kept, mended, findings, lost, is_mended: false }
    }

    /// Verifies every piece of `state`, and puts mended ones in the places of damaged ones.
    pub(super) fn all(&mut self, state: &mut ManifestState) -> Result<()> {
        let bytes_total = all_pieces(state).map(|desc| desc.data_bytes).sum();
        progress::stage("verifying", Unit::Bytes, bytes_total);
        self.drop_impossible(state);
        self.ctx.zones.restore(state.zone_uses())?;
        let mut headless = Vec::new();
        let names: Vec<_> = state
            .keyspaces
            .iter()
            .map(|(&id, keyspace)| (id, keyspace.name.clone(), keyspace.kind))
            .collect();
        for (keyspace, name, kind) in &names {
            let owner = Owner { keyspace: *keyspace, name, kind: *kind, txn: None };
            for run in state.keyspaces.get_mut(keyspace).into_iter().flat_map(|keyspace| &mut keyspace.runs) {
                headless.extend(self.run(owner, run)?.into_iter().map(|id| (*keyspace, None, id)));
            }
            for (&txn, runs) in &mut state.prepared {
                let owner = Owner { txn: Some(txn), ..owner };
                for (_, run) in runs.iter_mut().filter(|(of, _)| of == keyspace) {
                    headless.extend(self.run(owner, run)?.into_iter().map(|id| (*keyspace, Some(txn), id)));
                }
            }
        }
        let mut claimed = if headless.is_empty() { HashSet::new() } else { self.claimed()? };
        for (keyspace, txn, id) in headless {
            let Some((_, name, kind)) = names.iter().find(|(id, ..)| *id == keyspace) else { continue };
            let owner = Owner { keyspace, name, kind: *kind, txn };
            if let Some(run) = run_of(state, owner, id) {
                claimed.extend(self.headless(owner, run, id, &claimed)?);
            }
        }
        Ok(())
    }

    /// Hands over what was found; says whether anything was mended, and gives the pieces whose space is in
    /// use.
    pub(super) fn take(self, repaired: &mut Repaired) -> (bool, Kept) {
        repaired.findings.extend(self.findings);
        repaired.lost.extend(self.lost);
        (self.is_mended, self.kept)
    }

    fn drop_impossible(&mut self, state: &mut ManifestState) {
        let (superblock, members) = (self.superblock, self.ctx.zones.members());
        let mut findings = Vec::new();
        let mut keep = |run: &mut RunState| {
            run.pieces.retain(|desc| {
                let is_possible = is_possible(desc, superblock, &members);
                if !is_possible {
                    findings.push(format!("piece {} lies outside of the data zones", desc.id.0));
                }
                is_possible
            });
        };
        state.keyspaces.values_mut().flat_map(|keyspace| &mut keyspace.runs).for_each(&mut keep);
        state.prepared.values_mut().flatten().for_each(|(_, run)| keep(run));
        self.is_mended |= !findings.is_empty();
        self.findings.extend(findings);
    }

    /// Mends the pieces of `run`; gives those that have no index any more.
    fn run(&mut self, owner: Owner<'_>, run: &mut RunState) -> Result<Vec<PieceId>> {
        let mut headless = Vec::new();
        let mut pieces = Vec::with_capacity(run.pieces.len());
        for desc in std::mem::take(&mut run.pieces) {
            progress::advance(desc.data_bytes);
            match self.salvaged(owner, &desc)? {
                Salvaged::Headless => {
                    headless.push(desc.id);
                    pieces.push(desc);
                }
                salvaged => pieces.extend(self.settle(owner, run, desc, salvaged)),
            }
        }
        run.pieces = pieces;
        Ok(headless)
    }

    /// What becomes of a piece, or has become of it as that of another run.
    fn salvaged(&mut self, owner: Owner<'_>, desc: &PieceDesc) -> Result<Salvaged> {
        if let Some(known) = self.mended.get(&desc.id) {
            return Ok(known.clone());
        }
        let next_id = Arc::clone(self.next_id);
        let mut id = || PieceId(next_id.fetch_add(1, Ordering::Relaxed));
        let is_adopted = self.adopted.contains(&desc.id);
        let salvaged = salvage(self.ctx, owner.keyspace, owner.kind, (desc, is_adopted), &mut id)?;
        if let Salvaged::Mended { .. } = salvaged {
            self.mended.insert(desc.id, salvaged.clone());
        }
        Ok(salvaged)
    }

    /// Mends a piece without an index; gives where the blocks lie that were found for it.
    fn headless(
        &mut self,
        owner: Owner<'_>,
        run: &mut RunState,
        id: PieceId,
        claimed: &HashSet<u64>,
    ) -> Result<Vec<u64>> {
        let Some(at) = run.pieces.iter().position(|desc| desc.id == id) else { return Ok(Vec::new()) };
        let desc = run.pieces.remove(at);
        let next_id = Arc::clone(self.next_id);
        let mut number = || PieceId(next_id.fetch_add(1, Ordering::Relaxed));
        let salvaged = match self.mended.get(&id) {
            Some(known) => known.clone(),
            None => rebuild(self.ctx, owner.keyspace, owner.kind, &desc, claimed, &mut number)?,
        };
        self.mended.insert(id, salvaged.clone());
        let addresses = match &salvaged {
            Salvaged::Mended { piece: Some((_, piece)), .. } => addresses_of(piece)?,
            _ => Vec::new(),
        };
        if let Some(desc) = self.settle(owner, run, desc, salvaged) {
            run.pieces.insert(at, desc);
        }
        Ok(addresses)
    }

    /// What stands in the place of `desc` from now on.
    fn settle(
        &mut self,
        owner: Owner<'_>,
        run: &RunState,
        desc: PieceDesc,
        salvaged: Salvaged,
    ) -> Option<PieceDesc> {
        let (piece, lost, old) = match salvaged {
            Salvaged::Sound(piece) => {
                self.kept.push(piece);
                return Some(desc);
            }
            Salvaged::Headless => return Some(desc),
            Salvaged::Mended { piece, lost, old } => (piece, lost, old),
        };
        self.is_mended = true;
        self.kept.extend(old);
        let whose = owner.txn.map_or(String::new(), |txn| format!(" of transaction {txn}"));
        let outcome = match (lost.len(), &piece) {
            (_, None) => "nothing of it is left".to_owned(),
            (0, _) => "its index was made whole again, nothing is lost".to_owned(),
            (1, _) => "one part of it is lost".to_owned(),
            (parts, _) => format!("{parts} parts of it are lost"),
        };
        let place = format!("keyspace {}, piece {}{whose}", owner.name, desc.id.0);
        self.findings.push(format!("{place}: {outcome}"));
        let counts = lost.into_iter().filter(|part| part.last >= run.lower_bound);
        self.lost.extend(counts.map(|part| Lost {
            keyspace: owner.name.to_owned(),
            kind: owner.kind,
            txn: owner.txn,
            part: LostPart { first: part.first.clone().max(run.lower_bound.clone()), ..part },
            base: run.base,
            place: (run.age, run.id),
        }));
        let (desc, piece) = piece?;
        self.kept.push(piece);
        Some(desc)
    }

    /// Where blocks lie that some index names.
    fn claimed(&self) -> Result<HashSet<u64>> {
        let mut claimed = HashSet::new();
        for piece in &self.kept {
            claimed.extend(addresses_of(piece)?);
        }
        Ok(claimed)
    }
}

/// Where the blocks of a tuple piece lie.
fn addresses_of(piece: &Piece) -> Result<Vec<u64>> {
    Ok(piece.index()?.tuple_entries().iter().map(|entry| entry.extent.addr).collect())
}

fn run_of<'s>(state: &'s mut ManifestState, owner: Owner<'_>, id: PieceId) -> Option<&'s mut RunState> {
    let holds = |run: &RunState| run.pieces.iter().any(|desc| desc.id == id);
    match owner.txn {
        None => {
            let KeyspaceState { runs, .. } = state.keyspaces.get_mut(&owner.keyspace)?;
            runs.iter_mut().find(|run| holds(run))
        }
        Some(txn) => {
            let runs = state.prepared.get_mut(&txn)?;
            runs.iter_mut().map(|(_, run)| run).find(|run| holds(run))
        }
    }
}

/// So that a seqno of a run can be compared with others.
pub(super) fn counted(seqno: Seqno, base: Seqno) -> Seqno {
    seqno.saturating_add(base)
}
