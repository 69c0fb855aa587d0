//! Which store a directory names whose device lies elsewhere: the file `uuid` (`docs/FORMAT.md`).
//!
//! Disks may have other names after a restart. The devices beside the first one have labels that name the
//! store; what the first one is to be says this file.
//!
//! Thread safety: functions of an immutable value. Invariant: a directory without the file names the store
//! that is found there, as one does that a kvfs from before has made; the next opening for writing notes it.

use std::io;

use kvfs_service::ErrorKind;

use super::StoreDir;
use crate::error::{Error, Result};

/// Its name in the directory.
const NAME: &str = "uuid";

/// What becomes the file when it is whole.
const NEXT: &str = "uuid.new";

/// The first line, and what follows on it is the version.
const MAGIC: &str = "kvfs-uuid ";
const VERSION: &str = "1";

type Uuid = [u8; 16];

impl StoreDir {
    /// Refuses a store that is another one than the directory names.
    ///
    /// # Errors
    /// It is; the file is damaged, or of another version; I/O errors.
    pub(crate) fn check_identity(&self, found: &Uuid) -> Result<()> {
        let Some(noted) = self.identity()? else { return Ok(()) };
        if noted == *found {
            return Ok(());
        }
        let (store, device) = (self.path.display(), self.device().target());
        let (device, found, noted) = (device.display(), text_of(found), text_of(&noted));
        let message = format!(
            "cannot open the store {store}: {device} holds the store {found}, and this one is {noted}; disks may have \
             other names after a restart: `ln -sfn DEVICE {store}/device` with the right one, by a name that stays \
             (/dev/disk/by-id/…); if {device} is meant, remove {store}/{NAME}"
        );
        Err(Error::new(ErrorKind::NotAStore, message))
    }

    /// The directory names this store from now on, if its device lies elsewhere and it names none yet.
    /// Durable when this returns.
    ///
    /// # Errors
    /// As [`StoreDir::check_identity`].
    pub(crate) fn note_identity(&self, uuid: &Uuid) -> Result<()> {
        if !self.device().is_link() || self.identity()?.is_some() {
            return Ok(());
        }
        let text = format!("{MAGIC}{VERSION}\n{}\n", text_of(uuid));
        let noted = self.replace_text(NAME, NEXT, &text);
        noted.map_err(|error| Error::io("write", &self.path.join(NAME), &error))
    }

    /// Removes the file, if there is one.
    ///
    /// # Errors
    /// I/O errors.
    pub(crate) fn remove_identity(&self) -> io::Result<()> {
        self.remove_text(NEXT).and_then(|()| self.remove_text(NAME))
    }

    /// The store that the directory names; `None`: its device is in it, or it names none.
    fn identity(&self) -> Result<Option<Uuid>> {
        if !self.device().is_link() {
            return Ok(None);
        }
        // It refuses what the link says, and gives nothing: backups by hard links may have it, too.
        let Some(text) = self.read_any_text(NAME)? else { return Ok(None) };
        let path = self.path.join(NAME);
        let failed = |why: String| Error::new(ErrorKind::NotAStore, format!("{} {why}", path.display()));
        parse(&text).map(Some).map_err(failed)
    }
}

fn text_of(uuid: &Uuid) -> String {
    format!("{:032x}", u128::from_be_bytes(*uuid))
}

fn parse(text: &str) -> Result<Uuid, String> {
    let damaged = || "is damaged; without it the store is opened, whichever it is".to_owned();
    let mut lines = text.lines();
    match lines.next().and_then(|line| line.strip_prefix(MAGIC)) {
        Some(VERSION) => {}
        Some(version) => return Err(format!("has version {version}; this kvfs reads version {VERSION}")),
        None => return Err(damaged()),
    }
    let (Some(hex), None) = (lines.next(), lines.next()) else { return Err(damaged()) };
    let is_hex = hex.len() == 32 && hex.bytes().all(|byte| byte.is_ascii_hexdigit());
    let number = u128::from_str_radix(hex, 16).ok().filter(|_| is_hex);
    number.map(u128::to_be_bytes).ok_or_else(damaged)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_identities_and_those_of_other_versions_are_refused_with_the_reason() {
        let uuid = [0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 0xff];
        assert_eq!(parse(&format!("kvfs-uuid 1\n{}\n", text_of(&uuid))), Ok(uuid));
        for (text, reason) in [
            ("", "damaged"),
            ("kvfs-uuid 2\n", "version 2"),
            ("kvfs-uuid 1\n", "damaged"),
            ("kvfs-uuid 1\n+0102030405060708090a0b0c0d0e0f\n", "damaged"),
            ("kvfs-uuid 1\n000102030405060708090a0b0c0d0e0f\nmore\n", "damaged"),
        ] {
            let refused = parse(text).expect_err(text);
            assert!(refused.contains(reason), "{text:?}: {refused}");
        }
    }
}
