//! The order of all locks.
//!
//! Purpose: one page that says which lock may be taken under which. A thread that holds a lock takes only
//! locks of classes further down. `nests` marks a class of which a thread may hold several. Locks that are
//! held across calls stand in the order of the crates' layers, since calls go down; leaves, under which no
//! other is taken, stand behind all of them, so that an observer in an upper crate may take its own while the
//! caller holds some.
//!
//! Thread safety: constants.

/// A class of locks, by its place in the order.
pub trait Class {
    /// A later lock has a larger one.
    const RANK: u16;
    /// Whether a thread may hold several locks of this class.
    const NESTS: bool;
}

/// Counts the classes up, in the order in which they are written.
macro_rules! classes {
    ($($class:ident $name:literal $($nests:ident)?,)*) => {
        /// The places in the order.
        #[repr(u16)]
        enum Place {
            $($class,)*
        }

        $(
            #[doc = concat!("`", $name, "`")]
            #[derive(Debug)]
            pub enum $class {}

            impl Class for $class {
                const RANK: u16 = Place::$class as u16;
                const NESTS: bool = classes!(@nests $($nests)?);
            }
        )*

        /// The names of the classes, in their order.
        pub const NAMES: &[&str] = &[$($name,)*];
    };
    (@nests nests) => { true };
    (@nests) => { false };
}

/// What a class is called.
#[must_use]
pub fn name(rank: u16) -> &'static str {
    NAMES.get(usize::from(rank)).copied().unwrap_or("unknown")
}

classes! {
    // Of front ends.
    CliDaemonFilesViews "cli/daemon/files.views",
    RpcServerBody "rpc/server/body",
    ServeBegunOpen "serve/begun.open",
    ServeImagesPages "serve/images.pages",
    ServeImagesKnown "serve/images.known",
    ServeLanesAll "serve/lanes.all",
    ServePlaceholdersEnding "serve/placeholders.ending",
    ServePlaceholdersStop "serve/placeholders.stop",
    ServeServerOpen "serve/server.open",
    ServeSessionTable "serve/session.table",
    ServePlaceholdersTable "serve/placeholders.table",
    ServeSessionLanes "serve/session.lanes",
    PosixDescriptorsSlots "posix/descriptors.slots",
    PosixLocksTables "posix/locks.tables",
    PosixOpenFileOffset "posix/open_file.offset",
    PosixProcessCwd "posix/process.cwd",
    PosixVolumeOrders "posix/volume.orders",
    PosixVolumeThread "posix/volume.thread",

    // Held while others are taken: by crate, from above to below.
    ServiceServiceStore "service/service.store",
    ServiceDefragRunning "service/defrag.running",
    ServiceBranchesMountedState "service/branches/mounted.state",
    ServiceOperationsTraceList "service/operations/trace.list",
    ServiceServiceChecks "service/service.checks",
    ServiceComparisonsKept "service/comparisons.kept",
    ServiceSnapshotsSendKept "service/snapshots/send.kept",
    ServiceTransactionsMountLock "service/transactions.mount_lock",
    ServiceTransactionsState "service/transactions.state",
    FuseBridgeHiddenNodes "fuse/bridge/hidden/nodes",
    FuseBridgeCommits "fuse/bridge.commits",
    FuseBridgeCommitNodes "fuse/bridge/commit.nodes",
    FuseSessionSteeringVotes "fuse/session/steering.votes",
    FsViewTxnLongOperations "fs/view/txn.long_operations",
    FsViewFollowShown "fs/view/follow.shown",
    FsDetachedState "fs/detached.state",
    FsDetachedMoves "fs/detached.moves",
    FsSnapshotsChanging "fs/snapshots.changing",
    FsViewOriginNamingBranches "fs/view/origin.naming_branches",
    FsQuotaCounted "fs/quota.counted",
    FsNodeSettlingBringingIn "fs/node/settling.bringing_in",
    FsNodeSettlingAppearing "fs/node/settling.appearing",
    FsViewCommitPhase "fs/view/commit.phase",
    FsNodeStateInodeGroup "fs/node/state.inode_group",
    FsNodeTablePublishing "fs/node/table.publishing",
    FsNodeNamesChanges "fs/node/names.changes",
    FsQuotaSetting "fs/quota.setting",
    FsQuotaLacking "fs/quota.lacking",
    FsNodeTableShard "fs/node/table.shard",
    FsNodeStateState "fs/node/state.state",
    FsQuotaTableAll "fs/quota/table.all",
    FsSuperblockState "fs/superblock.state",
    FsViewTxnWritten "fs/view/txn.written",
    KvTableMaking "kv/table.making",
    TxnLatchShard "txn/latch.shard",
    TxnLockTableWaits "txn/lock/table.waits",
    TxnLockTableShard "txn/lock/table.shard",
    TxnLockTableOwners "txn/lock/table.owners",
    OpenDevicesChanging "open/devices.changing",
    OpenDevicesOthers "open/devices.others",
    KvdbDevicesDrainsMoving "kvdb/devices/drains.moving",
    KvdbDevicesOthers "kvdb/devices.others",
    KvdbHistoryNaming "kvdb/history.naming",
    KvdbLiveCatalogMakingKeyspace "kvdb/live/catalog.making_keyspace",
    KvdbTxnMerges "kvdb/txn/merges.state",
    KvdbMergeDeletedCounted "kvdb/merge/deleted.counted",
    KvdbMergeMigrateLooks "kvdb/merge/migrate.looks",
    KvdbMergeTending "kvdb/merge.tending",
    KvdbTxnSpilling "kvdb/txn.spilling",
    KvdbCommitsCheckpointsHeld "kvdb/commits/checkpoints.held",
    KvdbTxnLive "kvdb/txn.live",
    KvdbCommitsTransactionsIds "kvdb/commits/transactions.ids",
    KvdbCommitsUndoFlushing "kvdb/commits/undo.flushing",
    KvdbCommitsUndoState "kvdb/commits/undo.state",
    KvdbHistoryNamedByName "kvdb/history/named.by_name",
    KvdbMergeRegistryState "kvdb/merge/registry.state",
    KvdbTableWindowsEmpty "kvdb/table/windows.empty",
    KvdbMemtableGrowingRebuilding "kvdb/memtable/growing.rebuilding",
    KvdbCachePagesLast "kvdb/cache/pages.last" nests,
    KvdbCommitsTransactionsKnown "kvdb/commits/transactions.known",
    KvdbMemtableTableTables "kvdb/memtable/table.tables",
    EngineTransactionsLive "engines/transactions/txn.live",
    EngineTransactionsOutcomes "engines/transactions/shared.outcomes",
    EngineTransactionsGate "engines/transactions/shared.gate",
    EngineSyncer "engines/common/store.syncer",
    EngineReclaimer "engines/common/store.reclaimer",
    EngineSyncing "engines/common/shared.syncing",
    EngineOrder "engines/common/shared.order",
    EngineSpaces "engines/common/shared.spaces",
    EngineHeld "engines/common/shared.held",
    EngineSlatedbThreads "engines/slatedb/store.threads",
    EngineSlatedbFollowerSearch "engines/slatedb/follower.search",
    EngineSlatedbOpening "engines/slatedb/named.opening",
    EngineSlatedbSpaces "engines/slatedb/shared.spaces",
    EngineSlatedbOrder "engines/slatedb/shared.order",
    EngineSlatedbReaping "engines/slatedb/shared.reaping",
    EngineSlatedbNamedState "engines/slatedb/named.state",
    EngineSlatedbSegmentsPending "engines/slatedb/segments.pending",
    EngineTransactionsState "engines/transactions/shared.state",
    EngineTransactionsSpaces "engines/transactions/shared.spaces",
    KvdbOrder "kvdb/order",
    KvdbJournalLogAllocating "kvdb/journal/log.allocating",
    KvdbLiveLedger "kvdb/live.ledger",
    KvdbPressureUpdate "kvdb/pressure.update",
    KvdbLiveView "kvdb/live.view",
    KvdbTableWindowsSlots "kvdb/table/windows.slots",
    KvdbVersionManifestInner "kvdb/version/manifest.inner",
    KvdbSpaceGrowth "kvdb/space.growth",
    KvdbCompactionCopies "kvdb/compaction.copies",
    KvdbSpaceTable "kvdb/space.table",
    KvdbHistoryDeletedPositions "kvdb/history.deleted_positions",

    // Leaves: no other lock is taken under one, so each may be taken under any above.
    CliDaemonUnmountedIsAsked "cli/daemon/unmounted.is_asked",
    CliDaemonViews "cli/daemon/views",
    ControlPeerOutgoing "control/peer.outgoing",
    ControlServerEnding "control/server.ending",
    RpcServerScanEnding "rpc/server/scan.ending",
    RpcServerSyncerState "rpc/server/syncer.state",
    RpcServerUnreadState "rpc/server/unread.state",
    RpcServerUsersByUid "rpc/server/users.by_uid",
    ServeImagesEnds "serve/images.ends",
    ServeImagesStale "serve/images.stale",
    ServiceFollowOver "service/follow.over",
    ServiceOperationsSlowState "service/operations/slow.state",
    ServiceOperationsTraceRing "service/operations/trace.ring",
    ServiceTransactionsLimitsTaken "service/transactions/limits.taken",
    ServiceTransactionsEnding "service/transactions.ending",
    FuseBridgeBackgroundTenants "fuse/bridge/background.tenants",
    FuseBridgeBackgroundThreads "fuse/bridge/background.threads",
    FuseBridgeBlockingPoolState "fuse/bridge/blocking_pool.state",
    FuseBridgeCommitState "fuse/bridge/commit.state",
    FuseBridgeControl "fuse/bridge/control",
    FuseBridgeHiddenViews "fuse/bridge/hidden/views",
    FuseBridgeLostWrite "fuse/bridge.lost_write",
    FuseBridgeViewCalls "fuse/bridge/view_calls",
    FuseBridgeReadBuffersFree "fuse/bridge/read_buffers.free",
    FuseDispatchParkState "fuse/dispatch/park.state",
    FuseMountAttached "fuse/mount.attached",
    FuseSessionFailure "fuse/session.failure",
    FuseSessionEnded "fuse/session.ended",
    FuseSessionSteeringIsWatched "fuse/session/steering.is_watched",
    FuseTransportBufferFree "fuse/transport/buffer.free",
    FuseTransportRing "fuse/transport/ring",
    FuseTransportRingEntries "fuse/transport/ring.entries",
    FuseTransportRingExchange "fuse/transport/ring/exchange",
    FuseBridgeBackgroundState "fuse/bridge/background.state",
    FuseBridgeWritersState "fuse/bridge/writers.state",
    FuseNotifyQueue "fuse/notify.queue",
    FuseNotifyPending "fuse/notify.pending",
    FuseBridgeOldContent "fuse/bridge/old_content.state",
    SocketSharesTaken "socket/shares.taken",
    FsAttrAtimePending "fs/attr/atime.pending",
    FsFileAccesses "fs/file/accesses",
    FsFileChangedContent "fs/file/watches.changed_content",
    FsFileWatches "fs/file/watches",
    FsScanState "fs/scan.state",
    FsDirHabits "fs/dir/habits",
    FsSnapshotsPrivate "fs/snapshots.private",
    FsNodeNamesKept "fs/node/names.kept",
    FsNodeSettlingBehind "fs/node/settling.behind",
    FsViewAuthors "fs/view/authors",
    FsViewCreated "fs/view/created",
    FsViewUntoldState "fs/view/untold.state",
    FsViewUntoldChanged "fs/view/untold.changed",
    FsNodeStateCookies "fs/node/state.cookies",
    FsNodeDeadAll "fs/node/dead.all",
    FsNodeTableRenewed "fs/node/table.renewed",
    FsQuotaTablePending "fs/quota/table.pending",
    FsViewIdleViews "fs/view/idle.views",
    FsViewProcessesNames "fs/view/processes.names",
    FsWaitsWaiting "fs/waits.waiting",
    KvTableKnown "kv/table.known",
    TxnLockKept "txn/lock/kept.by_operation",
    TxnLockOwnerInner "txn/lock/owner.inner",
    TxnLockTableUsers "txn/lock/table.users",
    TxnTicketInner "txn/ticket.inner",
    KvdbDevicesDrainsKnown "kvdb/devices/drains.known",
    KvdbMergeGivingWayStep "kvdb/merge/giving_way.step",
    KvdbMergeLimitedLine "kvdb/merge/limited.line",
    KvdbMergeMigrateTrouble "kvdb/merge/migrate.trouble",
    KvdbCacheRecorder "kvdb/cache.recorder",
    KvdbLayersAdoptedCheckpoint "kvdb/layers/adopted.checkpoint",
    KvdbPressurePaceLine "kvdb/pressure/pace.line",
    KvdbRuntimeCountersFlushRecent "kvdb/runtime/counters.flush_recent",
    KvdbTableWindowsSpare "kvdb/table/windows.spare",
    EngineRocksdbCache "engines/rocksdb/database.cache",
    EngineLeveldbCompacting "engines/leveldb/database.compacting",
    EngineLeveldbLogs "engines/leveldb/logs.newest",
    EngineSpaceMerge "engines/common/space.merge",
    EngineSyncerWish "engines/common/syncer.wish",
    EngineSlatedbAhead "engines/slatedb/ahead.streams",
    EngineSlatedbBacklog "engines/slatedb/backlog.written",
    EngineSlatedbCacheShard "engines/slatedb/cache.shard",
    EngineSlatedbDeadRanges "engines/slatedb/shared.dead",
    EngineSlatedbFollowerCurrent "engines/slatedb/follower.current",
    EngineSlatedbHolderOver "engines/slatedb/holder.over",
    EngineSlatedbJournal "engines/slatedb/journal.state",
    EngineSlatedbOutage "engines/slatedb/health.outages",
    EngineSlatedbPins "engines/slatedb/changes.known",
    EngineSlatedbRetention "engines/slatedb/retention.offered",
    EngineSlatedbSegmentsDisk "engines/slatedb/segments/parts.disk",
    EngineSlatedbSegmentsMemory "engines/slatedb/segments/parts.memory",
    EngineSlatedbSegmentsPositions "engines/slatedb/segments/positions.readers",
    EngineSlatedbSegmentsQueue "engines/slatedb/segments/sweep.queue",
    EngineSlatedbSpaceMerge "engines/slatedb/space.merge",
    KvdbThreadsHandles "kvdb/threads.handles",
    KvdbCommitSnapshotsPins "kvdb/commit/snapshots.pins",
    KvdbCommitsCheckpointsById "kvdb/commits/checkpoints.by_id",
    KvdbCommitsTransactionsKept "kvdb/commits/transactions.kept",
    KvdbLiveKeyspacesById "kvdb/live/keyspaces.by_id",
    KvdbLivePlacedBy "kvdb/live.placed_by",
    KvdbMemtableArenaState "kvdb/memtable/arena.state",
    KvdbMemtableKeyspaceWishes "kvdb/memtable/keyspace.wishes",
    KvdbMemtableGrowingState "kvdb/memtable/growing.state",
    KvdbMemtableTableBound "kvdb/memtable/table.bound",
    KvdbMemtableWritersLock "kvdb/memtable/writers.lock",
    KvdbCacheShards "kvdb/cache.shards",
    KvdbCachePagesClock "kvdb/cache/pages.clock",
    KvdbCommitPublisherState "kvdb/commit/publisher.state",
    KvdbPressurePasses "kvdb/pressure.passes",
    KvdbLivePinnedGarbage "kvdb/live/pinned_garbage",
    KvdbRuntimeEventNotified "kvdb/runtime/event.notified",
    KvdbTableReadAheadWalks "kvdb/table/read_ahead.walks",
    KvdbTableUpcomingQueue "kvdb/table/upcoming.queue",
    KvdbTxnEngine "kvdb/txn/engine",
    KvdbSpaceEndurance "kvdb/space/endurance",
    KvdbSpaceSmallMediumSpace "kvdb/space/small_medium.space",
    KvdbWriteAdmissionRate "kvdb/write/admission.rate",
    KvdbMergeMigrateMovingSince "kvdb/merge/migrate.moving_since",
    DeviceFlushesState "device/flushes.state",
    DeviceFileGrowLock "device/file.grow_lock",
    DeviceJoinedOthers "device/joined.others",

    // Taken by what logs, prints and shows progress, at any point.
    CliNames "cli/names",
    CliProgress "cli/progress",
    CliDaemonLogBoundedState "cli/daemon/log/bounded.state",
}
