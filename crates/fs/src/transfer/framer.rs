//! Making frames: of a sender's batches, and of records that come from elsewhere.
//!
//! Thread safety: a framer and a reframer belong to one thread each. Invariant: the frames of a whole
//! snapshot follow from its records in their order alone, however these come: one by one, in batches, with
//! their neighbouring blocks together or apart.

use std::collections::VecDeque;

use kvfs_kv::KeyspaceOwner;
use kvfs_store::{BLOCK_BYTES, Keyspace, Op};

use super::changes::Stage;
use super::frame::{FrameKind, encode_frame, encode_keyspace};
use super::record::{DATA, encode_records};
use super::references::{BlockReference, ReferenceList, encode_references};
use super::{Begin, FRAME_HEADER_BYTES, StreamReader};
use crate::{FsError, Result};

/// No frame ends where what is known does.
const OTHER_STREAM: FsError = FsError::Invalid("what has arrived is not how this stream begins");

/// Puts payloads into frames, one after another.
pub(super) struct Framer {
    position: u64,
    hasher: blake3::Hasher,
}

impl Framer {
    /// From the first frame on.
    pub(super) fn new() -> Self {
        Self { position: 0, hasher: blake3::Hasher::new() }
    }

    /// Where the next frame begins.
    pub(super) fn position(&self) -> u64 {
        self.position
    }

    /// The frame with that payload.
    pub(super) fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Vec<u8> {
        let frame = encode_frame(kind, self.position, payload);
        self.hasher.update(&frame);
        self.position += frame.len() as u64;
        frame
    }

    /// The last frame.
    pub(super) fn end(&mut self) -> Vec<u8> {
        let digest = *self.hasher.finalize().as_bytes();
        self.frame(FrameKind::End, &digest)
    }
}

/// Makes the stream of a whole snapshot again, of its records: the same frames as those that they came in.
///
/// A stream that was broken off is gone on with: the frames that are known are passed over.
pub struct Reframer {
    framer: Framer,
    /// Records of the frame in the making, and the number of their keyspace.
    stage: Option<(u32, Stage)>,
    /// References of the one behind it.
    references: ReferenceList,
    ready: VecDeque<Vec<u8>>,
    /// What comes before is known already: where it is passed, and what it comes to.
    known: Option<Framer>,
}

impl Reframer {
    /// Behind what `reader` has verified, which is nothing or the beginning of this stream.
    pub fn behind(reader: &StreamReader) -> Self {
        let known = (reader.position() > 0).then(|| reader.framer());
        Self {
            framer: Framer::new(),
            stage: None,
            references: ReferenceList::default(),
            ready: VecDeque::new(),
            known,
        }
    }

    /// Whether up to `bytes` of content that come next are known already, so that any others of that length
    /// do as well.
    pub fn is_known(&self, bytes: u64) -> bool {
        // Whatever is left of the frame that has their end, and its lengths.
        let rest = 2 * super::frame::PAYLOAD_BYTES_MAX as u64;
        let records = self.stage.as_ref().map_or(0, |(_, stage)| stage.bytes());
        let staged = (records + self.references.bytes()) as u64;
        self.known
            .as_ref()
            .is_some_and(|known| self.framer.position() + staged + bytes + rest < known.position())
    }

    /// The first frame.
    ///
    /// # Errors
    /// What is known is not how this stream begins.
    pub fn begin(&mut self, begin: &Begin) -> Result<()> {
        self.frame(FrameKind::Begin, &begin.encode())
    }

    /// A user's keyspace.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn keyspace(&mut self, name: &str, owner: Option<KeyspaceOwner>) -> Result<()> {
        self.frame(FrameKind::Keyspace, &encode_keyspace(name, owner))
    }

    /// The next record, of the keyspace of that number: a key and its value, or blocks.
    ///
    /// # Errors
    /// It is neither, or not one of that keyspace; as [`Self::begin`].
    pub fn record(&mut self, keyspace: u32, op: Op) -> Result<()> {
        // In a frame of references, and in the one before it, nothing more comes behind them.
        if self.references.bytes() > 0 || self.is_staged_beside(keyspace) {
            self.end_stage()?;
        }
        match (op, keyspace) {
            (Op::PutBlocks { prefix, first, data, .. }, DATA)
                if first.checked_add((data.len() / BLOCK_BYTES) as u64).is_some() =>
            {
                for (block, content) in (first..).zip(data.chunks(BLOCK_BYTES)) {
                    let content = data.slice_ref(content);
                    self.stage(keyspace).take_block(&prefix, block, Some(&content));
                    self.end_if_full()?;
                }
                Ok(())
            }
            (Op::Put { key, value, .. }, keyspace) if keyspace != DATA => {
                self.stage(keyspace).take(&key, Some(value))?;
                self.end_if_full()
            }
            _ => Err(FsError::Invalid("a record that no whole snapshot has")),
        }
    }

    /// The next reference, to blocks that come before.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn reference(&mut self, reference: BlockReference) -> Result<()> {
        if self.is_staged_beside(DATA) {
            self.end_stage()?;
        }
        let Some(full) = self.references.add(reference) else { return Ok(()) };
        self.end_records()?;
        self.frame(FrameKind::References, &encode_references(&full))
    }

    /// There are no more records: the last frame.
    ///
    /// # Errors
    /// As [`Self::begin`].
    pub fn end(&mut self) -> Result<()> {
        self.end_stage()?;
        if self.known.is_some() {
            return Err(OTHER_STREAM);
        }
        let frame = self.framer.end();
        self.ready.push_back(frame);
        Ok(())
    }

    /// The next frame that is whole, and not known.
    pub fn next_frame(&mut self) -> Option<Vec<u8>> {
        self.ready.pop_front()
    }

    fn stage(&mut self, keyspace: u32) -> &mut Stage {
        let made = || (keyspace, Stage::new(Keyspace(keyspace), keyspace == DATA));
        &mut self.stage.get_or_insert_with(made).1
    }

    fn end_if_full(&mut self) -> Result<()> {
        let is_full = self.stage.as_ref().is_some_and(|(_, stage)| stage.is_full());
        if is_full { self.end_stage() } else { Ok(()) }
    }

    fn is_staged_beside(&self, keyspace: u32) -> bool {
        self.stage.as_ref().is_some_and(|(number, _)| *number != keyspace)
    }

    fn end_stage(&mut self) -> Result<()> {
        self.end_records()?;
        match self.references.take() {
            Some(references) => self.frame(FrameKind::References, &encode_references(&references)),
            None => Ok(()),
        }
    }

    fn end_records(&mut self) -> Result<()> {
        let Some((keyspace, stage)) = self.stage.take() else { return Ok(()) };
        self.frame(FrameKind::Records, &encode_records(keyspace, &stage.finish()))
    }

    fn frame(&mut self, kind: FrameKind, payload: &[u8]) -> Result<()> {
        let Some(known) = &self.known else {
            let frame = self.framer.frame(kind, payload);
            self.ready.push_back(frame);
            return Ok(());
        };
        // Its content may be another one; what it comes to is in what is known.
        self.framer.position += (FRAME_HEADER_BYTES + payload.len()) as u64;
        if self.framer.position > known.position {
            return Err(OTHER_STREAM);
        }
        if let Some(known) = self.known.take_if(|known| self.framer.position == known.position) {
            self.framer = known;
        }
        Ok(())
    }
}

impl StreamReader {
    /// Goes on with frames where this has come to.
    fn framer(&self) -> Framer {
        let (position, hasher) = self.so_far();
        Framer { position, hasher: hasher.clone() }
    }
}
