//! How the content of files is to be stored that comes as records: by the settings in the rows of the files,
//! which come before their blocks.
//!
//! Thread safety: belongs to one thread. Invariants: the store was told that content may be packed before the
//! first such block; memory is 16 bytes for each file with blocks and a setting.

use std::collections::HashMap;

use kvfs_store::{Compression, Op, Result, Store};

use crate::FileType;
use crate::schema::{Header, Row, RowFlags};

/// See the module.
pub(crate) struct Packing<'s> {
    to: &'s dyn Store,
    /// The store was told.
    may_pack: bool,
    wishes: HashMap<u64, Compression>,
}

/// Whether what the row is about is to be stored packed.
pub(crate) fn is_packed(header: &Header) -> bool {
    header.flags.compression() != Compression::None
}

/// The attributes in the row that an operation puts, if it puts one with attributes.
pub(crate) fn header_in(op: &Op) -> Option<Header> {
    let Op::Put { value, .. } = op else { return None };
    let Some(Row::Inode(header, _)) = Row::parse(value) else { return None };
    Some(header)
}

impl<'s> Packing<'s> {
    /// Of what comes into the store.
    pub(crate) fn new(to: &'s dyn Store) -> Self {
        Self { to, may_pack: false, wishes: HashMap::new() }
    }

    /// Takes note of how the content of the file is to be stored whose row came.
    pub(crate) fn note(&mut self, header: &Header) -> Result<()> {
        if is_packed(header)
            && !self.may_pack
            && let Some(compress) = self.to.compress()
        {
            compress.allow_compression()?;
            self.may_pack = true;
        }
        let has_blocks = header.kind == FileType::Regular && header.flags.has(RowFlags::BLOCKS);
        if self.may_pack && has_blocks && is_packed(header) {
            self.wishes.insert(header.inode, header.flags.compression());
        } else {
            self.wishes.remove(&header.inode);
        }
        Ok(())
    }

    /// How blocks of the file are to be stored.
    pub(crate) fn wish_of(&self, inode: u64) -> Compression {
        self.wishes.get(&inode).copied().unwrap_or_default()
    }

    /// The operation, with blocks as their file wishes.
    pub(crate) fn packed(&self, op: Op) -> Op {
        match op {
            Op::PutBlocks { keyspace, prefix, first, data, .. } => {
                let inode = prefix[..].try_into().ok().map(u64::from_be_bytes);
                let compression = inode.map_or_else(Compression::default, |inode| self.wish_of(inode));
                Op::PutBlocks { keyspace, prefix, first, data, compression }
            }
            op => op,
        }
    }
}
