//! The key-value socket of a mounted store: gRPC over a Unix socket, `STORE/kv.sock`.
//!
//! Purpose: keys, keyspaces and transactions for programs in any language, beside the files. The protocol is
//! `proto/kvfs/v1/store.proto`; its code is generated once and committed ([`proto`]), so that a build needs
//! no protobuf compiler. Programs use [`client`] (feature `client`, the default), the daemon [`server`]
//! (feature `server`), which has what neither a client nor the file system needs.
//!
//! Thread safety: see the modules.
//!
//! Invariants: what a client sends, withholds or does not read costs itself, within bounds, and no other
//! client.

#[cfg(feature = "client")]
pub mod client;
pub mod ioctl;
pub mod proto;
#[cfg(feature = "server")]
pub mod server;

/// Name of the socket in the store's directory.
pub const SOCKET_NAME: &str = "kv.sock";

/// Longest message either side accepts (bytes): any one value fits, and a page of a scan.
pub const MESSAGE_LEN_MAX: usize = 8 << 20;

/// The trailer that carries a [`proto::Conflict`].
pub const CONFLICT_TRAILER: &str = "kvfs-conflict-bin";

/// The trailer of `NOT_FOUND` where the transaction of the call is not open: its number.
pub const ENDED_TRAILER: &str = "kvfs-ended-transaction";
