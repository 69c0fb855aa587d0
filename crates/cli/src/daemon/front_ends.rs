//! What a daemon serves beside its mount, if it has one: transactions, branches, keys, and processes without
//! a mount.
//!
//! Thread safety: one owner. Invariant: at the end no call of any of them is under way, and no transaction is
//! open.

use std::os::unix::net::UnixListener;
use std::sync::{Arc, OnceLock};

use kvfs_fs::FileSystem;
use kvfs_posix::View;
use kvfs_service::{Branches, MainLine, Mounts, Service, Transactions, masters};

use super::files::{Files, KernelSides};
use super::public::PublicSockets;
use super::{Plan, keys_handler, unless_unwritable};
use crate::error::{CliError, Result};
use crate::store_dir::StoreDir;

/// The store that a daemon has opened.
#[derive(Clone, Copy)]
pub(super) struct Store<'d> {
    pub(super) plan: &'d Plan,
    pub(super) dir: &'d StoreDir,
    pub(super) fs: &'d Arc<FileSystem>,
    pub(super) service: &'d Arc<Service>,
    pub(super) public: Option<&'d PublicSockets>,
}

/// See the module.
pub(super) struct FrontEnds {
    fs: Arc<FileSystem>,
    branches: Arc<Branches>,
    transactions: Arc<Transactions>,
    keys: Option<kvfs_rpc::server::Server>,
    files: Option<Files>,
}

impl FrontEnds {
    /// Serves a store. `keys`: where users of a store of root's want keys; `main`: what processes without a
    /// mount see of the main line, if it is there already; `kernel`: who is to be told of what they change.
    pub(super) fn start(
        store: Store<'_>,
        mounts: Arc<dyn Mounts>,
        keys: Option<UnixListener>,
        main: OnceLock<View>,
        kernel: Option<KernelSides>,
    ) -> Result<Self> {
        let Store { plan, fs, service, .. } = store;
        let line = MainLine { fs: Arc::clone(fs), mounts, views_max: plan.open.memory.views_max() };
        let branches = Branches::new(line.clone())?;
        let transactions = Transactions::new(line, &branches)?;
        service.serve_transactions(&transactions, &branches);
        let keys = serve_keys(store, &transactions, keys)?;
        let files = serve_files(store, &transactions, main, kernel)?;
        Ok(Self { fs: Arc::clone(fs), branches, transactions, keys, files })
    }

    pub(super) fn transactions(&self) -> &Arc<Transactions> {
        &self.transactions
    }

    /// Calls `told` when the last process without a mount has gone; none comes after it.
    pub(super) fn stop_when_unused(&self, told: impl Fn() + Send + Sync + 'static) {
        if let Some(files) = &self.files {
            files.stop_when_unused(told);
        }
    }

    /// Ends them, transactions before all that may wait for one. Commits that are under way are waited for,
    /// however long they take; the log says for which.
    pub(super) fn end(mut self) {
        if let Some(keys) = &mut self.keys {
            keys.remove_socket();
        }
        self.transactions.end_open();
        if let Some(keys) = self.keys {
            keys.stop();
        }
        self.transactions.close();
        if let Some(files) = self.files {
            files.stop();
        }
        self.branches.close();
        // Orphans that only those processes had open, and their names.
        self.fs.nodes().forget_names();
        if !kvfs_fs::is_read_only(&self.fs)
            && let Err(error) = self.fs.housekeep()
        {
            tracing::warn!(%error, "what has no name any more stays until the store is opened again");
        }
    }
}

/// The socket for keys.
fn serve_keys(
    Store { plan, dir, fs, .. }: Store<'_>,
    transactions: &Arc<Transactions>,
    also: Option<UnixListener>,
) -> Result<Option<kvfs_rpc::server::Server>> {
    let failed = |error: std::io::Error| CliError::io("listen on", &dir.keys_name(), &error);
    let Some(socket) = unless_unwritable(plan, dir.bind_keys()).map_err(failed)? else { return Ok(None) };
    let bytes_max = plan.open.memory.message_bytes(kvfs_rpc::MESSAGE_LEN_MAX);
    let limits = kvfs_rpc::server::Limits {
        bytes_max,
        bytes_per_user_max: bytes_max / 2,
        ..kvfs_rpc::server::Limits::default()
    };
    let also = also.map(Arc::new);
    let mount = plan.dir.clone().unwrap_or_default();
    let options = kvfs_rpc::server::Options { masters: masters(fs).into(), mount, also, limits };
    let transactions = keys_handler::handler(transactions);
    let server = kvfs_rpc::server::Server::start(Arc::clone(fs), transactions, socket, options);
    server.map(Some).map_err(failed)
}

/// The socket for processes without a mount.
fn serve_files(
    Store { plan, dir, fs, public, .. }: Store<'_>,
    transactions: &Arc<Transactions>,
    main: OnceLock<View>,
    kernel: Option<KernelSides>,
) -> Result<Option<Files>> {
    if plan.writeback {
        tracing::info!(
            "no processes without a mount: the kernel keeps dirty pages, and owns sizes and times"
        );
        return Ok(None);
    }
    if plan.open.follows {
        tracing::info!("no processes without a mount: they would keep names that change elsewhere");
        return Ok(None);
    }
    let failed = |error: std::io::Error| CliError::io("listen on", &dir.files_name(), &error);
    let Some(socket) = unless_unwritable(plan, dir.bind_files()).map_err(failed)? else { return Ok(None) };
    let also = public.and_then(PublicSockets::listen_for_files);
    let files = Files::start(socket, also, fs, main, transactions, kernel, plan.open.memory);
    files.map(Some).map_err(failed)
}
