//! An engine other than kvdb, for the operations of the service: what every engine has.
//!
//! Thread safety: shared by all callers. Invariant: values are only passed on.

use std::sync::Arc;
use std::time::Duration;

use kvfs_open::PluggedEngine;
use kvfs_service::lines::HealthLine;
use kvfs_service::{Engine, EngineCheck};
use kvfs_store::{SpaceStats, StoreError, Verified};

use super::resident;
use crate::daemon::log::messages_lost;
use crate::report::stats::{SPACE_CAPACITY, SPACE_USED};

/// See the module.
pub(crate) struct OtherEngine {
    pub(crate) plugged: Arc<PluggedEngine>,
    pub(crate) is_read_only: bool,
}

impl Engine for OtherEngine {
    fn name(&self) -> &'static str {
        self.plugged.store.engine_name()
    }

    fn check(&self) -> Result<EngineCheck, StoreError> {
        let Verified { findings, counts } = self.plugged.store.verify()?;
        Ok(EngineCheck { findings, counts, damaged: Vec::new() })
    }

    fn health(&self) -> HealthLine {
        let failure = self.plugged.store.failure().map(|reason| reason.to_string());
        HealthLine { failure, ..HealthLine::default() }
    }

    fn counters(&self) -> Vec<(String, u64)> {
        let SpaceStats { capacity_bytes, used_bytes, available_bytes } = self.plugged.store.space();
        let own = [
            ("log.messages_lost", messages_lost()),
            (SPACE_CAPACITY, capacity_bytes),
            (SPACE_USED, used_bytes),
            ("space.available_bytes", available_bytes),
        ];
        let mut counters: Vec<_> = own.map(|(name, value)| (name.to_owned(), value)).into();
        counters.extend(resident());
        counters
    }

    fn set_commit_interval(&self, interval: Duration) {
        self.plugged.store.set_commit_interval(interval);
    }

    fn is_read_only(&self) -> bool {
        self.is_read_only
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        self.plugged.store.close()
    }
}
