//! Which block goes when the cache is over its budget: the policy seam, and least recently used.

/// Decides the order of eviction inside one shard of the cache.
///
/// Slots are small numbers that the cache reuses after [`Eviction::remove`]. Called under the lock
/// of the shard, on every hit: all methods must be O(1), or amortized so.
pub trait Eviction: Send {
    /// `slot` came in.
    fn insert(&mut self, slot: u32);

    /// `slot` was used.
    fn hit(&mut self, slot: u32);

    /// `slot` is gone.
    fn remove(&mut self, slot: u32);

    /// The slot to evict next, or `None` when there is none. The cache then calls
    /// [`Eviction::remove`] for it.
    fn victim(&mut self) -> Option<u32>;
}

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    newer: u32,
    older: u32,
}

/// Least recently used first: a doubly linked list in a vector.
#[derive(Debug)]
pub struct Lru {
    links: Vec<Links>,
    newest: u32,
    oldest: u32,
}

impl Default for Lru {
    fn default() -> Self {
        Self { links: Vec::new(), newest: NONE, oldest: NONE }
    }
}

impl Lru {
    fn unlink(&mut self, slot: u32) {
        let Links { newer, older } = self.links[slot as usize];
        match newer {
            NONE => self.newest = older,
            n => self.links[n as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => self.links[o as usize].newer = newer,
        }
    }

    fn push_newest(&mut self, slot: u32) {
        self.links[slot as usize] = Links { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            n => self.links[n as usize].newer = slot,
        }
        self.newest = slot;
    }
}

impl Eviction for Lru {
    fn insert(&mut self, slot: u32) {
        if self.links.len() <= slot as usize {
            self.links.resize(slot as usize + 1, Links { newer: NONE, older: NONE });
        }
        self.push_newest(slot);
    }

    fn hit(&mut self, slot: u32) {
        if self.newest != slot {
            self.unlink(slot);
            self.push_newest(slot);
        }
    }

    fn remove(&mut self, slot: u32) {
        self.unlink(slot);
    }

    fn victim(&mut self) -> Option<u32> {
        (self.oldest != NONE).then_some(self.oldest)
    }
}
