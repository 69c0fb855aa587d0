//! Access-control lists: they and permission bits follow each other, are inherited, and go through
//! transactions, snapshots and undo like everything else.

use std::cell::Cell;
use std::sync::Arc;

use bytes::Bytes;
use kvfs_fs::{
    AclKind, Attr, Caller, CloneRights, DetachedTrees, FileType, FsError, MountOptions, NodeId, Result,
    SetAttr, Ticket, TreeRights, XattrMode, check, clone_tree, remove_tree,
};
use kvfs_kvdb::Background;
use kvfs_store::{Batch, Durability, Isolation, KeyspaceKind};

use crate::engine;
use crate::setup::{Random, Setup};
use crate::snapshots::tree;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;
const ACCESS: &[u8] = b"system.posix_acl_access";
const DEFAULT: &[u8] = b"system.posix_acl_default";
const NONE: u32 = u32::MAX;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;

/// Tag, rights, number.
type Raw = (u16, u16, u32);

fn encode(entries: &[Raw]) -> Bytes {
    let mut bytes = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, id) in entries {
        bytes.extend([tag.to_le_bytes(), rights.to_le_bytes()].concat());
        bytes.extend(id.to_le_bytes());
    }
    bytes.into()
}

/// Rights of owner, user 7 (`None`: no user is named), owning group, mask, others.
fn list(owner: u16, named: Option<(u16, u16)>, group: u16, others: u16) -> Vec<Raw> {
    let mut entries = vec![(OWNER, owner, NONE)];
    entries.extend(named.map(|(rights, _)| (USER, rights, 7)));
    entries.push((OWNING_GROUP, group, NONE));
    entries.extend(named.map(|(_, mask)| (MASK, mask, NONE)));
    entries.push((OTHERS, others, NONE));
    entries
}

fn set(on: &Setup, node: NodeId, name: &[u8], entries: &[Raw]) -> Result<()> {
    on.setxattr(&on.caller, node, name, &encode(entries), XattrMode::Set)
}

fn get(on: &Setup, node: NodeId, name: &[u8]) -> Option<Bytes> {
    match on.getxattr(&on.caller, node, name) {
        Ok(value) => Some(value),
        Err(FsError::NoAttribute) => None,
        Err(error) => panic!("{error}"),
    }
}

fn mode(on: &Setup, node: NodeId) -> u32 {
    on.getattr(&on.caller, node).unwrap().mode
}

fn chmod(on: &Setup, node: NodeId, mode: u32) {
    on.setattr(&on.caller, node, &SetAttr { mode: Some(mode), ..SetAttr::default() }).unwrap();
}

fn masked(on: &Setup, umask: u32) -> Caller {
    Caller { umask, ..on.caller.clone() }
}

#[test]
fn an_access_list_and_the_mode_follow_each_other() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    chmod(&setup, file, 0o6644);
    set(&setup, file, ACCESS, &list(7, Some((5, 6)), 4, 1)).unwrap();
    assert_eq!(mode(&setup, file), 0o6761, "the mask stands for the group; set-id bits stay");
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"system.posix_acl_access\0");
    chmod(&setup, file, 0o523);
    assert_eq!(get(&setup, file, ACCESS), Some(encode(&list(5, Some((5, 2)), 4, 3))));
    // A minimal list is the mode.
    set(&setup, file, ACCESS, &list(6, None, 4, 0)).unwrap();
    assert_eq!((mode(&setup, file), get(&setup, file, ACCESS)), (0o640, None));
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"");
    // Taking it away leaves the mode; where there is none, that is no error.
    set(&setup, file, ACCESS, &list(7, Some((5, 6)), 4, 1)).unwrap();
    for _ in 0..2 {
        setup.removexattr(&setup.caller, file, ACCESS).unwrap();
        assert_eq!((mode(&setup, file), get(&setup, file, ACCESS)), (0o761, None));
    }
    // So does a value without entries.
    set(&setup, file, ACCESS, &list(7, Some((5, 6)), 4, 1)).unwrap();
    set(&setup, file, ACCESS, &[]).unwrap();
    assert_eq!((mode(&setup, file), get(&setup, file, ACCESS)), (0o761, None));
    // A caller outside of the group loses set-group-id.
    chmod(&setup, file, 0o6755);
    let value = encode(&list(7, None, 5, 5));
    setup.set_acl(&setup.caller, file, AclKind::Access, &value, true).unwrap();
    assert_eq!(mode(&setup, file), 0o4755);
    setup.assert_sound("lists");
}

#[test]
fn lists_are_refused_where_they_make_no_sense() {
    let setup = Setup::new(4096);
    let file = setup.file(ROOT, "f");
    let link = setup.symlink(&setup.caller, ROOT, b"l", b"f").unwrap().node;
    let some = list(7, Some((5, 6)), 4, 1);
    let errno = |done: Result<()>| done.map_err(|error| error.errno());
    assert_eq!(errno(set(&setup, file, DEFAULT, &some)), Err(13));
    assert_eq!(errno(set(&setup, file, DEFAULT, &[])), Ok(()));
    assert_eq!(errno(set(&setup, link, ACCESS, &some)), Err(95));
    assert_eq!(errno(set(&setup, file, ACCESS, &some[1..])), Err(22));
    let junk = |value: &[u8]| errno(setup.setxattr(&setup.caller, file, ACCESS, value, XattrMode::Set));
    assert_eq!(junk(&encode(&some)[..20]), Err(22));
    assert_eq!(junk(&[1, 0, 0, 0]), Err(95));
    assert_eq!(mode(&setup, file), 0o644);
}

#[test]
fn a_default_list_is_inherited_in_place_of_the_umask() {
    let setup = Setup::new(4096);
    let dir = setup.dir(ROOT, "d");
    let default = list(7, Some((7, 7)), 5, 4);
    set(&setup, dir, DEFAULT, &default).unwrap();
    assert_eq!((mode(&setup, dir), get(&setup, dir, ACCESS)), (0o755, None), "it is no list of its own");
    let caller = masked(&setup, 0o077);
    let file = setup.create(&caller, dir, b"f", 0o664, true).unwrap().0.node;
    assert_eq!(mode(&setup, file), 0o664);
    assert_eq!(get(&setup, file, ACCESS), Some(encode(&list(6, Some((7, 6)), 5, 4))));
    let fifo = setup.mknod(&caller, dir, b"p", 0o010_600, 0).unwrap().node;
    assert_eq!(get(&setup, fifo, ACCESS), Some(encode(&list(6, Some((7, 0)), 5, 0))));
    let inner = setup.mkdir(&caller, dir, b"i", 0o1777).unwrap().node;
    assert_eq!(mode(&setup, inner), 0o1774);
    assert_eq!(get(&setup, inner, DEFAULT), Some(encode(&default)));
    let deep = setup.tmpfile(&caller, inner, 0o666, true).unwrap().node;
    assert_eq!(get(&setup, deep, ACCESS), Some(encode(&list(6, Some((7, 6)), 5, 4))));
    let link = setup.symlink(&caller, dir, b"l", b"f").unwrap();
    assert_eq!(link.attr.mode, 0o777);
    // A minimal default list limits the mode, and is no list of the file.
    set(&setup, dir, DEFAULT, &list(6, None, 5, 0)).unwrap();
    let plain = setup.create(&caller, dir, b"g", 0o777, true).unwrap().0;
    assert_eq!((plain.attr.mode, get(&setup, plain.node, ACCESS)), (0o650, None));
    setup.removexattr(&setup.caller, dir, DEFAULT).unwrap();
    let plain = setup.create(&caller, dir, b"h", 0o777, true).unwrap().0;
    assert_eq!(plain.attr.mode, 0o700, "the umask again");
    setup.forget(deep, 1);
    setup.housekeep().unwrap();
    setup.assert_sound("inherited lists");
}

#[test]
fn without_lists_in_the_mount_permission_bits_alone_count() {
    let mut setup = Setup::new(4096);
    let dir = setup.dir(ROOT, "d");
    let file = setup.file(ROOT, "f");
    set(&setup, dir, DEFAULT, &list(7, Some((7, 7)), 7, 7)).unwrap();
    set(&setup, file, ACCESS, &list(6, Some((7, 4)), 0, 0)).unwrap();
    setup.options.acls = false;
    setup.reopen();
    let find = |setup: &Setup, name: &[u8]| setup.lookup(&setup.caller, ROOT, name).unwrap().node;
    let (dir, file) = (find(&setup, b"d"), find(&setup, b"f"));
    assert_eq!(set(&setup, file, ACCESS, &[]).unwrap_err().errno(), 95);
    assert_eq!(setup.getxattr(&setup.caller, file, ACCESS).unwrap_err().errno(), 95);
    assert_eq!(setup.listxattr(&setup.caller, file).unwrap(), b"");
    let made = setup.create(&masked(&setup, 0o027), dir, b"g", 0o666, true).unwrap().0;
    assert_eq!(made.attr.mode, 0o640);
    chmod(&setup, file, 0o770);
    setup.options.acls = true;
    setup.reopen();
    let file = find(&setup, b"f");
    assert_eq!(
        get(&setup, file, ACCESS),
        Some(encode(&list(7, Some((7, 7)), 0, 0))),
        "it was kept and followed"
    );
    setup.assert_sound("after a mount without lists");
}

#[test]
fn a_transaction_keeps_its_lists_to_itself_until_its_commit() {
    let main = Setup::new(4096);
    let file = main.file(ROOT, "f");
    let view = begin(&main, Isolation::Snapshot);
    let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
    let entries = list(6, Some((7, 6)), 4, 0);
    set(&view, same, ACCESS, &entries).unwrap();
    assert_eq!((mode(&view, same), get(&view, same, ACCESS)), (0o660, Some(encode(&entries))));
    assert_eq!((mode(&main, file), get(&main, file, ACCESS)), (0o644, None));
    let told = commit(&view.fs).unwrap();
    assert!(told.nodes.contains(&(file, false)), "the kernel must forget its list: {told:?}");
    assert_eq!((mode(&main, file), get(&main, file, ACCESS)), (0o660, Some(encode(&entries))));
    // Setting a list and a mode are changes of the same thing.
    let view = begin(&main, Isolation::Snapshot);
    let same = view.lookup(&view.caller, ROOT, b"f").unwrap().node;
    chmod(&main, file, 0o600);
    assert!(matches!(set(&view, same, ACCESS, &entries), Err(FsError::Canceled(_))));
    main.assert_sound("committed");
}

#[test]
fn a_restored_file_has_the_lists_that_it_had_and_none_that_it_inherits() {
    let main = Setup::new(4096);
    let dir = main.dir(ROOT, "d");
    let (kept, _) = (main.file(dir, "kept"), main.file(dir, "gone"));
    let (listed, inner) = (main.file(dir, "listed"), main.dir(dir, "inner"));
    set(&main, listed, ACCESS, &list(6, Some((7, 6)), 4, 0)).unwrap();
    set(&main, inner, DEFAULT, &list(7, Some((5, 5)), 5, 0)).unwrap();
    main.store.create_snapshot("then").unwrap();
    let (before, _) = tree(&main);
    set(&main, dir, DEFAULT, &list(7, Some((7, 7)), 7, 7)).unwrap();
    set(&main, kept, ACCESS, &list(6, Some((7, 7)), 7, 7)).unwrap();
    main.unlink(&main.caller, dir, b"gone").unwrap();
    main.unlink(&main.caller, dir, b"listed").unwrap();
    main.rmdir(&main.caller, dir, b"inner").unwrap();
    let snapshot = main.store.open_snapshot("then").unwrap();
    let then = main.fs.view_of(snapshot).unwrap();
    let shown = main.through(Arc::clone(&then), main.options);
    assert_eq!(tree(&shown).0, before, "a snapshot shows its lists");
    let txn = begin(&main, Isolation::Snapshot);
    kvfs_fs::restore(&txn.fs, &then).unwrap();
    commit(&txn.fs).unwrap();
    assert_eq!(tree(&main).0, before);
    main.assert_sound("restored");
}

/// What a file is by the rules, kept apart from how they are put into practice.
#[derive(Clone)]
struct Model {
    node: NodeId,
    kind: FileType,
    mode: u32,
    access: Option<Vec<Raw>>,
    default: Option<Vec<Raw>>,
}

fn rights(entries: &[Raw], tag: u16) -> Option<u32> {
    entries.iter().find(|entry| entry.0 == tag).map(|entry| u32::from(entry.1))
}

fn class(entries: &[Raw]) -> u16 {
    if rights(entries, MASK).is_some() { MASK } else { OWNING_GROUP }
}

fn put(entries: &mut [Raw], tag: u16, rights: u32) {
    entries.iter_mut().filter(|entry| entry.0 == tag).for_each(|entry| entry.1 = rights as u16);
}

impl Model {
    fn chmod(&mut self, mode: u32) {
        self.mode = mode;
        if let Some(access) = &mut self.access {
            put(access, OWNER, mode >> 6 & 7);
            let class = class(access);
            put(access, class, mode >> 3 & 7);
            put(access, OTHERS, mode & 7);
        }
    }

    fn set_access(&mut self, entries: &[Raw]) {
        let of = |tag| rights(entries, tag).unwrap();
        self.mode = self.mode & 0o7000 | of(OWNER) << 6 | of(class(entries)) << 3 | of(OTHERS);
        self.access = (entries.len() > 3).then(|| entries.to_vec());
    }

    fn made_in(&self, node: NodeId, kind: FileType, asked: u32, umask: u32) -> Self {
        let mut new = Self { node, kind, mode: asked & !umask, access: None, default: None };
        if let Some(default) = &self.default {
            let mut entries = default.clone();
            for (tag, shift) in [(OWNER, 6), (class(default), 3), (OTHERS, 0)] {
                put(&mut entries, tag, rights(default, tag).unwrap() & asked >> shift & 7);
            }
            new.mode = asked;
            new.set_access(&entries);
            new.default = (kind == FileType::Directory).then(|| default.clone());
        }
        new
    }

    fn assert_same(&self, on: &Setup, context: &str) {
        assert_eq!(format!("{:o}", mode(on, self.node)), format!("{:o}", self.mode), "{context}");
        let bytes = |entries: &Option<Vec<Raw>>| entries.as_deref().map(encode);
        assert_eq!(get(on, self.node, ACCESS), bytes(&self.access), "{context}");
        if self.kind == FileType::Directory {
            assert_eq!(get(on, self.node, DEFAULT), bytes(&self.default), "{context}");
        }
    }
}

fn some_list(random: &mut Random) -> Vec<Raw> {
    let mut some = || random.below(8) as u16;
    let (owner, named, mask, group, others) = (some(), some(), some(), some(), some());
    list(owner, (!random.one_in(3)).then_some((named, mask)), group, others)
}

/// One random change of `on`, done to the model, too.
fn change(on: &Setup, all: &mut Vec<Model>, random: &mut Random, number: u32) {
    let index = random.below(all.len() as u64) as usize;
    let node = all[index].node;
    match random.below(6) {
        0 => {
            let mode = random.below(0o10000) as u32;
            chmod(on, node, mode);
            all[index].chmod(mode);
        }
        1 => {
            let entries = some_list(random);
            set(on, node, ACCESS, &entries).unwrap();
            all[index].set_access(&entries);
        }
        2 => {
            on.removexattr(&on.caller, node, ACCESS).unwrap();
            all[index].access = None;
        }
        3 if all[index].kind == FileType::Directory => {
            let entries = some_list(random);
            if random.one_in(4) {
                on.removexattr(&on.caller, node, DEFAULT).unwrap();
                all[index].default = None;
            } else {
                set(on, node, DEFAULT, &entries).unwrap();
                all[index].default = Some(entries);
            }
        }
        _ => {
            let parents: Vec<usize> =
                (0..all.len()).filter(|&at| all[at].kind == FileType::Directory).collect();
            let parent = all[parents[random.below(parents.len() as u64) as usize]].clone();
            let (asked, umask) = (random.below(0o1000) as u32, random.below(0o1000) as u32);
            let (caller, name) = (masked(on, umask), format!("n{number}"));
            // A new file takes the set-group-id bit's group, and a directory the bit, too.
            let is_directory = random.one_in(2);
            let (kind, entry) = if is_directory {
                (FileType::Directory, on.mkdir(&caller, parent.node, name.as_bytes(), asked).unwrap())
            } else {
                let made = on.create(&caller, parent.node, name.as_bytes(), asked, true).unwrap();
                (FileType::Regular, made.0)
            };
            let mut new = parent.made_in(entry.node, kind, asked, umask);
            if is_directory {
                new.mode |= parent.mode & 0o2000;
            }
            all.push(new);
        }
    }
}

fn behaves_like_the_model(main: &Setup, seed: u64) {
    let mut random = Random::new(seed);
    let attr = main.getattr(&main.caller, ROOT).unwrap();
    let root = Model { node: ROOT, kind: FileType::Directory, mode: attr.mode, access: None, default: None };
    let mut all = vec![root];
    for round in 0..30 {
        let is_txn = random.one_in(2);
        let view = is_txn.then(|| begin(main, Isolation::Snapshot));
        let on = view.as_ref().unwrap_or(main);
        if let Some(view) = &view {
            know_all(view, ROOT);
        }
        let before = all.clone();
        for number in 0..10 {
            change(on, &mut all, &mut random, round * 10 + number);
        }
        for model in &all {
            model.assert_same(on, &format!("seed {seed}, round {round}, inode {}", model.node.0));
        }
        if let Some(view) = view {
            if random.one_in(3) {
                view.fs.txn().unwrap().abort();
                all = before;
            } else {
                commit(&view.fs).unwrap();
                know_all(main, ROOT);
            }
            for model in &all {
                model.assert_same(main, &format!("seed {seed}, after the transaction of round {round}"));
            }
        }
        if round == 15 {
            main.store.create_snapshot("then").unwrap();
        }
    }
    main.assert_sound(&format!("seed {seed}"));
    restore_then(main);
    main.assert_sound(&format!("seed {seed}, restored"));
}

fn restore_then(main: &Setup) {
    let then = main.fs.view_of(main.store.open_snapshot("then").unwrap()).unwrap();
    let before = tree(&main.through(Arc::clone(&then), main.options)).0;
    let txn = begin(main, Isolation::Snapshot);
    kvfs_fs::restore(&txn.fs, &then).unwrap();
    commit(&txn.fs).unwrap();
    assert_eq!(tree(main).0, before);
}

/// Looks everything up, so that node ids mean something.
fn know_all(on: &Setup, directory: NodeId) {
    for listed in on.list(directory, 100, false) {
        if listed.name == b"." || listed.name == b".." {
            continue;
        }
        let entry = on.lookup(&on.caller, directory, &listed.name).unwrap();
        if listed.kind == FileType::Directory {
            know_all(on, entry.node);
        }
    }
}

#[test]
fn lists_and_modes_behave_like_the_model() {
    for seed in 1..=20 {
        behaves_like_the_model(&Setup::new(4096), seed);
    }
}

#[test]
fn lists_and_modes_behave_like_the_model_over_the_engine() {
    for seed in 21..=24 {
        let db = engine::open(&engine::create(), 1 << 14, Background::Manual);
        behaves_like_the_model(&Setup::with(db, 200, MountOptions::default()), seed);
    }
}

/// What user 1 may do, who waits for a transaction that has changed a list.
struct Asking<'v> {
    view: &'v Setup,
    changed: &'v Setup,
    waits: Cell<u32>,
}

impl Asking<'_> {
    fn check(&self, node: NodeId, attr: &Attr) -> Result<()> {
        self.view.check_access(&Caller { uid: 1, ..Caller::default() }, &[100], node, attr, 5)
    }

    fn await_the_end(&self, ticket: &Ticket) -> bool {
        self.changed.txn().unwrap().abort();
        self.waits.set(self.waits.get() + 1);
        ticket.wait();
        true
    }
}

impl TreeRights for Asking<'_> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_directory(&self, directory: NodeId, attr: &Attr) -> Result<()> {
        self.check(directory, attr)
    }

    fn depends_on_entries(&self, _: &Attr) -> bool {
        false
    }

    fn check_entry(&self, _: &Attr, _: &Attr) -> Result<()> {
        Ok(())
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.await_the_end(ticket)
    }
}

impl CloneRights for Asking<'_> {
    fn is_everything(&self) -> bool {
        false
    }

    fn check_source(&self, node: NodeId, attr: &Attr) -> Result<()> {
        self.check(node, attr)
    }

    fn owner_of(&self, attr: &Attr) -> (u32, u32) {
        (attr.uid, attr.gid)
    }

    fn is_alone(&self) -> bool {
        false
    }

    fn wait(&self, ticket: &Ticket) -> bool {
        self.await_the_end(ticket)
    }
}

#[test]
fn tree_is_removed_and_cloned_when_a_list_in_it_is_no_longer_being_changed() {
    for is_removed in [true, false] {
        let main = Setup::new(4096);
        DetachedTrees::of(&main.fs).prepare().unwrap();
        let top = main.dir(ROOT, "top");
        main.dir(top, "below");
        let changes = SetAttr { mode: Some(0o777), ..SetAttr::default() };
        main.setattr(&main.caller, top, &changes).unwrap();
        let [changed, view] =
            [Isolation::Snapshot, Isolation::Serializable].map(|isolation| begin(&main, isolation));
        changed.lookup(&changed.caller, ROOT, b"top").unwrap();
        changed.setxattr(&changed.caller, top, b"user.note", b"text", XattrMode::Set).unwrap();
        let rights = Asking { view: &view, changed: &changed, waits: Cell::new(0) };
        let (caller, place) = (Caller::default(), (ROOT, &b"top"[..]));
        if is_removed {
            remove_tree(&view.fs, &caller, place, &rights).unwrap();
        } else {
            clone_tree(&view.fs, &caller, place, (ROOT, b"copy"), &rights).unwrap();
        }
        assert!(rights.waits.get() > 0);
        commit(&view.fs).unwrap();
    }
}

#[test]
fn access_goes_by_owner_list_groups_and_others() {
    let setup = Setup::new(4096);
    // Of user 1000 and group 100.
    let file = setup.file(ROOT, "file");
    let may = |uid: u32, groups: &[u32]| {
        let caller = Caller { uid, ..Caller::default() };
        let attr = setup.getattr(&caller, file).unwrap();
        [4, 2, 1].map(|access| match setup.check_access(&caller, groups, file, &attr, access) {
            Ok(()) => true,
            Err(FsError::AccessDenied(_)) => false,
            Err(error) => panic!("{error}"),
        })
    };
    let chmod = |mode| {
        let changes = SetAttr { mode: Some(mode), ..SetAttr::default() };
        setup.setattr(&setup.caller, file, &changes).map(drop).unwrap();
    };
    chmod(0o462);
    assert_eq!(may(1000, &[100]), [true, false, false], "the owner is no member");
    assert_eq!(may(1001, &[7, 100]), [true, true, false]);
    assert_eq!(may(1001, &[7]), [false, true, false]);
    // User 7 gets everything, of which the mask leaves reading and executing.
    set(&setup, file, ACCESS, &list(4, Some((7, 5)), 6, 0)).unwrap();
    assert_eq!(may(7, &[100]), [true, false, true]);
    assert_eq!(may(1001, &[100]), [true, false, false], "the mask holds for the group, too");
    assert_eq!(may(1001, &[7]), [false; 3]);
    assert_eq!(may(1000, &[]), [true, false, false]);
    // Without a right in the mask there is nothing that a list could give.
    chmod(0o707);
    assert_eq!(may(7, &[]), [true; 3]);
    assert_eq!(may(1001, &[100]), [false; 3]);
}

#[test]
fn the_checker_finds_wrong_lists() {
    let setup = Setup::new(100);
    let (listed, plain) = (setup.file(ROOT, "listed"), setup.file(ROOT, "plain"));
    set(&setup, listed, ACCESS, &list(6, Some((7, 6)), 4, 0)).unwrap();
    let xattr = setup.store.open_keyspace("xattr", KeyspaceKind::Tuple, None).unwrap();
    let key = |inode: NodeId| [&inode.0.to_be_bytes()[..], ACCESS].concat();
    let problems = |batch: Batch| {
        setup.store.apply(batch, Durability::Buffered).unwrap();
        let report = check::check(&setup.store).unwrap();
        report.problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
    };
    for (inode, value, expected) in [
        (listed, encode(&list(6, Some((7, 7)), 4, 0)), "does not fit the permission bits"),
        (listed, Bytes::from_static(b"junk"), "is no access-control list"),
        (plain, encode(&list(6, Some((7, 4)), 4, 4)), "no inode owns it"),
    ] {
        let mut batch = Batch::new();
        batch.put(xattr, key(inode), value);
        let text = problems(batch);
        assert!(text.contains(expected), "{text}");
        let path = if inode == listed { "(/listed)" } else { "(/plain)" };
        assert!(text.contains(&format!("system.posix_acl_access of inode {} {path}: ", inode.0)), "{text}");
    }
    let mut batch = Batch::new();
    batch.delete(xattr, key(plain));
    batch.delete(xattr, key(listed));
    assert!(problems(batch).ends_with("system.posix_acl_access is missing"));
}
