//! Defragmenting a store.
//!
//! Thread safety: one at a time, beside all other requests. It ends behind the piece that is being copied when the store is to be
//! closed, the client has gone, or a command that has opened the store itself gets SIGINT or SIGTERM.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use kvfs_kvdb::{DefragLimit, DefragPolicy, Fragmentation};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::{self, Unit};
use parking_lot::Mutex;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::flag;

use super::Service;
use crate::control::{DefragRequest, FragmentationLine, Peer, Response};
use crate::error::{CliError, Code, Result};
use crate::open::OpenStore;

/// Lets in one defragmentation at a time, and ends it.
#[derive(Debug, Default)]
pub(super) struct DefragGate {
    running: Mutex<()>,
    is_shut: Arc<AtomicBool>,
}

impl DefragGate {
    /// The one that runs ends soon, and none runs after it.
    pub(super) fn shut(&self) {
        self.is_shut.store(true, Ordering::Relaxed);
    }

    /// A signal shuts it; a second one ends the process.
    fn shut_by_signals(&self) -> Result<()> {
        for signal in [SIGINT, SIGTERM] {
            flag::register_conditional_default(signal, Arc::clone(&self.is_shut))
                .and_then(|_| flag::register(signal, Arc::clone(&self.is_shut)))
                .map_err(|error| CliError::new(Code::Failed, format!("cannot catch signals: {error}")))?;
        }
        Ok(())
    }
}

impl Service {
    /// Defragments the store, or says what that would do.
    pub(super) fn answer_defrag(
        &self,
        store: &OpenStore,
        peer: &Peer,
        request: DefragRequest,
    ) -> Result<Response> {
        let policy = if request.rewrite { DefragPolicy::Rewrite } else { DefragPolicy::Sparse };
        if request.dry_run {
            let plan = store.db.defrag_plan(policy);
            let (zones, zones_freed, bytes) = (plan.zones, plan.zones_freed(), plan.bytes);
            return Ok(Response::DefragPlan { now: line(&plan.now), zones, zones_freed, bytes });
        }
        let Some(_running) = self.defrag.running.try_lock() else {
            let message = "the store is being defragmented already; wait until that has ended";
            return Err(CliError::new(Code::InUse, message));
        };
        if self.mounted.is_none() {
            self.defrag.shut_by_signals()?;
        }
        tracing::info!(?request, "defragmenting");
        let limit = DefragLimit::new(request.bytes_per_second, Arc::clone(&self.defrag.is_shut));
        let clock = SystemClock::new();
        let (mut bytes_all, mut bytes_told) = (0, 0);
        let done = store.db.defragment(policy, &limit, &mut |now| {
            if bytes_all != now.bytes {
                (bytes_all, bytes_told) = (now.bytes, 0);
                progress::stage("emptying zones", Unit::Bytes, bytes_all);
            }
            progress::advance(now.bytes_done.saturating_sub(bytes_told));
            bytes_told = bytes_told.max(now.bytes_done);
            !self.defrag.is_shut.load(Ordering::Relaxed) && peer.is_there()
        })?;
        let took = clock.monotonic();
        tracing::info!(
            ?took,
            bytes_moved = done.bytes_moved,
            zones_before = done.before.zones_used,
            zones_after = done.after.zones_used,
            is_complete = done.is_complete,
            "defragmented"
        );
        Ok(Response::Defragmented {
            before: line(&done.before),
            after: line(&done.after),
            bytes_moved: done.bytes_moved,
            took,
            is_complete: done.is_complete,
        })
    }
}

fn line(fragmentation: &Fragmentation) -> FragmentationLine {
    FragmentationLine {
        zones_used: fragmentation.zones_used,
        zones_needed: fragmentation.zones_needed,
        zone_bytes: fragmentation.zone_bytes,
        bytes_live: fragmentation.bytes_live,
        stretch_bytes_mean: fragmentation.stretch_bytes_mean(),
    }
}
