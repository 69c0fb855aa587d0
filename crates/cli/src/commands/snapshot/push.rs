//! `kvfs snapshot push`: a snapshot from the store to a repository.

use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use kvfs_fs::transfer::{Frame, StreamId, StreamReader};
use kvfs_repository::{Push, Pushed, Repository, RepositoryError};
use kvfs_store::clock::{Clock, SystemClock};
use kvfs_store::progress::Unit;

use super::ask;
use crate::args::PushArgs;
use crate::commands::repository::open;
use crate::control::{self, Response, SnapshotRequest};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::progress::Bar;
use crate::units::human_bytes;

pub(super) fn run(store: Option<&Path>, args: &PushArgs) -> Result<ExitCode> {
    // The passphrase may take longer than a daemon waits for a request.
    let repository = open(&args.repository)?;
    let pushed = Endpoint::with(store, true, |endpoint| match push(endpoint, &repository, &args.name) {
        Err(Refused::Present) => Ok(None),
        Err(Refused::Error(error)) => Err(error),
        Ok(pushed) => Ok(Some(pushed)),
    })?;
    if args.json {
        let counts = pushed.map(|Pushed { bytes, records, objects_new, bytes_new }| {
            serde_json::json!({
                "bytes": bytes, "records": records, "objects_new": objects_new, "bytes_new": bytes_new,
            })
        });
        println!("{}", serde_json::json!({ "snapshot": args.name, "pushed": counts }));
    } else if let Some(pushed) = pushed {
        println!(
            "pushed \"{}\": {} in {} records; {} in {} objects were not there yet",
            args.name,
            human_bytes(pushed.bytes),
            pushed.records,
            human_bytes(pushed.bytes_new),
            pushed.objects_new
        );
    } else {
        println!("\"{}\" is in the repository already", args.name);
    }
    Ok(ExitCode::SUCCESS)
}

/// Why nothing was pushed.
enum Refused {
    /// It is there.
    Present,
    Error(crate::error::CliError),
}

impl<E: Into<crate::error::CliError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Error(error.into())
    }
}

fn push(endpoint: &mut Endpoint, repository: &Repository, name: &str) -> Result<Pushed, Refused> {
    let request = SnapshotRequest::Send { from: None, to: name.to_owned() };
    let Response::Sending { stream, bytes_expected, .. } = ask(endpoint, request)? else {
        return Err(control::confused().into());
    };
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::new());
    let mut reader = StreamReader::new(StreamId(stream));
    let mut push: Option<Push<'_>> = None;
    let present = |error| match error {
        RepositoryError::Present(_) => Refused::Present,
        error => Refused::from(error),
    };
    let bar = Bar::new("pushing");
    loop {
        let offset = reader.position();
        let asked = ask(endpoint, SnapshotRequest::SendFrames { stream, offset })?;
        let Response::Frames { bytes, is_through } = asked else { return Err(control::confused().into()) };
        let mut rest = &bytes.0[..];
        while !rest.is_empty() {
            match (reader.next(&mut rest)?, &mut push) {
                (Some(Frame::Begin(begin)), _) => {
                    push = Some(Push::new(repository, &begin, &clock).map_err(present)?);
                }
                (Some(frame), Some(push)) => push.frame(frame)?,
                (_, None) | (None, _) => return Err(control::confused().into()),
            }
        }
        bar.show("pushing", Unit::Bytes, reader.position(), bytes_expected);
        if is_through {
            break;
        }
    }
    let push = push.ok_or_else(control::confused)?;
    push.finish().map_err(present)
}
