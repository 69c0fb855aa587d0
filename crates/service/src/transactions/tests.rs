//! The registry without a front end.

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::{Durability, FileSystem, FsError, MkfsOptions, MountOptions, Position};
use kvfs_store::Store;
use kvfs_store::clock::SystemClock;
use kvfs_store::model::ModelStore;

use super::{Begin, Transactions, TxnState};
use crate::branches::Branches;
use crate::caller::Caller;
use crate::error::{ErrorKind, Result, ServiceError};
use crate::mounts::{MainLine, Mounts, ViewMount};

/// No kernel side at all.
struct NoMounts {
    is_writeback: bool,
}

fn none<T>() -> Result<T> {
    Err(ServiceError::new(ErrorKind::MountPoint, "nothing is mounted here"))
}

impl Mounts for NoMounts {
    fn is_writeback(&self) -> bool {
        self.is_writeback
    }

    fn write_back(&self) -> Result<(), FsError> {
        Ok(())
    }

    fn commit(
        &self,
        view: &Arc<FileSystem>,
        durability: Durability,
        _: Option<Duration>,
    ) -> Result<Position, FsError> {
        view.freeze()?;
        view.commit_plan()?;
        Ok(view.commit(durability, || ())?.position)
    }

    fn close_deleted_snapshots(&self) {}

    fn mount_view(&self, _: u64, _: u32, _: Arc<FileSystem>) -> Result<Box<dyn ViewMount>> {
        none()
    }

    fn view_path(&self, id: u64) -> PathBuf {
        format!("/views/{id}").into()
    }

    fn copy_view(&self, _: u64) -> Result<OwnedFd> {
        none()
    }

    fn attach_view(
        &self,
        _: Arc<FileSystem>,
        _: OwnedFd,
        _: Option<(u32, u32)>,
    ) -> Result<Box<dyn ViewMount>> {
        none()
    }

    fn mount_detached(&self, _: Arc<FileSystem>, _: u32) -> Result<(OwnedFd, Box<dyn ViewMount>)> {
        none()
    }

    fn check_free(&self, _: &Path) -> Result<()> {
        none()
    }

    fn is_free(&self, _: &Path) -> bool {
        true
    }

    fn mount_branch(
        &self,
        _: &Path,
        _: Arc<FileSystem>,
        _: u32,
        _: Option<u32>,
    ) -> Result<Box<dyn ViewMount>> {
        none()
    }
}

/// A registry over an empty store; closed on drop.
struct World(Arc<Transactions>, Arc<Branches>);

impl World {
    fn new(is_writeback: bool) -> Self {
        let store: Arc<dyn Store> = Arc::new(ModelStore::new());
        let clock = Arc::new(SystemClock::new());
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes a file system");
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let main = MainLine { fs: Arc::new(fs), mounts: Arc::new(NoMounts { is_writeback }), views_max: 16 };
        let branches = Branches::new(main.clone()).expect("starts");
        Self(Transactions::new(main, &branches).expect("starts"), branches)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.0.close();
        self.1.close();
    }
}

/// A user that is neither root nor that of this process.
fn stranger() -> Caller {
    Caller::of_mount(rustix::process::geteuid().as_raw() + 1000, 1)
}

#[test]
fn negative_priority_is_refused_to_all_but_root_and_the_owner_on_every_way_in() {
    let world = World::new(false);
    let begin = || Begin { nice: -1, ..Begin::default() };
    let keys = Caller::of_keys(7, stranger().uid, 1);
    for caller in [stranger(), keys] {
        let error = world.0.begin(&caller, begin()).expect_err("is refused");
        assert_eq!(error.kind(), ErrorKind::Denied);
        assert_eq!(
            error.to_string(),
            "only root and the store's owner run transactions with a negative --nice"
        );
        let id = world.0.begin(&caller, Begin::default()).expect("begins");
        assert_eq!(world.0.state(&caller, id).expect("is open"), TxnState::Open);
    }
    for caller in [Caller::own(), Caller::of_mount(0, 1)] {
        world.0.begin(&caller, begin()).expect("begins");
    }
}

#[test]
fn label_is_cut_and_made_printable_on_every_way_in() {
    let world = World::new(false);
    let begin = Begin { label: format!("a\x1b{}", "b".repeat(200)), ..Begin::default() };
    let id = world.0.begin(&stranger(), begin).expect("begins");
    let label = format!("a {}", "b".repeat(78));
    assert_eq!(world.0.list(&stranger())[0].label, label);
    assert_eq!(world.0.labelled(&stranger(), &label), Some(id));
    assert_eq!(world.0.labelled(&Caller::own(), &label), None, "it is another user's");
}

#[test]
fn transaction_over_files_on_a_writeback_mount_is_refused_and_over_keys_is_not() {
    let world = World::new(true);
    let files = Begin { needs_files: true, ..Begin::default() };
    assert!(matches!(world.0.begin(&stranger(), files), Err(ServiceError::NoFiles)));
    let id = world.0.begin(&stranger(), Begin::default()).expect("begins");
    assert!(matches!(world.0.path(&stranger(), id), Err(ServiceError::NoFiles)));
    world.0.commit(&stranger(), id, Durability::Buffered, None).expect("commits");
    assert!(matches!(world.0.view(&stranger(), id), Err(ServiceError::Unknown(unknown)) if unknown == id));
}

#[test]
fn transaction_of_another_user_is_refused_and_an_aborted_one_says_why() {
    let world = World::new(false);
    let id = world.0.begin(&stranger(), Begin::default()).expect("begins");
    let other = Caller::of_mount(stranger().uid + 1, 1);
    let refused = world.0.commit(&other, id, Durability::Buffered, None);
    assert!(matches!(refused, Err(ServiceError::NotYours { uid, .. }) if uid == stranger().uid));
    assert_eq!(world.0.abort(&Caller::of_mount(0, 5), id).expect("aborts"), None);
    let ended = world.0.view(&stranger(), id).expect_err("has ended");
    assert_eq!(ended.to_string(), format!("transaction {id}: aborted by user 0 (pid 5)"));
}
