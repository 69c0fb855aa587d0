//! What is in `.kvfs/` at the root of a mount, and which user sees it.
//!
//! ```text
//! .kvfs/kv.sock           leads to the key-value socket
//! .kvfs/locks              as `kvfs locks` shows them: those that concern the reader
//! .kvfs/snapshots/NAME/    a snapshot, read-only
//! .kvfs/stats/             counters: stats.txt, stats.json, stats.prom
//! .kvfs/txn/ID             leads to the view of a transaction, and has it mounted; for its owner and root
//! .kvfs/version            of the program and of the format on the device
//! ```
//!
//! Thread safety: shared by the workers of all sessions; nothing here waits. Invariants: the service is not
//! kept alive from here, since it leads back here by the transactions.

mod snapshots;
mod transactions;

use std::fmt;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use bytes::Bytes;
use kvfs_fs::{FileSystem, FileType, FsError, TxnId};
use kvfs_fuse::bridge::{Folder, HiddenDirectory, Item, Name};
use kvfs_service::{Caller, Service, Transactions};

use crate::commands::version;
use crate::control::OperationLines;
use crate::report::{locks, prometheus, stats};
use snapshots::Snapshots;
use transactions::OpenTransactions;

/// Its name in the root of the mount.
pub(crate) const NAME: &str = ".kvfs";

/// Text of locks after which a list in a file is cut (bytes).
const LOCKS_BYTES_MAX: usize = 256 << 10;

/// Pages of locks that are looked through for one file, which may concern its reader or not.
const LOCK_PAGES_MAX: usize = 8;

/// The directory for a mount of `fs`, which `service` tells about; `keys_socket`: where its users are led to.
pub(crate) fn directory(
    service: &Arc<Service>,
    fs: &Arc<FileSystem>,
    keys_socket: PathBuf,
) -> HiddenDirectory {
    let service = Told(Arc::downgrade(service));
    HiddenDirectory {
        name: NAME,
        root: Arc::new(Top { service, fs: Arc::clone(fs), keys_socket }),
        uid: rustix::process::geteuid().as_raw(),
        gid: rustix::process::getegid().as_raw(),
    }
}

/// The source of what there is to tell.
#[derive(Clone)]
struct Told(Weak<Service>);

impl fmt::Debug for Told {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Told")
    }
}

impl Told {
    fn service(&self) -> Option<Arc<Service>> {
        self.0.upgrade()
    }

    fn transactions(&self) -> Option<Arc<Transactions>> {
        self.service()?.transactions().ok().cloned()
    }

    /// The view of transaction `id` is mounted when this returns.
    fn mount_view(&self, uid: u32, id: u64) -> Result<(), FsError> {
        let gone = FsError::ViewEnded(TxnId(id));
        let Some(transactions) = self.transactions() else { return Err(gone) };
        match transactions.path(&Caller::of_mount(uid, 0), id) {
            Ok(_) => Ok(()),
            Err(error) => {
                tracing::warn!(id, %error, "the view of a transaction is not mounted");
                Err(gone)
            }
        }
    }

    /// The counters that user `uid` may know of, as `render` writes them.
    fn stats(&self, uid: u32, render: impl Fn(&[(String, u64)], &OperationLines) -> String) -> Item {
        let told =
            |service: Arc<Service>| (service.stats(&Caller::of_mount(uid, 0)), service.operations().lines());
        let (stats, operations) = self.service().map(told).unwrap_or_default();
        Item::File(render(&stats, &operations).into())
    }

    /// The locks that user `uid` may see.
    fn locks(&self, uid: u32) -> Item {
        let mut text = String::new();
        let Some(transactions) = self.transactions() else { return Item::File(Bytes::new()) };
        let (mut after, mut has_heading) = (None, false);
        for pages in 1.. {
            let Ok(page) = transactions.locks(uid, after) else { break };
            // Writing to a string never fails.
            let _ = locks::page(&mut text, &page, true, &mut has_heading);
            after = page.next;
            if after.is_none() {
                break;
            }
            if text.len() > LOCKS_BYTES_MAX || pages >= LOCK_PAGES_MAX {
                text.push_str("… there are more; `kvfs locks` shows all\n");
                break;
            }
        }
        Item::File(text.into())
    }
}

/// `.kvfs`.
#[derive(Debug)]
struct Top {
    service: Told,
    fs: Arc<FileSystem>,
    keys_socket: PathBuf,
}

impl Folder for Top {
    fn list(&self, _uid: u32) -> Vec<Name> {
        let names = [
            (kvfs_rpc::SOCKET_NAME, FileType::Symlink),
            ("locks", FileType::Regular),
            ("snapshots", FileType::Directory),
            ("stats", FileType::Directory),
            ("txn", FileType::Directory),
            ("version", FileType::Regular),
        ];
        listed(names)
    }

    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError> {
        let service = self.service.clone();
        Ok(match name {
            b"locks" => Some(service.locks(uid)),
            b"snapshots" => Some(Item::Folder(Arc::new(Snapshots { fs: Arc::clone(&self.fs) }))),
            b"stats" => Some(Item::Folder(Arc::new(Stats { service }))),
            b"txn" => Some(Item::Folder(Arc::new(OpenTransactions { service }))),
            b"version" => Some(Item::File(version::line().into())),
            name if name == kvfs_rpc::SOCKET_NAME.as_bytes() => service.transactions().map(|_| {
                let target = self.keys_socket.clone().into_os_string().into_vec();
                Item::Link { target: target.into(), uid: rustix::process::geteuid().as_raw() }
            }),
            _ => None,
        })
    }
}

/// `.kvfs/stats`.
#[derive(Debug)]
struct Stats {
    service: Told,
}

impl Folder for Stats {
    fn list(&self, _uid: u32) -> Vec<Name> {
        listed(["stats.json", "stats.prom", "stats.txt"].map(|name| (name, FileType::Regular)))
    }

    fn find(&self, uid: u32, name: &[u8]) -> Result<Option<Item>, FsError> {
        Ok(match name {
            b"stats.json" => Some(self.service.stats(uid, stats::as_json)),
            b"stats.prom" => Some(self.service.stats(uid, prometheus::as_prometheus)),
            b"stats.txt" => Some(self.service.stats(uid, stats::as_text)),
            _ => None,
        })
    }
}

/// Names that are always the same.
fn listed<const N: usize>(names: [(&str, FileType); N]) -> Vec<Name> {
    let name = |(place, (name, kind)): (usize, (&str, FileType))| Name {
        name: name.as_bytes().into(),
        kind,
        place: place as u64,
    };
    names.into_iter().enumerate().map(name).collect()
}
