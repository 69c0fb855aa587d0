//! The daemon's private control socket: key-value commands, transactions, counters and check for the `kvfs`
//! command of the same version. Length-prefixed frames; the modes of socket and store directory guard it.

mod address;
mod client;
mod descriptor;
mod peer;
mod protocol;
mod server;

pub(crate) use client::{Client, Daemon};
pub(crate) use peer::{Peer, may_act_for};
pub(crate) use protocol::{
    Begin, ChangeLine, DoomLine, Entry, LockLine, LockLines, LockPlaceParts, PartyLine, Request, Response,
    ScanRange, SnapshotLine, SnapshotRequest, TxnLine, WaiterLine,
};
pub(crate) use server::{Handler, Server};
