//! Which users may ask what by the control socket: every request, asked by each kind of user.

use std::time::Duration;

use kvfs_fs::{FileSystem, MkfsOptions, MountOptions};
use kvfs_service::lines::{
    ChargeLines, DefragPlanLine, DefragRequest, DefragmentedLine, DeviceLine, HealthLine, HeatLines,
    LimitChanges, NewDeviceLine, PlacementLine, QuotaOwner, QuotaRequest, SelectionLine, TierRequest,
    TraceRequest, ZoneLines,
};
use kvfs_service::{
    Branches, DefragOrder, DefragStep, Engine, EngineCheck, MainLine, NoMounts, Opened, SpaceControl,
    Transactions, UndoLimits,
};
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;
use kvfs_store::{Store, StoreError};

use super::*;
use crate::protocol::{Begin, BranchRequest, SnapshotRequest, UndoRequest};

/// An engine of nothing, with findings.
#[derive(Default)]
struct NoEngine {
    findings: Vec<String>,
}

impl Engine for NoEngine {
    fn name(&self) -> &'static str {
        "none"
    }

    fn space_control(&self) -> Option<&dyn SpaceControl> {
        Some(self)
    }

    fn check(&self) -> Result<EngineCheck, StoreError> {
        Ok(EngineCheck { findings: self.findings.clone(), ..EngineCheck::default() })
    }

    fn health(&self) -> HealthLine {
        HealthLine::default()
    }

    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    fn set_commit_interval(&self, _: Duration) {}

    fn is_read_only(&self) -> bool {
        false
    }

    fn close(self: Box<Self>) -> Result<(), StoreError> {
        Ok(())
    }
}

impl SpaceControl for NoEngine {
    fn room(&self) -> Result<u64> {
        Ok(0)
    }

    fn block_device(&self) -> Option<String> {
        None
    }

    fn grow(&self, bytes: u64) -> Result<u64, StoreError> {
        Ok(bytes)
    }

    fn defrag_plan(&self, _: bool) -> DefragPlanLine {
        DefragPlanLine::default()
    }

    fn defragment(
        &self,
        _: &DefragOrder,
        _: &mut dyn FnMut(DefragStep) -> bool,
    ) -> Result<DefragmentedLine, StoreError> {
        Ok(DefragmentedLine::default())
    }

    fn devices(&self) -> Vec<DeviceLine> {
        Vec::new()
    }

    fn placement(&self) -> PlacementLine {
        PlacementLine::default()
    }

    fn set_placement(&self, _: &str, _: bool) -> Result<(), StoreError> {
        Ok(())
    }

    fn limit_migration(&self, _: u64) {}

    fn heat(&self, _: usize, _: &mut dyn FnMut() -> bool) -> Result<Option<HeatLines>, StoreError> {
        Ok(Some(HeatLines::default()))
    }

    fn add_device(&self, _: &NewDeviceLine) -> Result<u32> {
        Ok(1)
    }

    fn begin_drain(&self, _: &[u32]) -> Result<(), StoreError> {
        Ok(())
    }

    fn drain_device(&self, _: u32, _: &mut dyn FnMut(u64) -> bool) -> Result<bool, StoreError> {
        Ok(true)
    }

    fn refill_device(&self, _: u32) -> Result<(), StoreError> {
        Ok(())
    }

    fn remove_device(&self, _: u32) -> Result<(), StoreError> {
        Ok(())
    }

    fn zones(&self) -> ZoneLines {
        ZoneLines::default()
    }

    fn charges(&self) -> ChargeLines {
        ChargeLines::default()
    }
}

/// A mounted store of user `owner_uid`, with a transaction of `other`'s.
pub(crate) struct World {
    handler: Arc<RequestHandler>,
    transactions: Arc<Transactions>,
    branches: Arc<Branches>,
}

impl World {
    pub(crate) fn owned_by(owner_uid: u32) -> Self {
        Self::over(NoEngine::default(), owner_uid)
    }

    /// Of root's, whose engine has found this.
    pub(crate) fn with_findings(findings: &[String]) -> Self {
        Self::over(NoEngine { findings: findings.to_vec() }, 0)
    }

    /// What answers; transactions are closed.
    pub(crate) fn into_handler(self) -> Arc<RequestHandler> {
        Arc::clone(&self.handler)
    }

    fn over(engine: NoEngine, owner_uid: u32) -> Self {
        let model = ModelStore::new();
        model.keep_for_undo(10);
        let store: Arc<dyn Store> = Arc::new(model);
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
        let options = MountOptions { owner_uid, ..MountOptions::default() };
        let fs = Arc::new(FileSystem::open(store, clock, options).expect("opens"));
        let main = MainLine { fs: Arc::clone(&fs), mounts: Arc::new(NoMounts::default()), views_max: 16 };
        let branches = Branches::new(main.clone()).expect("starts");
        let transactions = Transactions::new(main, &branches).expect("starts");
        let undo = UndoLimits { count_max: 10, age_max: Duration::from_mins(1) };
        let service = Arc::new(Service::new(Opened { fs, engine: Box::new(engine), undo }));
        service.serve_transactions(&transactions, &branches);
        let handler = Arc::new(RequestHandler::new(service, Mounted::default()));
        Self { handler, transactions, branches }
    }

    /// Whether the request is refused to the user.
    fn refuses(&self, uid: u32, request: Request) -> bool {
        let answer = self.handler.answer(&Peer::of_user(uid), request);
        matches!(answer, Err(error) if error.kind() == ErrorKind::Denied)
    }

    fn begin(&self, uid: u32) -> u64 {
        let begun = self.transactions.begin(&Caller::of_mount(uid, 1), kvfs_service::Begin::default());
        begun.expect("begins")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.transactions.close();
        self.branches.close();
    }
}

/// The users that may ask.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum May {
    /// Every user.
    Everyone,
    /// Root, the user of the process, the store's owner.
    Masters,
    /// Root, and the user of the process.
    Server,
    /// Root, and the user that it belongs to.
    Owner,
}

/// The table. A request that is new has its row here, and goes into [`requests`].
fn may(request: &Request) -> May {
    match request {
        Request::Begin(begin) if begin.nice < 0 => May::Masters,
        Request::Begin(_)
        | Request::Hello { .. }
        | Request::Stats
        | Request::Transactions
        | Request::Locks { .. }
        | Request::Sync
        | Request::Operations
        | Request::TraceNext
        // What is removed must be theirs.
        | Request::RemoveTrees { .. }
        // And readable what is cloned.
        | Request::CloneTree { .. }
        | Request::Inline { change: None }
        | Request::Health => May::Everyone,
        Request::Trace(_)
        | Request::Check
        | Request::Tier(
            TierRequest::List | TierRequest::Placement { policy: None, .. } | TierRequest::Heat { .. },
        )
        | Request::Zones
        | Request::HeldLocks
        | Request::Charges
        | Request::Compression { .. }
        | Request::Inline { change: Some(_) }
        | Request::Defrag(_) => May::Masters,
        // What is about the process, its mounts, and the disk below.
        Request::Tier(_)
        | Request::Attach { .. }
        | Request::View { .. }
        | Request::Grow { .. }
        | Request::Remount { .. }
        | Request::Leave { .. }
        | Request::End
        | Request::AwaitClosed => May::Server,
        Request::Mount { .. } | Request::Commit { .. } | Request::Abort { .. } | Request::Diff { .. } => {
            May::Owner
        }
        Request::Snapshot(request) => match request {
            SnapshotRequest::List => May::Everyone,
            SnapshotRequest::Create { .. }
            | SnapshotRequest::SetPrivate { .. }
            | SnapshotRequest::Delete { .. }
            | SnapshotRequest::Diff { .. }
            | SnapshotRequest::Restore { .. }
            | SnapshotRequest::Send { .. }
            | SnapshotRequest::SendAgain { .. }
            | SnapshotRequest::SendFrames { .. } => May::Masters,
        },
        Request::Undo(request) => match request {
            // For their own: none is kept here.
            UndoRequest::List
            | UndoRequest::Diff { .. }
            | UndoRequest::Check { .. }
            | UndoRequest::TakeBack { .. } => May::Everyone,
        },
        Request::Branch(request) => match request {
            BranchRequest::List => May::Everyone,
            BranchRequest::Mount { .. } | BranchRequest::Unmount { .. } | BranchRequest::Settle { .. } => {
                May::Server
            }
            // And of these those to which the branch belongs.
            BranchRequest::Create { .. }
            | BranchRequest::Fork { .. }
            | BranchRequest::Diff { .. }
            | BranchRequest::Merge { .. }
            | BranchRequest::Delete { .. } => May::Masters,
        },
        Request::Quota(request) => match request {
            QuotaRequest::Report { exclusive: false } => May::Everyone,
            QuotaRequest::On { abort_open: true } => May::Server,
            QuotaRequest::On { .. }
            | QuotaRequest::Off
            | QuotaRequest::Set(..)
            | QuotaRequest::Get { .. }
            | QuotaRequest::Report { exclusive: true }
            | QuotaRequest::ProjectTrees => May::Masters,
        },
    }
}

fn tier_requests() -> Vec<Request> {
    let path = b"/dev/x".to_vec();
    let requests = [
        TierRequest::List,
        TierRequest::Add(NewDeviceLine { path, is_slow: true, size_bytes: None, force: true }),
        TierRequest::Drain { ids: vec![1, 2], waits: false },
        TierRequest::Refill { id: 1 },
        TierRequest::Remove { id: u32::MAX },
        TierRequest::Placement { policy: None, keeps: false },
        TierRequest::Placement { policy: Some("none".to_owned()), keeps: true },
        TierRequest::Limit { bytes_per_second: u64::MAX },
        TierRequest::Heat { cells_max: u32::MAX },
    ];
    requests.map(Request::Tier).into()
}

fn branch_requests() -> Vec<Request> {
    let name = || "none".to_owned();
    let selection = SelectionLine::default;
    let requests = [
        BranchRequest::Create { name: "new".to_owned(), directory: b"/".to_vec(), from: None, flush: true },
        BranchRequest::Fork { name: "new".to_owned(), parent: name(), flush: true },
        BranchRequest::List,
        BranchRequest::Mount { name: name(), dir: b"/".to_vec() },
        BranchRequest::Unmount { name: name() },
        BranchRequest::Settle { dir: b"/".to_vec() },
        BranchRequest::Diff { name: name(), from: 0, limit: 1 },
        BranchRequest::Merge { name: name(), selection: Some(selection()) },
        BranchRequest::Delete { name: name() },
    ];
    requests.map(Request::Branch).into()
}

/// One of each, about transaction `id`, and things that are not there.
fn requests(id: u64) -> Vec<Request> {
    let name = || "none".to_owned();
    let begin = |nice| Begin {
        serializable: false,
        timeout: Some(Duration::MAX),
        idle_max: Some(Duration::MAX),
        nice,
        label: "\x1b[2J\n".to_owned(),
        tied: false,
    };
    let changes = LimitChanges {
        bytes_soft: Some(1),
        bytes_hard: None,
        inodes_soft: None,
        inodes_hard: None,
        grace_seconds: None,
    };
    let defrag = |dry_run| DefragRequest { rewrite: true, bytes_per_second: 1, dry_run };
    let mut all = vec![
        Request::Hello { version: "0".to_owned() },
        Request::Stats,
        Request::Check,
        Request::Begin(begin(0)),
        Request::Begin(begin(i32::MIN)),
        Request::Attach { id },
        Request::Mount { id },
        Request::View { id },
        Request::Diff { id, from: u64::MAX, limit: u64::MAX },
        Request::Transactions,
        Request::Locks { after: None },
        Request::Sync,
        Request::Compression { keyspace: name(), compression: Some("none".to_owned()) },
        Request::Zones,
        Request::Grow { bytes: Some(u64::MAX) },
        Request::Grow { bytes: None },
        Request::Remount { options: vec!["commit=5".to_owned()], is_check: false },
        Request::Defrag(defrag(true)),
        Request::Defrag(defrag(false)),
        Request::Health,
        Request::Operations,
        Request::Trace(TraceRequest::default()),
        Request::TraceNext,
        Request::AwaitClosed,
        Request::End,
        Request::Commit { id, durable: true },
        Request::Abort { id },
        Request::Leave { abort_open: false, checkpoint_open: false },
        Request::Leave { abort_open: true, checkpoint_open: false },
        Request::Leave { abort_open: false, checkpoint_open: true },
    ];
    let trees = Request::RemoveTrees { paths: vec![b"/".to_vec()] };
    let clone = Request::CloneTree { source: b"/".to_vec(), target: b"/".to_vec() };
    all.extend(tier_requests().into_iter().chain([Request::HeldLocks, Request::Charges, trees, clone]));
    all.extend([None, Some(4096)].map(|change| Request::Inline { change }));
    all.extend(
        [
            SnapshotRequest::Create { name: name(), flush: true, private: true },
            SnapshotRequest::SetPrivate { name: name(), private: false },
            SnapshotRequest::List,
            SnapshotRequest::Diff { before: Some(name()), after: None, from: 0, limit: 0 },
            SnapshotRequest::Send { from: None, to: name() },
            SnapshotRequest::SendAgain { stream: [0; 16] },
            SnapshotRequest::SendFrames { stream: [0; 16], offset: u64::MAX },
            SnapshotRequest::Restore { name: name(), paths: vec!["../..".to_owned()] },
            SnapshotRequest::Delete { name: name() },
        ]
        .map(Request::Snapshot),
    );
    let selection = SelectionLine::default;
    all.extend(
        [
            UndoRequest::List,
            UndoRequest::Diff { id, from: 0, limit: 1 },
            UndoRequest::Check { id, selection: selection() },
            UndoRequest::TakeBack { id, selection: selection() },
        ]
        .map(Request::Undo),
    );
    all.extend(branch_requests());
    all.extend(
        [
            QuotaRequest::On { abort_open: false },
            QuotaRequest::On { abort_open: true },
            QuotaRequest::Set(QuotaOwner::User(1), changes),
            QuotaRequest::Get { owner: QuotaOwner::User(1), exclusive: false },
            QuotaRequest::Get { owner: QuotaOwner::Group(1), exclusive: true },
            QuotaRequest::Report { exclusive: false },
            QuotaRequest::Report { exclusive: true },
            QuotaRequest::ProjectTrees,
            QuotaRequest::Off,
        ]
        .map(Request::Quota),
    );
    all
}

#[test]
fn every_request_is_answered_to_the_users_of_its_row_and_refused_to_all_others() {
    let process = Caller::own().uid;
    let (owner, other, third) = (process + 2000, process + 1000, process + 3000);
    let count = requests(0).len();
    for (who, uid) in [("root", 0), ("process", process), ("owner", owner), ("other", other)] {
        for at in 0..count {
            // Each is asked of a store that no other has changed.
            let world = World::owned_by(owner);
            let own = world.begin(uid);
            let request = requests(own).swap_remove(at);
            let is_allowed = match may(&request) {
                May::Everyone | May::Owner => true,
                May::Masters => [0, process, owner].contains(&uid),
                May::Server => [0, process].contains(&uid),
            };
            let text = format!("{who}: {request:?}");
            assert_eq!(!world.refuses(uid, request), is_allowed, "{text}");

            // The same about a transaction of a third user's.
            let theirs = world.begin(third);
            let request = requests(theirs).swap_remove(at);
            if may(&request) == May::Owner {
                assert_eq!(!world.refuses(uid, request), uid == 0, "of a third user: {text}");
            }
        }
    }
}

#[test]
fn refused_attach_leaves_the_descriptor_to_the_kernel_and_the_connection_goes_on() {
    use std::io::Write;
    use std::os::fd::AsFd;
    use std::os::unix::net::UnixStream;

    let world = World::owned_by(Caller::own().uid);
    let other = Caller::own().uid + 1000;
    let id = world.begin(other);
    let (mut client, ours) = UnixStream::pair().expect("sockets");
    let peer = Peer::on(&ours, other).expect("is a peer");
    let (reading, writing) = std::io::pipe().expect("a pipe");
    crate::descriptor::send(&client, writing.as_fd()).expect("sends");
    client.write_all(b"next").expect("writes");
    let refused = world.handler.answer(&peer, Request::Attach { id }).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::Denied);
    // What followed the carrier is there, and the other end of the pipe is gone with the client's.
    let mut next = [0; 4];
    std::io::Read::read_exact(&mut &ours, &mut next).expect("reads");
    assert_eq!(&next, b"next");
    drop(writing);
    assert_eq!(std::io::Read::read(&mut &reading, &mut [0]).expect("reads"), 0, "nothing holds it");
}

#[test]
fn locks_are_shown_while_the_store_is_being_closed() {
    let world = World::owned_by(Caller::own().uid);
    let (service, peer) = (world.handler.service(), Peer::of_user(0));
    let answer = |request| world.handler.answer(&peer, request).expect("answers");
    std::thread::scope(|scope| {
        let under_way = |_: &ServedStore<'_>| {
            scope.spawn(|| service.close().expect("closes"));
            let hello = || answer(Request::Hello { version: "0".to_owned() });
            while !matches!(hello(), Response::Closing) {
                std::thread::yield_now();
            }
            let Response::HeldLocks(lines) = answer(Request::HeldLocks) else { panic!("not an answer") };
            let of_store = lines.held.iter().filter(|line| line.lock == "service/service.store");
            let found: Vec<_> = of_store.map(|line| (line.waits, line.is_shared)).collect();
            assert!(found.contains(&(false, true)) && found.contains(&(true, false)), "{found:?}");
        };
        service.with(under_way).expect("is open");
    });
}

#[test]
fn store_on_its_way_to_be_closed_is_told_as_closing_while_transactions_end() {
    let world = World::owned_by(Caller::own().uid);
    let peer = Peer::of_user(0);
    let hello = || world.handler.answer(&peer, Request::Hello { version: "0".to_owned() }).expect("answers");
    let id = world.begin(0);
    assert!(matches!(hello(), Response::Serving { .. }));
    world.handler.service().begin_end();
    assert!(matches!(hello(), Response::Closing));
    let listed = world.handler.answer(&peer, Request::Transactions).expect("answers");
    assert!(matches!(listed, Response::Transactions(lines) if lines[0].id == id), "it goes on");
}
