//! The daemon's private control socket: transactions, counters and check for the `kvfs` command of the same
//! version; keys have a socket of their own (crate `rpc`). Length-prefixed frames; the modes of socket and store directory guard it.

mod client;
mod descriptor;
mod peer;
mod protocol;
mod server;

pub(crate) use client::{Client, Daemon};
pub(crate) use peer::{Peer, may_act_for};
pub(crate) use protocol::{
    Begin, Blob, BranchLine, BranchRequest, ChangeLine, CommittedLine, DoomLine, LimitChanges, LockLine,
    LockLines, LockPlaceParts, ObstacleLine, PartyLine, QuotaOwner, QuotaRequest, QuotaRow, Request,
    Response, SnapshotLine, SnapshotRequest, TxnLine, UndoRequest, WaiterLine, ZoneLines,
};
pub(crate) use server::{Handler, Server};
