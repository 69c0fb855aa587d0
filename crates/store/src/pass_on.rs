//! For stores that stand before another one, as those of tests do.

/// Inside of an `impl` of [`Read`](crate::Read) or [`Store`](crate::Store): the calls that only go on to a
/// field, or to what a method returns.
///
/// ```ignore
/// impl Read for Recorder {
///     kvfs_store::pass_on!(inner: get, multi_get, cursor, read_blocks, next_extent);
/// }
/// impl Read for Pin {
///     kvfs_store::pass_on!(view(): get, multi_get, cursor, read_blocks, next_extent);
/// }
/// ```
#[doc(hidden)]
#[macro_export]
macro_rules! pass_on {
    ($inner:ident: $($call:ident),+) => { $($crate::pass_on!(@ [$inner] $call);)+ };
    ($inner:ident(): $($call:ident),+) => { $($crate::pass_on!(@ [$inner()] $call);)+ };
    (@ [$($inner:tt)+] get) => {
        fn get(&self, keyspace: $crate::Keyspace, key: &[u8]) -> $crate::Result<Option<bytes::Bytes>> {
            self.$($inner)+.get(keyspace, key)
        }
    };
    (@ [$($inner:tt)+] multi_get) => {
        fn multi_get(
            &self,
            keyspace: $crate::Keyspace,
            keys: &[&[u8]],
        ) -> $crate::Result<Vec<Option<bytes::Bytes>>> {
            self.$($inner)+.multi_get(keyspace, keys)
        }
    };
    (@ [$($inner:tt)+] cursor) => {
        fn cursor(
            &self,
            keyspace: $crate::Keyspace,
            range: $crate::KeyRange,
        ) -> $crate::Result<Box<dyn $crate::Cursor>> {
            self.$($inner)+.cursor(keyspace, range)
        }
    };
    (@ [$($inner:tt)+] read_blocks) => {
        fn read_blocks(
            &self,
            keyspace: $crate::Keyspace,
            prefix: &[u8],
            first: u64,
            buf: &mut [u8],
        ) -> $crate::Result<()> {
            self.$($inner)+.read_blocks(keyspace, prefix, first, buf)
        }
    };
    (@ [$($inner:tt)+] next_extent) => {
        fn next_extent(
            &self,
            keyspace: $crate::Keyspace,
            prefix: &[u8],
            blocks: std::ops::Range<u64>,
            kind: $crate::ExtentKind,
        ) -> $crate::Result<Option<$crate::Extent>> {
            self.$($inner)+.next_extent(keyspace, prefix, blocks, kind)
        }
    };
    (@ [$($inner:tt)+] open_keyspace) => {
        fn open_keyspace(
            &self,
            name: &str,
            kind: $crate::KeyspaceKind,
            merge: Option<std::sync::Arc<dyn $crate::MergeFunction>>,
        ) -> $crate::Result<$crate::Keyspace> {
            self.$($inner)+.open_keyspace(name, kind, merge)
        }
    };
    (@ [$($inner:tt)+] keyspaces) => {
        fn keyspaces(&self) -> Vec<$crate::KeyspaceInfo> {
            self.$($inner)+.keyspaces()
        }
    };
    (@ [$($inner:tt)+] snapshot) => {
        fn snapshot(&self) -> $crate::Result<std::sync::Arc<dyn $crate::Snapshot>> {
            self.$($inner)+.snapshot()
        }
    };
    (@ [$($inner:tt)+] sync) => {
        fn sync(&self, position: $crate::Position) -> $crate::Result<()> {
            self.$($inner)+.sync(position)
        }
    };
    (@ [$($inner:tt)+] position) => {
        fn position(&self) -> $crate::Position {
            self.$($inner)+.position()
        }
    };
    (@ [$($inner:tt)+] capabilities) => {
        fn capabilities(&self) -> $crate::Capabilities {
            self.$($inner)+.capabilities()
        }
    };
    (@ [$($inner:tt)+] space) => {
        fn space(&self) -> $crate::SpaceStats {
            self.$($inner)+.space()
        }
    };
    (@ [$($inner:tt)+] stats) => {
        fn stats(&self) -> Vec<(String, u64)> {
            self.$($inner)+.stats()
        }
    };
    (@ [$($inner:tt)+] apply) => {
        fn apply(
            &self,
            batch: $crate::Batch,
            durability: $crate::Durability,
        ) -> $crate::Result<$crate::Position> {
            self.$($inner)+.apply(batch, durability)
        }
    };
    (@ [$($inner:tt)+] uuid) => {
        fn uuid(&self) -> [u8; 16] {
            self.$($inner)+.uuid()
        }
    };
    (@ [$($inner:tt)+] engine_name) => {
        fn engine_name(&self) -> &'static str {
            self.$($inner)+.engine_name()
        }
    };
    (@ [$($inner:tt)+] place) => {
        fn place(&self) -> Option<&dyn $crate::Place> {
            self.$($inner)+.place()
        }
    };
    (@ [$($inner:tt)+] follow) => {
        fn follow(&self) -> Option<&dyn $crate::Follow> {
            self.$($inner)+.follow()
        }
    };
    (@ [$($inner:tt)+] compress) => {
        fn compress(&self) -> Option<&dyn $crate::Compress> {
            self.$($inner)+.compress()
        }
    };
    (@ [$($inner:tt)+] snapshots) => {
        fn snapshots(&self) -> Option<&dyn $crate::NamedSnapshots> {
            self.$($inner)+.snapshots()
        }
    };
    (@ [$($inner:tt)+] changes) => {
        fn changes(&self) -> Option<&dyn $crate::TrackChanges> {
            self.$($inner)+.changes()
        }
    };
    (@ [$($inner:tt)+] transactions) => {
        fn transactions(&self) -> Option<&dyn $crate::Transactions> {
            self.$($inner)+.transactions()
        }
    };
    (@ [$($inner:tt)+] checkpoints) => {
        fn checkpoints(&self) -> Option<&dyn $crate::Checkpoints> {
            self.$($inner)+.checkpoints()
        }
    };
    (@ [$($inner:tt)+] undo) => {
        fn undo(&self) -> Option<&dyn $crate::UndoHistory> {
            self.$($inner)+.undo()
        }
    };
}
