//! `kvfs snapshot send`: frames from the store to standard output.

use std::io::{ErrorKind, IsTerminal, Write};

use kvfs_fs::transfer::{Prologue, StreamId};
use kvfs_store::progress::Unit;

use super::ask;
use crate::args::SendArgs;
use crate::control::{self, Response, SnapshotRequest};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::progress::Bar;
use crate::staging::{parse_token, token};

/// What can be said without a store.
pub(super) fn check(args: &SendArgs) -> Result<()> {
    if std::io::stdout().is_terminal() {
        let message = "a stream is nothing for a terminal; redirect it into a file, or pipe it into \
                       `kvfs snapshot receive`";
        return Err(CliError::new(Code::Usage, message));
    }
    args.resume.as_deref().map(parse_token).transpose().map(drop)
}

pub(super) fn run(endpoint: &mut Endpoint, args: &SendArgs) -> Result<()> {
    let (request, mut offset) = if let Some(text) = &args.resume {
        let (stream, offset) = parse_token(text)?;
        (SnapshotRequest::SendAgain { stream: stream.0 }, offset)
    } else {
        let to = args.name.clone().unwrap_or_default();
        (SnapshotRequest::Send { from: args.from.clone(), to }, 0)
    };
    let Response::Sending { stream, from, to, bytes_expected, has_clones } = ask(endpoint, request)? else {
        return Err(control::confused());
    };
    let begun_at = offset;
    let prologue = Prologue { stream: StreamId(stream), offset, bytes_expected, has_clones };
    let mut out = std::io::stdout().lock();
    let bar = Bar::new("sending");
    let lost = |error: std::io::Error| match error.kind() {
        ErrorKind::BrokenPipe => CliError::new(
            Code::Failed,
            "the receiver has gone; `kvfs snapshot receive --status` there tells what has arrived",
        ),
        _ => CliError::new(Code::Failed, format!("cannot write the stream: {error}")),
    };
    out.write_all(&prologue.encode()).map_err(lost)?;
    loop {
        let asked = ask(endpoint, SnapshotRequest::SendFrames { stream, offset })?;
        let Response::Frames { bytes, is_through } = asked else { return Err(control::confused()) };
        out.write_all(&bytes.0).map_err(lost)?;
        offset += bytes.0.len() as u64;
        bar.show("sending", Unit::Bytes, offset, bytes_expected);
        if is_through {
            break;
        }
    }
    out.flush().map_err(lost)?;
    drop(bar);
    if args.json {
        let line = serde_json::json!({
            "snapshot": to,
            "from": from,
            "stream": StreamId(stream).to_string(),
            "bytes": offset - begun_at,
            "token": token(StreamId(stream), offset),
        });
        eprintln!("{line}");
    }
    Ok(())
}
