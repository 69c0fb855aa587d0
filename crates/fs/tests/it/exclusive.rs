//! Exclusive bytes: what would come free without a user, a group or a project, of what clones share.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use kvfs_fs::{
    COMPRESSION_ATTRIBUTE, Caller, FsError, MountOptions, NodeId, Project, QuotaKind, SetAttr, XattrMode,
};
use kvfs_kvdb::{Background, Db};
use kvfs_store::progress::{self, Step};
use kvfs_store::{NamedSnapshots, StoreError};

use crate::clones::clone;
use crate::engine;
use crate::setup::{Random, Setup};
use crate::snapshots::{restore, restore_paths};
use crate::undo::{look, txn};

const ROOT: NodeId = NodeId::ROOT;
const KIB: u64 = 1 << 10;
const ANNA: (QuotaKind, u32) = (QuotaKind::User, 1000);
const BERT: (QuotaKind, u32) = (QuotaKind::User, 1001);
const STAFF: (QuotaKind, u32) = (QuotaKind::Group, 100);
const ONE: (QuotaKind, u32) = (QuotaKind::Project, 1);
const TWO: (QuotaKind, u32) = (QuotaKind::Project, 2);

/// Whose, used and exclusive (KiB).
type Expected = ((QuotaKind, u32), (i64, i64));

struct World {
    db: Arc<Db>,
    main: Setup,
    random: Random,
}

impl World {
    fn new() -> Self {
        let db = engine::open(&engine::create(), 1 << 20, Background::Manual);
        let main = Setup::with(Arc::clone(&db) as _, 200, MountOptions::default());
        main.fs.quotas().turn_on(&|_| {}).unwrap();
        Self { db, main, random: Random::new(1) }
    }

    fn directory(&self, name: &str, project: u32) {
        let directory = self.main.dir(ROOT, name);
        let project = Project { id: project, hands_down: true };
        self.main.set_project(&self.main.caller, directory, project).unwrap();
    }

    /// Half of each block can be packed. It is in runs then. The file is made where it is missing.
    fn write(&mut self, directory: &str, name: &str, offset_kib: u64, kib: u64) {
        let (main, directory) = (&self.main, look(&self.main, ROOT, directory));
        let file = main.lookup(&main.caller, directory, name.as_bytes()).map(|entry| entry.node);
        let file = file.unwrap_or_else(|_| main.file(directory, name));
        let mut content = vec![7; (kib * KIB) as usize];
        for block in content.chunks_mut(4096) {
            block[..2048].fill_with(|| self.random.below(256) as u8);
        }
        for (at, part) in content.chunks(1 << 20).enumerate() {
            main.write_at(file, offset_kib * KIB + ((at as u64) << 20), part).unwrap();
        }
        main.forget(file, 1);
        self.db.flush().unwrap();
    }

    fn clone(&self, (from, name): (&str, &str), (to, new): (&str, &str)) {
        txn(&self.main, |view| {
            let (from, to) = (look(view, ROOT, from), look(view, ROOT, to));
            clone(view, (from, name), (to, new)).unwrap();
        });
    }

    fn remove(&self, directory: &str, name: &str) {
        let directory = look(&self.main, ROOT, directory);
        self.main.unlink(&self.main.caller, directory, name.as_bytes()).unwrap();
        self.main.housekeep().unwrap();
    }

    fn change(&self, directory: &str, name: &str, set: &SetAttr) {
        let file = look(&self.main, look(&self.main, ROOT, directory), name);
        self.main.setattr(&Caller::default(), file, set).unwrap();
        self.main.forget(file, 1);
    }

    fn expect(&self, when: &str, expected: &[Expected]) {
        for &(owner, expected) in expected {
            assert_eq!(self.has(owner), expected, "{when}, {owner:?}");
        }
        self.main.assert_sound(when);
    }

    /// As [`Self::expect`], and after merges, which may copy what is less than 32 KiB in a row.
    fn expect_and_merge(&self, when: &str, expected: &[Expected]) {
        self.expect(when, expected);
        self.db.compact().unwrap();
        self.expect(&format!("{when}, merged"), expected);
    }

    /// Used and exclusive (KiB).
    fn has(&self, (kind, id): (QuotaKind, u32)) -> (i64, i64) {
        let quotas = self.main.fs.quotas();
        let mut line = quotas.get(kind, id).unwrap();
        assert_eq!(line.bytes_exclusive, None);
        quotas.tell_exclusive(std::slice::from_mut(&mut line)).unwrap();
        (line.usage.bytes / KIB as i64, line.bytes_exclusive.unwrap() / KIB as i64)
    }
}

#[test]
fn exclusive_bytes_are_those_that_come_free_without_an_owner() {
    for packed in [false, true] {
        let mut world = World::new();
        if packed {
            let (main, name) = (&world.main, COMPRESSION_ATTRIBUTE);
            main.setxattr(&main.caller, ROOT, name, b"lz4", XattrMode::Set).unwrap();
        }
        world.directory("one", 1);
        world.directory("two", 2);
        world.write("one", "a", 0, 256);
        world.expect_and_merge("nothing is cloned", &[(ONE, (256, 256)), (TWO, (0, 0)), (ANNA, (256, 256))]);
        world.clone(("one", "a"), ("one", "b"));
        world.expect_and_merge(
            "within a project",
            &[(ONE, (512, 256)), (ANNA, (512, 256)), (STAFF, (512, 256))],
        );
        world.clone(("one", "b"), ("two", "c"));
        world.expect_and_merge("across projects", &[(ONE, (512, 0)), (TWO, (256, 0)), (ANNA, (768, 256))]);
        // In the middle of packed units.
        world.write("two", "c", 68, 64);
        let expected = [(ONE, (512, 64)), (TWO, (256, 64)), (ANNA, (768, 320)), (STAFF, (768, 320))];
        world.expect_and_merge("a part is overwritten", &expected);
        world.change("two", "c", &SetAttr { uid: Some(BERT.1), ..SetAttr::default() });
        world.expect_and_merge("given away", &[(ANNA, (512, 64)), (BERT, (256, 64)), (STAFF, (768, 320))]);
        world.db.create_snapshot("then").unwrap();
        world.remove("one", "a");
        world.expect_and_merge(
            "one of three is removed",
            &[(ONE, (256, 64)), (TWO, (256, 64)), (STAFF, (512, 320))],
        );
        world.change("one", "b", &SetAttr { size: Some(132 * KIB), ..SetAttr::default() });
        world.expect_and_merge(
            "one of two is cut",
            &[(ONE, (132, 64)), (TWO, (256, 188)), (STAFF, (388, 320))],
        );
        world.remove("one", "b");
        let expected = [(ONE, (0, 0)), (TWO, (256, 256)), (ANNA, (0, 0)), (BERT, (256, 256))];
        world.expect_and_merge("the last source is removed, and a snapshot has all of them", &expected);
        restore(&world.main, "then").unwrap();
        let expected = [(ONE, (512, 64)), (TWO, (256, 64)), (ANNA, (512, 64)), (BERT, (256, 64))];
        world.expect_and_merge("restored", &expected);
    }
}

#[test]
fn restored_and_copied_files_share_their_blocks() {
    let mut world = World::new();
    world.directory("one", 1);
    world.directory("two", 2);
    world.write("one", "a", 0, 16 << 10);
    world.db.create_snapshot("then").unwrap();
    let main = &world.main;
    let (from, to) = (look(main, ROOT, "one"), look(main, ROOT, "two"));
    let (source, target) = (look(main, from, "a"), main.file(to, "b"));
    let copied = main.copy_file_range(&main.caller, source, 0, target, 0, 16 << 20).unwrap();
    assert_eq!(copied.bytes, 16 << 20, "in one call: as a clone");
    main.forget(source, 1);
    main.forget(target, 1);
    world.expect("copied", &[(ONE, (16 << 10, 0)), (TWO, (16 << 10, 0)), (ANNA, (32 << 10, 16 << 10))]);
    world.write("one", "a", 0, 1 << 10);
    let expected = [(ONE, (16 << 10, 1 << 10)), (TWO, (16 << 10, 1 << 10)), (ANNA, (32 << 10, 17 << 10))];
    world.expect("overwritten", &expected);
    // What is changed in place is copied.
    world.remove("one", "a");
    world.expect("removed", &[(ONE, (0, 0)), (TWO, (16 << 10, 16 << 10))]);
    restore_paths(&world.main, "then", &["/one/a"]).unwrap();
    let expected = [(ONE, (16 << 10, 0)), (TWO, (16 << 10, 0)), (ANNA, (32 << 10, 16 << 10))];
    world.expect("restored", &expected);
    world.clone(("one", "a"), ("two", "c"));
    world.expect("cloned", &[(ONE, (16 << 10, 0)), (TWO, (32 << 10, 0)), (ANNA, (48 << 10, 16 << 10))]);
    world.remove("one", "a");
    world.expect("the source is removed", &[(ONE, (0, 0)), (TWO, (32 << 10, 16 << 10))]);
}

#[test]
fn owners_of_many_clones_are_looked_for_once_between_two_walks() {
    const CLONES: u64 = 20;
    const KIB_OF_ALL: i64 = (64 * CLONES * (CLONES + 1)) as i64;
    let mut world = World::new();
    world.directory("one", 1);
    world.directory("two", 2);
    world.write("one", "a", 0, 64 * CLONES);
    for number in 0..CLONES {
        let name = format!("c{number}");
        world.clone(("one", "a"), ("two", &name));
        world.write("two", &name, 64 * number, 4);
    }
    let stages = Rc::new(RefCell::new(Vec::new()));
    let seen = Rc::clone(&stages);
    let watcher = move |step: Step| {
        if step.done == 0 {
            seen.borrow_mut().push(step.stage);
        }
    };
    let (used_by_one, own) = (64 * CLONES as i64, 4 * CLONES as i64);
    let told = progress::watched(watcher, || world.has(TWO));
    assert_eq!(told, (KIB_OF_ALL - used_by_one, own));
    assert_eq!(
        *stages.borrow(),
        ["looking for shared blocks", "looking for owners", "looking for shared blocks"]
    );
    world.expect("cloned", &[(ONE, (used_by_one, 0)), (ANNA, (KIB_OF_ALL, used_by_one + own))]);
}

#[test]
fn exclusive_bytes_are_not_told_while_quotas_are_off_and_not_counted_on_when_not_wanted() {
    let mut world = World::new();
    world.directory("one", 1);
    world.write("one", "a", 0, 64);
    world.clone(("one", "a"), ("one", "b"));
    let quotas = world.main.fs.quotas();
    let given_up = progress::while_wanted(|| false, || quotas.tell_exclusive(&mut quotas.report()));
    assert!(
        matches!(&given_up, Err(FsError::Store(error)) if matches!(**error, StoreError::GivenUp)),
        "{given_up:?}"
    );
    quotas.turn_off().unwrap();
    assert!(matches!(quotas.tell_exclusive(&mut []), Err(FsError::Invalid(_))));
}

#[test]
fn engine_without_clones_has_all_bytes_once_for_each_file() {
    let main = Setup::new(200);
    main.fs.quotas().turn_on(&|_| {}).unwrap();
    let file = main.file(ROOT, "a");
    main.write_at(file, 0, &vec![7; 64 << 10]).unwrap();
    txn(&main, |view| {
        clone(view, (ROOT, "a"), (ROOT, "b")).unwrap();
    });
    let mut lines = main.fs.quotas().report();
    main.fs.quotas().tell_exclusive(&mut lines).unwrap();
    let anna = lines.iter().find(|line| (line.kind, line.id) == ANNA).unwrap();
    assert_eq!((anna.usage.bytes, anna.bytes_exclusive), (128 << 10, Some(128 << 10)));
}
