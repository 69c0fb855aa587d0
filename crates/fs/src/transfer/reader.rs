//! Reading a stream: frame by frame, each verified before the caller sees it.
//!
//! Thread safety: belongs to one reader. Invariants: what it has returned so far is the beginning of the
//! stream that was asked for, in its order, without a gap; after [`Frame::End`] all of it is as it was sent.

use std::io::{ErrorKind, Read};

use bytes::{Bytes, BytesMut};
use kvfs_kv::KeyspaceOwner;
use kvfs_store::Batch;

use super::frame::{self, FrameHeader, FrameKind};
use super::record::{CLONES, USERS, decode_records};
use super::references::{BlockReference, decode_references};
use super::{Begin, FRAME_HEADER_BYTES, PROLOGUE_BYTES, Prologue, StreamError, StreamId};

/// One frame of a stream.
#[derive(Debug)]
#[non_exhaustive]
pub enum Frame {
    /// The first one.
    Begin(Begin),
    /// A user's keyspace; they are counted, and come before all records.
    #[non_exhaustive]
    Keyspace {
        /// Unique name.
        name: String,
        /// Its owner, if it has one.
        owner: Option<KeyspaceOwner>,
    },
    /// Changes of one keyspace.
    #[non_exhaustive]
    Records {
        /// Its number in the stream.
        keyspace: u32,
        /// The changes, with that number as handle.
        batch: Batch,
    },
    /// Blocks that are as others, which are there by now.
    #[non_exhaustive]
    References {
        /// In their order.
        references: Vec<BlockReference>,
    },
    /// The last one: everything was as it was sent.
    End,
}

/// What the first frame says of the others.
#[derive(Clone, Copy)]
struct Known {
    inode_next: u64,
    has_clones: bool,
}

/// Verifies a stream from its beginning, whatever it comes from.
pub struct StreamReader {
    stream: StreamId,
    position: u64,
    hasher: blake3::Hasher,
    begin: Option<Known>,
    keyspaces: u32,
    has_records: bool,
    last_reference: Option<BlockReference>,
    is_done: bool,
    last: BytesMut,
}

impl Prologue {
    /// Reads what is before the frames.
    ///
    /// # Errors
    /// As [`Prologue::decode`]; [`StreamError::Io`].
    pub fn read(source: &mut dyn Read) -> Result<Self, StreamError> {
        let mut bytes = [0; PROLOGUE_BYTES];
        let len = read_up_to(source, &mut bytes)?;
        if len == 0 {
            return Err(StreamError::Truncated { position: 0 });
        }
        match Self::decode(&bytes) {
            // What is there of it decides whether it is cut off or something else.
            Err(StreamError::Damaged { .. }) if len < PROLOGUE_BYTES => {
                Err(StreamError::Truncated { position: 0 })
            }
            decoded => decoded,
        }
    }
}

impl StreamReader {
    /// A reader of a stream from its first frame on.
    pub fn new(stream: StreamId) -> Self {
        Self {
            stream,
            position: 0,
            hasher: blake3::Hasher::new(),
            begin: None,
            keyspaces: USERS,
            has_records: false,
            last_reference: None,
            is_done: false,
            last: BytesMut::new(),
        }
    }

    /// Bytes of the stream that were verified: where the next frame begins.
    pub fn position(&self) -> u64 {
        self.position
    }

    /// Where the next frame begins, and what those before come to.
    pub(super) fn so_far(&self) -> (u64, &blake3::Hasher) {
        (self.position, &self.hasher)
    }

    /// The bytes of the frame that was returned last.
    pub fn last_frame(&self) -> &[u8] {
        &self.last
    }

    /// Reads the next frame from `source`, which may be another one than before. `None`: the stream is
    /// through.
    ///
    /// # Errors
    /// [`StreamError::Truncated`]: the source has ended, and reading goes on here with another one.
    /// [`StreamError::Damaged`], [`StreamError::Mismatch`], [`StreamError::Io`].
    pub fn next(&mut self, source: &mut dyn Read) -> Result<Option<Frame>, StreamError> {
        if self.is_done {
            return Ok(None);
        }
        let position = self.position;
        let damaged = |what| StreamError::Damaged { position, what };
        let mut header = [0; FRAME_HEADER_BYTES];
        if read_up_to(source, &mut header)? < FRAME_HEADER_BYTES {
            return Err(StreamError::Truncated { position });
        }
        let decoded = FrameHeader::decode(&header, position).map_err(damaged)?;
        self.last.clear();
        self.last.extend_from_slice(&header);
        self.last.resize(FRAME_HEADER_BYTES + decoded.payload_len, 0);
        if read_up_to(source, &mut self.last[FRAME_HEADER_BYTES..])? < decoded.payload_len {
            return Err(StreamError::Truncated { position });
        }
        if !decoded.verify(&header, &self.last[FRAME_HEADER_BYTES..]) {
            return Err(damaged("a frame's checksum is wrong"));
        }
        let frame = self.interpret(decoded.kind).map_err(damaged)?;
        if matches!(frame, Frame::End)
            && self.last[FRAME_HEADER_BYTES..] != *self.hasher.finalize().as_bytes()
        {
            return Err(StreamError::Mismatch);
        }
        self.hasher.update(&self.last);
        self.position += self.last.len() as u64;
        match &frame {
            &Frame::Begin(Begin { inode_next, has_clones, .. }) => {
                self.begin = Some(Known { inode_next, has_clones });
            }
            Frame::Keyspace { .. } => self.keyspaces += 1,
            Frame::Records { .. } => self.has_records = true,
            Frame::References { references } => {
                self.has_records = true;
                self.last_reference = references.last().copied();
            }
            Frame::End => self.is_done = true,
        }
        Ok(Some(frame))
    }

    /// What the frame in `last` says, if it may say that here.
    fn interpret(&self, kind: FrameKind) -> Result<Frame, &'static str> {
        let payload = &self.last[FRAME_HEADER_BYTES..];
        match (kind, self.begin) {
            (FrameKind::Begin, None) => {
                let begin = Begin::decode(payload).ok_or("a first frame that makes no sense")?;
                if begin.stream() != self.stream {
                    return Err("a first frame of another stream");
                }
                Ok(Frame::Begin(begin))
            }
            (FrameKind::Keyspace, Some(_)) if !self.has_records => {
                let (name, owner) =
                    frame::decode_keyspace(payload).ok_or("a keyspace that makes no sense")?;
                Ok(Frame::Keyspace { name, owner })
            }
            (FrameKind::Records, Some(Known { inode_next, has_clones })) => {
                let decoded = decode_records(&Bytes::copy_from_slice(payload), inode_next);
                let (keyspace, batch) = decoded.ok_or("records that make no sense")?;
                let is_known = if keyspace == CLONES { has_clones } else { keyspace < self.keyspaces };
                if !is_known {
                    return Err("records of a keyspace without a name");
                }
                Ok(Frame::Records { keyspace, batch })
            }
            (FrameKind::References, Some(Known { inode_next, has_clones: true })) => {
                let references = decode_references(payload, inode_next, self.last_reference)
                    .ok_or("references that make no sense")?;
                Ok(Frame::References { references })
            }
            (FrameKind::End, Some(_)) => Ok(Frame::End),
            (FrameKind::Begin | FrameKind::Keyspace | FrameKind::References, Some(_)) | (_, None) => {
                Err("a frame that has no place here")
            }
        }
    }
}

/// Reads until `buf` is full or the source has ended; returns how much.
fn read_up_to(source: &mut dyn Read, buf: &mut [u8]) -> Result<usize, StreamError> {
    let mut len = 0;
    while len < buf.len() {
        match source.read(&mut buf[len..]) {
            Ok(0) => break,
            Ok(more) => len += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(len)
}
