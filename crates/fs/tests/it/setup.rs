//! A file system on a model store with a clock that stands still.

use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{
    BranchInfo, Caller, DirEntry, Entry, FileSystem, Fill, FsError, MkfsOptions, MountOptions, NodeId,
    Result, WriteFlags, check,
};
use kvfs_store::Store;
use kvfs_store::clock::ManualClock;
use kvfs_store::model::ModelStore;

pub(crate) struct Setup {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) fs: Arc<FileSystem>,
    pub(crate) caller: Caller,
    pub(crate) options: MountOptions,
    /// Closes the store and opens it again.
    pub(crate) reopen_store: Option<Box<dyn FnMut() -> Arc<dyn Store>>>,
}

impl Deref for Setup {
    type Target = FileSystem;

    fn deref(&self) -> &FileSystem {
        &self.fs
    }
}

/// Everything that a listing shows, with entries.
pub(crate) struct Listed {
    pub(crate) name: Vec<u8>,
    pub(crate) offset: u64,
    pub(crate) inode: u64,
    pub(crate) kind: kvfs_fs::FileType,
    pub(crate) entry: Option<Entry>,
}

impl Setup {
    pub(crate) fn new(inline_len_max: u32) -> Self {
        Self::with(Arc::new(ModelStore::new()), inline_len_max, MountOptions::default())
    }

    pub(crate) fn with(store: Arc<dyn Store>, inline_len_max: u32, options: MountOptions) -> Self {
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1_000_000_000)));
        let mkfs = MkfsOptions { inline_len_max, ..MkfsOptions::default() };
        FileSystem::mkfs(&store, &*clock, &mkfs).unwrap();
        let fs = Arc::new(FileSystem::open(Arc::clone(&store), clock.clone(), options).unwrap());
        let caller = Caller { uid: 1000, gid: 100, ..Caller::default() };
        Self { store, clock, fs, caller, options, reopen_store: None }
    }

    /// The same store through `fs`, another view or mount of it.
    pub(crate) fn through(&self, fs: Arc<FileSystem>, options: MountOptions) -> Self {
        let (store, clock, caller) = (Arc::clone(&self.store), Arc::clone(&self.clock), self.caller.clone());
        Self { store, clock, fs, caller, options, reopen_store: None }
    }

    /// Forgets everything and opens again.
    pub(crate) fn reopen(&mut self) {
        if let Some(reopen_store) = &mut self.reopen_store {
            self.store = reopen_store();
        }
        self.fs =
            Arc::new(FileSystem::open(Arc::clone(&self.store), self.clock.clone(), self.options).unwrap());
    }

    pub(crate) fn branch(&self, name: &str) -> BranchInfo {
        self.branches().get(name).unwrap()
    }

    pub(crate) fn assert_sound(&self, context: &str) {
        let report = check::check(&self.store).unwrap();
        assert!(report.problems.is_empty(), "{context}: {:#?}", report.problems);
    }

    pub(crate) fn file(&self, parent: NodeId, name: &str) -> NodeId {
        self.create(&self.caller, parent, name.as_bytes(), 0o644, true).unwrap().0.node
    }

    pub(crate) fn dir(&self, parent: NodeId, name: &str) -> NodeId {
        self.mkdir(&self.caller, parent, name.as_bytes(), 0o755).unwrap().node
    }

    pub(crate) fn write_at(&self, node: NodeId, offset: u64, data: &[u8]) -> Result<u64> {
        let data = Bytes::copy_from_slice(data);
        self.write(&self.caller, node, offset, data, WriteFlags::default()).map(|written| written.bytes)
    }

    pub(crate) fn read_all(&self, node: NodeId) -> Vec<u8> {
        let size = self.getattr(&self.caller, node).unwrap().size as usize;
        let mut buffer = vec![0xee; size + 10];
        let length = self.read(&self.caller, node, 0, &mut buffer).unwrap();
        assert_eq!(length, size);
        buffer.truncate(length);
        buffer
    }

    /// Lists in replies of at most `reply_len` entries; lookups are given back.
    pub(crate) fn list(&self, node: NodeId, reply_len: usize, plus: bool) -> Vec<Listed> {
        let mut all = Vec::new();
        let mut offset = 0;
        loop {
            let reply = self.list_once(node, offset, reply_len, plus).unwrap();
            let Some(last) = reply.last() else { return all };
            offset = last.offset;
            all.extend(reply);
        }
    }

    pub(crate) fn list_once(
        &self,
        node: NodeId,
        offset: u64,
        reply_len: usize,
        plus: bool,
    ) -> Result<Vec<Listed>> {
        let mut reply = Vec::new();
        let mut sink = |entry: &DirEntry<'_>| {
            if reply.len() == reply_len {
                return Fill::Full;
            }
            reply.push(Listed {
                name: entry.name.to_vec(),
                offset: entry.offset,
                inode: entry.inode,
                kind: entry.kind,
                entry: entry.entry,
            });
            Fill::Taken
        };
        if plus {
            self.readdirplus(&self.caller, node, offset, &mut sink)?;
        } else {
            self.readdir(&self.caller, node, offset, &mut sink)?;
        }
        for entry in reply.iter().filter_map(|listed| listed.entry) {
            self.forget(entry.node, 1);
        }
        Ok(reply)
    }
}

/// Calls until it isn't parked: what a caller that may block does.
pub(crate) fn patiently<T>(caller: &Caller, mut call: impl FnMut(&Caller) -> Result<T>) -> Result<T> {
    let mut caller = caller.clone();
    loop {
        match call(&caller) {
            Err(FsError::Parked(ticket)) => {
                ticket.wait();
                caller.ticket = Some(ticket);
            }
            other => return other,
        }
    }
}

/// xorshift64*: replays from its seed on every machine.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        for _ in 0..4 {
            random.next();
        }
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub(crate) fn one_in(&mut self, bound: u64) -> bool {
        self.below(bound) == 0
    }
}
