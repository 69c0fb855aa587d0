//! The daemon's private control socket: key-value commands, counters and check for the `kvfs` command of
//! the same version. Length-prefixed frames; the modes of socket and store directory guard it.

mod address;
mod client;
mod protocol;
mod server;

pub(crate) use client::{Client, Daemon};
pub(crate) use protocol::{Entry, Request, Response, ScanRange};
pub(crate) use server::{Handler, Server};
