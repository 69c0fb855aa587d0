//! `kvfs snapshot receive`: a stream from standard input into a store.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use kvfs_fs::transfer::{Prologue, StreamError, StreamId, StreamReader};

use super::arrival::{self, Origin};
use crate::args::ReceiveArgs;
use crate::endpoint::find_store;
use crate::error::{CliError, Code, Result};
use crate::staging::{Staged, token};
use crate::store_dir::StoreDir;
use crate::units::human_bytes;

pub(super) fn run(target: Option<&Path>, args: &ReceiveArgs) -> Result<ExitCode> {
    if args.status || args.resume_token {
        return status(&find_store(target)?.0, args);
    }
    if args.abandon {
        return abandon(&find_store(target)?.0);
    }
    let mut source = source(args)?;
    let prologue = Prologue::read(&mut *source)?;
    let mut origin = Piped { prologue, source };
    arrival::take(target, &args.target, args.rollback, &mut origin)
}

/// A stream from a file or a pipe.
struct Piped {
    prologue: Prologue,
    source: Box<dyn Read>,
}

impl Origin for Piped {
    fn stream(&self) -> StreamId {
        self.prologue.stream
    }

    fn bytes_expected(&self) -> u64 {
        self.prologue.bytes_expected
    }

    fn open(&mut self, behind: &StreamReader) -> Result<Box<dyn Read + '_>> {
        let (offset, position) = (self.prologue.offset, behind.position());
        let bytes = position.checked_sub(offset).ok_or_else(|| {
            let message = if position == 0 {
                "this is the rest of a stream of which nothing has arrived here; send without --resume".to_owned()
            } else {
                format!(
                    "the stream goes on at byte {offset}, but only {position} have arrived here; send with the token \
                     of `kvfs snapshot receive --resume-token`"
                )
            };
            CliError::new(Code::Failed, message)
        })?;
        let skipped = std::io::copy(&mut (&mut self.source).take(bytes), &mut std::io::sink());
        skipped.map_err(StreamError::from)?;
        Ok(Box::new(&mut self.source))
    }

    fn how_to_go_on(&self, position: u64) -> String {
        format!("`kvfs snapshot send --resume {}`", token(self.prologue.stream, position))
    }
}

fn source(args: &ReceiveArgs) -> Result<Box<dyn Read>> {
    match &args.file {
        Some(path) => match File::open(path) {
            Ok(file) => Ok(Box::new(file)),
            Err(error) => Err(CliError::io("read", path, &error)),
        },
        None if std::io::stdin().is_terminal() => {
            let message = "a stream comes from `kvfs snapshot send` or a file, not from a terminal";
            Err(CliError::new(Code::Usage, message))
        }
        None => Ok(Box::new(std::io::stdin().lock())),
    }
}

fn status(dir: &StoreDir, args: &ReceiveArgs) -> Result<ExitCode> {
    let Some(staged) = Staged::look(dir)? else {
        if args.target.json {
            println!("null");
        } else if !args.resume_token {
            println!("no stream is waiting");
        }
        return Ok(ExitCode::from(Code::Failed as u8));
    };
    let token = token(staged.stream(), staged.position());
    let name = staged.begin().map(|begin| begin.to.1.clone());
    let from = staged.begin().and_then(|begin| Some(begin.from.as_ref()?.1.clone()));
    if args.target.json {
        let line = serde_json::json!({
            "snapshot": name, "from": from, "bytes": staged.position(), "token": token,
        });
        println!("{line}");
    } else if args.resume_token {
        println!("{token}");
    } else {
        let from = from.map_or_else(String::new, |from| format!(" from \"{from}\""));
        let name = name.unwrap_or_else(|| "?".to_owned());
        println!("waiting: the stream{from} to \"{name}\", {} so far", human_bytes(staged.position()));
        println!("go on:   kvfs snapshot send --resume {token}");
    }
    Ok(ExitCode::SUCCESS)
}

fn abandon(dir: &StoreDir) -> Result<ExitCode> {
    match Staged::abandon(dir)? {
        Some(bytes) => println!("dropped what had arrived: {}", human_bytes(bytes)),
        None => println!("no stream is waiting"),
    }
    Ok(ExitCode::SUCCESS)
}
