//! A store that this process has open, and serves to programs.

use std::collections::BTreeMap;
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::sync::Arc;

use kvfs_fs::{BeginOptions, Isolation, Owner};
use kvfs_fuse::bridge::{Bridge, BridgeConfig, init_config};
use kvfs_fuse::mount::{MountOptions, MountPoint, Unmount, mount};
use kvfs_fuse::transport::DeviceTransport;
use kvfs_fuse::{Session, SessionConfig};
use kvfs_lane::SOCKET_NAME;
use kvfs_open::{Memory, NewStore, OpenOptions, OpenedStore, StoreDir, make_store, own_device};
use kvfs_posix::{PosixError, Process, Transaction, Volume};
use kvfs_serve::{Server, Visitor, World};
use parking_lot::Mutex;
use rustix::io::Errno;
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
        make_store(&path, NewStore::of_size(Some(512 << 20)), |dir| own_device(dir, Some(512 << 20)))
            .expect("is made");
        let memory = Memory::new(Some(64 << 20)).expect("is enough");
        let options = OpenOptions { memory, ..OpenOptions::default() };
        let store = StoreDir::open(&path).expect("is one");
        let opened = OpenedStore::open(&store, &options).expect("opens");
        let volume = Volume::over(Arc::clone(&opened.fs)).expect("starts");
        let listener = UnixListener::bind(path.join(SOCKET_NAME)).expect("binds");
        let server = Server::start(listener, Served { volume, open: Mutex::default() }).expect("starts");
        Self { server, opened, directory }
    }

    pub(crate) fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Mounts it on `point`, or says why that can't be and gives `None`.
    pub(crate) fn mount_or_skip(&self, test: &str, point: &Path) -> Option<Mounted> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            eprintln!("SKIPPED {test}: needs root and /dev/fuse");
            return None;
        }
        std::fs::create_dir(point).expect("makes");
        let source = self.directory.path().join("store").canonicalize().expect("is there");
        let (point, device) =
            mount(point, &MountOptions { source, ..MountOptions::default() }).expect("mounts");
        let bridge = Bridge::new(Arc::clone(&self.opened.fs), BridgeConfig::default()).expect("starts");
        let config = SessionConfig { init: init_config(), workers: 2, ..SessionConfig::default() };
        let (transport, bridge) = (DeviceTransport::new(device), Arc::new(bridge));
        let session = Session::start(Box::new(transport), &config, Arc::clone(&bridge) as _).expect("starts");
        bridge.attach(session.notifier());
        Some(Mounted { point, session: Some(session), bridge })
    }

    pub(crate) fn stop(self) {
        self.server.stop();
        self.opened.close().expect("closes");
    }
}

/// A mount of it.
pub(crate) struct Mounted {
    point: MountPoint,
    session: Option<Session>,
    bridge: Arc<Bridge>,
}

impl Mounted {
    pub(crate) fn unmount(mut self) {
        self.point.unmount(Unmount::Clean).expect("nothing uses it");
        self.session.take().map(Session::wait).transpose().expect("ends");
        self.bridge.end();
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.session.is_some() {
            // After a failed test nothing may be left behind.
            let _ = self.point.unmount(Unmount::Abort);
        }
    }
}

/// A volume, with transactions that need no daemon.
struct Served {
    volume: Volume,
    open: Mutex<BTreeMap<u64, Transaction>>,
}

impl Served {
    fn take(&self, txn: u64) -> kvfs_posix::Result<Transaction> {
        let gone = PosixError::Refused { errno: Errno::NOENT, reason: "no transaction" };
        self.open.lock().remove(&txn).ok_or(gone)
    }
}

impl World for Served {
    fn process(&self, visitor: &Visitor) -> Result<Process, Errno> {
        match visitor.txn {
            0 => Ok(self.volume.process(&visitor.identity)),
            txn => {
                let open = self.open.lock();
                Ok(open.get(&txn).ok_or(Errno::NOENT)?.process(&visitor.identity))
            }
        }
    }

    fn begin(&self, visitor: &Visitor, is_serializable: bool, label: &str) -> kvfs_posix::Result<u64> {
        let txn = self.volume.begin(&BeginOptions {
            isolation: if is_serializable { Isolation::Serializable } else { Isolation::Snapshot },
            owner: Owner { uid: visitor.uid, pid: visitor.pid, name: label.to_owned() },
            ..BeginOptions::default()
        })?;
        let id = txn.file_system().txn().map_or(0, |txn| txn.id().0);
        self.open.lock().insert(id, txn);
        Ok(id)
    }

    fn commit(&self, _: &Visitor, txn: u64) -> kvfs_posix::Result<()> {
        self.take(txn)?.commit().map(drop)
    }

    fn abort(&self, _: &Visitor, txn: u64) -> kvfs_posix::Result<()> {
        self.take(txn).map(drop)
    }
}
