//! Merge functions for tests: one that concatenates and can clear, one that adds.

use bytes::Bytes;
use kvfs_store::{MergeFunction, Result, StoreError, Touch};

/// Longest operand that [`Append`] folds to (bytes); longer ones stay apart, so that chains of
/// several operands occur.
const FOLDED_BYTES_MAX: usize = 48;

/// Longest value that [`Append`] keeps (bytes): the end of what was appended.
const APPENDED_BYTES_MAX: usize = 512;

/// Appends. The first byte of an operand is 0 (append the rest) or 1 (remove the key, then append
/// the rest). Appending nothing to an absent key leaves it absent. Order shows in the result.
#[derive(Debug, Clone, Copy)]
pub struct Append;

impl Append {
    /// An operand that appends `rest`, after removing the key when `clear` says so.
    pub fn operand(clear: bool, rest: &[u8]) -> Bytes {
        [&[u8::from(clear)], rest].concat().into()
    }
}

impl MergeFunction for Append {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let mut value = base.map(<[u8]>::to_vec);
        for operand in operands {
            let Some((tag @ 0..=1, rest)) = operand.split_first() else {
                return Err(StoreError::corrupt("operand of append", format!("{operand:?}")));
            };
            if *tag == 1 {
                value = None;
            }
            if !rest.is_empty() {
                value.get_or_insert_default().extend_from_slice(rest);
            }
        }
        Ok(value.map(|value| {
            let start = value.len().saturating_sub(APPENDED_BYTES_MAX);
            Bytes::from(value).slice(start..)
        }))
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        match (older.split_first()?, newer.split_first()?) {
            (_, (1, _)) => Some(Bytes::copy_from_slice(newer)),
            (_, (0, rest)) if older.len() + rest.len() <= FOLDED_BYTES_MAX => {
                Some([older, rest].concat().into())
            }
            _ => None,
        }
    }
}

/// Saturating addition of little-endian `u64`s; an absent key counts as 0, a sum of 0 is absent.
#[derive(Debug, Clone, Copy)]
pub struct Sum;

impl Sum {
    /// An operand that adds `number`.
    pub fn operand(number: u64) -> Bytes {
        Bytes::copy_from_slice(&number.to_le_bytes())
    }

    /// The number in the first eight bytes (missing ones are zero), since puts store anything.
    fn number(bytes: &[u8]) -> u64 {
        let mut number = [0; 8];
        let len = bytes.len().min(8);
        number[..len].copy_from_slice(&bytes[..len]);
        u64::from_le_bytes(number)
    }
}

impl MergeFunction for Sum {
    fn resolve(&self, _key: &[u8], base: Option<&[u8]>, operands: &[&[u8]]) -> Result<Option<Bytes>> {
        let base = base.map_or(0, Self::number);
        let sum = operands.iter().fold(base, |sum, operand| sum.saturating_add(Self::number(operand)));
        Ok((sum > 0).then(|| Self::operand(sum)))
    }

    fn fold(&self, _key: &[u8], older: &[u8], newer: &[u8]) -> Option<Bytes> {
        Some(Self::operand(Self::number(older).saturating_add(Self::number(newer))))
    }

    /// Adding nothing touches nothing; sums commute.
    fn touch(&self, _key: &[u8], operand: &[u8]) -> Touch {
        Touch { exclusive: 0, increment: u64::from(Self::number(operand) > 0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Folding two operands and resolving gives what resolving both gives.
    fn check_fold(function: &dyn MergeFunction, base: Option<&[u8]>, older: &[u8], newer: &[u8]) {
        let apart = function.resolve(b"k", base, &[older, newer]).unwrap();
        let stepwise = function.resolve(b"k", base, &[older]).unwrap();
        let stepwise = function.resolve(b"k", stepwise.as_deref(), &[newer]).unwrap();
        assert_eq!(apart, stepwise);
        if let Some(folded) = function.fold(b"k", older, newer) {
            assert_eq!(
                function.resolve(b"k", base, &[&folded]).unwrap(),
                apart,
                "{base:?} {older:?} {newer:?}"
            );
        }
    }

    #[test]
    fn folding_changes_no_result() {
        let operands = [(false, &b""[..]), (false, b"a"), (true, b""), (true, b"b"), (false, &[7; 40])];
        let operands = operands.map(|(clear, rest)| Append::operand(clear, rest));
        for base in [None, Some(&b""[..]), Some(b"base"), Some(&[9; 500])] {
            for older in &operands {
                for newer in &operands {
                    check_fold(&Append, base, older, newer);
                }
            }
            for (older, newer) in [(0, 0), (1, 2), (u64::MAX, 3), (u64::MAX - 1, 1)] {
                check_fold(&Sum, base, &Sum::operand(older), &Sum::operand(newer));
            }
        }
    }
}
