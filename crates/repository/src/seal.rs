//! What an object holds: compressed, checked, and unreadable for others where the repository has a key.
//!
//! Thread safety: shared by all threads. Invariants: what opens is what was sealed, under the name for which
//! it was sealed; a nonce is random and 24 bytes long, so that none comes twice.

use bytes::Bytes;
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use zerocopy::FromBytes;
use zerocopy::little_endian::U64;
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::error::{RepositoryError, Result};
use crate::layout::bytes_max;

const NONCE_BYTES: usize = 24;
const DIGEST_BYTES: usize = 32;

/// Of the first byte of what is sealed.
const PLAIN: u8 = 0;
const ZSTD: u8 = 1;

/// As fast as most disks, and most of what a higher one saves.
const ZSTD_LEVEL: i32 = 3;

/// What is sealed is at most so much longer than its content (bytes), or shorter.
pub(crate) const SEAL_BYTES_MAX: usize = 1 + NONCE_BYTES + 16 + DIGEST_BYTES;

/// The key from which all others of a repository come.
#[derive(Clone, Zeroize, ZeroizeOnDrop)]
pub(crate) struct MasterKey(pub(crate) [u8; 32]);

/// Seals and names objects of one repository.
pub(crate) struct Sealer {
    cipher: Option<XChaCha20Poly1305>,
    name_key: [u8; 32],
    /// Where content is cut is not to be told from the lengths of objects.
    pub(crate) cut_seed: u64,
}

impl Sealer {
    /// With a key; `None`: nothing is secret.
    pub(crate) fn new(key: Option<&MasterKey>) -> Self {
        let Some(MasterKey(key)) = key else {
            let name_key = blake3::derive_key("kvfs repository 1 names without a key", &[]);
            return Self { cipher: None, name_key, cut_seed: 0 };
        };
        let derived = |purpose: &str| blake3::derive_key(purpose, key);
        let (seed, _) = U64::read_from_prefix(&derived("kvfs repository 1 cut points")).unwrap_or_default();
        Self {
            cipher: Some(XChaCha20Poly1305::new(&derived("kvfs repository 1 content").into())),
            name_key: derived("kvfs repository 1 names"),
            cut_seed: seed.get(),
        }
    }

    /// What a chunk of that content is called.
    pub(crate) fn hash(&self, content: &[u8]) -> [u8; 32] {
        *blake3::keyed_hash(&self.name_key, content).as_bytes()
    }

    /// What the object `name` is to hold.
    pub(crate) fn seal(&self, name: &str, content: &[u8]) -> Result<Vec<u8>> {
        let failed = |what: &str| RepositoryError::Machine(format!("cannot {what} {name}"));
        if content.len() > bytes_max(name) {
            return Err(RepositoryError::Machine(format!("{name} is longer than such an object may be")));
        }
        let mut packed = vec![ZSTD];
        let zipped = zstd::bulk::compress(content, ZSTD_LEVEL).map_err(|_| failed("compress"))?;
        if zipped.len() < content.len() {
            packed.extend_from_slice(&zipped);
        } else {
            packed[0] = PLAIN;
            packed.extend_from_slice(content);
        }
        let Some(cipher) = &self.cipher else {
            let digest = digest_of(name, &packed);
            packed.extend_from_slice(&digest);
            return Ok(packed);
        };
        let mut nonce = [0; NONCE_BYTES];
        random(&mut nonce)?;
        let payload = Payload { msg: &packed, aad: name.as_bytes() };
        let sealed = cipher.encrypt(&XNonce::from(nonce), payload).map_err(|_| failed("encrypt"))?;
        Ok([&nonce[..], &sealed].concat())
    }

    /// What [`Self::seal`] was given.
    pub(crate) fn open(&self, name: &str, sealed: &[u8]) -> Result<Bytes> {
        let damaged = |what| RepositoryError::damaged(name, what);
        let packed = if let Some(cipher) = &self.cipher {
            let split = sealed.split_first_chunk::<NONCE_BYTES>();
            let (nonce, sealed) = split.ok_or_else(|| damaged("it is too short"))?;
            let payload = Payload { msg: sealed, aad: name.as_bytes() };
            let opened = cipher.decrypt(&XNonce::from(*nonce), payload);
            opened.map_err(|_| damaged("it is not as it was written"))?
        } else {
            let split = sealed.split_last_chunk::<DIGEST_BYTES>();
            let (packed, digest) = split.ok_or_else(|| damaged("it is too short"))?;
            if digest_of(name, packed) != *digest {
                return Err(damaged("its checksum is wrong"));
            }
            packed.to_vec()
        };
        match packed.split_first() {
            Some((&PLAIN, content)) if content.len() <= bytes_max(name) => Ok(Bytes::from(packed).slice(1..)),
            Some((&PLAIN, _)) => Err(damaged("it is too long")),
            Some((&ZSTD, zipped)) => {
                let content = unpack(zipped, bytes_max(name));
                content.map(Bytes::from).ok_or_else(|| damaged("it can't be decompressed"))
            }
            _ => Err(damaged("it is packed in an unknown way")),
        }
    }
}

fn unpack(zipped: &[u8], len_max: usize) -> Option<Vec<u8>> {
    let len = zstd::zstd_safe::get_frame_content_size(zipped).ok().flatten()?;
    let len = usize::try_from(len).ok().filter(|len| *len <= len_max)?;
    zstd::bulk::decompress(zipped, len).ok()
}

fn digest_of(name: &str, packed: &[u8]) -> [u8; DIGEST_BYTES] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(name.len() as u64).to_le_bytes()).update(name.as_bytes()).update(packed);
    *hasher.finalize().as_bytes()
}

/// Fills `bytes` from the system's random numbers.
pub(crate) fn random(bytes: &mut [u8]) -> Result<()> {
    let failed = |error| RepositoryError::Machine(format!("the system gives no random numbers: {error}"));
    getrandom::fill(bytes).map_err(failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_sealed_opens_under_its_name_and_no_other() {
        for key in [None, Some(MasterKey([7; 32]))] {
            let sealer = Sealer::new(key.as_ref());
            let even: Vec<u8> =
                (0..5000_u32).flat_map(|n| blake3::hash(&n.to_le_bytes()).as_bytes()[..1].to_vec()).collect();
            for content in [&b""[..], b"a", &[7; 10_000], &even] {
                let sealed = sealer.seal("a", content).unwrap();
                assert_eq!(sealer.open("a", &sealed).unwrap(), content);
                assert!(sealer.open("b", &sealed).is_err());
                for (at, len) in
                    [(0, sealed.len()), (sealed.len() / 2, sealed.len()), (sealed.len() - 1, sealed.len())]
                {
                    let mut damaged = sealed.clone();
                    damaged[at] ^= 1;
                    assert!(sealer.open("a", &damaged).is_err(), "byte {at} of {len}");
                }
                assert!(sealer.open("a", &sealed[..sealed.len() - 1]).is_err());
                assert!(sealer.open("a", &[]).is_err());
            }
        }
    }

    #[test]
    fn what_is_longer_than_any_such_object_is_not_unpacked() {
        for key in [None, Some(MasterKey([7; 32]))] {
            let sealer = Sealer::new(key.as_ref());
            let (long, name) = (vec![0; bytes_max("chunks/x") + 1], "snapshots/x");
            assert!(sealer.seal("chunks/x", &long).is_err());
            assert!(sealer.seal("chunks/x", &long[1..]).is_ok());
            assert_eq!(sealer.open(name, &sealer.seal(name, &long).unwrap()).unwrap(), long);
        }
        let zipped = zstd::bulk::compress(&[0; 5000], ZSTD_LEVEL).unwrap();
        assert!(unpack(&zipped, 4999).is_none() && unpack(&zipped, 5000).is_some());
    }

    #[test]
    fn keys_give_other_names_and_other_bytes() {
        let (none, one, two) = (
            Sealer::new(None),
            Sealer::new(Some(&MasterKey([1; 32]))),
            Sealer::new(Some(&MasterKey([2; 32]))),
        );
        assert!(none.hash(b"x") != one.hash(b"x") && one.hash(b"x") != two.hash(b"x"));
        assert!(none.cut_seed == 0 && one.cut_seed != two.cut_seed);
        let sealed = one.seal("a", b"content").unwrap();
        assert!(two.open("a", &sealed).is_err() && none.open("a", &sealed).is_err());
        assert!(one.seal("a", b"content").unwrap() != sealed, "each has a nonce of its own");
    }
}
