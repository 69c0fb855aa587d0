//! The pieces of a run as one iterator, each opened when the walk comes to it.

use bytes::Bytes;
use kvfs_store::{Result, Seqno};

use crate::format::{RecordIter, RecordRef};

/// Sorted parts with disjoint keys, such as the pieces of a run.
pub(crate) trait Parts: Send {
    /// A walk over a part.
    type Walk: RecordIter;

    /// Number of parts.
    fn count(&self) -> usize;

    /// No record of part `at` has a smaller key.
    fn first_key(&self, at: usize) -> &[u8];

    /// No record of part `at` has a greater key. May equal the first key of the next part.
    fn last_key(&self, at: usize) -> &[u8];

    /// A fresh walk over part `at`.
    ///
    /// # Errors
    /// I/O errors and corruption.
    fn open(&self, at: usize) -> Result<Self::Walk>;
}

/// A walk over parts, from a lower bound on. Holds one part open.
pub(crate) struct ConcatIter<P: Parts> {
    parts: P,
    /// Records with smaller keys do not count.
    lower_bound: Bytes,
    open: Option<(usize, P::Walk)>,
    /// Whether the open part stands on a record that counts.
    valid: bool,
}

impl<P: Parts> ConcatIter<P> {
    /// Stands nowhere. Keys below `lower_bound` (empty: none) are left out.
    pub(crate) fn new(parts: P, lower_bound: Bytes) -> Self {
        Self { parts, lower_bound, open: None, valid: false }
    }

    /// The walk over part `at`, opened if it isn't.
    fn part(&mut self, at: usize) -> Result<&mut P::Walk> {
        if self.open.as_ref().is_none_or(|(open, _)| *open != at) {
            self.open = Some((at, self.parts.open(at)?));
        }
        match &mut self.open {
            Some((_, part)) => Ok(part),
            None => unreachable!("opened above"),
        }
    }

    /// Places part `at`, or the parts behind it while they give nothing.
    fn forward_from(&mut self, at: usize, mut place: impl FnMut(&mut P::Walk) -> Result<()>) -> Result<()> {
        self.valid = false;
        for at in at..self.parts.count() {
            let part = self.part(at)?;
            place(part)?;
            if part.record().is_some() {
                self.valid = true;
                break;
            }
        }
        Ok(())
    }

    /// Places part `end - 1`, or the parts before it while they give nothing.
    fn backward_from(&mut self, end: usize, mut place: impl FnMut(&mut P::Walk) -> Result<()>) -> Result<()> {
        self.valid = false;
        for at in (0..end).rev() {
            if *self.parts.last_key(at) < self.lower_bound[..] {
                break;
            }
            let part = self.part(at)?;
            place(part)?;
            if part.record().is_some() {
                self.valid = !self.is_below_bound();
                break;
            }
        }
        Ok(())
    }

    /// The first part for which `is_left` no longer holds.
    fn partition(&self, is_left: impl Fn(&P, usize) -> bool) -> usize {
        let (mut low, mut high) = (0, self.parts.count());
        while low < high {
            let middle = low.midpoint(high);
            if is_left(&self.parts, middle) {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        low
    }

    fn current(&mut self) -> Option<(usize, &mut P::Walk)> {
        let (at, part) = self.open.as_mut().filter(|_| self.valid)?;
        Some((*at, part))
    }

    fn is_below_bound(&self) -> bool {
        self.open
            .as_ref()
            .and_then(|(_, part)| part.record())
            .is_some_and(|record| *record.key < self.lower_bound[..])
    }
}

impl<P: Parts> RecordIter for ConcatIter<P> {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        if *key < self.lower_bound[..] {
            let bound = self.lower_bound.clone();
            return self.seek(&bound, Seqno::MAX);
        }
        let at = self.partition(|parts, at| parts.last_key(at) < key);
        self.forward_from(at, |part| part.seek(key, seqno))
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let end = self.partition(|parts, at| parts.first_key(at) < key);
        self.backward_from(end, |part| part.seek_before(key))
    }

    fn first(&mut self) -> Result<()> {
        if self.lower_bound.is_empty() {
            return self.forward_from(0, RecordIter::first);
        }
        let bound = self.lower_bound.clone();
        self.seek(&bound, Seqno::MAX)
    }

    fn last(&mut self) -> Result<()> {
        self.backward_from(self.parts.count(), RecordIter::last)
    }

    fn next(&mut self) -> Result<()> {
        let Some((at, part)) = self.current() else { return Ok(()) };
        let moved = part.next();
        let ended = part.record().is_none();
        self.valid = moved.is_ok() && !ended;
        moved?;
        if ended { self.forward_from(at + 1, RecordIter::first) } else { Ok(()) }
    }

    fn prev(&mut self) -> Result<()> {
        let Some((at, part)) = self.current() else { return Ok(()) };
        let moved = part.prev();
        let ended = part.record().is_none();
        self.valid = moved.is_ok() && !ended && !self.is_below_bound();
        moved?;
        if ended { self.backward_from(at, RecordIter::last) } else { Ok(()) }
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.open.as_ref().filter(|_| self.valid)?.1.record()
    }

    fn value(&mut self) -> Result<Bytes> {
        match self.current() {
            Some((_, part)) => part.value(),
            None => Ok(Bytes::new()),
        }
    }
}

#[cfg(test)]
mod tests;
