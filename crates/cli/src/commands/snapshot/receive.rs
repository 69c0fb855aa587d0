//! `kvfs snapshot receive`: a stream from standard input into a store.

use std::fs::File;
use std::io::{IsTerminal, Read};
use std::path::Path;
use std::process::ExitCode;

use kvfs_fs::transfer::{Frame, Prologue, ReceiveError, Received, Receiver, StreamError, StreamReader};
use kvfs_store::progress::{self, Unit};

use crate::args::ReceiveArgs;
use crate::commands::mkfs::make_plain;
use crate::endpoint::find_store;
use crate::error::{CliError, Code, Result};
use crate::open::{self, OpenStore};
use crate::progress::Bar;
use crate::staging::{Staged, token};
use crate::store_dir::StoreDir;
use crate::units::human_bytes;
use kvfs_open::{Memory, OpenOptions};

pub(super) fn run(target: Option<&Path>, args: &ReceiveArgs) -> Result<ExitCode> {
    if args.status || args.resume_token {
        return status(&find_store(target)?.0, args);
    }
    if args.abandon {
        return abandon(&find_store(target)?.0);
    }
    let mut source = source(args)?;
    let prologue = Prologue::read(&mut *source)?;
    let dir = find_or_make(target, args)?;
    open::check_lasts(&dir)?;
    let options = OpenOptions { memory: Memory::new(args.memory)?, ..OpenOptions::default() };
    let store = open::open_unmounted(&dir, &options).map_err(|error| match error.code {
        Code::InUse => {
            let message =
                format!("{}; a store receives only while it is not in use: unmount it first", error.message);
            CliError::new(Code::InUse, message)
        }
        _ => error,
    })?;
    let received = receive(&store, &dir, prologue, &mut *source, args);
    let closed = store.close();
    let (received, bytes) = received?;
    closed?;
    let Received { name, records, rolled_back } = received;
    if args.json {
        let line = serde_json::json!({
            "snapshot": name, "records": records, "bytes": bytes, "rolled_back": rolled_back,
        });
        println!("{line}");
    } else {
        let back = if rolled_back { ", after giving up what was changed here" } else { "" };
        println!("received \"{name}\": {records} records, {}{back}", human_bytes(bytes));
    }
    Ok(ExitCode::SUCCESS)
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

fn find_or_make(target: Option<&Path>, args: &ReceiveArgs) -> Result<StoreDir> {
    match target {
        Some(path) if args.create && !StoreDir::is_occupied(path) => {
            make_plain(path, args.size)?;
            StoreDir::open(path)
        }
        _ => Ok(find_store(target)?.0),
    }
}

/// Stages what comes, and takes it when it is whole. Returns its length, too.
fn receive(
    store: &OpenStore,
    dir: &StoreDir,
    prologue: Prologue,
    source: &mut dyn Read,
    args: &ReceiveArgs,
) -> Result<(Received, u64)> {
    let mut staged = match Staged::find(dir)? {
        Some(staged) if staged.stream() != prologue.stream => {
            let message = "a part of another stream is waiting here: `kvfs snapshot receive --status` tells \
                           which; go on with it, or drop it with --abandon";
            return Err(CliError::new(Code::InUse, message));
        }
        Some(staged) => staged,
        None if prologue.offset > 0 => {
            let message =
                "this is the rest of a stream of which nothing has arrived here; send without --resume";
            return Err(CliError::new(Code::Failed, message));
        }
        None => Staged::start(dir, prologue.stream)?,
    };
    if let Some(begin) = staged.begin()
        && let Err(error) = Receiver::new(&store.fs).check(begin, args.rollback)
    {
        // It was taken, and the command that took it was stopped before it could clear up.
        if matches!(error, ReceiveError::Present(_)) {
            staged.remove()?;
        }
        return Err(error.into());
    }
    skip(source, staged.position(), prologue.offset)?;
    let bar = Bar::new("receiving");
    let end = match stage(store, &mut staged, source, args, &|at| {
        bar.show("receiving", Unit::Bytes, at, prologue.bytes_expected);
    }) {
        Ok(end) => end,
        Err(error) => return Err(keep_for_later(staged, error)),
    };
    let bytes = staged.position();
    let mut whole = Counted(staged.reopen()?.chain(&end[..]));
    let taken = bar.watch(|| {
        progress::stage("taking over", Unit::Bytes, bytes);
        Receiver::new(&store.fs).receive(StreamReader::new(prologue.stream), &mut whole, args.rollback)
    });
    match taken {
        Ok(received) => staged.remove().map(|()| (received, bytes)),
        Err(error) => Err(keep_for_later(staged, error.into())),
    }
}

/// What is read counts as done.
struct Counted<R>(R);

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, bytes: &mut [u8]) -> std::io::Result<usize> {
        let read = self.0.read(bytes)?;
        progress::advance(read as u64);
        Ok(read)
    }
}

/// Passes over what is staged already.
fn skip(source: &mut dyn Read, staged: u64, offset: u64) -> Result<()> {
    let Some(bytes) = staged.checked_sub(offset) else {
        let message = format!(
            "the stream goes on at byte {offset}, but only {staged} have arrived here; send with the token of \
             `kvfs snapshot receive --resume-token`"
        );
        return Err(CliError::new(Code::Failed, message));
    };
    let skipped = std::io::copy(&mut source.take(bytes), &mut std::io::sink());
    skipped.map(drop).map_err(|error| StreamError::from(error).into())
}

/// Verifies and keeps frame after frame. Returns the last one, which is not kept: as long as it is missing, the
/// stream can be gone on with.
fn stage(
    store: &OpenStore,
    staged: &mut Staged,
    source: &mut dyn Read,
    args: &ReceiveArgs,
    at: &dyn Fn(u64),
) -> Result<Vec<u8>> {
    loop {
        match staged.next(source)? {
            Some(Frame::End) => break,
            Some(Frame::Begin(begin)) => Receiver::new(&store.fs).check(&begin, args.rollback)?,
            Some(_) => {}
            None => return Err(CliError::new(Code::Failed, "the stream is through already")),
        }
        staged.keep()?;
        at(staged.position());
    }
    let end = staged.last_frame().to_vec();
    if source.read(&mut [0]).map_err(StreamError::from)? > 0 {
        let position = staged.position();
        return Err(StreamError::Damaged { position, what: "something comes behind its end" }.into());
    }
    staged.sync()?;
    Ok(end)
}

/// Says how to go on after a failure.
fn keep_for_later(staged: Staged, error: CliError) -> CliError {
    let (stream, begin, position) = (staged.stream(), staged.begin().is_some(), staged.position());
    if !begin || position == 0 || !staged.is_of_use() {
        return match staged.remove() {
            Ok(()) => error,
            Err(remains) => CliError::new(error.code, format!("{error}; and {remains}")),
        };
    }
    if let Err(unsynced) = staged.sync() {
        tracing::warn!(%unsynced, "what has arrived may not survive a power cut");
    }
    let message = format!(
        "{error}; {} have arrived and are kept: go on with `kvfs snapshot send --resume {}`, or drop them \
         with `kvfs snapshot receive --abandon`",
        human_bytes(position),
        token(stream, position)
    );
    CliError::new(error.code, message)
}

fn status(dir: &StoreDir, args: &ReceiveArgs) -> Result<ExitCode> {
    let Some(staged) = Staged::look(dir)? else {
        if args.json {
            println!("null");
        } else if !args.resume_token {
            println!("no stream is waiting");
        }
        return Ok(ExitCode::from(Code::Failed as u8));
    };
    let token = token(staged.stream(), staged.position());
    let name = staged.begin().map(|begin| begin.to.1.clone());
    let from = staged.begin().and_then(|begin| Some(begin.from.as_ref()?.1.clone()));
    if args.json {
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
