//! Doubly linked lists of slots, several of them in one vector of nodes.

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy, Default)]
struct Node {
    newer: u32,
    older: u32,
    bytes: u32,
}

/// The nodes of all slots. A slot is on one list at a time.
#[derive(Debug, Default)]
pub(super) struct Chain {
    nodes: Vec<Node>,
}

impl Chain {
    /// Makes a node for a slot that came in with so many bytes; it is on no list yet.
    pub(super) fn enter(&mut self, slot: u32, bytes: u32) {
        let node = Node { newer: NONE, older: NONE, bytes };
        match self.nodes.get_mut(slot as usize) {
            Some(entered) => *entered = node,
            None => self.nodes.resize(slot as usize + 1, node),
        }
    }

    pub(super) fn bytes_of(&self, slot: u32) -> u32 {
        self.nodes[slot as usize].bytes
    }
}

/// One list: newest first.
#[derive(Debug)]
pub(super) struct List {
    newest: u32,
    oldest: u32,
    len: usize,
    bytes: u64,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, len: 0, bytes: 0 }
    }
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Of all its slots.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// The slot that was pushed before all others.
    pub(super) fn oldest(&self) -> Option<u32> {
        Some(self.oldest).filter(|&slot| slot != NONE)
    }

    /// Adds a slot that has a node and is on no list.
    pub(super) fn push(&mut self, chain: &mut Chain, slot: u32) {
        let nodes = &mut chain.nodes;
        let node = &mut nodes[slot as usize];
        (node.newer, node.older) = (NONE, self.newest);
        self.bytes += u64::from(node.bytes);
        match self.newest {
            NONE => self.oldest = slot,
            newest => nodes[newest as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Takes out a slot that is on this list.
    pub(super) fn remove(&mut self, chain: &mut Chain, slot: u32) {
        let Node { newer, older, bytes } = chain.nodes[slot as usize];
        match newer {
            NONE => self.newest = older,
            n => chain.nodes[n as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => chain.nodes[o as usize].newer = newer,
        }
        self.len -= 1;
        self.bytes -= u64::from(bytes);
    }

    /// Takes out the oldest slot.
    pub(super) fn pop_oldest(&mut self, chain: &mut Chain) -> Option<u32> {
        let slot = self.oldest()?;
        self.remove(chain, slot);
        Some(slot)
    }

    /// Makes a slot of this list the newest.
    pub(super) fn renew(&mut self, chain: &mut Chain, slot: u32) {
        if self.newest != slot {
            self.remove(chain, slot);
            self.push(chain, slot);
        }
    }
}
