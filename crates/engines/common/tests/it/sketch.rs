//! A database of maps that deletes keys alone, and fails when it is told to. What lies under a path stays
//! until the process ends.

use std::collections::{BTreeMap, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock, Mutex, PoisonError};

use bytes::Bytes;
use kvfs_engine_common::{Change, Changes, Database, DatabaseOptions, Entries, Reserve, Space};
use kvfs_store::{KeyRange, Keyspace, KeyspaceKind, Result, StoreError};

/// By number of the keyspace, of which 0 is none, and key.
type Map = BTreeMap<(u32, Bytes), Bytes>;

#[derive(Default)]
struct Content {
    map: Map,
    spaces: Vec<(String, KeyspaceKind)>,
    /// So many writes are left until one fails; `None`: none does.
    writes_left: Option<usize>,
    compactions: usize,
    /// A write that fails waits for it.
    failing: Arc<Mutex<()>>,
}

static BY_PATH: LazyLock<Mutex<HashMap<PathBuf, Sketch>>> = LazyLock::new(Mutex::default);

/// See the module.
#[derive(Clone, Default)]
pub(crate) struct Sketch {
    content: Arc<Mutex<Content>>,
}

impl Sketch {
    /// What lies under a path.
    pub(crate) fn at(path: &Path) -> Self {
        let mut by_path = BY_PATH.lock().unwrap_or_else(PoisonError::into_inner);
        by_path.entry(path.to_owned()).or_default().clone()
    }

    /// Has all writes behind so many fail; `None`: none.
    pub(crate) fn fail_behind(&self, writes: Option<usize>) {
        self.content().writes_left = writes;
    }

    /// What a write that fails waits for.
    pub(crate) fn failing(&self) -> Arc<Mutex<()>> {
        Arc::clone(&self.content().failing)
    }

    pub(crate) fn keys(&self) -> usize {
        self.content().map.len()
    }

    fn content(&self) -> std::sync::MutexGuard<'_, Content> {
        self.content.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Entries of a range, and where they stand.
pub(crate) struct Walk {
    entries: Vec<(Bytes, Bytes)>,
    /// One more than the index; 0 is before the first, `len + 1` behind the last.
    at: usize,
}

impl Entries for Walk {
    fn first(&mut self) {
        self.at = 1;
    }

    fn last(&mut self) {
        self.at = self.entries.len();
    }

    fn next(&mut self) {
        self.at += 1;
    }

    fn prev(&mut self) {
        self.at -= 1;
    }

    fn seek(&mut self, key: &[u8]) {
        self.at = self.entries.partition_point(|(known, _)| known < key) + 1;
    }

    fn seek_back(&mut self, key: &[u8]) {
        self.at = self.entries.partition_point(|(known, _)| known <= key);
    }

    fn entry(&self) -> Option<(&[u8], &[u8])> {
        let (key, value) = self.entries.get(self.at.checked_sub(1)?)?;
        Some((key, value))
    }

    fn check(&self) -> Result<()> {
        Ok(())
    }
}

impl Database for Sketch {
    const NAME: &'static str = "sketch";
    const TITLE: &'static str = "Sketch";
    const DELETES_RANGES: bool = false;
    const KEYS_DELETED_MAX: usize = 2;
    const COMPACTS_IN_PIECES: bool = true;

    type Handle = u32;
    type Snapshot = Map;
    type Entries = Walk;

    fn create(path: &Path, _options: &DatabaseOptions) -> Result<Self> {
        Ok(Self::at(path))
    }

    fn open(path: &Path, _options: DatabaseOptions) -> Result<Self> {
        Ok(Self::at(path))
    }

    fn reserve(_path: &Path, _options: &DatabaseOptions) -> Result<Reserve> {
        Ok(Reserve { bytes: 1 << 20, divisor: 8 })
    }

    fn spaces(&self) -> Result<Vec<(String, KeyspaceKind)>> {
        Ok(self.content().spaces.clone())
    }

    fn handle(keyspace: Keyspace, _name: &str, _kind: KeyspaceKind) -> u32 {
        keyspace.0 + 1
    }

    fn make_space(&self, space: &Space<u32>) -> Result<()> {
        self.content().spaces.push((space.name().to_owned(), space.kind()));
        Ok(())
    }

    fn meta(&self, key: &[u8]) -> Result<Option<Bytes>> {
        Ok(self.content().map.get(&(0, Bytes::copy_from_slice(key))).cloned())
    }

    fn get(self: &Arc<Self>, at: Option<&Arc<Map>>, space: &Space<u32>, key: &[u8]) -> Result<Option<Bytes>> {
        let key = (*space.handle(), Bytes::copy_from_slice(key));
        Ok(at.map_or_else(|| self.content().map.get(&key).cloned(), |at| at.get(&key).cloned()))
    }

    fn entries(
        self: &Arc<Self>,
        at: Option<&Arc<Map>>,
        space: &Space<u32>,
        range: &KeyRange,
    ) -> Result<Walk> {
        let of = |map: &Map| {
            let here = map.iter().filter(|((of, key), _)| of == space.handle() && range.contains(key));
            here.map(|((_, key), value)| (key.clone(), value.clone())).collect()
        };
        Ok(Walk { entries: at.map_or_else(|| of(&self.content().map), |at| of(at)), at: 0 })
    }

    fn snapshot(self: &Arc<Self>) -> Result<Map> {
        Ok(self.content().map.clone())
    }

    fn write(&self, changes: &Changes<u32>) -> Result<()> {
        let mut content = self.content();
        if let Some(left) = &mut content.writes_left {
            let Some(less) = left.checked_sub(1) else {
                let failing = Arc::clone(&content.failing);
                drop(content);
                drop(failing.lock().unwrap_or_else(PoisonError::into_inner));
                return Err(StoreError::io("writing", std::io::Error::other("it is told to fail")));
            };
            *left = less;
        }
        for change in &changes.changes {
            match change {
                Change::Put { space, key, value } => {
                    content.map.insert((*space.handle(), key.clone()), value.clone());
                }
                Change::Delete { space, key } => drop(content.map.remove(&(*space.handle(), key.clone()))),
                Change::DeleteRange { .. } => unreachable!("it deletes no ranges"),
            }
        }
        for (key, value) in &changes.meta {
            let key = (0, Bytes::from_static(key));
            match value {
                Some(value) => drop(content.map.insert(key, value.clone())),
                None => drop(content.map.remove(&key)),
            }
        }
        Ok(())
    }

    fn sync(&self) -> Result<()> {
        Ok(())
    }

    fn compact(&self, _space: &Space<u32>, _range: &KeyRange) -> Result<()> {
        self.content().compactions += 1;
        Ok(())
    }

    fn close(&self, _spaces: &[Arc<Space<u32>>]) -> Result<()> {
        Ok(())
    }

    fn set_memory_bytes(&self, _bytes: u64) {}

    fn used_bytes(&self, _spaces: &[Arc<Space<u32>>]) -> u64 {
        0
    }

    fn stats(&self, _spaces: &[Arc<Space<u32>>]) -> Vec<(String, u64)> {
        vec![("compactions".to_owned(), self.content().compactions as u64)]
    }
}
