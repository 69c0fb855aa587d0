//! Doubly linked lists of slots, several of them in one vector of links.

/// No slot.
const NONE: u32 = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Links {
    newer: u32,
    older: u32,
}

/// The links of all slots. A slot is on one list at a time.
#[derive(Debug, Default)]
pub(super) struct Chain {
    links: Vec<Links>,
}

/// One list: newest first.
#[derive(Debug)]
pub(super) struct List {
    newest: u32,
    oldest: u32,
    len: usize,
}

impl Default for List {
    fn default() -> Self {
        Self { newest: NONE, oldest: NONE, len: 0 }
    }
}

impl List {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn push(&mut self, chain: &mut Chain, slot: u32) {
        let links = &mut chain.links;
        if links.len() <= slot as usize {
            links.resize(slot as usize + 1, Links { newer: NONE, older: NONE });
        }
        links[slot as usize] = Links { newer: NONE, older: self.newest };
        match self.newest {
            NONE => self.oldest = slot,
            n => links[n as usize].newer = slot,
        }
        self.newest = slot;
        self.len += 1;
    }

    /// Takes out a slot that is on this list.
    pub(super) fn remove(&mut self, chain: &mut Chain, slot: u32) {
        let Links { newer, older } = chain.links[slot as usize];
        match newer {
            NONE => self.newest = older,
            n => chain.links[n as usize].older = older,
        }
        match older {
            NONE => self.oldest = newer,
            o => chain.links[o as usize].newer = newer,
        }
        self.len -= 1;
    }

    /// Takes out the oldest slot.
    pub(super) fn pop_oldest(&mut self, chain: &mut Chain) -> Option<u32> {
        let slot = Some(self.oldest).filter(|&slot| slot != NONE)?;
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
