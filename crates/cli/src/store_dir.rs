//! A store as people see it: a directory that holds or names the device, and the control socket.
//!
//! ```text
//! STORE/device         sparse file that grows, or a symbolic link to a file or block device
//! STORE/control.sock   while mounted: the daemon's socket for the `kvfs` command
//! STORE/kv.sock        while mounted: its socket for keys and transactions
//! STORE/views/ID       while mounted: the view of an open transaction
//! STORE/receiving      what has arrived of a stream that `kvfs snapshot receive` takes
//! STORE/kvfs.log       what the daemon had to say in the background
//! ```

use std::fs;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{CliError, Code, Result};

/// Paths inside a store directory.
#[derive(Debug, Clone)]
pub(crate) struct StoreDir {
    path: PathBuf,
}

impl StoreDir {
    /// An existing store, by absolute path.
    pub(crate) fn open(path: &Path) -> Result<Self> {
        let absolute = path.canonicalize().map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => CliError::new(
                Code::NotAStore,
                format!("there is no store at {}; make one with `kvfs mkfs {0}`", path.display()),
            ),
            _ => CliError::io("open the store", path, &error),
        })?;
        let store = Self { path: absolute };
        match fs::symlink_metadata(store.device_path()) {
            Ok(_) => Ok(store),
            Err(error)
                if matches!(
                    error.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) =>
            {
                Err(CliError::new(
                    Code::NotAStore,
                    format!("{} is not a kvfs store (it has no device inside)", path.display()),
                ))
            }
            Err(error) => Err(CliError::io("look into", path, &error)),
        }
    }

    /// A directory for a new store: made when missing, refused when it holds anything.
    pub(crate) fn prepare(path: &Path) -> Result<Self> {
        match fs::DirBuilder::new().mode(0o700).create(path) {
            Ok(()) => {}
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => refuse_occupied(path)?,
            Err(error) => return Err(CliError::io("make", path, &error)),
        }
        let path = path.canonicalize().map_err(|error| CliError::io("open", path, &error))?;
        Ok(Self { path })
    }

    /// Whether there is something at `path` other than an empty directory.
    pub(crate) fn is_occupied(path: &Path) -> bool {
        match fs::read_dir(path) {
            Ok(mut entries) => entries.next().is_some(),
            Err(error) => error.kind() != std::io::ErrorKind::NotFound,
        }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn device_path(&self) -> PathBuf {
        self.path.join("device")
    }

    pub(crate) fn keys_socket_path(&self) -> PathBuf {
        self.path.join(kvfs_rpc::SOCKET_NAME)
    }

    pub(crate) fn socket_path(&self) -> PathBuf {
        self.path.join("control.sock")
    }

    /// Where the view of a transaction is mounted.
    pub(crate) fn view_path(&self, id: u64) -> PathBuf {
        self.path.join("views").join(id.to_string())
    }

    /// What has arrived of a stream.
    pub(crate) fn staging_path(&self) -> PathBuf {
        self.path.join("receiving")
    }

    pub(crate) fn log_path(&self) -> PathBuf {
        self.path.join("kvfs.log")
    }
}

fn refuse_occupied(path: &Path) -> Result<()> {
    if fs::symlink_metadata(path.join("device")).is_ok() {
        return Err(CliError::new(
            Code::InUse,
            format!("{} already holds a store; remove it first if you mean to lose it", path.display()),
        ));
    }
    let mut entries = fs::read_dir(path).map_err(|error| CliError::io("make a store in", path, &error))?;
    if entries.next().is_some() {
        return Err(CliError::new(
            Code::InUse,
            format!("{} is not empty; a store needs a directory of its own", path.display()),
        ));
    }
    Ok(())
}
