//! Two file systems that were made alike: one that a server has, and one of this process.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use kvfs_client::{Process, ServedStore};
use kvfs_fs::{DetachedTrees, FileSystem, MkfsOptions, MountOptions};
use kvfs_kvdb::Db;
use kvfs_lane::SOCKET_NAME;
use kvfs_posix::{Identity, Volume};
use kvfs_serve::Server;
use kvfs_store::{Store, clock::SystemClock};
use tempfile::TempDir;

/// A file system, and whether it is served.
pub(crate) struct World {
    served: Option<(ServedStore, Server)>,
    volume: Volume,
    directory: TempDir,
    _db: Arc<Db>,
}

impl World {
    pub(crate) fn embedded() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let db = Db::builder().capacity_bytes(1 << 28).open(directory.path().join("store")).expect("opens");
        let (store, clock) = (Arc::clone(&db) as Arc<dyn Store>, Arc::new(SystemClock::new()));
        FileSystem::mkfs(&store, &*clock, &MkfsOptions::default()).expect("makes");
        let fs = FileSystem::open(store, clock, MountOptions::default()).expect("opens");
        let volume = Volume::over(Arc::new(fs)).expect("starts");
        Self { served: None, volume, directory, _db: db }
    }

    pub(crate) fn served() -> Self {
        let mut world = Self::embedded();
        let listener = UnixListener::bind(world.directory.path().join(SOCKET_NAME)).expect("binds");
        let volume = world.volume.clone();
        let server =
            Server::start(listener, move |identity: &Identity| volume.process(identity)).expect("starts");
        let store = ServedStore::find(world.directory.path()).expect("is found");
        world.served = Some((store, server));
        world
    }

    pub(crate) fn process(&self, identity: &Identity) -> Process {
        match &self.served {
            Some((store, _)) => store.process_as(identity).expect("is granted"),
            None => self.volume.process(identity).into(),
        }
    }

    pub(crate) fn store(&self) -> &ServedStore {
        &self.served.as_ref().expect("is served").0
    }

    /// Waits until nothing of removed trees is left.
    pub(crate) fn take_trees_apart(&self) {
        DetachedTrees::of(self.volume.file_system()).remove_all().expect("is removed");
    }

    /// Lets other users reach the socket.
    pub(crate) fn let_others_in(&self) {
        for path in [self.directory.path(), &self.directory.path().join(SOCKET_NAME)] {
            std::fs::set_permissions(path, Permissions::from_mode(0o777)).expect("changes");
        }
    }

    /// Ends the server.
    pub(crate) fn stop(&mut self) -> ServedStore {
        let (store, server) = self.served.take().expect("is served");
        server.stop();
        store
    }
}
