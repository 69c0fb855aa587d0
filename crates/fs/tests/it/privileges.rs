//! Set-id bits and file capabilities: every change of content takes them away as on Linux's own file systems,
//! whatever way it comes; and nothing lends them to a content that they were not given to.

use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{
    AclKind, Area, AtimePolicy, Caller, Credentials, FallocateMode, FsError, MountOptions, NodeId, Result,
    Selection, SetAttr, SetTime, TakenBack, Timestamp, TxnId, Undo, WriteFlags, XattrMode, check,
};
use kvfs_store::model::ModelStore;
use kvfs_store::{Batch, Durability, Isolation, KeyspaceKind, Store};

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const CAPABILITY: &[u8] = b"security.capability";
/// The group of all files here.
const GROUP: u32 = 500;

/// Whether it has `CAP_FSETID`, and is in [`GROUP`].
#[derive(Debug)]
pub(crate) struct User {
    fsetid: bool,
    member: bool,
}

impl Credentials for User {
    fn keeps_set_id(&self, _: &Caller) -> bool {
        self.fsetid
    }

    fn is_in_group(&self, _: &Caller, gid: u32) -> bool {
        self.member && gid == GROUP
    }
}

pub(crate) static OUTSIDER: User = User { fsetid: false, member: false };
static MEMBER: User = User { fsetid: false, member: true };
static ROOT_USER: User = User { fsetid: true, member: false };
static USERS: [&User; 3] = [&OUTSIDER, &MEMBER, &ROOT_USER];

/// A way to change content, as the kernel asks for it: of WRITE and SETATTR it says itself what the caller
/// may keep.
#[derive(Debug, Clone, Copy)]
enum Change {
    Write,
    Append,
    Truncate(u64),
    Allocate(FallocateMode),
    Copy,
}

const CHANGES: [Change; 10] = [
    Change::Write,
    Change::Append,
    Change::Truncate(0),
    Change::Truncate(20_000),
    Change::Allocate(FallocateMode::Allocate { keep_size: false }),
    Change::Allocate(FallocateMode::Allocate { keep_size: true }),
    Change::Allocate(FallocateMode::PunchHole),
    Change::Allocate(FallocateMode::ZeroRange { keep_size: false }),
    Change::Allocate(FallocateMode::ZeroRange { keep_size: true }),
    Change::Copy,
];

const MODES: [u32; 8] = [0o4755, 0o2755, 0o2745, 0o6777, 0o2767, 0o6765, 0o4711, 0o755];

fn caller(user: &'static User) -> Caller {
    let uid = if user.fsetid { 0 } else { 1000 };
    Caller { uid, gid: 100, credentials: Some(user), ..Caller::default() }
}

fn change(view: &Setup, user: &'static User, file: NodeId, change: Change) -> Result<()> {
    let caller = caller(user);
    let kill_suidgid = !user.fsetid;
    let flags = WriteFlags { kill_suidgid, ..WriteFlags::default() };
    match change {
        Change::Write => view.write(&caller, file, 0, Bytes::from_static(b"evil"), flags).map(drop),
        Change::Append => view.write(&caller, file, 30_000, Bytes::from_static(b"evil"), flags).map(drop),
        Change::Truncate(size) => {
            let changes = SetAttr { size: Some(size), kill_suidgid, ..SetAttr::default() };
            view.setattr(&caller, file, &changes).map(drop)
        }
        Change::Allocate(mode) => view.fallocate(&caller, file, 10, 5000, mode),
        Change::Copy => {
            let source = view.lookup(&caller, ROOT, b"source")?.node;
            let copied = view.copy_file_range(&caller, source, 0, file, 0, 100);
            view.forget(source, 1);
            copied.map(|copied| assert_eq!(copied.bytes, 6))
        }
    }
}

/// What Linux leaves of a mode.
fn left(mode: u32, user: &User) -> u32 {
    let keeps_group = mode & 0o010 == 0 && user.member;
    match (user.fsetid, keeps_group) {
        (true, _) => mode,
        (false, true) => mode & !0o4000,
        (false, false) => mode & !0o6000,
    }
}

fn mode(view: &Setup, file: NodeId) -> u32 {
    view.getattr(&view.caller, file).unwrap().mode
}

fn chmod(view: &Setup, file: NodeId, mode: u32) -> Result<()> {
    let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
    view.setattr(&view.caller, file, &changes).map(drop)
}

fn lend(view: &Setup, file: NodeId) -> Result<()> {
    view.setxattr(&view.caller, file, CAPABILITY, b"all", XattrMode::Set)
}

fn is_capable(view: &Setup, file: NodeId) -> bool {
    match view.getxattr(&view.caller, file, CAPABILITY) {
        Ok(_) => true,
        Err(FsError::NoAttribute) => false,
        Err(error) => panic!("{error}"),
    }
}

/// A main line with a file to copy from.
fn with_source() -> Setup {
    let main = Setup::new(100);
    let source = main.file(ROOT, "source");
    main.write_at(source, 0, b"source").unwrap();
    main
}

/// A file of `size` bytes in [`GROUP`].
fn program(view: &Setup, name: &str, size: usize) -> NodeId {
    let file = view.file(ROOT, name);
    view.write_at(file, 0, &vec![7; size]).unwrap();
    view.setattr(&view.caller, file, &SetAttr { gid: Some(GROUP), ..SetAttr::default() }).unwrap();
    file
}

fn takes_what_linux_takes(view: &Setup, name: &str, size: usize) {
    for (at, change_now) in CHANGES.into_iter().enumerate() {
        for user in USERS {
            let file = program(view, &format!("{name}-{at}-{}-{}", user.fsetid, user.member), size);
            for before in MODES {
                chmod(view, file, before).unwrap();
                lend(view, file).unwrap();
                change(view, user, file, change_now).unwrap();
                let context = format!("{change_now:?} of {size} bytes with mode {before:o} by {user:?}");
                assert_eq!(
                    format!("{:o}", mode(view, file)),
                    format!("{:o}", left(before, user)),
                    "{context}"
                );
                assert!(!is_capable(view, file), "{context}");
            }
        }
    }
}

#[test]
fn every_change_of_content_takes_privileges_as_linux_does() {
    let main = with_source();
    for size in [0, 50, 10_000] {
        takes_what_linux_takes(&main, &format!("main-{size}"), size);
        for isolation in [Isolation::Snapshot, Isolation::Serializable] {
            let view = begin(&main, isolation);
            takes_what_linux_takes(&view, &format!("view-{size}-{isolation:?}"), size);
            commit(&view.fs).unwrap();
        }
    }
    main.assert_sound("after all changes");
}

#[test]
fn a_change_of_owner_takes_capabilities_and_set_id_bits() {
    let main = with_source();
    for (user, group, before, after) in [
        (&ROOT_USER, 1, 0o6755, 0o755),
        (&ROOT_USER, 1, 0o2767, 0o2767),
        (&MEMBER, 1, 0o2767, 0o2767),
        (&OUTSIDER, 1, 0o2767, 0o767),
    ] {
        let file = program(&main, &format!("{user:?}{before}"), 10);
        chmod(&main, file, before).unwrap();
        lend(&main, file).unwrap();
        let changes = SetAttr { gid: Some(group), kill_suidgid: true, ..SetAttr::default() };
        main.setattr(&caller(user), file, &changes).unwrap();
        assert_eq!((mode(&main, file), is_capable(&main, file)), (after, false), "{user:?} {before:o}");
    }
}

#[test]
fn dirty_pages_of_a_mapping_leave_privileges() {
    let main = with_source();
    let file = program(&main, "f", 10);
    chmod(&main, file, 0o6755).unwrap();
    lend(&main, file).unwrap();
    let flags = WriteFlags { is_writeback: true, ..WriteFlags::default() };
    main.write(&main.caller, file, 0, Bytes::from_static(b"mapped"), flags).unwrap();
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o6755, true));
}

#[test]
fn capabilities_that_a_transaction_gave_an_open_file_go_with_the_next_write() {
    let main = with_source();
    let file = program(&main, "f", 10);
    main.setxattr(&main.caller, file, b"user.other", b"1", XattrMode::Set).unwrap();
    for isolation in [Isolation::Snapshot, Isolation::Serializable] {
        for user in USERS {
            // From here on the main line knows that there is none.
            change(&main, user, file, Change::Write).unwrap();
            let view = begin(&main, isolation);
            let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
            lend(&view, same).unwrap();
            commit(&view.fs).unwrap();
            assert!(is_capable(&main, file));
            change(&main, user, file, Change::Write).unwrap();
            assert!(!is_capable(&main, file), "{isolation:?} {user:?}");
        }
    }
    assert_eq!(main.getxattr(&main.caller, file, b"user.other").unwrap(), "1");
}

/// Whether it has to wait; it gives up.
fn is_kept_out(result: Result<()>) -> bool {
    let Err(FsError::Parked(ticket)) = result else { return false };
    ticket.cancel();
    true
}

#[test]
fn lending_privileges_conflicts_with_changes_that_would_have_taken_them() {
    let lends: [fn(&Setup, NodeId) -> Result<()>; 2] = [|view, file| chmod(view, file, 0o4755), lend];
    for change_now in CHANGES {
        for (at, lend_now) in lends.into_iter().enumerate() {
            let context = format!("{change_now:?}, {at}");
            let main = with_source();
            let file = program(&main, "f", 10_000);
            let look = |view: &Setup| view.lookup(&view.caller, ROOT, b"f").unwrap().node;

            let view = begin(&main, Isolation::Snapshot);
            let same = look(&view);
            change(&main, &MEMBER, file, change_now).unwrap();
            let late = lend_now(&view, same);
            assert!(matches!(late, Err(FsError::Canceled(_))), "{context}: {late:?}");

            let view = begin(&main, Isolation::Snapshot);
            let same = look(&view);
            lend_now(&main, file).unwrap();
            let late = change(&view, &MEMBER, same, change_now);
            assert!(matches!(late, Err(FsError::Canceled(_))), "{context}: {late:?}");

            for isolation in [Isolation::Snapshot, Isolation::Serializable] {
                let view = begin(&main, isolation);
                let same = look(&view);
                lend_now(&view, same).unwrap();
                assert!(is_kept_out(change(&main, &MEMBER, file, change_now)), "{context}");
                drop(view);
                let view = begin(&main, isolation);
                let same = look(&view);
                change(&view, &MEMBER, same, change_now).unwrap();
                assert!(is_kept_out(lend_now(&main, file)), "{context}");
            }
        }
    }
}

/// Something that a caller tries.
type Attempt<'a> = Box<dyn Fn(&Caller) -> Result<()> + 'a>;

#[test]
fn former_owner_that_waited_for_a_commit_changes_nothing_of_the_new_ones() {
    let main = with_source();
    let file = program(&main, "f", 10);
    let owner = Caller {
        uid: 1000,
        gid: 100,
        credentials: Some(&OUTSIDER),
        goes_by_names: true,
        ..Caller::default()
    };
    let given = SetAttr { uid: Some(1000), ..SetAttr::default() };
    main.setattr(&main.caller, file, &given).unwrap();
    let time = SetTime::At(Timestamp { seconds: 7, nanos: 0 });
    let list =
        b"\x02\0\0\0\x01\0\x07\0\xff\xff\xff\xff\x04\0\x07\0\xff\xff\xff\xff\x20\0\x07\0\xff\xff\xff\xff";
    let fs = &main;
    let set = |changes: SetAttr| -> Attempt<'_> {
        Box::new(move |caller| fs.setattr(caller, file, &changes).map(drop))
    };
    let changes: [Attempt<'_>; 5] = [
        set(SetAttr { mode: Some(0o4777), ..SetAttr::default() }),
        set(SetAttr { gid: Some(100), ..SetAttr::default() }),
        set(SetAttr { mtime: Some(time), ..SetAttr::default() }),
        Box::new(|caller| main.set_acl(caller, file, AclKind::Access, list, false)),
        Box::new(|caller| main.set_acl(caller, file, AclKind::Access, b"", false)),
    ];
    for (at, change) in changes.iter().enumerate() {
        main.setattr(&main.caller, file, &given).unwrap();
        change(&owner).unwrap();
        let view = begin(&main, Isolation::Snapshot);
        let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
        let taken = SetAttr { uid: Some(0), mode: Some(0o600), ..SetAttr::default() };
        view.setattr(&view.caller, same, &taken).unwrap();
        let Err(FsError::Parked(ticket)) = change(&owner) else { panic!("change {at} does not wait") };
        commit(&view.fs).unwrap();
        ticket.wait();
        let late = change(&Caller { ticket: Some(ticket), ..owner.clone() });
        assert!(matches!(late, Err(FsError::NotPermitted(_))), "change {at}: {late:?}");
        assert_eq!(mode(&main, file), 0o600, "change {at}");
        change(&Caller { uid: 0, ..owner.clone() }).unwrap();
    }
    // Where nothing was given away, the kernel's word counts: it knows of namespaces and overlays.
    let file = program(&main, "g", 10);
    main.setattr(&owner, file, &SetAttr { mode: Some(0o711), ..SetAttr::default() }).unwrap();
    // What it does for any that write.
    let file = program(&main, "h", 10);
    main.setattr(&main.caller, file, &SetAttr { uid: Some(7), ..SetAttr::default() }).unwrap();
    chmod(&main, file, 0o4755).unwrap();
    let flushed = SetAttr { mtime: Some(time), ctime: Some(Timestamp::default()), ..SetAttr::default() };
    let stripped = SetAttr { mode: Some(0o755), ..SetAttr::default() };
    for changes in [flushed, stripped] {
        main.setattr(&owner, file, &changes).unwrap();
    }
}

/// Merges a branch in which `user` has changed a program, over a main line that lends it privileges
/// meanwhile.
fn merge_over(
    user: &'static User,
    change_now: Change,
    lend_now: fn(&Setup, NodeId) -> Result<()>,
) -> (Setup, Result<()>) {
    let main = with_source();
    let file = program(&main, "f", 10_000);
    main.fs.branches().create("b", 1000).unwrap();
    let view = main.through(main.fs.open_branch("b").unwrap(), main.options);
    let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
    change(&view, user, same, change_now).unwrap();
    view.branches().checkpoint().unwrap();
    drop(view);
    lend_now(&main, file).unwrap();
    let merged =
        kvfs_fs::begin_merge(&main.fs, &main.branch("b"), 1).and_then(|merge| commit(&merge)).map(drop);
    (main, merged)
}

#[test]
fn a_branch_with_content_by_others_does_not_merge_over_lent_privileges() {
    let lends: [fn(&Setup, NodeId) -> Result<()>; 2] = [|view, file| chmod(view, file, 0o4755), lend];
    for change_now in CHANGES {
        for lend_now in lends {
            let (_, merged) = merge_over(&MEMBER, change_now, lend_now);
            assert!(merged.is_err(), "{change_now:?}");
        }
        // What takes nothing away is not in the way.
        let (main, merged) = merge_over(&ROOT_USER, change_now, lends[0]);
        merged.unwrap_or_else(|error| panic!("{change_now:?}: {error}"));
        main.assert_sound("merged");
    }
}

#[test]
fn a_restored_file_has_the_privileges_of_its_snapshot() {
    for change_now in CHANGES {
        let main = with_source();
        let (file, mapped) = (program(&main, "f", 10_000), program(&main, "mapped", 10_000));
        for file in [file, mapped] {
            chmod(&main, file, 0o6755).unwrap();
            lend(&main, file).unwrap();
        }
        main.store.create_snapshot("then").unwrap();
        change(&main, &MEMBER, file, change_now).unwrap();
        // Which leaves them: nothing tells that they were to be brought back.
        let flags = WriteFlags { is_writeback: true, ..WriteFlags::default() };
        main.write(&main.caller, mapped, 0, Bytes::from_static(b"mapped"), flags).unwrap();
        let then = main.fs.view_of(main.store.open_snapshot("then").unwrap()).unwrap();
        let view = begin(&main, Isolation::Snapshot);
        kvfs_fs::restore(&view, &then).unwrap();
        commit(&view.fs).unwrap();
        for file in [file, mapped] {
            assert_eq!((mode(&main, file), is_capable(&main, file)), (0o6755, true), "{change_now:?}");
            assert_eq!(main.read_all(file), [7; 10_000]);
        }
    }
}

/// Does `work` with the file `f` in a transaction and commits.
fn txn(main: &Setup, work: impl FnOnce(&Setup, NodeId)) -> TxnId {
    let view = begin(main, Isolation::Snapshot);
    let file = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
    work(&view, file);
    main.clock.advance(std::time::Duration::from_secs(1));
    let id = view.fs.txn().unwrap().id();
    commit(&view.fs).unwrap();
    id
}

fn undo(main: &Setup, id: TxnId) {
    undo_selected(main, id, &Selection::default());
}

fn undo_selected(main: &Setup, id: TxnId, selection: &Selection) {
    let undo = Undo::open(&main.fs, id).unwrap();
    let view = begin(main, Isolation::Snapshot);
    let done = undo.plan(&view.fs, selection).unwrap().carry_out().unwrap();
    assert!(matches!(done, TakenBack::Done(_)), "{done:?}");
    commit(&view.fs).unwrap();
}

fn keeping() -> (Setup, NodeId) {
    let store = Arc::new(ModelStore::new());
    store.keep_for_undo(8);
    let main = Setup::with(store, 100, MountOptions::default());
    let source = main.file(ROOT, "source");
    main.write_at(source, 0, b"source").unwrap();
    let file = program(&main, "f", 10_000);
    (main, file)
}

fn chown(view: &Setup, file: NodeId, uid: u32) {
    view.setattr(&view.caller, file, &SetAttr { uid: Some(uid), ..SetAttr::default() }).unwrap();
}

#[test]
fn taking_a_transaction_back_brings_privileges_back_with_their_content() {
    for change_now in CHANGES {
        let (main, file) = keeping();
        chmod(&main, file, 0o6755).unwrap();
        lend(&main, file).unwrap();
        let id = txn(&main, |view, file| change(view, &MEMBER, file, change_now).unwrap());
        assert_eq!((mode(&main, file), is_capable(&main, file)), (0o755, false));
        undo(&main, id);
        assert_eq!((mode(&main, file), is_capable(&main, file)), (0o6755, true), "{change_now:?}");
        assert_eq!(main.read_all(file), [7; 10_000]);
    }
}

#[test]
fn taking_a_transaction_back_lends_no_privileges_to_another_content_or_owner() {
    // What was lent to the content that is taken back.
    let (main, file) = keeping();
    let id = txn(&main, |view, file| change(view, &MEMBER, file, Change::Write).unwrap());
    chmod(&main, file, 0o6755).unwrap();
    lend(&main, file).unwrap();
    undo(&main, id);
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o755, false), "the content that comes back");

    // What another owner has never lent.
    let (main, file) = keeping();
    chmod(&main, file, 0o4755).unwrap();
    lend(&main, file).unwrap();
    let id = txn(&main, |view, file| change(view, &MEMBER, file, Change::Write).unwrap());
    chown(&main, file, 0);
    undo(&main, id);
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o755, false), "another owner");

    // Privileges alone that were taken away, from a content that has changed since.
    let (main, file) = keeping();
    chmod(&main, file, 0o4755).unwrap();
    lend(&main, file).unwrap();
    let id = txn(&main, |view, file| {
        chmod(view, file, 0o755).unwrap();
        view.removexattr(&view.caller, file, CAPABILITY).unwrap();
    });
    change(&main, &MEMBER, file, Change::Write).unwrap();
    undo(&main, id);
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o755, false), "content of others");

    // Nor by force, where the content has changed once more.
    let (main, file) = keeping();
    let id = txn(&main, |view, file| change(view, &MEMBER, file, Change::Write).unwrap());
    main.write_at(file, 5000, b"more").unwrap();
    chmod(&main, file, 0o6755).unwrap();
    lend(&main, file).unwrap();
    let selection = Selection { force: vec![Area::All], ..Selection::default() };
    undo_selected(&main, id, &selection);
    assert_eq!(main.read_all(file), [7; 10_000]);
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o755, false), "by force");

    // What has nothing to do with either stays.
    let (main, file) = keeping();
    let id = txn(&main, |view, file| {
        view.setxattr(&view.caller, file, b"user.tag", b"1", XattrMode::Set).unwrap();
    });
    chmod(&main, file, 0o6755).unwrap();
    lend(&main, file).unwrap();
    undo(&main, id);
    assert_eq!((mode(&main, file), is_capable(&main, file)), (0o6755, true), "neither was touched");
}

/// A store so full that no access time can be written, with one file of 10,000 bytes that was read since.
fn full_with_a_file_read() -> (Setup, NodeId) {
    let store: Arc<dyn Store> = Arc::new(ModelStore::with_capacity_bytes(100_000));
    let options = MountOptions { atime: AtimePolicy::Relatime, ..MountOptions::default() };
    let setup = Setup::with(Arc::clone(&store), 100, options);
    let file = program(&setup, "f", 10_000);
    let filler = store.open_keyspace("filler", KeyspaceKind::Tuple, None).unwrap();
    let mut batch = Batch::new();
    batch.put(filler, "k", vec![1; store.space().available_bytes as usize - 1]);
    store.apply(batch, Durability::Buffered).unwrap();
    setup.clock.advance(std::time::Duration::from_secs(10));
    setup.read_all(file);
    assert!(matches!(setup.housekeep(), Err(FsError::NoSpace)), "there is no room for the time");
    (setup, file)
}

#[test]
fn files_removed_after_being_read_on_a_full_store_give_their_space_back() {
    let (setup, file) = full_with_a_file_read();
    let before = setup.store.space().available_bytes;
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    // Still open, and read once more.
    setup.clock.advance(std::time::Duration::from_hours(48));
    setup.read_all(file);
    assert_eq!(setup.getattr(&setup.caller, file).unwrap().atime, setup.time());
    setup.forget(file, 1);
    assert!(
        setup.orphans().reap_for_space(),
        "a refused writer finds what to give back, without waiting for housekeeping"
    );
    assert!(setup.store.space().available_bytes >= before + 8192);
    assert_eq!(setup.nodes().stats().nodes, 1, "only the root");
    setup.assert_sound("after reaping");
}

#[test]
fn a_replaced_file_read_on_a_full_store_gives_its_space_back() {
    let (setup, file) = full_with_a_file_read();
    setup.forget(file, 1);
    let view = begin(&setup, Isolation::Snapshot);
    view.unlink(&view.caller, ROOT, b"f").unwrap();
    commit(&view.fs).unwrap();
    assert!(setup.orphans().reap_for_space(), "removed by a transaction");
    assert_eq!(check::check(&setup.store).unwrap().blocks, 0);
}

#[test]
fn files_removed_after_being_read_with_lazytime_give_their_space_back_at_once() {
    let options = MountOptions { lazytime: true, ..MountOptions::default() };
    let setup = Setup::with(Arc::new(ModelStore::new()), 100, options);
    let file = program(&setup, "f", 10_000);
    setup.clock.advance(std::time::Duration::from_secs(10));
    setup.read_all(file);
    setup.unlink(&setup.caller, ROOT, b"f").unwrap();
    setup.forget(file, 1);
    setup.housekeep().unwrap();
    assert_eq!(check::check(&setup.store).unwrap().blocks, 0, "not after a day");
}

#[test]
fn noatime_descriptors_and_nodiratime_leave_access_times() {
    let options = MountOptions { atime: AtimePolicy::Strict, nodiratime: true, ..MountOptions::default() };
    let setup = Setup::with(Arc::new(ModelStore::new()), 100, options);
    let (file, dir) = (program(&setup, "f", 10_000), setup.dir(ROOT, "d"));
    let atime = |node| setup.getattr(&setup.caller, node).unwrap().atime;
    let before = (atime(file), atime(dir));
    setup.clock.advance(std::time::Duration::from_secs(10));
    setup.list(dir, 10, true);
    let quiet = Caller { keeps_atime: true, ..setup.caller.clone() };
    setup.read(&quiet, file, 0, &mut [0; 100]).unwrap();
    assert_eq!((atime(file), atime(dir)), before);
    setup.read_all(file);
    assert_eq!(atime(file), setup.time());
}

#[test]
fn view_of_a_user_leads_device_nodes_to_no_device() {
    let main = Setup::new(4096);
    main.mknod(&main.caller, NodeId::ROOT, b"disk", 0o060_666, 0x0800).unwrap();
    let rdev_for = |uid| {
        let owner = kvfs_fs::Owner { uid, pid: 1, name: "test".to_owned() };
        let view = main.fs.begin(&kvfs_fs::BeginOptions { owner, ..kvfs_fs::BeginOptions::default() });
        let view = view.unwrap();
        let view = main.through(view, main.options);
        let found = view.lookup(&view.caller, NodeId::ROOT, b"disk").unwrap();
        let listed = view.list(NodeId::ROOT, 100, true);
        let listed = listed.iter().find(|listed| listed.name == b"disk").unwrap().entry.unwrap();
        assert_eq!(found.attr.rdev, listed.attr.rdev);
        assert_eq!(found.attr.rdev, view.getattr(&view.caller, found.node).unwrap().rdev);
        found.attr.rdev
    };
    assert_eq!(rdev_for(0), 0x0800);
    assert!(![0, 0x0800].contains(&rdev_for(1000)));
}
