//! Batches: what is applied wholly or not at all.

use bytes::Bytes;

use crate::{
    BATCH_BYTES_MAX, BLOCK_BYTES, Compression, DELETING_BYTES_MAX, KEY_LEN_MAX, Keyspace, KeyspaceKind,
    Result, StoreError, VALUE_LEN_MAX,
};

/// One operation of a batch.
#[expect(missing_docs, reason = "the variants' docs name their fields")]
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Op {
    /// Sets `key` to `value`.
    Put { keyspace: Keyspace, key: Bytes, value: Bytes },
    /// Removes `key`; it need not exist.
    Delete { keyspace: Keyspace, key: Bytes },
    /// Removes every key in `[start, end)`.
    DeleteRange { keyspace: Keyspace, start: Bytes, end: Bytes },
    /// Adds a merge operand to `key`.
    Merge { keyspace: Keyspace, key: Bytes, operand: Bytes },
    /// Sets the consecutive blocks of `prefix` from `first` on to `data` (whole blocks). An engine may store
    /// them, and others of the prefix that it writes together with them, as `compression` says.
    PutBlocks { keyspace: Keyspace, prefix: Bytes, first: u64, data: Bytes, compression: Compression },
    /// Puts `data` over the bytes of one block of `prefix` from `offset` on, without a look at the rest of
    /// it. An absent block counts as zeros; it is present afterwards. At least one byte, none behind the
    /// block.
    PatchBlock {
        keyspace: Keyspace,
        prefix: Bytes,
        block: u64,
        offset: u16,
        data: Bytes,
        compression: Compression,
    },
}

impl Op {
    /// The keyspace that the operation touches.
    pub fn keyspace(&self) -> Keyspace {
        match self {
            Self::Put { keyspace, .. }
            | Self::Delete { keyspace, .. }
            | Self::DeleteRange { keyspace, .. }
            | Self::Merge { keyspace, .. }
            | Self::PutBlocks { keyspace, .. }
            | Self::PatchBlock { keyspace, .. } => *keyspace,
        }
    }

    /// Whether it is an operation on a keyspace `name` that holds `kind`.
    ///
    /// # Errors
    /// [`StoreError::WrongKind`].
    pub fn check_kind(&self, kind: KeyspaceKind, name: &str) -> Result<()> {
        let (operation, wanted) = match self {
            Self::Put { .. } => ("put", KeyspaceKind::Tuple),
            Self::Merge { .. } => ("merge", KeyspaceKind::Tuple),
            Self::PutBlocks { .. } => ("put_blocks", KeyspaceKind::Block),
            Self::PatchBlock { .. } => ("patch_block", KeyspaceKind::Block),
            Self::Delete { .. } | Self::DeleteRange { .. } => return Ok(()),
        };
        if kind == wanted { Ok(()) } else { Err(StoreError::wrong_kind(operation, name, kind)) }
    }

    /// Checks keys, values and the shape of blocks against the limits.
    ///
    /// # Errors
    /// Which limit was exceeded and by what.
    pub fn check_limits(&self) -> Result<()> {
        match self {
            Self::Put { key, value, .. } => check_key(key).and(check_value(value)),
            Self::Merge { key, operand, .. } => check_key(key).and(check_value(operand)),
            Self::Delete { key, .. } => check_key(key),
            Self::DeleteRange { start, end, .. } => check_key_len(start).and(check_key_len(end)),
            Self::PutBlocks { prefix, first, data, .. } => check_blocks(prefix, *first, data),
            Self::PatchBlock { prefix, block, offset, data, .. } => {
                check_patch(prefix, *block, *offset, data)
            }
        }
    }

    /// Whether it removes and brings nothing.
    pub fn is_deletion(&self) -> bool {
        matches!(self, Self::Delete { .. } | Self::DeleteRange { .. })
    }

    /// Key and value bytes that the operation carries.
    pub fn payload_bytes(&self) -> usize {
        match self {
            Self::Put { key, value, .. } => key.len() + value.len(),
            Self::Delete { key, .. } => key.len(),
            Self::DeleteRange { start, end, .. } => start.len() + end.len(),
            Self::Merge { key, operand, .. } => key.len() + operand.len(),
            Self::PutBlocks { prefix, data, .. } | Self::PatchBlock { prefix, data, .. } => {
                prefix.len() + data.len()
            }
        }
    }
}

/// Operations in order; a later one wins over an earlier one on the same key.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    ops: Vec<Op>,
    payload_bytes: usize,
    /// What patches are short of whole blocks (bytes).
    patched_bytes: usize,
    has_patches: bool,
}

impl Batch {
    /// An empty batch.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends an operation.
    pub fn push(&mut self, op: Op) {
        self.payload_bytes += op.payload_bytes();
        if let Op::PatchBlock { data, .. } = &op {
            self.patched_bytes += BLOCK_BYTES.saturating_sub(data.len());
            self.has_patches = true;
        }
        self.ops.push(op);
    }

    /// Sets `key` to `value`.
    pub fn put(&mut self, keyspace: Keyspace, key: impl Into<Bytes>, value: impl Into<Bytes>) {
        self.push(Op::Put { keyspace, key: key.into(), value: value.into() });
    }

    /// Removes `key`.
    pub fn delete(&mut self, keyspace: Keyspace, key: impl Into<Bytes>) {
        self.push(Op::Delete { keyspace, key: key.into() });
    }

    /// Removes every key in `[start, end)`.
    pub fn delete_range(&mut self, keyspace: Keyspace, start: impl Into<Bytes>, end: impl Into<Bytes>) {
        self.push(Op::DeleteRange { keyspace, start: start.into(), end: end.into() });
    }

    /// Adds a merge operand to `key`.
    pub fn merge(&mut self, keyspace: Keyspace, key: impl Into<Bytes>, operand: impl Into<Bytes>) {
        self.push(Op::Merge { keyspace, key: key.into(), operand: operand.into() });
    }

    /// Sets consecutive blocks; `data` holds whole blocks.
    pub fn put_blocks(
        &mut self,
        keyspace: Keyspace,
        prefix: impl Into<Bytes>,
        first: u64,
        data: impl Into<Bytes>,
    ) {
        self.put_blocks_packed(keyspace, prefix, first, data, Compression::None);
    }

    /// As [`Batch::put_blocks`], with a wish how they are stored.
    pub fn put_blocks_packed(
        &mut self,
        keyspace: Keyspace,
        prefix: impl Into<Bytes>,
        first: u64,
        data: impl Into<Bytes>,
        compression: Compression,
    ) {
        let (prefix, data) = (prefix.into(), data.into());
        self.push(Op::PutBlocks { keyspace, prefix, first, data, compression });
    }

    /// Changes a part of one block.
    pub fn patch_block(
        &mut self,
        keyspace: Keyspace,
        prefix: impl Into<Bytes>,
        block: u64,
        offset: u16,
        data: impl Into<Bytes>,
    ) {
        let (prefix, data) = (prefix.into(), data.into());
        self.push(Op::PatchBlock { keyspace, prefix, block, offset, data, compression: Compression::None });
    }

    /// The operations in order.
    pub fn ops(&self) -> &[Op] {
        &self.ops
    }

    /// The operations in order, by value.
    pub fn into_ops(self) -> Vec<Op> {
        self.ops
    }

    /// Number of operations, and so of seqnos.
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there is nothing to apply.
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Key and value bytes in all.
    pub fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    /// As [`Batch::payload_bytes`], but a patch counts as the whole block that it becomes.
    pub fn whole_bytes(&self) -> usize {
        self.payload_bytes + self.patched_bytes
    }

    /// Whether it removes something and brings little: a full store lets such batches into its reserve.
    pub fn is_deleting(&self) -> bool {
        self.ops.iter().any(Op::is_deletion) && self.whole_bytes() <= DELETING_BYTES_MAX
    }

    /// Whether any operation changes a part of a block.
    pub fn has_patches(&self) -> bool {
        self.has_patches
    }

    /// Checks the limits that hold for every engine.
    ///
    /// # Errors
    /// Which limit was exceeded and by what.
    pub fn check_limits(&self) -> Result<()> {
        let bytes = self.whole_bytes();
        if bytes > BATCH_BYTES_MAX {
            return Err(StoreError::BatchTooLarge { bytes, bytes_max: BATCH_BYTES_MAX });
        }
        self.ops.iter().try_for_each(Op::check_limits)
    }
}

fn check_key_len(key: &[u8]) -> Result<()> {
    if key.len() > KEY_LEN_MAX {
        return Err(StoreError::KeyTooLong { len: key.len(), len_max: KEY_LEN_MAX });
    }
    Ok(())
}

/// Whether `key` may be put.
///
/// # Errors
/// It is empty or too long.
pub fn check_key(key: &[u8]) -> Result<()> {
    if key.is_empty() {
        return Err(StoreError::KeyEmpty);
    }
    check_key_len(key)
}

fn check_value(value: &[u8]) -> Result<()> {
    if value.len() > VALUE_LEN_MAX {
        return Err(StoreError::ValueTooLong { len: value.len(), len_max: VALUE_LEN_MAX });
    }
    Ok(())
}

fn check_prefix(prefix: &[u8]) -> Result<()> {
    check_key_len(prefix)?;
    if prefix.len() + 8 > KEY_LEN_MAX {
        return Err(StoreError::KeyTooLong { len: prefix.len() + 8, len_max: KEY_LEN_MAX });
    }
    Ok(())
}

fn check_patch(prefix: &[u8], block: u64, offset: u16, data: &[u8]) -> Result<()> {
    check_prefix(prefix)?;
    if data.is_empty() || usize::from(offset) + data.len() > BLOCK_BYTES || block == u64::MAX {
        return Err(StoreError::PatchShape { block, offset, len: data.len() });
    }
    Ok(())
}

fn check_blocks(prefix: &[u8], first: u64, data: &[u8]) -> Result<()> {
    check_prefix(prefix)?;
    let count = (data.len() / BLOCK_BYTES) as u64;
    if !data.len().is_multiple_of(BLOCK_BYTES) || count == 0 || first.checked_add(count).is_none() {
        return Err(StoreError::BlockShape { first, len: data.len() });
    }
    Ok(())
}
