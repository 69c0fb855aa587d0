//! The daemon's private control socket: transactions, counters and check for the `kvfs` command of the same
//! version; keys have a socket of their own (crate `rpc`). Length-prefixed frames. It lies in the store's directory, and for the
//! users of a mount of root's in `/run/kvfs` (docs/decisions/public-sockets.md); `authority` decides which user may ask what.

mod authority;
mod client;
mod descriptor;
mod peer;
mod protocol;
mod server;
mod shares;

pub(crate) use authority::authorize;
pub(crate) use client::{Client, Daemon};
pub(crate) use kvfs_service::lines::{
    BranchLine, CommittedLine, DoomLine, FactsLine, FindingLine, HealthLine, LimitChanges, LockLine,
    LockLines, PartyLine, PlaceLine, QuotaOwner, QuotaRequest, QuotaRow, SelectionLine, SnapshotLine,
    TxnLine, WaiterLine,
};
pub(crate) use peer::Peer;
pub(crate) use protocol::{
    Begin, Blob, BranchRequest, ChangeLine, DefragRequest, FragmentationLine, ObstacleLine, Request,
    Response, SnapshotRequest, UndoRequest, ZoneLines,
};
pub(crate) use server::{Handler, Server};
