//! What piece codecs add to the shared integer codec: differences, and shared key prefixes.

use kvfs_store::KEY_LEN_MAX;

use super::codec::{DecodeError, Decoder, Sink};

/// What lies right behind a key is longer than it: keys, ends of ranges and prefixes have at most so many
/// bytes.
const BOUND_LEN_MAX: usize = KEY_LEN_MAX + 9;

/// Appends `value` less `base` (modulo 2^64) as a varint: differences of either sign are short,
/// since even numbers stand for those ≥ 0 and odd ones for those < 0.
pub(super) fn put_varint_delta(out: &mut Vec<u8>, value: u64, base: u64) {
    let delta = value.wrapping_sub(base) as i64;
    out.put_varint(((delta << 1) ^ (delta >> 63)) as u64);
}

/// Reads a difference and adds it to `base`.
#[inline]
pub(super) fn varint_delta(decoder: &mut Decoder<'_>, base: u64) -> Result<u64, DecodeError> {
    let folded = decoder.varint()?;
    Ok(base.wrapping_add((folded >> 1) ^ (folded & 1).wrapping_neg()))
}

/// Number of leading bytes that two keys have in common.
#[inline]
pub(super) fn shared_len(a: &[u8], b: &[u8]) -> usize {
    a.iter().zip(b).take_while(|(x, y)| x == y).count()
}

/// Appends `key` against `previous`: shared length, rest with its length.
pub(super) fn put_key(out: &mut Vec<u8>, key: &[u8], previous: &[u8]) {
    let shared = shared_len(key, previous);
    out.put_varint(shared as u64);
    out.put_bytes(&key[shared..]);
}

/// How much more memory the keys of a section may take. They share prefixes, so that few bytes can stand for
/// many. Of range tombstones a piece has as many as the tables had that it was made of, cut by each other:
/// the memory that they have taken since they were written bounds them.
pub(super) struct KeyBudget {
    bytes_left: usize,
}

impl KeyBudget {
    /// Of any section.
    const BYTES_MIN: usize = 1 << 30;
    /// For each byte of the section.
    const FACTOR: usize = 32;

    /// Of a section of `len` bytes.
    pub(super) fn of(len: usize) -> Self {
        Self { bytes_left: len.saturating_mul(Self::FACTOR).saturating_add(Self::BYTES_MIN) }
    }

    /// Takes what `key` needs.
    pub(super) fn take(&mut self, key: &[u8]) -> Result<(), DecodeError> {
        let left = self.bytes_left.checked_sub(key.len());
        self.bytes_left = left.ok_or(DecodeError("its keys take more memory than those of any piece"))?;
        Ok(())
    }
}

/// Reads what [`put_key`] appended into `key`, which holds the previous key.
pub(super) fn take_key(decoder: &mut Decoder<'_>, key: &mut Vec<u8>) -> Result<(), DecodeError> {
    let shared = decoder.varint_u32()? as usize;
    if shared > key.len() {
        return Err(DecodeError("a key shares more than the key before it has"));
    }
    let rest = decoder.bytes()?;
    if shared + rest.len() > BOUND_LEN_MAX {
        return Err(DecodeError("a key is longer than any can be"));
    }
    key.truncate(shared);
    key.extend_from_slice(rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_of_a_section_take_bounded_memory_and_as_much_as_those_of_large_tables() {
        let (key, len) = (vec![7; 4096], 1 << 20);
        let mut budget = KeyBudget::of(len);
        let taken = (0..1 << 20).take_while(|_| budget.take(&key).is_ok()).count() * key.len();
        assert!((1 << 30..=(1 << 30) + 32 * len).contains(&taken), "{taken}");
    }

    #[test]
    fn differences_round_trip() {
        for value in (0..64).map(|bit| 1_u64 << bit).chain([0, u64::MAX]) {
            for base in [0, 1, u64::MAX, value, value / 2] {
                let mut out = Vec::new();
                put_varint_delta(&mut out, value, base);
                assert_eq!(varint_delta(&mut Decoder::new(&out), base), Ok(value), "{value} on {base}");
                assert!(value.abs_diff(base) > 63 || out.len() == 1);
            }
        }
    }
}
