//! What a store asks of object storage: requests and bytes by class, and what that costs.
//!
//! Purpose: services bill by classes of requests. A request that fails counts, too, as it does on a bill;
//! those that the client of the service repeats by itself do not show here.
//!
//! Thread safety: shared; counters. Invariant: they only grow.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::health::Direction;

/// Classes of requests, as services bill them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    /// PUT, COPY, parts of large objects: writes.
    Put,
    /// LIST, which costs as much as a write.
    List,
    /// GET and HEAD.
    Get,
    /// DELETE, which is free.
    Delete,
}

/// All of them, by what they are called in figures, with the price of a million requests in cents: those of
/// S3 Standard in us-east-1, of 2026. Transfer within a region is free, and not counted.
const CLASSES: [(Class, &str, u64); 4] = [
    (Class::Put, "put", 500),
    (Class::List, "list", 500),
    (Class::Get, "get", 40),
    (Class::Delete, "delete", 0),
];

/// Price of storage, there: cents for a month of a TiB.
const STORAGE_CENTS: u64 = 2355;

/// Microdollars in a cent.
const MICRODOLLARS: u64 = 10_000;

impl Class {
    /// `None`: it says nothing of others. One may delete where nothing else goes.
    pub(crate) fn direction(self) -> Option<Direction> {
        match self {
            Self::Put => Some(Direction::Writes),
            Self::List | Self::Get => Some(Direction::Reads),
            Self::Delete => None,
        }
    }
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    requests: [AtomicU64; CLASSES.len()],
    failed: AtomicU64,
    sent: AtomicU64,
    received: AtomicU64,
}

impl Traffic {
    pub(crate) fn count(&self, class: Class, sent: u64) {
        self.requests[class as usize].fetch_add(1, Ordering::Relaxed);
        self.sent.fetch_add(sent, Ordering::Relaxed);
    }

    pub(crate) fn count_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn count_failed(&self) {
        self.failed.fetch_add(1, Ordering::Relaxed);
    }

    /// Figures, of a store whose objects have so many bytes.
    pub(crate) fn figures(&self, stored: u64) -> Vec<(String, u64)> {
        let requests = |class: Class| self.requests[class as usize].load(Ordering::Relaxed);
        let mut figures: Vec<_> = CLASSES
            .iter()
            .map(|&(class, name, _)| (format!("slatedb.requests_{name}"), requests(class)))
            .collect();
        let cents: u64 = CLASSES.iter().map(|&(class, _, price)| requests(class) * price).sum();
        let month = (u128::from(stored) * u128::from(STORAGE_CENTS * MICRODOLLARS)) >> 40;
        figures.extend(
            [
                ("slatedb.requests_failed", self.failed.load(Ordering::Relaxed)),
                ("slatedb.requests_sent_bytes", self.sent.load(Ordering::Relaxed)),
                ("slatedb.requests_received_bytes", self.received.load(Ordering::Relaxed)),
                // Cents for a million requests are hundredths of a microdollar for one.
                ("slatedb.requests_cost_microdollars", cents / 100),
                ("slatedb.storage_cost_microdollars_month", u64::try_from(month).unwrap_or(u64::MAX)),
            ]
            .map(|(name, value)| (name.to_owned(), value)),
        );
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_those_of_a_bill() {
        let traffic = Traffic::default();
        (0..1000).for_each(|_| traffic.count(Class::Put, 10));
        (0..1000).for_each(|_| traffic.count(Class::List, 0));
        (0..1000).for_each(|_| traffic.count(Class::Get, 0));
        (0..1000).for_each(|_| traffic.count(Class::Delete, 0));
        let figures = traffic.figures(1 << 30);
        let of = |name: &str| figures.iter().find(|(of, _)| of == name).map(|(_, value)| *value);
        // $0.005 for a thousand PUT or LIST, $0.0004 for a thousand GET.
        assert_eq!(of("slatedb.requests_cost_microdollars"), Some(5000 + 5000 + 400));
        assert_eq!(of("slatedb.requests_sent_bytes"), Some(10_000));
        // $0.023 for a GiB and month.
        assert_eq!(of("slatedb.storage_cost_microdollars_month"), Some(22_998));
    }
}
