//! One file a subcommand.

pub(crate) mod branch;
pub(crate) mod check;
pub(crate) mod debug;
pub(crate) mod defrag;
pub(crate) mod exec;
pub(crate) mod grow;
pub(crate) mod kv;
pub(crate) mod locks;
pub(crate) mod mkfs;
pub(crate) mod mount;
pub(crate) mod property;
pub(crate) mod quota;
pub(crate) mod remount;
pub(crate) mod repair;
pub(crate) mod rm;
pub(crate) mod serve;
pub(crate) mod snapshot;
pub(crate) mod stats;
pub(crate) mod status;
pub(crate) mod sync;
pub(crate) mod tier;
pub(crate) mod top;
pub(crate) mod trace;
pub(crate) mod txn;
pub(crate) mod umount;
pub(crate) mod version;
