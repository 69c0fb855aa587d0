//! A store that this process has open, and serves to programs.

use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use kvfs_lane::SOCKET_NAME;
use kvfs_open::{INLINE_DEFAULT, Memory, OpenOptions, OpenedStore, StoreDir, make_store, own_device};
use kvfs_posix::{Identity, Volume};
use kvfs_serve::Server;
use tempfile::TempDir;

/// In the directory `store` of one of its own.
pub(crate) struct ServedStore {
    server: Server,
    opened: OpenedStore,
    directory: TempDir,
}

impl ServedStore {
    pub(crate) fn start() -> Self {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("store");
        make_store(&path, Some(512 << 20), INLINE_DEFAULT, |dir| own_device(dir, Some(512 << 20)))
            .expect("is made");
        let memory = Memory::new(Some(64 << 20)).expect("is enough");
        let options = OpenOptions { memory, ..OpenOptions::default() };
        let store = StoreDir::open(&path).expect("is one");
        let opened = OpenedStore::open(&store, &options).expect("opens");
        let volume = Volume::over(Arc::clone(&opened.fs)).expect("starts");
        let listener = UnixListener::bind(path.join(SOCKET_NAME)).expect("binds");
        let server =
            Server::start(listener, move |identity: &Identity| volume.process(identity)).expect("starts");
        Self { server, opened, directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    pub(crate) fn stop(self) {
        self.server.stop();
        self.opened.close().expect("closes");
    }
}
