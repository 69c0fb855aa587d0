//! Taking a stream that is there as a whole.
//!
//! Thread safety: for one thread; no other may use the store meanwhile. The nodes of the [`FileSystem`] do
//! not hear of what is received, so the caller must open it anew afterwards.
//!
//! Crash order: one transaction holds all records and a note of the snapshot that waits for its name. It is
//! the commit point. What is left, naming the snapshot and dropping the note, is done right after it, or by
//! the next opening before anything else is written; so the name always stands for exactly what was received.
//! The note may stay where the store is full, but never longer than the name.

use std::io::Read;
use std::sync::Arc;
use std::time::Duration;

use kvfs_kv::KeyspaceTable;
use kvfs_store::{
    Batch, BlockClone, Durability, ExtentKind, KeyRange, Keyspace, KeyspaceKind, Op, SnapshotInfo, Store,
    StoreError, Txn, TxnOptions,
};

use super::changes::{Changes, is_by_reading, is_empty};
use super::pending::PendingReferences;
use super::record::{CLONES, DATA, META};
use super::tree;
use super::{Begin, BlockReference, Frame, ReceiveError, StreamReader};
use crate::error::done_unless_full;
use crate::packing::{Packing, header_in};
use crate::schema::{
    DETACHED_INODE, Keyspaces, Placement, ROOT_INODE, Receiving, Superblock, block_prefix, decode_receiving,
    encode_received, encode_receiving, parse_received_key, received_key, received_keys, receiving_key, rows,
    superblock_key,
};
use crate::tiers::TierWishes;
use crate::{FileSystem, FileType, FsError, Result, quota};

/// What was received.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Received {
    /// The snapshot that is there now.
    pub name: String,
    /// Records that were put or deleted.
    pub records: u64,
    /// Whether changes since the older snapshot were given up.
    pub rolled_back: bool,
}

/// A transaction that takes a stream.
struct Receipt<'s> {
    txn: Arc<dyn Txn>,
    packing: Packing<'s>,
    begin: Begin,
    /// Handles by the numbers of the stream.
    keyspaces: Vec<Keyspace>,
    /// Set where the stream says where blocks of clones came from.
    clones: Option<Keyspace>,
    pending: PendingReferences,
    done: Received,
}

/// Receives streams into the main line of a file system.
pub struct Receiver<'f> {
    /// Its states are looked at as views, and keyspaces are made in it.
    main: &'f Arc<FileSystem>,
    store: &'f dyn Store,
    own: Keyspaces,
    users: &'f KeyspaceTable,
}

impl<'f> Receiver<'f> {
    /// A receiver for `main`, which must be the main line.
    pub fn new(main: &'f Arc<FileSystem>) -> Self {
        Self { main, store: &*main.store, own: main.keyspaces, users: &main.shared.keyspaces }
    }

    /// Whether a stream that begins so can be received; tells it before the rest has come.
    ///
    /// # Errors
    /// What is in the way; store errors.
    pub fn check(&self, begin: &Begin, rollback: bool) -> Result<(), ReceiveError> {
        self.founded_on(begin)?;
        match &begin.from {
            None if !self.holds_nothing()? => Err(ReceiveError::NotEmpty),
            Some(_) if rollback => Ok(()),
            Some((_, name)) => {
                let (owners, mut changes) = self.changes_back_to(begin)?;
                if !owners.is_empty() {
                    return Err(ReceiveError::Changed(name.clone()));
                }
                while let Some((part, batch)) = changes.next_records()? {
                    if !self.is_reading_only(part, &batch)? {
                        return Err(ReceiveError::Changed(name.clone()));
                    }
                }
                Ok(())
            }
            None => Ok(()),
        }
    }

    /// Takes the stream whose first frame is next in `source`, wholly or not at all, durably. The main line
    /// is then what the stream's snapshot was where it was made, and a snapshot of the same name and identity
    /// stands for it. Open the store anew afterwards. Memory: within the store's, whatever the size.
    ///
    /// # Errors
    /// Nothing has changed, unless [`FsError::CommittedOnly`] says otherwise; keyspaces may have been made.
    pub fn receive(
        &self,
        mut reader: StreamReader,
        source: &mut dyn Read,
        rollback: bool,
    ) -> Result<Received, ReceiveError> {
        self.main.locker().check_writable()?;
        if !self.main.origin.is_main() {
            return Err(FsError::Invalid("only the main line receives").into());
        }
        let Some(Frame::Begin(begin)) = reader.next(source)? else {
            return Err(FsError::Invalid("a stream is received from its beginning").into());
        };
        self.founded_on(&begin)?;
        if begin.from.is_none() && !self.holds_nothing()? {
            return Err(ReceiveError::NotEmpty);
        }
        let own = self.own;
        let mut keyspaces = vec![own.meta, own.data, own.xattr];
        let mut owners = Batch::new();
        let mut next = reader.next(source)?;
        // Made before the transaction begins, and no part of it: an empty one may stay when this comes to
        // nothing.
        while let Some(Frame::Keyspace { name, owner }) = next {
            let record = self.users.records().key(&name);
            match owner {
                Some(owner) => {
                    self.main.keys().make_keyspace(&name, owner)?;
                    owners.put(own.meta, record, owner.encode());
                }
                // It is none any more in what arrives.
                None => owners.delete(own.meta, record),
            }
            keyspaces.push(self.store.open_keyspace(&name, KeyspaceKind::Tuple, None)?);
            next = reader.next(source)?;
        }
        let clones = begin.has_clones.then(|| self.main.shared.provenance.make()).transpose()?;
        let mut receipt = Receipt {
            txn: self.store.begin(TxnOptions::default())?,
            packing: Packing::new(self.store),
            keyspaces,
            clones,
            pending: PendingReferences::default(),
            done: Received { name: begin.to.1.clone(), records: 0, rolled_back: false },
            begin,
        };
        self.go_back(&mut receipt, rollback)?;
        if !owners.is_empty() {
            receipt.txn.apply(owners)?;
        }
        while let Some(frame) = next {
            receipt.take(frame, &self.main.shared.tiers)?;
            next = reader.next(source)?;
        }
        receipt.clone_pending()?;
        tree::expect_tree(self.store, &*receipt.txn, own.meta)?;
        self.stage_own_records(&receipt)?;
        receipt.txn.commit(Durability::Synced)?;
        finish_receive(self.store, self.own.meta)?;
        Ok(receipt.done)
    }

    /// The snapshot that the stream goes on from, if it does.
    fn founded_on(&self, begin: &Begin) -> Result<Option<SnapshotInfo>, ReceiveError> {
        let lacking = [
            (self.store.transactions().is_none(), "transactions"),
            (self.store.snapshots().is_none(), "named snapshots"),
        ];
        if let Some((_, what)) = lacking.into_iter().find(|(is_lacking, _)| *is_lacking) {
            return Err(StoreError::Unsupported { engine: self.store.engine_name(), what }.into());
        }
        let (to, name) = &begin.to;
        // Inode numbers made in a branch are not told to the sender, which may have given them to other
        // files.
        if !self.store.checkpointed().is_empty() {
            return Err(ReceiveError::Branches);
        }
        if let Some(present) = self.main.snapshots().find(to)? {
            return Err(ReceiveError::Present(present.name));
        }
        if self.store.named_snapshots().iter().any(|info| info.name == *name) {
            return Err(ReceiveError::NameTaken(name.clone()));
        }
        self.main.snapshots().check_room()?;
        match &begin.from {
            None => Ok(None),
            Some((from, name)) => match self.main.snapshots().find(from)? {
                Some(info) => Ok(Some(info)),
                None => Err(ReceiveError::Unfounded(name.clone())),
            },
        }
    }

    /// Whether there is neither a file nor a key.
    fn holds_nothing(&self) -> Result<bool> {
        let mut cursor = self.store.cursor(self.own.meta, rows())?;
        cursor.next()?;
        // The directory of detached trees may be there; were one in it, it would have rows of its own.
        let expected = [ROOT_INODE, DETACHED_INODE].map(|inode| Placement::own_subtree(inode).own_key());
        let mut is_empty_so_far = true;
        while let Some((key, _)) = cursor.entry().filter(|_| is_empty_so_far) {
            is_empty_so_far = expected.iter().any(|own| key == &own[..]);
            cursor.next()?;
        }
        let own = [self.own.data, self.own.xattr];
        for keyspace in own.into_iter().chain(self.users.user_keyspaces().map(|info| info.keyspace)) {
            is_empty_so_far = is_empty_so_far && is_empty(self.store, keyspace, KeyRange::all())?;
        }
        Ok(is_empty_so_far)
    }

    /// What leads from now back to the snapshot that the stream goes on from: owners of keyspaces, and the
    /// rest.
    fn changes_back_to(&self, begin: &Begin) -> Result<(Batch, Changes), ReceiveError> {
        let now = self.main.view_of(self.store.snapshot()?)?;
        let Some(then) = self.founded_on(begin)? else {
            return Err(FsError::Invalid("the stream goes on from nothing").into());
        };
        let then = self.main.view_of(self.store.open_snapshot(&then.name)?)?;
        let (mut owners, mut users) = (Batch::new(), Vec::new());
        for info in self.users.user_keyspaces() {
            // One that had none may be there for a stream that came to nothing.
            if let Some(owner) = then.keys().owner_then(&info.name)?
                && now.keys().owner_then(&info.name)? != Some(owner)
            {
                owners.put(self.own.meta, self.users.records().key(&info.name), owner.encode());
            }
            users.push(info.keyspace);
        }
        Ok((owners, Changes::new(Some(now), then, &users)?))
    }

    /// Gives up what was changed since the snapshot that the stream goes on from: access times at any rate.
    fn go_back(&self, receipt: &mut Receipt<'_>, rollback: bool) -> Result<(), ReceiveError> {
        let Some((_, name)) = receipt.begin.from.clone() else { return Ok(()) };
        let (owners, mut changes) = self.changes_back_to(&receipt.begin)?;
        if !owners.is_empty() {
            if !rollback {
                return Err(ReceiveError::Changed(name));
            }
            receipt.done.rolled_back = true;
            receipt.txn.apply(owners)?;
        }
        while let Some((part, batch)) = changes.next_records()? {
            if !self.is_reading_only(part, &batch)? {
                if !rollback {
                    return Err(ReceiveError::Changed(name));
                }
                receipt.done.rolled_back = true;
            }
            receipt.apply(part, batch, &self.main.shared.tiers)?;
        }
        Ok(())
    }

    /// Whether nothing but what reading changes differs.
    fn is_reading_only(&self, part: u32, batch: &Batch) -> Result<bool> {
        for op in batch.ops() {
            let (key, then) = match op {
                Op::Put { key, value, .. } if part == META => (key, Some(&value[..])),
                Op::Delete { key, .. } if part == META => (key, None),
                _ => return Ok(false),
            };
            let now = self.store.get(self.own.meta, key)?;
            if !is_by_reading(key, then, now.as_deref()) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The file system's own records as they are after the commit.
    fn stage_own_records(&self, receipt: &Receipt<'_>) -> Result<()> {
        let Begin { to: (id, name), inline_len_max, inode_next, has_projects, .. } = &receipt.begin;
        let meta = self.own.meta;
        let superblock = self.store.get(meta, &superblock_key())?;
        let superblock =
            superblock.ok_or_else(|| FsError::corrupt("file-system superblock", "it is missing"))?;
        let superblock = Superblock::decode(&superblock)?;
        // No number of either store is given out again.
        let superblock = Superblock {
            inline_len_max: *inline_len_max,
            inode_next: superblock.inode_next.max(*inode_next),
            has_quotas: superblock.has_quotas,
            has_projects: superblock.has_projects || *has_projects,
        };
        let mut batch = Batch::new();
        if superblock.has_quotas {
            quota::stage_recount(self.store, &mut batch)?;
        }
        batch.put(meta, superblock_key(), superblock.encode());
        let named = self.store.named_snapshots();
        let mut records = self.store.cursor(meta, received_keys())?;
        records.next()?;
        while let Some((key, _)) = records.entry() {
            let is_used =
                parse_received_key(key).is_some_and(|name| named.iter().any(|info| info.name == name));
            if !is_used {
                batch.delete(meta, key.to_vec());
            }
            records.next()?;
        }
        batch.put(meta, received_key(name), encode_received(id));
        let receiving = Receiving { name: name.clone(), created: id.created };
        batch.put(meta, receiving_key(), encode_receiving(&receiving));
        Ok(receipt.txn.apply(batch)?)
    }
}

/// Names the snapshot of a state that was received, if that is still to be done. Must be called before
/// anything else is written. Returns whether the note of it has gone: on a full store it may have to wait.
/// [`drop_note`] must have been called before that snapshot loses its name.
pub(crate) fn finish_receive(store: &dyn Store, meta: Keyspace) -> Result<bool> {
    let Some(Receiving { name, created }) = received_last(store, meta)? else { return Ok(true) };
    if !store.named_snapshots().iter().any(|info| info.name == name) {
        store.adopt_snapshot(&name, Duration::from_nanos(created))?;
    }
    done_unless_full(drop_note(store, meta))
}

/// What was received, as long as there is a note of it.
pub(crate) fn received_last(store: &dyn Store, meta: Keyspace) -> Result<Option<Receiving>> {
    store.get(meta, &receiving_key())?.map(|bytes| decode_receiving(&bytes)).transpose()
}

/// Drops the note of what was received, durably. The caller must have seen that it has its name.
pub(crate) fn drop_note(store: &dyn Store, meta: Keyspace) -> Result<()> {
    let mut batch = Batch::new();
    batch.delete(meta, receiving_key());
    store.apply(batch, Durability::Synced)?;
    Ok(())
}

impl Receipt<'_> {
    fn take(&mut self, frame: Frame, tiers: &TierWishes) -> Result<(), ReceiveError> {
        let (keyspace, batch) = match frame {
            Frame::Records { keyspace, batch } => (keyspace, batch),
            Frame::References { references } => return self.refer(&references),
            Frame::Begin(_) | Frame::Keyspace { .. } | Frame::End => return Ok(()),
        };
        let listed = self.keyspaces.get(keyspace as usize).copied();
        let handle = if keyspace == CLONES { self.clones } else { listed };
        let handle = handle.ok_or(FsError::Invalid("records of a keyspace without a name"))?;
        let mut mapped = Batch::new();
        batch.into_ops().into_iter().for_each(|op| mapped.push(with_keyspace(op, handle)));
        self.done.records += mapped.len() as u64;
        Ok(self.apply(keyspace, mapped, tiers)?)
    }

    /// Takes references to what has come by now: they are cloned together with others.
    fn refer(&mut self, references: &[BlockReference]) -> Result<(), ReceiveError> {
        let data = self.keyspaces[DATA as usize];
        for &reference in references {
            let BlockReference { source, source_first, count, .. } = reference;
            if self.pending.is_full() {
                self.clone_pending()?;
            }
            let is_source_pending = self.pending.brings(source);
            if is_source_pending && self.pending.add(reference) {
                continue;
            }
            if is_source_pending {
                self.clone_pending()?;
            }
            let (source_key, blocks) = (block_prefix(source), source_first..source_first + count);
            if self.txn.next_extent(data, &source_key, blocks, ExtentKind::Hole)?.is_some() {
                return Err(ReceiveError::NoSource(source));
            }
            self.pending.add(reference);
        }
        self.done.records += references.len() as u64;
        Ok(())
    }

    /// Has blocks twice, by one call: each makes a piece of its own.
    fn clone_pending(&mut self) -> Result<(), ReceiveError> {
        let data = self.keyspaces[DATA as usize];
        let mut clones = Vec::new();
        for BlockReference { inode, first, source, source_first, count } in self.pending.take() {
            clones.push(BlockClone {
                source: block_prefix(source).to_vec().into(),
                first: source_first,
                count,
                target: block_prefix(inode).to_vec().into(),
                target_first: first,
                compression: self.packing.wish_of(inode),
            });
        }
        if clones.is_empty() { Ok(()) } else { Ok(self.txn.clone_blocks(data, &clones)?) }
    }

    /// Rows of files tell how their blocks are to be packed and on which tier they are wished to lie, which
    /// is in no stream besides.
    fn apply(&mut self, part: u32, batch: Batch, tiers: &TierWishes) -> Result<()> {
        let (mut settled, mut wishes) = (Batch::new(), Batch::new());
        for op in batch.into_ops() {
            if part == META
                && let Some(header) = header_in(&op)
            {
                self.packing.note(&header)?;
                if header.kind == FileType::Regular {
                    tiers.stage(&mut wishes, header.inode, header.flags.tier())?;
                }
            }
            settled.push(self.packing.packed(op));
        }
        wishes.into_ops().into_iter().for_each(|op| settled.push(op));
        Ok(self.txn.apply(settled)?)
    }
}

/// The operation, in another keyspace.
pub(crate) fn with_keyspace(op: Op, keyspace: Keyspace) -> Op {
    match op {
        Op::Put { key, value, .. } => Op::Put { keyspace, key, value },
        Op::Delete { key, .. } => Op::Delete { keyspace, key },
        Op::DeleteRange { start, end, .. } => Op::DeleteRange { keyspace, start, end },
        Op::Merge { key, operand, .. } => Op::Merge { keyspace, key, operand },
        Op::PutBlocks { prefix, first, data, compression, .. } => {
            Op::PutBlocks { keyspace, prefix, first, data, compression }
        }
        Op::PatchBlock { prefix, block, offset, data, compression, .. } => {
            Op::PatchBlock { keyspace, prefix, block, offset, data, compression }
        }
    }
}
