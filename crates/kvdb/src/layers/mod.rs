//! All that one read goes by: the layers of the moment, the position, and above them what a transaction has
//! written itself.
//!
//! Thread safety: immutable; made for one read or shared by several.
//!
//! Invariant: own records come before all others, and count up to a limit of their own.

pub(crate) mod adopted;
pub(crate) mod view;

use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_store::{Extent, ExtentKind, KeyRange, Result, Seqno};

use crate::commit::OwnWrites;
use crate::iter::{OwnLayers, VisibleCursor};
use crate::layers::view::{View, source_of, source_of_run};
use crate::memtable::{BlockFill, BlockSearch, BlockState, Lookup, Merger};
use crate::table::Location;
use crate::version::{Run, TakePiece, read_piece};

/// Blocks looked at in one step of a search for data or holes.
const EXTENT_WINDOW_BLOCKS: u64 = 1024;

/// What a read sees.
#[derive(Clone)]
pub(crate) struct Layers {
    pub(crate) view: Arc<View>,
    /// The newest seqno that counts in the view.
    pub(crate) seqno: Seqno,
    pub(crate) own: Option<OwnWrites>,
}

/// Where present blocks are.
pub(crate) enum Located {
    InPiece(Location),
    /// In memory alone, as a whole or in parts.
    InMemory(Extent),
}

/// The present ones of some blocks that are in no piece.
fn add_in_memory(parts: &mut Vec<Located>, first: u64, states: &[BlockState], positions: Range<usize>) {
    let is_present = |position: &usize| states[*position] == BlockState::Data;
    let mut at = positions.start;
    while let Some(start) = (at..positions.end).find(is_present) {
        let count = (start..positions.end).take_while(is_present).count();
        parts.push(Located::InMemory(Extent { first: first + start as u64, count: count as u64 }));
        at = start + count;
    }
}

impl Layers {
    /// The newest seqno that counts in the topmost layer: a read begins with it.
    pub(crate) fn top(&self) -> Seqno {
        self.own.as_ref().map_or(self.seqno, OwnWrites::limit)
    }

    /// The value of `key`. The view's position must be published.
    ///
    /// # Errors
    /// I/O errors, corruption, merge operands that can't be resolved.
    pub(crate) fn get(&self, keyspace: u32, key: &[u8], merger: &Merger) -> Result<Option<Bytes>> {
        let mut lookup = Lookup::new(key, self.top());
        if let Some(own) = &self.own {
            own.lookup(keyspace, &mut lookup)?;
            lookup.descend(self.seqno);
        }
        let is_for_all = !lookup.has_operands();
        if !lookup.is_decided() {
            self.view.lookup(keyspace, &mut lookup)?;
        }
        let chain = lookup.long_chain().filter(|_| is_for_all);
        let value = lookup.finish(merger)?;
        if let Some((seqno, bytes)) = chain
            && value.as_ref().map_or(0, Bytes::len) <= bytes
        {
            self.view.keep(keyspace, key, seqno, value.as_ref());
        }
        Ok(value)
    }

    /// Fills `buf` with blocks; says which are there.
    pub(crate) fn read_blocks(
        &self,
        keyspace: u32,
        prefix: &[u8],
        first: u64,
        buf: &mut [u8],
    ) -> Result<Vec<BlockState>> {
        self.fill(keyspace, BlockFill::new(prefix, first, self.top(), buf))
    }

    /// Takes a read that may come from layers above these through them, to its end.
    pub(crate) fn fill(&self, keyspace: u32, fill: BlockFill<'_>) -> Result<Vec<BlockState>> {
        self.fill_by(keyspace, fill, &mut read_piece)
    }

    fn fill_by(
        &self,
        keyspace: u32,
        mut fill: BlockFill<'_>,
        take: TakePiece<'_>,
    ) -> Result<Vec<BlockState>> {
        fill.descend(self.top());
        if let Some(own) = &self.own {
            own.fill(keyspace, &mut fill, take)?;
        }
        fill.descend(self.seqno);
        if !fill.is_complete() {
            self.view.fill(keyspace, &mut fill, take)?;
        }
        fill.finish()
    }

    /// Where the present ones of some blocks are, in their order. Reads nothing but indexes.
    ///
    /// # Errors
    /// I/O errors and corruption of an index.
    pub(crate) fn locate(
        &self,
        keyspace: u32,
        prefix: &[u8],
        first: u64,
        count: usize,
    ) -> Result<Vec<Located>> {
        let mut located = Vec::new();
        let fill = BlockFill::presence(prefix, first, count, self.top());
        let states = self.fill_by(keyspace, fill, &mut |piece, fill, bound| {
            piece.locate_from(fill, bound, &mut located)
        })?;
        located.sort_unstable_by_key(|location| location.first);
        let mut parts = Vec::with_capacity(located.len());
        let mut at = 0;
        for location in located {
            let from = (location.first - first) as usize;
            add_in_memory(&mut parts, first, &states, at..from);
            at = from + location.count as usize;
            parts.push(Located::InPiece(location));
        }
        add_in_memory(&mut parts, first, &states, at..count);
        Ok(parts)
    }

    /// The runs of a keyspace, newest first.
    pub(crate) fn runs(&self, keyspace: u32) -> impl Iterator<Item = &Arc<Run>> {
        let own = self.own.iter().flat_map(move |own| own.runs(keyspace));
        own.chain(self.view.runs(keyspace))
    }

    /// A fresh cursor, which keeps the layers.
    pub(crate) fn cursor(self, keyspace: u32, range: KeyRange, merger: Merger) -> VisibleCursor {
        let limit = self.top();
        let own = self.own.iter().flat_map(|own| {
            let in_tables = own.tables().map(|table| source_of(table, keyspace));
            in_tables.chain(own.runs(keyspace).iter().map(source_of_run))
        });
        let own = OwnLayers { sources: own.collect(), limit };
        let sources = self.view.sources(keyspace);
        VisibleCursor::through(own, sources, self.seqno, range, merger, Box::new(self.view))
    }

    /// The first stretch of data or hole within `blocks`. A stretch of data may be cut at the end of a
    /// window; the next call continues it. What newer layers have deleted takes no step for each block in
    /// older ones.
    pub(crate) fn next_extent(
        &self,
        keyspace: u32,
        prefix: &[u8],
        blocks: Range<u64>,
        kind: ExtentKind,
    ) -> Result<Option<Extent>> {
        match kind {
            ExtentKind::Data => self.next_data(keyspace, prefix, blocks),
            ExtentKind::Hole => self.next_hole(keyspace, prefix, blocks),
        }
    }

    fn next_data(&self, keyspace: u32, prefix: &[u8], mut blocks: Range<u64>) -> Result<Option<Extent>> {
        while let Some(first) = self.next_block(keyspace, prefix, blocks.clone())? {
            let states = self.presence(keyspace, prefix, first..blocks.end)?;
            if let Some(start) = states.iter().position(|&state| state == BlockState::Data) {
                let count = states[start..].iter().take_while(|&&state| state == BlockState::Data).count();
                return Ok(Some(Extent { first: first + start as u64, count: count as u64 }));
            }
            blocks.start = first + states.len() as u64;
        }
        Ok(None)
    }

    fn next_hole(&self, keyspace: u32, prefix: &[u8], mut blocks: Range<u64>) -> Result<Option<Extent>> {
        while !blocks.is_empty() {
            let data = self.next_data(keyspace, prefix, blocks.clone())?;
            let end = data.map_or(blocks.end, |data| data.first);
            if let Some(count) = end.checked_sub(blocks.start).filter(|&count| count > 0) {
                return Ok(Some(Extent { first: blocks.start, count }));
            }
            blocks.start = data.map_or(blocks.end, |data| data.first + data.count);
        }
        Ok(None)
    }

    /// The smallest of `blocks` that any layer holds. It may be deleted, but what newer layers hide from the
    /// first one of `blocks` on is passed over at once.
    fn next_block(&self, keyspace: u32, prefix: &[u8], blocks: Range<u64>) -> Result<Option<u64>> {
        let mut search = BlockSearch::new(prefix, blocks, self.top());
        if let Some(own) = &self.own {
            own.search(keyspace, &mut search)?;
        }
        search.descend(self.seqno);
        self.view.search(keyspace, &mut search)?;
        Ok(search.finish())
    }

    fn presence(&self, keyspace: u32, prefix: &[u8], blocks: Range<u64>) -> Result<Vec<BlockState>> {
        let count = EXTENT_WINDOW_BLOCKS.min(blocks.end - blocks.start);
        self.fill(keyspace, BlockFill::presence(prefix, blocks.start, count as usize, self.top()))
    }
}

#[cfg(test)]
mod tests;
