//! Sets of seqnos that share structure: a persistent treap in an arena.
//!
//! The priority of a node is a hash of its seqno, so a set has one shape whatever its history, and
//! its depth is O(log n) expected. Changing a set copies one path and leaves the old set as it was.

use kvfs_store::Seqno;

/// Index of a node, or [`EMPTY`].
pub(super) type Root = u32;

/// The empty set.
pub(super) const EMPTY: Root = u32::MAX;

#[derive(Debug, Clone, Copy)]
struct Node {
    seqno: Seqno,
    /// Greater seqnos.
    newer: Root,
    /// Smaller seqnos.
    older: Root,
}

/// The arena of all sets.
#[derive(Debug, Clone, Default)]
pub(super) struct SeqnoTree {
    nodes: Vec<Node>,
}

/// A bijective mix (the finalizer of `SplitMix64`), so priorities of different seqnos differ.
fn priority(seqno: Seqno) -> u64 {
    let mut x = seqno.wrapping_add(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl SeqnoTree {
    pub(super) fn bytes(&self) -> usize {
        self.nodes.len() * size_of::<Node>()
    }

    /// Gives back what is not in use. The sets are complete.
    pub(super) fn shrink(&mut self) {
        self.nodes.shrink_to_fit();
    }

    /// Counts all seqnos from `base` on: the order, and so the search, stays what it was. The tree is not
    /// changed any more after this, since the priorities no longer fit.
    pub(super) fn rebase(&mut self, base: Seqno) {
        for node in &mut self.nodes {
            node.seqno = node.seqno.wrapping_add(base);
        }
    }

    fn push(&mut self, seqno: Seqno, newer: Root, older: Root) -> Root {
        let index = self.nodes.len() as Root;
        assert!(index < EMPTY, "fewer than 2^32 nodes");
        self.nodes.push(Node { seqno, newer, older });
        index
    }

    fn node(&self, root: Root) -> Option<Node> {
        self.nodes.get(root as usize).copied()
    }

    /// `root` with `seqno`, which it does not hold yet.
    pub(super) fn insert(&mut self, root: Root, seqno: Seqno) -> Root {
        let Some(node) = self.node(root) else { return self.push(seqno, EMPTY, EMPTY) };
        if priority(seqno) > priority(node.seqno) {
            let (newer, older) = self.split(root, seqno);
            return self.push(seqno, newer, older);
        }
        if seqno > node.seqno {
            let newer = self.insert(node.newer, seqno);
            self.push(node.seqno, newer, node.older)
        } else {
            let older = self.insert(node.older, seqno);
            self.push(node.seqno, node.newer, older)
        }
    }

    /// The parts above and below `seqno`.
    fn split(&mut self, root: Root, seqno: Seqno) -> (Root, Root) {
        let Some(node) = self.node(root) else { return (EMPTY, EMPTY) };
        if node.seqno > seqno {
            let (newer, older) = self.split(node.older, seqno);
            (self.push(node.seqno, node.newer, newer), older)
        } else {
            let (newer, older) = self.split(node.newer, seqno);
            (newer, self.push(node.seqno, older, node.older))
        }
    }

    /// `root` without `seqno`.
    pub(super) fn remove(&mut self, root: Root, seqno: Seqno) -> Root {
        let Some(node) = self.node(root) else { return EMPTY };
        match seqno.cmp(&node.seqno) {
            std::cmp::Ordering::Equal => self.join(node.newer, node.older),
            std::cmp::Ordering::Greater => {
                let newer = self.remove(node.newer, seqno);
                self.push(node.seqno, newer, node.older)
            }
            std::cmp::Ordering::Less => {
                let older = self.remove(node.older, seqno);
                self.push(node.seqno, node.newer, older)
            }
        }
    }

    /// The union of two sets of which the first is wholly above the second.
    fn join(&mut self, newer: Root, older: Root) -> Root {
        match (self.node(newer), self.node(older)) {
            (None, _) => older,
            (_, None) => newer,
            (Some(a), Some(b)) if priority(a.seqno) > priority(b.seqno) => {
                let rest = self.join(a.older, older);
                self.push(a.seqno, a.newer, rest)
            }
            (Some(_), Some(b)) => {
                let rest = self.join(newer, b.newer);
                self.push(b.seqno, rest, b.older)
            }
        }
    }

    /// The greatest seqno of the set at or below `snapshot`.
    pub(super) fn newest_at(&self, mut root: Root, snapshot: Seqno) -> Option<Seqno> {
        let mut best = None;
        while let Some(node) = self.node(root) {
            if node.seqno <= snapshot {
                best = Some(node.seqno);
                root = node.newer;
            } else {
                root = node.older;
            }
        }
        best
    }

    /// The seqnos of the set, descending.
    #[cfg(test)]
    pub(super) fn iter(&self, root: Root) -> impl Iterator<Item = Seqno> + use<'_> {
        let mut path = Vec::new();
        let mut at = root;
        std::iter::from_fn(move || {
            while let Some(node) = self.node(at) {
                path.push(node);
                at = node.newer;
            }
            let node = path.pop()?;
            at = node.older;
            Some(node.seqno)
        })
    }
}
