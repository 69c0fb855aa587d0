//! The daemon's private control socket: key-value commands, counters, check and shutdown for the
//! `kvfs` command of the same version. Length-prefixed frames; the directory's mode guards it.

mod client;
mod protocol;
mod server;

pub(crate) use client::Client;
pub(crate) use protocol::{Entry, Request, Response, ScanRange};
pub(crate) use server::{Handler, Server};
