//! Several record iterators as one, in record order, both ways.

use std::cmp::Ordering;

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::format::{RecordIter, RecordRef};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// The first bytes of a key as a number; those that it lacks are zeros. Of keys with different heads the one
/// with the smaller head is the smaller one, which most comparisons come to; no child needs to be asked for
/// them.
type Head = u128;

fn head_of(key: &[u8]) -> Head {
    if let Some(head) = key.first_chunk() {
        return Head::from_be_bytes(*head);
    }
    let mut head = [0; size_of::<Head>()];
    head[..key.len()].copy_from_slice(key);
    Head::from_be_bytes(head)
}

/// A heap-based merge. One step costs O(log k) comparisons for k children, and two in the common
/// case that the same child goes on. It walks on in the direction in which it was placed: forward from a
/// seek or the first record, backward from [`RecordIter::seek_before`] or the last one.
///
/// No two children hold the same (key, seqno).
pub(crate) struct MergingIter {
    children: Vec<Box<dyn RecordIter>>,
    /// How the key begins that each child stands on.
    heads: Vec<Head>,
    /// Binary heap of the children that stand on a record, the current one at the root.
    heap: Vec<usize>,
    direction: Direction,
}

impl MergingIter {
    /// Stands nowhere.
    pub(crate) fn new(children: Vec<Box<dyn RecordIter>>) -> Self {
        let (heads, heap) = (vec![0; children.len()], Vec::with_capacity(children.len()));
        Self { children, heads, heap, direction: Direction::Forward }
    }

    /// Which child holds the current record.
    pub(crate) fn current_child(&self) -> Option<usize> {
        self.heap.first().copied()
    }

    /// On a forward walk: every child from number `from` on that stands before `key` goes to its
    /// first record at or after `key`. The others stay.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    pub(crate) fn skip_to(&mut self, from: usize, key: &[u8]) -> Result<()> {
        debug_assert_eq!(self.direction, Direction::Forward);
        self.reposition(Direction::Forward, |at, child| {
            if at >= from && child.record().is_some_and(|record| record.key < key) {
                child.seek(key, Seqno::MAX)?;
            }
            Ok(())
        })
    }

    /// On a backward walk: every child from number `from` on that stands at or after `key` goes to
    /// its last record before `key`. The others stay.
    ///
    /// # Errors
    /// As [`RecordIter::seek`].
    pub(crate) fn skip_before(&mut self, from: usize, key: &[u8]) -> Result<()> {
        debug_assert_eq!(self.direction, Direction::Backward);
        self.reposition(Direction::Backward, |at, child| {
            if at >= from && child.record().is_some_and(|record| record.key >= key) {
                child.seek_before(key)?;
            }
            Ok(())
        })
    }

    /// Moves all children, then rebuilds the heap.
    fn reposition(
        &mut self,
        direction: Direction,
        mut place: impl FnMut(usize, &mut dyn RecordIter) -> Result<()>,
    ) -> Result<()> {
        self.heap.clear();
        self.direction = direction;
        for (at, child) in self.children.iter_mut().enumerate() {
            place(at, &mut **child)?;
        }
        for at in 0..self.children.len() {
            if self.note_head(at) {
                self.heap.push(at);
            }
        }
        for at in (0..self.heap.len() / 2).rev() {
            self.sift_down(at);
        }
        Ok(())
    }

    /// Takes note of what a child stands on; false: on nothing.
    fn note_head(&mut self, at: usize) -> bool {
        let head = self.children[at].record().map(|record| head_of(record.key));
        self.heads[at] = head.unwrap_or_default();
        head.is_some()
    }

    /// Whether child `a` comes before child `b` on this walk.
    fn is_before(&self, a: usize, b: usize) -> bool {
        let order = self.heads[a].cmp(&self.heads[b]).then_with(|| self.compare(a, b));
        order == if self.direction == Direction::Forward { Ordering::Less } else { Ordering::Greater }
    }

    fn compare(&self, a: usize, b: usize) -> Ordering {
        let (Some(a), Some(b)) = (self.children[a].record(), self.children[b].record()) else {
            return Ordering::Equal;
        };
        a.key.cmp(b.key).then(b.seqno.cmp(&a.seqno))
    }

    fn sift_down(&mut self, mut at: usize) {
        loop {
            let left = 2 * at + 1;
            if left >= self.heap.len() {
                return;
            }
            let right = left + 1;
            let least = if right < self.heap.len() && self.is_before(self.heap[right], self.heap[left]) {
                right
            } else {
                left
            };
            if !self.is_before(self.heap[least], self.heap[at]) {
                return;
            }
            self.heap.swap(at, least);
            at = least;
        }
    }

    /// One step of the current child, which stays the root or sinks.
    fn step(&mut self, current: usize) -> Result<()> {
        let child = &mut self.children[current];
        let moved = match self.direction {
            Direction::Forward => child.next(),
            Direction::Backward => child.prev(),
        };
        if let Err(error) = moved {
            self.heap.clear();
            return Err(error);
        }
        if !self.note_head(current) {
            self.heap.swap_remove(0);
        }
        self.sift_down(0);
        Ok(())
    }
}

impl RecordIter for MergingIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        self.reposition(Direction::Forward, |_, child| child.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        self.reposition(Direction::Backward, |_, child| child.seek_before(key))
    }

    fn first(&mut self) -> Result<()> {
        self.reposition(Direction::Forward, |_, child| child.first())
    }

    fn last(&mut self) -> Result<()> {
        self.reposition(Direction::Backward, |_, child| child.last())
    }

    fn next(&mut self) -> Result<()> {
        let Some(current) = self.current_child() else { return Ok(()) };
        debug_assert_eq!(self.direction, Direction::Forward);
        self.step(current)
    }

    fn prev(&mut self) -> Result<()> {
        let Some(current) = self.current_child() else { return Ok(()) };
        debug_assert_eq!(self.direction, Direction::Backward);
        self.step(current)
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.children[self.current_child()?].record()
    }

    fn value(&mut self) -> Result<Bytes> {
        match self.current_child() {
            Some(current) => self.children[current].value(),
            None => Ok(Bytes::new()),
        }
    }
}

#[cfg(test)]
mod tests;
