//! A snapshot that arrives in a store, from wherever its stream comes.
//!
//! Thread safety: functions of one command. Invariants: the store is changed when all has arrived, and then
//! as a whole; what has arrived before a failure is kept where going on makes sense.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use kvfs_fs::transfer::{Frame, ReceiveError, Received, Receiver, StreamError, StreamId, StreamReader};
use kvfs_open::{Memory, OpenOptions};
use kvfs_store::progress::{self, Unit};

use crate::args::TargetArgs;
use crate::commands::mkfs::make_plain;
use crate::endpoint::find_store;
use crate::error::{CliError, Code, Result};
use crate::open::{self, OpenStore};
use crate::progress::Bar;
use crate::staging::Staged;
use crate::store_dir::StoreDir;
use crate::units::human_bytes;

/// Where a stream comes from.
pub(super) trait Origin {
    /// Which stream.
    fn stream(&self) -> StreamId;

    /// About its length (bytes); 0: unknown.
    fn bytes_expected(&self) -> u64;

    /// Its bytes from where `behind` has come to.
    fn open(&mut self, behind: &StreamReader) -> Result<Box<dyn Read + '_>>;

    /// The command that goes on with it when so many bytes have arrived.
    fn how_to_go_on(&self, position: u64) -> String;
}

/// Takes the stream into the store, and says so. `rollback`: what the store has that its beginning does not
/// know of is given up.
pub(super) fn take(
    target: Option<&Path>,
    args: &TargetArgs,
    rollback: bool,
    origin: &mut dyn Origin,
) -> Result<ExitCode> {
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
    let received = receive(&store, &dir, origin, rollback);
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

fn find_or_make(target: Option<&Path>, args: &TargetArgs) -> Result<StoreDir> {
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
    origin: &mut dyn Origin,
    rollback: bool,
) -> Result<(Received, u64)> {
    let is_taken = |staged: &Staged| match staged.begin() {
        Some(begin) => store.fs.snapshots().find(&begin.to.0).map(|found| found.is_some()),
        None => Ok(false),
    };
    let mut staged = match Staged::find(dir)? {
        None => Staged::start(dir, origin.stream())?,
        Some(staged) if staged.stream() == origin.stream() => staged,
        // The command that took it was stopped before it could clear up.
        Some(staged) if is_taken(&staged)? => {
            staged.remove()?;
            Staged::start(dir, origin.stream())?
        }
        Some(_) => {
            let message = "a part of another stream is waiting here: `kvfs snapshot receive --status` tells \
                           which; go on with it, or drop it with --abandon";
            return Err(CliError::new(Code::InUse, message));
        }
    };
    if let Some(begin) = staged.begin()
        && let Err(error) = Receiver::new(&store.fs).check(begin, rollback)
    {
        // It was taken, and the command that took it was stopped before it could clear up.
        if matches!(error, ReceiveError::Present(_)) {
            staged.remove()?;
        }
        return Err(error.into());
    }
    let bar = Bar::new("receiving");
    let end = match arrive(store, &mut staged, origin, rollback, &bar) {
        Ok(end) => end,
        Err(error) => return Err(keep_for_later(staged, origin, error)),
    };
    let bytes = staged.position();
    let mut whole = Counted(staged.reopen()?.chain(&end[..]));
    let taken = bar.watch(|| {
        progress::stage("taking over", Unit::Bytes, bytes);
        Receiver::new(&store.fs).receive(StreamReader::new(origin.stream()), &mut whole, rollback)
    });
    match taken {
        Ok(received) => staged.remove().map(|()| (received, bytes)),
        Err(error) => Err(keep_for_later(staged, origin, error.into())),
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

/// Verifies and keeps frame after frame. Returns the last one, which is not kept: as long as it is missing,
/// the stream can be gone on with.
fn arrive(
    store: &OpenStore,
    staged: &mut Staged,
    origin: &mut dyn Origin,
    rollback: bool,
    bar: &Bar,
) -> Result<Vec<u8>> {
    let bytes_expected = origin.bytes_expected();
    let mut source = origin.open(staged.reader())?;
    loop {
        match staged.next(&mut *source)? {
            Some(Frame::End) => break,
            Some(Frame::Begin(begin)) => Receiver::new(&store.fs).check(&begin, rollback)?,
            Some(_) => {}
            None => return Err(CliError::new(Code::Failed, "the stream is through already")),
        }
        staged.keep()?;
        bar.show("receiving", Unit::Bytes, staged.position(), bytes_expected);
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
fn keep_for_later(staged: Staged, origin: &dyn Origin, error: CliError) -> CliError {
    let (begin, position) = (staged.begin().is_some(), staged.position());
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
        "{error}; {} have arrived and are kept: go on with {}, or drop them with `kvfs snapshot receive --abandon`",
        human_bytes(position),
        origin.how_to_go_on(position)
    );
    CliError::new(error.code, message)
}
