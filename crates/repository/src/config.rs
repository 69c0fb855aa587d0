//! What a repository says of itself, and how its key is kept: under a passphrase, in the repository.
//!
//! Thread safety: plain values. Invariant: the key itself is never written; the passphrase can be tried
//! against what is written at the cost of one run of Argon2id each (RFC 9106).

use argon2::{Algorithm, Argon2, Params, Version};
use chacha20poly1305::aead::{Aead, Payload};
use chacha20poly1305::{KeyInit, XChaCha20Poly1305, XNonce};
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop};

use crate::error::{RepositoryError, Result};
use crate::layout::{CONFIG, from_hex, hex};
use crate::seal::{MasterKey, random};

/// What this release writes and reads.
const FORMAT: u32 = 1;

/// Argon2id: memory (KiB), passes, lanes. RFC 9106's second choice, which any machine has memory for.
const COST: (u32, u32, u32) = (64 << 10, 3, 1);
/// What a repository may ask for of the machine that opens it (KiB, passes, lanes).
const COST_MAX: (u32, u32, u32) = (1 << 20, 64, 16);

/// What keeps a repository's key.
#[derive(Zeroize, ZeroizeOnDrop)]
pub struct Passphrase(Vec<u8>);

impl Passphrase {
    /// Of these bytes, without the end of their line.
    pub fn new(mut bytes: Vec<u8>) -> Self {
        let len = bytes.trim_ascii_end().len();
        bytes[len..].zeroize();
        bytes.truncate(len);
        Self(bytes)
    }

    /// Whether another one is the same.
    pub fn is_same(&self, other: &Self) -> bool {
        self.0 == other.0
    }

    /// There is nothing in it.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl std::fmt::Debug for Passphrase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Passphrase").finish_non_exhaustive()
    }
}

/// What the object `kvfs-repository` says, as JSON.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Config {
    format: u32,
    /// 16 bytes, in hexadecimal digits.
    id: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    encryption: Option<Encryption>,
}

/// How the key is kept; bytes in hexadecimal digits.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Encryption {
    cipher: String,
    derivation: String,
    memory_kib: u32,
    passes: u32,
    lanes: u32,
    salt: String,
    nonce: String,
    key: String,
}

const CIPHER: &str = "xchacha20-poly1305";
const DERIVATION: &str = "argon2id-13";

impl Config {
    /// A new one, and its key if it has one.
    pub(crate) fn new(passphrase: Option<&Passphrase>) -> Result<(Self, Option<MasterKey>)> {
        let mut id = [0; 16];
        random(&mut id)?;
        let config = Self { format: FORMAT, id: hex(&id), encryption: None };
        let Some(passphrase) = passphrase else { return Ok((config, None)) };
        let mut key = MasterKey([0; 32]);
        random(&mut key.0)?;
        Ok((config.keeping(&key, passphrase)?, Some(key)))
    }

    /// The same repository, whose key is kept under this passphrase alone.
    pub(crate) fn keeping(&self, key: &MasterKey, passphrase: &Passphrase) -> Result<Self> {
        let (mut salt, mut nonce) = ([0; 16], [0; 24]);
        random(&mut salt)?;
        random(&mut nonce)?;
        let payload = Payload { msg: &key.0, aad: self.id.as_bytes() };
        let kept = derive(passphrase, &salt, COST)?
            .encrypt(&XNonce::from(nonce), payload)
            .map_err(|_| RepositoryError::Machine("cannot encrypt the key of the repository".into()))?;
        let (memory_kib, passes, lanes) = COST;
        let encryption = Encryption {
            cipher: CIPHER.into(),
            derivation: DERIVATION.into(),
            memory_kib,
            passes,
            lanes,
            salt: hex(&salt),
            nonce: hex(&nonce),
            key: hex(&kept),
        };
        Ok(Self { encryption: Some(encryption), ..self.clone() })
    }

    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        let failed =
            |error| RepositoryError::Machine(format!("cannot write what the repository says: {error}"));
        serde_json::to_vec_pretty(self).map_err(failed)
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |_| RepositoryError::damaged(CONFIG, "it says nothing that makes sense");
        let value: serde_json::Value = serde_json::from_slice(bytes).map_err(damaged)?;
        match value.get("format").and_then(serde_json::Value::as_u64) {
            Some(format) if format == u64::from(FORMAT) => serde_json::from_value(value).map_err(damaged),
            Some(format) => Err(RepositoryError::OtherVersion(format as u32)),
            None => Err(RepositoryError::damaged(CONFIG, "it says no format")),
        }
    }

    pub(crate) fn is_encrypted(&self) -> bool {
        self.encryption.is_some()
    }

    /// The key; `None`: nothing is encrypted.
    pub(crate) fn unlock(&self, passphrase: Option<&Passphrase>) -> Result<Option<MasterKey>> {
        let (encryption, passphrase) = match (&self.encryption, passphrase) {
            (Some(encryption), Some(passphrase)) => (encryption, passphrase),
            (Some(_), None) => return Err(RepositoryError::NeedsPassphrase),
            (None, Some(_)) => return Err(RepositoryError::NotEncrypted),
            (None, None) => return Ok(None),
        };
        let damaged = || RepositoryError::damaged(CONFIG, "it does not say how the key is kept");
        if encryption.cipher != CIPHER || encryption.derivation != DERIVATION {
            return Err(RepositoryError::damaged(CONFIG, "it is encrypted in an unknown way"));
        }
        let salt: [u8; 16] = from_hex(&encryption.salt).ok_or_else(damaged)?;
        let nonce: [u8; 24] = from_hex(&encryption.nonce).ok_or_else(damaged)?;
        let kept: [u8; 48] = from_hex(&encryption.key).ok_or_else(damaged)?;
        let cost = (encryption.memory_kib, encryption.passes, encryption.lanes);
        if cost.0 > COST_MAX.0 || cost.1 > COST_MAX.1 || cost.2 > COST_MAX.2 {
            return Err(RepositoryError::damaged(
                CONFIG,
                "its key asks for more memory or time than any should",
            ));
        }
        let payload = Payload { msg: &kept, aad: self.id.as_bytes() };
        let mut opened = derive(passphrase, &salt, cost)?
            .decrypt(&XNonce::from(nonce), payload)
            .map_err(|_| RepositoryError::WrongPassphrase)?;
        let key = opened.as_slice().try_into().map(MasterKey).map_err(|_| damaged());
        opened.zeroize();
        key.map(Some)
    }
}

/// What the key is locked with.
fn derive(passphrase: &Passphrase, salt: &[u8], cost: (u32, u32, u32)) -> Result<XChaCha20Poly1305> {
    let failed = |error| RepositoryError::Machine(format!("cannot derive a key of the passphrase: {error}"));
    let mut key = [0; 32];
    let params = Params::new(cost.0, cost.1, cost.2, Some(key.len())).map_err(failed)?;
    let argon = Argon2::new(Algorithm::Argon2id, Version::V0x13, params);
    argon.hash_password_into(&passphrase.0, salt, &mut key).map_err(failed)?;
    let cipher = XChaCha20Poly1305::new(&key.into());
    key.zeroize();
    Ok(cipher)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_kept_under_its_passphrase() {
        let phrase = |text: &str| Passphrase::new(text.into());
        let (config, key) = Config::new(Some(&phrase("long enough\n"))).unwrap();
        let again = Config::decode(&config.encode().unwrap()).unwrap();
        let opened = again.unlock(Some(&phrase("long enough"))).unwrap().unwrap();
        assert_eq!(opened.0, key.unwrap().0);
        assert!(matches!(again.unlock(Some(&phrase("another"))), Err(RepositoryError::WrongPassphrase)));
        assert!(matches!(again.unlock(None), Err(RepositoryError::NeedsPassphrase)));
        let (open, key) = Config::new(None).unwrap();
        assert!(key.is_none() && open.unlock(None).unwrap().is_none());
        assert!(matches!(open.unlock(Some(&phrase("x"))), Err(RepositoryError::NotEncrypted)));
    }

    #[test]
    fn the_same_key_is_kept_under_another_passphrase() {
        let phrase = |text: &str| Passphrase::new(text.into());
        let (config, key) = Config::new(Some(&phrase("first"))).unwrap();
        let key = key.unwrap();
        let changed = config.keeping(&key, &phrase("second")).unwrap();
        let changed = Config::decode(&changed.encode().unwrap()).unwrap();
        assert_eq!(changed.id, config.id);
        assert_eq!(changed.unlock(Some(&phrase("second"))).unwrap().unwrap().0, key.0);
        assert!(matches!(changed.unlock(Some(&phrase("first"))), Err(RepositoryError::WrongPassphrase)));
        let (before, after) = (config.encryption.unwrap(), changed.encryption.unwrap());
        assert!(before.salt != after.salt && before.nonce != after.nonce, "each has its own");
    }

    #[test]
    fn other_versions_and_nonsense_are_told_apart() {
        assert!(matches!(Config::decode(br#"{"format":2}"#), Err(RepositoryError::OtherVersion(2))));
        for wrong in [&b""[..], b"{", b"{}", br#"{"format":1}"#] {
            assert!(matches!(Config::decode(wrong), Err(RepositoryError::Damaged { .. })));
        }
    }
}
