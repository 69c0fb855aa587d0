//! Verifying an open store: every checksum is read, every reference followed.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvfs_store::progress::{self, Unit};
use kvfs_store::{Result, SpaceStats};

use super::counters::Amplification;
use super::inner::Inner;
use super::view::Sealed;
use crate::cache::Pool;
use crate::journal::Journal;
use crate::version::Run;
use crate::zone::{Budget, ZoneState};

/// What a check found.
#[derive(Debug, Clone, Default)]
pub struct Checked {
    /// Damage, one line each; empty: clean.
    pub findings: Vec<String>,
    /// What was looked at, by name.
    pub counts: Vec<(String, u64)>,
}

/// Totals of a check in progress.
#[derive(Default)]
struct Tally {
    findings: Vec<String>,
    runs: u64,
    pieces: u64,
    records: u64,
    bytes_verified: u64,
}

impl Inner {
    pub(crate) fn check(&self) -> Result<Checked> {
        let view = self.view();
        let mut tally = Tally::default();
        let runs = view.version.keyspaces().flat_map(|(_, runs)| runs);
        progress::stage("verifying checksums", Unit::Bytes, runs.map(|run| run.data_bytes()).sum());
        for (keyspace, runs) in view.version.keyspaces() {
            let meta = self.keyspaces.get(keyspace)?;
            for run in runs {
                tally.runs += 1;
                check_run(run, &meta.name, &mut tally);
            }
        }
        // Those of commits that wait for older memtables.
        let waiting = || view.sealed.iter().flat_map(Sealed::all_runs);
        for (keyspace, run) in waiting() {
            tally.runs += 1;
            check_run(run, &self.keyspaces.get(keyspace)?.name, &mut tally);
        }
        let checkpointed = self.checkpoints.runs();
        for (keyspace, run) in &checkpointed {
            tally.runs += 1;
            check_run(run, &self.keyspaces.get(*keyspace)?.name, &mut tally);
        }
        let in_version = view.version.keyspaces().flat_map(|(_, runs)| runs);
        let others = waiting().map(|(_, run)| run).chain(checkpointed.iter().map(|(_, run)| run));
        self.check_zones(in_version.chain(others), &mut tally);
        let counts = [
            ("runs", tally.runs),
            ("pieces", tally.pieces),
            ("records and blocks", tally.records),
            ("bytes verified", tally.bytes_verified),
        ];
        let counts = counts.into_iter().map(|(name, count)| (name.to_owned(), count)).collect();
        Ok(Checked { findings: tally.findings, counts })
    }

    /// Every zone that a piece refers to must be known as used.
    fn check_zones<'a>(&self, runs: impl Iterator<Item = &'a Arc<Run>>, tally: &mut Tally) {
        let mut expected: BTreeMap<u32, u64> = BTreeMap::new();
        for piece in runs.flat_map(|run| &run.pieces) {
            for zone_use in &piece.desc().zones {
                *expected.entry(zone_use.zone.0).or_default() += zone_use.bytes;
            }
        }
        for (zone, _, live) in self.ctx.zones.table() {
            let wanted = expected.remove(&zone.0).unwrap_or(0);
            if live < wanted {
                tally
                    .findings
                    .push(format!("zone {}: {live} bytes counted as live, but {wanted} are in use", zone.0));
            }
        }
        for zone in expected.keys() {
            tally.findings.push(format!("zone {zone} is in use, but not part of the device"));
        }
    }

    pub(crate) fn space(&self) -> SpaceStats {
        let zones = &self.ctx.zones;
        let stats = zones.space();
        let gained = self.bytes_to_be_gained();
        let free = zones.free_bytes(Budget::Reserve) + gained;
        let waiting = self.bytes_waiting() + self.flush_slack_bytes();
        let available = (zones.free_bytes(Budget::Ordinary) + gained).saturating_sub(waiting);
        SpaceStats {
            capacity_bytes: stats.bytes_capacity,
            used_bytes: stats.bytes_capacity.saturating_sub(free),
            available_bytes: available,
        }
    }

    /// Space that a flush may need beyond its payload: an open zone for each stream (bytes).
    pub(crate) fn flush_slack_bytes(&self) -> u64 {
        2 * u64::from(self.ctx.zones.zone_bytes())
    }

    /// `counted` are the counters, `logged_bytes` what went to the device besides pieces.
    fn amplification(&self, counted: &[(String, u64)], logged_bytes: u64) -> Amplification {
        let count =
            |name: &str| counted.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
        let zones = self.ctx.zones.table();
        let holding = zones
            .iter()
            .filter(|(_, state, live)| *live > 0 && matches!(state, ZoneState::Open(_) | ZoneState::Closed));
        let (used, live) = holding.fold((0, 0), |(used, sum), (_, _, live)| (used + 1, sum + live));
        Amplification {
            payload_bytes: count("write.payload_bytes"),
            device_bytes: logged_bytes + count("flush.bytes") + count("merge.bytes_written"),
            live_bytes: live,
            zones_bytes: used * u64::from(self.ctx.zones.zone_bytes()),
            lookups: count("read.lookups"),
            blocks_read: self.ctx.cache.stats().misses,
        }
    }

    pub(crate) fn stats(&self) -> Vec<(String, u64)> {
        let view = self.view();
        let zones = self.ctx.zones.space();
        let journal = self.journal.as_ref();
        let logged = journal.map(Journal::stats).unwrap_or_default();
        let (cached, paged) = (self.ctx.cache.stats(), self.ctx.pages.stats());
        let mut stats = self.counters.list();
        let manifest_bytes = self.ledger.lock().manifest.bytes_written();
        let logged_bytes = logged.bytes_written + logged.bytes_bound + manifest_bytes;
        for (name, value) in self.amplification(&stats, logged_bytes).list() {
            stats.push((name.to_owned(), value));
        }
        stats.extend(self.stalls.list());
        let mut add = |name: &str, value: u64| stats.push((name.to_owned(), value));
        for (name, value) in self.pace.list() {
            add(name, value);
        }
        add("merge.running", self.merging.claims() as u64);
        add("journal.batches", logged.batches);
        add("journal.groups", logged.groups);
        add("journal.flushes", logged.flushes);
        add("journal.bytes_written", logged.bytes_written);
        add("journal.bytes_bound", logged.bytes_bound);
        add("journal.used_bytes", journal.map_or(0, Journal::used_bytes));
        add("journal.area_bytes", journal.map_or(0, Journal::area_bytes));
        add("manifest.bytes_written", manifest_bytes);
        for (name, value) in self.transactions.list() {
            add(name, value);
        }
        for (name, value) in self.undo.list() {
            add(name, value);
        }
        add("txn.checkpointed", self.checkpoints.count());
        add("snapshots.named", self.named.count());
        add("snapshots.pins", self.snapshots.count() as u64);
        add("memtable.bytes", view.memtable_bytes());
        add("memtable.sealed", view.sealed.len() as u64);
        add("cache.hits", cached.hits);
        add("cache.misses", cached.misses);
        add("cache.evictions", cached.evictions);
        add("cache.bytes", self.ctx.cache.bytes());
        add("index.loads", paged.loads);
        add("index.evictions", paged.evictions);
        add("index.bytes", self.ctx.pages.bytes());
        add("index.share_bytes", self.ctx.accountant.index_budget());
        add("memory.ceiling_bytes", self.ctx.accountant.bytes_ceiling());
        add("memory.used_bytes", self.ctx.accountant.used_total());
        add("memory.peak_bytes", self.ctx.accountant.peak_total());
        for pool in Pool::ALL {
            add(&format!("memory.{}_bytes", pool.name()), self.ctx.accountant.used(pool));
        }
        add("zones.total", u64::from(zones.zones_total));
        add("zones.free", u64::from(zones.zones_free));
        add("zones.live_bytes", zones.bytes_live);
        add("zones.capacity_bytes", zones.bytes_capacity);
        add("merge.debt_bytes", self.compaction_debt_bytes.load(std::sync::atomic::Ordering::Relaxed));
        for (keyspace, runs) in view.version.keyspaces() {
            let name = self
                .keyspaces
                .get(keyspace)
                .map_or_else(|_| keyspace.to_string(), |meta| meta.name.to_string());
            add(&format!("keyspace.{name}.runs"), runs.len() as u64);
            add(&format!("keyspace.{name}.bytes"), runs.iter().map(|run| run.data_bytes()).sum());
            let pieces = runs.iter().flat_map(|run| &run.pieces);
            add(&format!("keyspace.{name}.raw_bytes"), pieces.map(|piece| piece.raw_bytes()).sum());
        }
        stats.sort();
        stats
    }
}

fn check_run(run: &Run, name: &str, tally: &mut Tally) {
    for pair in run.pieces.windows(2) {
        if pair[0].desc().last_key > pair[1].desc().first_key {
            tally.findings.push(format!("keyspace {name}, run {}: pieces overlap", run.id.0));
        }
    }
    for piece in &run.pieces {
        tally.pieces += 1;
        tally.records += piece.desc().records;
        match piece.verify() {
            Ok(bytes) => {
                tally.bytes_verified += bytes;
                progress::advance(bytes);
            }
            Err(error) => {
                tally.findings.push(format!("keyspace {name}, piece {}: {error}", piece.desc().id.0));
            }
        }
    }
}
