//! A walk over the blocks of a block piece, all layers together.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, Seqno};

use super::Access;
use super::index::Index;
use super::piece::Piece;
use crate::cache::{Charge, Pool};
use crate::format::{Layer, RecordIter, RecordKind, RecordRef};
use crate::memtable::block_key;

/// A block in a layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct At {
    region: usize,
    block: u64,
}

/// Stands on one version of one block, or nowhere.
pub(super) struct BlockIter {
    piece: Arc<Piece>,
    /// Held from the first step on.
    index: Option<Index>,
    access: Access,
    /// Layer and place in it; `None`: nowhere.
    current: Option<(usize, At)>,
    key: Vec<u8>,
    seqno: Seqno,
    window: Window,
}

/// Verified blocks that were read together.
struct Window {
    bytes: Bytes,
    /// Layer, region and number of the first block.
    at: (usize, At),
    charge: Charge,
}

impl BlockIter {
    pub(super) fn new(piece: Arc<Piece>, access: Access) -> Self {
        let charge = piece.ctx().accountant.charge(Pool::Io, 0);
        Self {
            piece,
            index: None,
            access,
            current: None,
            key: Vec::new(),
            seqno: 0,
            window: Window { bytes: Bytes::new(), at: (0, At { region: 0, block: 0 }), charge },
        }
    }

    /// The index, which stays in memory with the walk.
    fn index(&mut self) -> Result<Index> {
        match &self.index {
            Some(index) => Ok(index.clone()),
            None => Ok(self.index.insert(self.piece.index()?).clone()),
        }
    }

    fn stand_on(&mut self, layers: &[Layer], place: Option<(usize, At)>) {
        self.current = place;
        if let Some((layer, at)) = place {
            let region = layers[layer].region(at.region);
            self.key.clear();
            self.key.extend_from_slice(region.prefix);
            self.key.extend_from_slice(&at.block.to_be_bytes());
            self.seqno = region.seqno_of(at.block);
        }
    }

    /// The place of exactly the current key in `layer`.
    fn same_key_in(&self, layers: &[Layer], layer: usize) -> Option<(usize, At)> {
        let at = place_at(layers[layer].find_key(&self.key))?;
        let key = block_key(layers[layer].region(at.region).prefix, at.block);
        (key == self.key).then_some((layer, at))
    }

    fn read_window(&mut self, layers: &[Layer], layer: usize, at: At) -> Result<Bytes> {
        let region = layers[layer].region(at.region);
        let (window_layer, first) = self.window.at;
        let ahead = at.block.wrapping_sub(first.block);
        let is_there = (window_layer, first.region) == (layer, at.region)
            && ahead < (self.window.bytes.len() / BLOCK_BYTES) as u64;
        if !is_there {
            let bytes_ahead = self.access.bytes_ahead(&self.piece.ctx().options);
            let blocks_max = (bytes_ahead / BLOCK_BYTES).max(1) as u64;
            let count = (region.end() - at.block).min(blocks_max) as usize;
            self.window.bytes = Bytes::new();
            self.window.charge.resize((count * BLOCK_BYTES) as u64);
            let mut buf = AlignedBuf::zeroed(count * BLOCK_BYTES);
            self.piece.read_verified(&region, at.block, buf.as_mut())?;
            self.window.bytes = Bytes::from_owner(buf);
            self.window.at = (layer, at);
        }
        let start = (at.block - self.window.at.1.block) as usize * BLOCK_BYTES;
        Ok(self.window.bytes.slice(start..start + BLOCK_BYTES))
    }
}

/// The smallest key that the layers reach from the places that `place` gives; the newest
/// version, which is in the lowest layer.
fn smallest(layers: &[Layer], place: impl Fn(&Layer) -> Option<At>) -> Option<(usize, At)> {
    let places = places(layers, place);
    places.into_iter().min_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, layer, at)| (layer, at))
}

/// The greatest key, the oldest version.
fn greatest(layers: &[Layer], place: impl Fn(&Layer) -> Option<At>) -> Option<(usize, At)> {
    let places = places(layers, place);
    places.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, layer, at)| (layer, at))
}

fn places(layers: &[Layer], place: impl Fn(&Layer) -> Option<At>) -> Vec<(Vec<u8>, usize, At)> {
    let in_layer = |(index, layer): (usize, &Layer)| {
        let at = place(layer)?;
        Some((block_key(layer.region(at.region).prefix, at.block), index, at))
    };
    layers.iter().enumerate().filter_map(in_layer).collect()
}

fn place_at(found: Option<(usize, u64)>) -> Option<At> {
    found.map(|(region, block)| At { region, block })
}

impl RecordIter for BlockIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        let index = self.index()?;
        let place = smallest(index.layers(), |layer| place_at(layer.find_key(key)));
        self.stand_on(index.layers(), place);
        while self.current.is_some() && self.key == key && self.seqno > seqno {
            self.next()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let index = self.index()?;
        let place = greatest(index.layers(), |layer| place_at(layer.find_before(key)));
        self.stand_on(index.layers(), place);
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        let index = self.index()?;
        let first = |layer: &Layer| At { region: 0, block: layer.region(0).first };
        let place = smallest(index.layers(), |layer| (!layer.is_empty()).then(|| first(layer)));
        self.stand_on(index.layers(), place);
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        let index = self.index()?;
        let place = greatest(index.layers(), |layer| {
            let region = layer.len().checked_sub(1)?;
            Some(At { region, block: layer.region(region).end() - 1 })
        });
        self.stand_on(index.layers(), place);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let Some((layer, at)) = self.current else { return Ok(()) };
        let index = self.index()?;
        let layers = index.layers();
        if layers.len() == 1 {
            let region = layers[0].region(at.region);
            let next = if at.block + 1 < region.end() {
                Some(At { region: at.region, block: at.block + 1 })
            } else {
                let region = at.region + 1;
                (region < layers[0].len()).then(|| At { region, block: layers[0].region(region).first })
            };
            self.stand_on(layers, next.map(|at| (0, at)));
            return Ok(());
        }
        let older = (layer + 1..layers.len()).find_map(|layer| self.same_key_in(layers, layer));
        let place = older.or_else(|| {
            // The smallest key greater than this one.
            let mut behind = self.key.clone();
            behind.push(0);
            smallest(layers, |layer| place_at(layer.find_key(&behind)))
        });
        self.stand_on(layers, place);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some((layer, _)) = self.current else { return Ok(()) };
        let index = self.index()?;
        let layers = index.layers();
        let newer = (0..layer).rev().find_map(|layer| self.same_key_in(layers, layer));
        let place = newer.or_else(|| greatest(layers, |layer| place_at(layer.find_before(&self.key))));
        self.stand_on(layers, place);
        Ok(())
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.current.map(|_| RecordRef { key: &self.key, seqno: self.seqno, kind: RecordKind::Put })
    }

    fn value(&mut self) -> Result<Bytes> {
        let Some((layer, at)) = self.current else { return Ok(Bytes::new()) };
        let index = self.index()?;
        match self.access {
            Access::Sequential | Access::Crowded { .. } => self.read_window(index.layers(), layer, at),
            Access::Random => {
                let region = index.layers()[layer].region(at.region);
                self.piece.walked_block(&region, at.block)
            }
        }
    }
}
