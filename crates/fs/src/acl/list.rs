//! POSIX access-control lists as values: their form, and how they and permission bits follow each other.
//!
//! Purpose: the rules of POSIX 1003.1e draft 17 as Linux has them, without a file system around them. Thread
//! safety: plain values. Invariant: an [`Acl`] is valid: owner, owning group and others once each, in the
//! order of the tags, and a mask where any other user or group is named.

use bytes::Bytes;
use zerocopy::little_endian::{U16, U32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::{FsError, Result};

/// Version of the form in which lists are set and got.
const VERSION: u32 = 2;

/// The number in an entry that names no user or group (Linux: `ACL_UNDEFINED_ID`).
const UNDEFINED_ID: u32 = u32::MAX;

const RIGHTS: u16 = 0o7;

/// The bits of a mode that a list has a say in.
pub(crate) const PERMISSIONS: u32 = 0o777;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
struct RawEntry {
    tag: U16,
    rights: U16,
    id: U32,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Entry {
    tag: u16,
    rights: u16,
    id: u32,
}

impl Entry {
    fn is_known_to(self, uid: u32, gid: u32) -> bool {
        match self.tag {
            USER => self.id == uid,
            GROUP => self.id == gid,
            _ => true,
        }
    }
}

/// A valid list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Acl(Vec<Entry>);

impl Acl {
    /// Decodes and checks a list; `None`: one without entries, which stands for no list.
    ///
    /// # Errors
    /// `NotSupported` for another version, `Invalid` for what is no list.
    pub(crate) fn parse(bytes: &[u8]) -> Result<Option<Self>> {
        if bytes.is_empty() {
            return Ok(None);
        }
        let (version, rest) = U32::read_from_prefix(bytes).map_err(|_| NO_LIST)?;
        if version.get() != VERSION {
            return Err(FsError::NotSupported("access-control lists are of version 2"));
        }
        let raw = <[RawEntry]>::ref_from_bytes(rest).map_err(|_| NO_LIST)?;
        if raw.is_empty() {
            return Ok(None);
        }
        let entries = raw.iter().map(|raw| {
            let is_named = matches!(raw.tag.get(), USER | GROUP);
            let id = if is_named { raw.id.get() } else { UNDEFINED_ID };
            Entry { tag: raw.tag.get(), rights: raw.rights.get(), id }
        });
        let acl = Self(entries.collect());
        if acl.is_valid() { Ok(Some(acl)) } else { Err(NO_LIST) }
    }

    fn is_valid(&self) -> bool {
        let count = |tag| self.0.iter().filter(|entry| entry.tag == tag).count();
        let is_sound = |entry: &Entry| match entry.tag {
            USER | GROUP => entry.id != UNDEFINED_ID,
            OWNER | OWNING_GROUP | MASK | OTHERS => true,
            _ => false,
        };
        // A named group comes behind the owning one, so the tags' order is the entries'.
        self.0.iter().all(|entry| entry.rights & !RIGHTS == 0 && is_sound(entry))
            && self.0.is_sorted_by_key(|entry| entry.tag)
            && [OWNER, OWNING_GROUP, OTHERS].into_iter().all(|tag| count(tag) == 1)
            && count(MASK) <= 1
            && (count(MASK) == 1 || count(USER) + count(GROUP) == 0)
    }

    /// The form in which [`Self::parse`] takes it.
    pub(crate) fn encode(&self) -> Bytes {
        let mut bytes = VERSION.to_le_bytes().to_vec();
        for entry in &self.0 {
            let raw = RawEntry { tag: entry.tag.into(), rights: entry.rights.into(), id: entry.id.into() };
            bytes.extend_from_slice(raw.as_bytes());
        }
        bytes.into()
    }

    /// Without the entries of users and groups other than these.
    pub(crate) fn known_to(mut self, uid: u32, gid: u32) -> Self {
        self.0.retain(|entry| entry.is_known_to(uid, gid));
        self
    }

    /// With the entries of `old` that are not known to these; then with a mask, too.
    pub(crate) fn with_unknown_of(mut self, old: Self, uid: u32, gid: u32) -> Self {
        let hidden: Vec<Entry> = old.0.into_iter().filter(|entry| !entry.is_known_to(uid, gid)).collect();
        if hidden.is_empty() {
            return self;
        }
        if !self.0.iter().any(|entry| entry.tag == MASK) {
            let rights = (self.permissions() >> 3) as u16 & RIGHTS;
            self.0.push(Entry { tag: MASK, rights, id: UNDEFINED_ID });
        }
        self.0.extend(hidden);
        self.0.sort_by_key(|entry| entry.tag);
        self
    }

    /// Whether it says no more than permission bits do.
    pub(crate) fn is_minimal(&self) -> bool {
        self.0.iter().all(|entry| matches!(entry.tag, OWNER | OWNING_GROUP | OTHERS))
    }

    /// Whether a user other than the owner, in these groups, has all these rights to a file of the group
    /// `gid`.
    pub(crate) fn allows(&self, uid: u32, groups: &[u32], gid: u32, rights: u16) -> bool {
        let mask = self.0.iter().find(|entry| entry.tag == MASK).map_or(RIGHTS, |mask| mask.rights);
        let has = |entry: &Entry| entry.rights & rights == rights;
        if let Some(own) = self.0.iter().find(|entry| entry.tag == USER && entry.id == uid) {
            return own.rights & mask & rights == rights;
        }
        let mut of_groups = self.0.iter().filter(|entry| match entry.tag {
            OWNING_GROUP => groups.contains(&gid),
            GROUP => groups.contains(&entry.id),
            _ => false,
        });
        match of_groups.next() {
            // Any one of them may have the rights.
            Some(first) => (has(first) || of_groups.any(has)) && mask & rights == rights,
            None => self.0.iter().any(|entry| entry.tag == OTHERS && has(entry)),
        }
    }

    /// The permission bits that go with it: those of the group are the mask's, where there is one.
    pub(crate) fn permissions(&self) -> u32 {
        let rights = |tag| self.0.iter().find(|entry| entry.tag == tag).map(|entry| u32::from(entry.rights));
        let of = |tag| rights(tag).unwrap_or(0);
        of(OWNER) << 6 | rights(MASK).unwrap_or_else(|| of(OWNING_GROUP)) << 3 | of(OTHERS)
    }

    /// What becomes of it when the permission bits are set to those of `mode`.
    pub(crate) fn set_permissions(&mut self, mode: u32) {
        self.each_class(mode, |rights, bits| *rights = bits);
    }

    /// What becomes of a directory's default list as the list of a new file that is asked for with `mode`: it
    /// has no right that was not asked for.
    pub(crate) fn limit(&mut self, mode: u32) {
        self.each_class(mode, |rights, bits| *rights &= bits);
    }

    /// Calls `each` for the entries that permission bits stand for.
    fn each_class(&mut self, mode: u32, each: impl Fn(&mut u16, u16)) {
        let group = if self.0.iter().any(|entry| entry.tag == MASK) { MASK } else { OWNING_GROUP };
        for entry in &mut self.0 {
            let shift = match entry.tag {
                OWNER => 6,
                tag if tag == group => 3,
                OTHERS => 0,
                _ => continue,
            };
            each(&mut entry.rights, (mode >> shift) as u16 & RIGHTS);
        }
    }
}

const NO_LIST: FsError = FsError::Invalid("not an access-control list");
