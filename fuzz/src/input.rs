//! Taking an input apart, and sealing its parts.

use crc_fast::{CrcAlgorithm, Digest};

/// The checksum of everything on a device and in a stream.
pub fn crc32c(parts: &[&[u8]]) -> u32 {
    let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
    for part in parts {
        digest.update(part);
    }
    digest.finalize() as u32
}

/// The parts of an input: each begins with a byte for its kind and two for its length, which may claim more
/// than there is.
pub struct Parts<'a>(pub &'a [u8]);

impl<'a> Iterator for Parts<'a> {
    type Item = (u8, &'a [u8]);

    fn next(&mut self) -> Option<Self::Item> {
        let (&[kind, low, high], rest) = self.0.split_first_chunk()?;
        let len = usize::from(u16::from_le_bytes([low, high])).min(rest.len());
        let (part, rest) = rest.split_at(len);
        self.0 = rest;
        Some((kind, part))
    }
}

/// One part of an input, as [`Parts`] reads it; for seeds.
pub fn part(kind: u8, bytes: &[u8]) -> Vec<u8> {
    let len = u16::try_from(bytes.len()).expect("seeds have short parts");
    [&[kind][..], &len.to_le_bytes(), bytes].concat()
}
