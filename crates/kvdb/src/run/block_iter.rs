//! A walk over the blocks of a block piece, all layers together.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::AlignedBuf;
use kvfs_store::{BLOCK_BYTES, Result, Seqno};

use super::Access;
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
        let charge = piece.ctx().accountant.guard(Pool::Io, 0);
        Self {
            piece,
            access,
            current: None,
            key: Vec::new(),
            seqno: 0,
            window: Window { bytes: Bytes::new(), at: (0, At { region: 0, block: 0 }), charge },
        }
    }

    fn stand_on(&mut self, place: Option<(usize, At)>) {
        self.current = place;
        if let Some((layer, at)) = place {
            let region = self.piece.layers()[layer].region(at.region);
            self.key.clear();
            self.key.extend_from_slice(region.prefix);
            self.key.extend_from_slice(&at.block.to_be_bytes());
            self.seqno = region.seqno_of(at.block);
        }
    }

    /// The smallest key that the layers reach from the places that `place` gives; the newest
    /// version, which is in the lowest layer.
    fn smallest(&self, place: impl Fn(&Layer) -> Option<At>) -> Option<(usize, At)> {
        let places = self.places(place);
        places.into_iter().min_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, layer, at)| (layer, at))
    }

    /// The greatest key, the oldest version.
    fn greatest(&self, place: impl Fn(&Layer) -> Option<At>) -> Option<(usize, At)> {
        let places = self.places(place);
        places.into_iter().max_by(|a, b| a.0.cmp(&b.0).then(a.1.cmp(&b.1))).map(|(_, layer, at)| (layer, at))
    }

    fn places(&self, place: impl Fn(&Layer) -> Option<At>) -> Vec<(Vec<u8>, usize, At)> {
        let layers = self.piece.layers().iter().enumerate();
        layers
            .filter_map(|(index, layer)| {
                let at = place(layer)?;
                Some((block_key(layer.region(at.region).prefix, at.block), index, at))
            })
            .collect()
    }

    /// The place of exactly the current key in `layer`.
    fn same_key_in(&self, layer: usize) -> Option<(usize, At)> {
        let layer_ref = &self.piece.layers()[layer];
        let at = place_at(layer_ref.find_key(&self.key))?;
        let key = block_key(layer_ref.region(at.region).prefix, at.block);
        (key == self.key).then_some((layer, at))
    }

    fn read_window(&mut self, layer: usize, at: At) -> Result<Bytes> {
        let region = self.piece.layers()[layer].region(at.region);
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

fn place_at(found: Option<(usize, u64)>) -> Option<At> {
    found.map(|(region, block)| At { region, block })
}

impl RecordIter for BlockIter {
    fn seek(&mut self, key: &[u8], seqno: Seqno) -> Result<()> {
        let place = self.smallest(|layer| place_at(layer.find_key(key)));
        self.stand_on(place);
        while self.current.is_some() && self.key == key && self.seqno > seqno {
            self.next()?;
        }
        Ok(())
    }

    fn seek_before(&mut self, key: &[u8]) -> Result<()> {
        let place = self.greatest(|layer| place_at(layer.find_before(key)));
        self.stand_on(place);
        Ok(())
    }

    fn first(&mut self) -> Result<()> {
        let place = self
            .smallest(|layer| (!layer.is_empty()).then(|| At { region: 0, block: layer.region(0).first }));
        self.stand_on(place);
        Ok(())
    }

    fn last(&mut self) -> Result<()> {
        let place = self.greatest(|layer| {
            let region = layer.len().checked_sub(1)?;
            Some(At { region, block: layer.region(region).end() - 1 })
        });
        self.stand_on(place);
        Ok(())
    }

    fn next(&mut self) -> Result<()> {
        let Some((layer, at)) = self.current else { return Ok(()) };
        let layers = self.piece.layers();
        if layers.len() == 1 {
            let region = layers[0].region(at.region);
            let next = if at.block + 1 < region.end() {
                Some(At { region: at.region, block: at.block + 1 })
            } else {
                let region = at.region + 1;
                (region < layers[0].len()).then(|| At { region, block: layers[0].region(region).first })
            };
            self.stand_on(next.map(|at| (0, at)));
            return Ok(());
        }
        let older = (layer + 1..layers.len()).find_map(|layer| self.same_key_in(layer));
        let place = older.or_else(|| {
            // The smallest key greater than this one.
            let mut behind = self.key.clone();
            behind.push(0);
            self.smallest(|layer| place_at(layer.find_key(&behind)))
        });
        self.stand_on(place);
        Ok(())
    }

    fn prev(&mut self) -> Result<()> {
        let Some((layer, _)) = self.current else { return Ok(()) };
        let newer = (0..layer).rev().find_map(|layer| self.same_key_in(layer));
        let place = newer.or_else(|| self.greatest(|layer| place_at(layer.find_before(&self.key))));
        self.stand_on(place);
        Ok(())
    }

    fn record(&self) -> Option<RecordRef<'_>> {
        self.current.map(|_| RecordRef { key: &self.key, seqno: self.seqno, kind: RecordKind::Put })
    }

    fn value(&mut self) -> Result<Bytes> {
        let Some((layer, at)) = self.current else { return Ok(Bytes::new()) };
        match self.access {
            Access::Sequential | Access::Crowded { .. } => self.read_window(layer, at),
            Access::Random => {
                let piece = Arc::clone(&self.piece);
                let region = piece.layers()[layer].region(at.region);
                piece.data_block(&region, at.block)
            }
        }
    }
}
