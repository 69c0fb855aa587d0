//! Entries by their last use, and what all of them weigh.
//!
//! Thread safety: plain values. Invariant: the weight is the sum of those that the entries came with.

use std::hash::Hash;

use lru::LruCache;

/// See the module.
pub(crate) struct Weighed<K: Hash + Eq, V> {
    entries: LruCache<K, (V, usize)>,
    weight: usize,
}

impl<K: Hash + Eq, V> Weighed<K, V> {
    pub(crate) fn new() -> Self {
        Self { entries: LruCache::unbounded(), weight: 0 }
    }

    pub(crate) fn weight(&self) -> usize {
        self.weight
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        self.entries.get(key).map(|(value, _)| value)
    }

    /// In the place of what is there by this key.
    pub(crate) fn put(&mut self, key: K, value: V, weight: usize) {
        self.weight += weight;
        if let Some((_, old)) = self.entries.put(key, (value, weight)) {
            self.weight -= old;
        }
    }

    pub(crate) fn pop(&mut self, key: &K) -> Option<V> {
        let (value, weight) = self.entries.pop(key)?;
        self.weight -= weight;
        Some(value)
    }

    /// The one that was used least recently.
    pub(crate) fn pop_oldest(&mut self) -> Option<(K, V)> {
        let (key, (value, weight)) = self.entries.pop_lru()?;
        self.weight -= weight;
        Some((key, value))
    }

    /// Without the oldest, until all weigh at most `weight_max`, or one is left.
    pub(crate) fn shrink(&mut self, weight_max: usize) {
        while self.weight > weight_max && self.len() > 1 {
            self.pop_oldest();
        }
    }
}
