//! The control socket of a mounted store: transactions, branches, snapshots, counters and check for the
//! `kvfs` command of the same version; keys have a socket of their own (crate `rpc`).
//!
//! Purpose: a front end of `service`: the protocol (length-prefixed frames), a client, and a server whose
//! [`RequestHandler`] also answers in a command that has opened the store itself. The socket lies in the
//! store's directory, and for the users of a mount of root's in `/run/kvfs`
//! (docs/decisions/public-sockets.md). Which user may ask what is decided by `service`.
//!
//! Thread safety: see the modules. Invariant: an error of `service` becomes a number and a message here; the
//! client makes the same error of them again.

mod answer;
mod client;
mod descriptor;
mod peer;
mod protocol;
mod server;
mod shares;

pub use answer::{Mounted, RequestHandler};
pub use client::{Bars, Client, Closing, Daemon};
pub use kvfs_service::lines::{
    BranchLine, BudgetLine, ChargeLine, ChargeLines, CommittedLine, DefragPlanLine, DefragRequest,
    DefragmentedLine, DeviceHeatLine, DeviceLine, DirectoryLine, DoomLine, DrainLine, FactsLine, FindingLine,
    FragmentationLine, HealthLine, HeatCellLine, HeatLines, HeldLine, HeldLines, LimitChanges, LockLine,
    LockLines, NewDeviceLine, OperationLine, OperationLines, OwnerlessLine, PartyLine, PlaceLine,
    PlacementLine, QuotaOwner, QuotaRequest, QuotaRow, SelectionLine, SnapshotLine, TierRequest, TraceLine,
    TraceRequest, TrafficLine, TxnLine, WaiterLine, ZoneLines,
};
pub use peer::Peer;
pub use protocol::{
    Begin, Blob, BranchRequest, ChangeLine, ObstacleLine, Request, Response, SnapshotRequest, UndoRequest,
};
pub use server::Server;

/// Name of the socket.
pub const SOCKET_NAME: &str = "control.sock";
