//! What a store tells of itself in figures.

use kvfs_store::{SpaceStats, Tier};

use super::Parts;
use crate::cache::{Accountant, Pool};
use crate::journal::Journal;
use crate::runtime::counters::Amplification;
use crate::space::ZoneState;
use crate::table::RunContext;

impl Parts {
    /// Capacity, and what of it is used and available.
    pub(crate) fn space(&self) -> SpaceStats {
        let zones = &self.runtime.ctx.zones;
        let stats = zones.space();
        let gained = self.merger.victims.bytes_to_be_gained();
        // A medium that has no room for more now takes from what is available, and makes nothing used.
        let free = stats.bytes_untaken + gained;
        let waiting = self.space.bytes_waiting() + self.space.flush_slack_bytes();
        let available = (self.space.bytes_for_ordinary() + gained).saturating_sub(waiting);
        SpaceStats {
            capacity_bytes: stats.bytes_capacity,
            used_bytes: stats.bytes_capacity.saturating_sub(free),
            available_bytes: available,
        }
    }

    /// Names and values of all counters, sorted.
    pub(crate) fn stats(&self) -> Vec<(String, u64)> {
        let view = self.live.view();
        let zones = self.runtime.ctx.zones.space();
        let journal = self.log.journal().ok();
        let logged = journal.map(Journal::stats).unwrap_or_default();
        let (cached, paged) = (self.runtime.ctx.cache.stats(), self.runtime.ctx.pages.stats());
        let mut stats = self.runtime.counters.list();
        let manifest_bytes = self.live.manifest_bytes_written();
        let logged_bytes = logged.bytes_written + logged.bytes_bound + manifest_bytes;
        for (name, value) in amplification(&self.runtime.ctx, &stats, logged_bytes).list() {
            stats.push((name.to_owned(), value));
        }
        stats.extend(self.runtime.stalls.list());
        stats.extend(memory(&self.runtime.ctx.accountant));
        let mut add = |name: &str, value: u64| stats.push((name.to_owned(), value));
        for (name, value) in self.pressure.pace.list() {
            add(name, value);
        }
        add("merge.running", self.merger.claims() as u64);
        add(&format!("placement.{}", self.runtime.ctx.zones.placement()), 1);
        for (name, value) in self.migrator.list() {
            add(name, value);
        }
        for (name, value) in self.runtime.ctx.zones.endurance().list() {
            add(name, value);
        }
        add("journal.batches", logged.batches);
        add("journal.groups", logged.groups);
        add("journal.flushes", logged.flushes);
        add("journal.bytes_written", logged.bytes_written);
        add("journal.bytes_bound", logged.bytes_bound);
        add("journal.used_bytes", journal.map_or(0, Journal::used_bytes));
        add("journal.unsynced_bytes", self.runtime.unsynced.bytes());
        add("journal.area_bytes", journal.map_or(0, Journal::area_bytes));
        add("manifest.bytes_written", manifest_bytes);
        for (name, value) in self.transactions.list() {
            add(name, value);
        }
        for (name, value) in self.undo.list() {
            add(name, value);
        }
        add("txn.checkpointed", self.checkpoints.count());
        add("snapshots.named", self.history.named().count());
        add("snapshots.pins", self.history.pins() as u64);
        add("memtable.bytes", view.memtable_bytes());
        add("memtable.sealed", view.sealed.len() as u64);
        add(&format!("cache.policy.{}", self.runtime.ctx.cache.policy()), 1);
        add("cache.hits", cached.hits.total());
        add("cache.misses", cached.misses.total());
        for tier in Tier::ALL {
            add(&format!("cache.hits_{tier}"), cached.hits.of(tier));
            add(&format!("cache.misses_{tier}"), cached.misses.of(tier));
        }
        add("cache.evictions", cached.evictions);
        add("cache.blocks", cached.blocks as u64);
        add("cache.ghosts", cached.ghosts as u64);
        add("cache.bytes", self.runtime.ctx.cache.bytes());
        add("index.loads", paged.loads);
        add("index.evictions", paged.evictions);
        add("index.bytes", self.runtime.ctx.pages.bytes());
        add("index.share_bytes", self.runtime.ctx.accountant.index_budget());
        add("zones.total", u64::from(zones.zones_total));
        add("zones.free", u64::from(zones.zones_free));
        add("zones.live_bytes", zones.bytes_live);
        add("zones.capacity_bytes", zones.bytes_capacity);
        let fragmentation = self.defragmenter.fragmentation();
        add("zones.reclaimable", fragmentation.zones_reclaimable());
        add("zones.reclaimable_bytes", fragmentation.bytes_reclaimable());
        add("zones.defrag_is_worth_it", fragmentation.is_worth_it().into());
        add("merge.debt_bytes", self.pressure.debt_bytes());
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

/// What is charged: in all, by pool, and in each by size.
fn memory(accountant: &Accountant) -> Vec<(String, u64)> {
    let mut stats = vec![
        ("memory.ceiling_bytes".to_owned(), accountant.bytes_ceiling()),
        ("memory.used_bytes".to_owned(), accountant.used_total()),
        ("memory.peak_bytes".to_owned(), accountant.peak_total()),
    ];
    for pool in Pool::ALL {
        let name = pool.name();
        stats.push((format!("memory.{name}_bytes"), accountant.used(pool)));
        stats.push((format!("memory.{name}_peak_bytes"), accountant.peak(pool)));
        for class in accountant.charges().classes(pool as usize) {
            let figures = [
                ("bytes", class.bytes),
                ("peak_bytes", class.bytes_peak),
                ("count", class.count),
                ("peak_count", class.count_peak),
            ];
            let name_of = |figure: &str| format!("charges.{name}.{}.{figure}", class.bytes_max);
            stats.extend(figures.map(|(figure, value)| (name_of(figure), value)));
        }
    }
    stats
}

/// `counted` are the counters, `logged_bytes` what went to the device besides pieces.
fn amplification(ctx: &RunContext, counted: &[(String, u64)], logged_bytes: u64) -> Amplification {
    let count = |name: &str| counted.iter().find(|(known, _)| known == name).map_or(0, |(_, value)| *value);
    let zones = ctx.zones.table();
    let holding = zones
        .iter()
        .filter(|(_, state, live)| *live > 0 && matches!(state, ZoneState::Open(_) | ZoneState::Closed));
    let (used, live) = holding.fold((0, 0), |(used, sum), (_, _, live)| (used + 1, sum + live));
    Amplification {
        payload_bytes: count("write.payload_bytes"),
        device_bytes: logged_bytes + count("flush.bytes") + count("merge.bytes_written"),
        live_bytes: live,
        zones_bytes: used * u64::from(ctx.zones.zone_bytes()),
        lookups: count("read.lookups"),
        blocks_read: ctx.cache.stats().misses.total(),
    }
}
