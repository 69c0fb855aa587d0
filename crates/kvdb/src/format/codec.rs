//! Integers and byte strings of variable length, as the journal and the manifest store them.
//!
//! A varint holds seven bits per byte, least significant first; the top bit says that more follow.

use bytes::Bytes;
use kvfs_store::StoreError;

/// Longest varint (bytes).
const VARINT_LEN_MAX: usize = 10;

/// Where encoded bytes go.
pub trait Sink {
    /// Appends `bytes`.
    fn put(&mut self, bytes: &[u8]);

    /// Appends one byte.
    fn put_u8(&mut self, value: u8) {
        self.put(&[value]);
    }

    /// Appends four bytes, little-endian.
    fn put_u32(&mut self, value: u32) {
        self.put(&value.to_le_bytes());
    }

    /// Appends a varint.
    fn put_varint(&mut self, mut value: u64) {
        let mut buf = [0; VARINT_LEN_MAX];
        let mut len = 0;
        while value >= 0x80 {
            buf[len] = value as u8 | 0x80;
            value >>= 7;
            len += 1;
        }
        buf[len] = value as u8;
        self.put(&buf[..=len]);
    }

    /// Appends the length as a varint, then the bytes.
    fn put_bytes(&mut self, bytes: &[u8]) {
        self.put_varint(bytes.len() as u64);
        self.put(bytes);
    }
}

impl Sink for Vec<u8> {
    fn put(&mut self, bytes: &[u8]) {
        self.extend_from_slice(bytes);
    }
}

/// Number of bytes that [`Sink::put_varint`] takes for `value`.
pub fn varint_len(value: u64) -> usize {
    (64 - (value | 1).leading_zeros() as usize).div_ceil(7)
}

/// Encoded bytes that make no sense.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct DecodeError(pub &'static str);

impl DecodeError {
    /// The corruption of `place` that this error shows.
    pub fn at(self, place: impl Into<String>) -> StoreError {
        StoreError::corrupt(place, self.0)
    }
}

/// Reads what a [`Sink`] was given, in order.
#[derive(Debug, Clone, Copy)]
pub struct Decoder<'a> {
    rest: &'a [u8],
}

impl<'a> Decoder<'a> {
    /// A decoder at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes }
    }

    /// Whether everything was read.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Number of bytes that are left.
    pub fn len(&self) -> usize {
        self.rest.len()
    }

    /// The next `len` bytes.
    ///
    /// # Errors
    /// Fewer are left.
    #[inline]
    pub fn take(&mut self, len: usize) -> Result<&'a [u8], DecodeError> {
        let (taken, rest) = self.rest.split_at_checked(len).ok_or(DecodeError("ends in the middle"))?;
        self.rest = rest;
        Ok(taken)
    }

    /// One byte.
    ///
    /// # Errors
    /// Nothing is left.
    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        Ok(self.take(1)?[0])
    }

    /// Four bytes, little-endian.
    ///
    /// # Errors
    /// Fewer are left.
    pub fn u32(&mut self) -> Result<u32, DecodeError> {
        let bytes = self.take(4)?;
        Ok(u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    /// A varint.
    ///
    /// # Errors
    /// Cut off, or more than 64 bits.
    #[inline]
    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        // Records are made of short ones, and walks decode millions of them.
        if let [byte @ 0..=0x7f, rest @ ..] = self.rest {
            self.rest = rest;
            return Ok(u64::from(*byte));
        }
        self.long_varint()
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        for (&byte, shift) in self.rest.iter().zip((0..64).step_by(7)) {
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return Err(DecodeError("an integer has more than 64 bits"));
            }
            value |= bits << shift;
            if byte < 0x80 {
                self.rest = &self.rest[shift / 7 + 1..];
                return Ok(value);
            }
        }
        let is_cut = self.rest.len() < VARINT_LEN_MAX;
        Err(DecodeError(if is_cut { "ends in the middle" } else { "an integer has more than 64 bits" }))
    }

    /// A varint that fits 32 bits.
    ///
    /// # Errors
    /// As [`Decoder::varint`]; too great.
    #[inline]
    pub fn varint_u32(&mut self) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError("an integer has more than 32 bits"))
    }

    /// A byte string with its length in front.
    ///
    /// # Errors
    /// Cut off.
    pub fn bytes(&mut self) -> Result<&'a [u8], DecodeError> {
        let len = self.varint()?;
        self.take(usize::try_from(len).map_err(|_| DecodeError("a length is absurd"))?)
    }

    /// As [`Decoder::bytes`], copied.
    ///
    /// # Errors
    /// Cut off.
    pub fn bytes_owned(&mut self) -> Result<Bytes, DecodeError> {
        Ok(Bytes::copy_from_slice(self.bytes()?))
    }
}
