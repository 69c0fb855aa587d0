//! Engines on databases of keys and values: what is noted and done again are the database's own operations,
//! behind the resolving of batches.
//!
//! Thread safety: shared by all threads. Without the feature `engines` there is none.
#![cfg(feature = "engines")]

use super::bare::Move;
use super::notes::Notes;
use super::subject::{Fresh, MEMORY_BYTES, Runs, each, make_files, use_library};
use super::{REPEATS, Scene};
use anyhow::Result;
use bytes::Bytes;
use kvfs_bench::host;
use kvfs_engine_common::{
    Change, Changes, Database, DatabaseOptions, DatabaseStore, Entries, Reserve, Space,
};
use kvfs_store::{EngineStore, KeyRange, Keyspace, KeyspaceKind, Result as StoreResult, Store};
use std::path::Path;
use std::sync::Arc;

/// An operation of a database.
enum Operation<H> {
    Get(Keyspace, Bytes),
    MultiGet(Keyspace, Vec<Bytes>),
    Walk(Keyspace, KeyRange, Vec<Move>),
    Snapshot,
    Write(Changes<H>),
    Sync,
}

fn bytes(of: &[u8]) -> Bytes {
    Bytes::copy_from_slice(of)
}

/// As they are.
fn copy<H>(changes: &Changes<H>) -> Changes<H> {
    let one = |change: &Change<H>| match change {
        Change::Put { space, key, value } => {
            Change::Put { space: Arc::clone(space), key: key.clone(), value: value.clone() }
        }
        Change::Delete { space, key } => Change::Delete { space: Arc::clone(space), key: key.clone() },
        Change::DeleteRange { space, range } => {
            Change::DeleteRange { space: Arc::clone(space), range: range.clone() }
        }
    };
    Changes { changes: changes.changes.iter().map(one).collect(), meta: changes.meta.clone() }
}

/// A database that notes what it is asked for.
struct Noted<D: Database> {
    inner: Arc<D>,
    notes: Notes<Operation<D::Handle>>,
}

/// Entries that note how they are moved; the note is there when they go.
struct NotedEntries<D: Database> {
    inner: D::Entries,
    keyspace: Keyspace,
    range: KeyRange,
    moves: Vec<Move>,
    notes: Notes<Operation<D::Handle>>,
}

impl<D: Database> Drop for NotedEntries<D> {
    fn drop(&mut self) {
        let moves = std::mem::take(&mut self.moves);
        self.notes.note(|| Operation::Walk(self.keyspace, self.range.clone(), moves));
    }
}

impl<D: Database> Entries for NotedEntries<D> {
    fn first(&mut self) {
        self.moves.push(Move::First);
        self.inner.first();
    }

    fn last(&mut self) {
        self.moves.push(Move::Last);
        self.inner.last();
    }

    fn next(&mut self) {
        self.moves.push(Move::Next);
        self.inner.next();
    }

    fn prev(&mut self) {
        self.moves.push(Move::Prev);
        self.inner.prev();
    }

    fn seek(&mut self, key: &[u8]) {
        self.moves.push(Move::Seek(bytes(key)));
        self.inner.seek(key);
    }

    fn seek_back(&mut self, key: &[u8]) {
        self.moves.push(Move::SeekBack(bytes(key)));
        self.inner.seek_back(key);
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        self.inner.entry()
    }

    fn check(&self) -> StoreResult<()> {
        self.inner.check()
    }
}

impl<D: Database> Noted<D> {
    fn over(inner: D) -> Self {
        Self { inner: Arc::new(inner), notes: Notes::default() }
    }
}

impl<D: Database> Database for Noted<D> {
    const NAME: &'static str = D::NAME;
    const TITLE: &'static str = D::TITLE;
    const DELETES_RANGES: bool = D::DELETES_RANGES;
    const KEYS_DELETED_MAX: usize = D::KEYS_DELETED_MAX;
    const COMPACTS_IN_PIECES: bool = D::COMPACTS_IN_PIECES;

    type Handle = D::Handle;
    type Snapshot = Arc<D::Snapshot>;
    type Entries = NotedEntries<D>;

    fn create(path: &Path, options: &DatabaseOptions) -> StoreResult<Self> {
        Ok(Self::over(D::create(path, options)?))
    }

    fn open(path: &Path, options: DatabaseOptions) -> StoreResult<Self> {
        Ok(Self::over(D::open(path, options)?))
    }

    fn reserve(path: &Path, options: &DatabaseOptions) -> StoreResult<Reserve> {
        D::reserve(path, options)
    }

    fn spaces(&self) -> StoreResult<Vec<(String, KeyspaceKind)>> {
        self.inner.spaces()
    }

    fn handle(keyspace: Keyspace, name: &str, kind: KeyspaceKind) -> D::Handle {
        D::handle(keyspace, name, kind)
    }

    fn make_space(&self, space: &Space<D::Handle>) -> StoreResult<()> {
        self.inner.make_space(space)
    }

    fn meta(&self, key: &[u8]) -> StoreResult<Option<Bytes>> {
        self.inner.meta(key)
    }

    fn get(
        self: &Arc<Self>,
        at: Option<&Arc<Arc<D::Snapshot>>>,
        space: &Space<D::Handle>,
        key: &[u8],
    ) -> StoreResult<Option<Bytes>> {
        self.notes.note(|| Operation::Get(space.keyspace(), bytes(key)));
        self.inner.get(at.map(|at| &**at), space, key)
    }

    fn multi_get(
        self: &Arc<Self>,
        at: Option<&Arc<Arc<D::Snapshot>>>,
        space: &Space<D::Handle>,
        keys: &[&[u8]],
    ) -> StoreResult<Vec<Option<Bytes>>> {
        let keys_noted = || keys.iter().map(|key| bytes(key)).collect();
        self.notes.note(|| Operation::MultiGet(space.keyspace(), keys_noted()));
        self.inner.multi_get(at.map(|at| &**at), space, keys)
    }

    fn entries(
        self: &Arc<Self>,
        at: Option<&Arc<Arc<D::Snapshot>>>,
        space: &Space<D::Handle>,
        range: &KeyRange,
    ) -> StoreResult<NotedEntries<D>> {
        let inner = self.inner.entries(at.map(|at| &**at), space, range)?;
        let (keyspace, range, notes) = (space.keyspace(), range.clone(), self.notes.clone());
        Ok(NotedEntries { inner, keyspace, range, moves: Vec::new(), notes })
    }

    fn snapshot(self: &Arc<Self>) -> StoreResult<Arc<D::Snapshot>> {
        self.notes.note(|| Operation::Snapshot);
        Ok(Arc::new(self.inner.snapshot()?))
    }

    fn write(&self, changes: &Changes<D::Handle>) -> StoreResult<()> {
        self.notes.note(|| Operation::Write(copy(changes)));
        self.inner.write(changes)
    }

    fn sync(&self) -> StoreResult<()> {
        self.notes.note(|| Operation::Sync);
        self.inner.sync()
    }

    fn compact(&self, space: &Space<D::Handle>, range: &KeyRange) {
        self.inner.compact(space, range);
    }

    fn close(&self, spaces: &[Arc<Space<D::Handle>>]) -> StoreResult<()> {
        self.inner.close(spaces)
    }

    fn set_memory_bytes(&self, bytes: u64) {
        self.inner.set_memory_bytes(bytes);
    }

    fn used_bytes(&self, spaces: &[Arc<Space<D::Handle>>]) -> u64 {
        self.inner.used_bytes(spaces)
    }

    fn stats(&self, spaces: &[Arc<Space<D::Handle>>]) -> Vec<(String, u64)> {
        self.inner.stats(spaces)
    }
}

/// A new store.
fn open<D: Database>(dir: &Path) -> Result<Arc<DatabaseStore<D>>> {
    DatabaseStore::<D>::create(dir, &DatabaseOptions::with_memory(MEMORY_BYTES), [7; 16])?;
    Ok(Arc::new(DatabaseStore::<D>::open(dir, DatabaseOptions::with_memory(MEMORY_BYTES))?))
}

/// As the library and what makes files want it.
fn seam<D: Database>(store: &Arc<DatabaseStore<D>>) -> Arc<dyn Store> {
    Arc::clone(store) as _
}

/// Measures the library on it, and the bare database.
pub(crate) fn measure<D: Database>(dir: &Path, scene: &Scene) -> Result<Runs> {
    let mut traces = Vec::new();
    {
        let fresh = Fresh::new(dir)?;
        let store = open::<Noted<D>>(fresh.path())?;
        let notes = store.database().notes.clone();
        use_library(&seam(&store), scene, || drop(notes.take()), || traces.push(notes.take()))?;
        store.close()?;
    }
    let mut runs = Runs::default();
    for _ in 0..REPEATS {
        host::touch_free_memory()?;
        {
            let fresh = Fresh::new(dir)?;
            let store = open::<D>(fresh.path())?;
            runs.library.push(use_library(&seam(&store), scene, || (), || ())?);
            store.close()?;
        }
        let fresh = Fresh::new(dir)?;
        let store = open::<D>(fresh.path())?;
        make_files(&seam(&store))?;
        runs.bare.push(each(&traces, |trace| replay(store.database(), trace))?);
        store.close()?;
    }
    Ok(runs)
}

/// Does all of them on the database itself.
fn replay<D: Database>(database: &Arc<D>, operations: &[Operation<D::Handle>]) -> Result<()> {
    let space = |(number, (name, kind)): (u32, (String, KeyspaceKind))| {
        let keyspace = Keyspace(number);
        Space::new(keyspace, &name, kind, D::handle(keyspace, &name, kind))
    };
    let spaces: Vec<_> = (0..).zip(database.spaces()?).map(space).collect();
    let space = |keyspace: &Keyspace| &spaces[keyspace.0 as usize];
    for operation in operations {
        match operation {
            Operation::Get(keyspace, key) => drop(database.get(None, space(keyspace), key)?),
            Operation::MultiGet(keyspace, keys) => {
                let keys: Vec<&[u8]> = keys.iter().map(|key| &key[..]).collect();
                database.multi_get(None, space(keyspace), &keys)?;
            }
            Operation::Walk(keyspace, range, moves) => {
                let mut entries = database.entries(None, space(keyspace), range)?;
                for go in moves {
                    match go {
                        Move::First => entries.first(),
                        Move::Last => entries.last(),
                        Move::Next => entries.next(),
                        Move::Prev => entries.prev(),
                        Move::Seek(key) => entries.seek(key),
                        Move::SeekBack(key) => entries.seek_back(key),
                    }
                    // It is read, as it was.
                    std::hint::black_box(entries.entry().map(|(key, value)| (key.len(), bytes(value))));
                }
            }
            Operation::Snapshot => drop(database.snapshot()?),
            Operation::Write(changes) => database.write(changes)?,
            Operation::Sync => database.sync()?,
        }
    }
    Ok(())
}
