//! `kvfs repository`, and how a repository is opened.

use std::fmt::Write as _;
use std::io::{IsTerminal, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvfs_repository::{
    Listing, ObjectPlace, Passphrase, Policy, Reached, Repository, RepositoryError, Summary,
};
use kvfs_store::progress::Unit;

use crate::args::{PlaceArgs, PruneArgs, RepositoryArgs, RepositoryCommand};
use crate::error::{CliError, Code, Result};
use crate::output::printable;
use crate::progress::{Bar, tell, tell_none};
use crate::units::{date_time, human_bytes};

/// Of the file with a passphrase.
const PASSPHRASE_FILE: &str = "KVFS_PASSPHRASE_FILE";

pub(crate) fn run(args: &RepositoryArgs) -> Result<ExitCode> {
    match &args.command {
        RepositoryCommand::Create { place, encrypt } => create(place, *encrypt),
        RepositoryCommand::List { place, json } => return list(place, *json),
        RepositoryCommand::Verify { place, data, mark_damaged, json } => {
            return verify(place, *data, *mark_damaged, *json);
        }
        RepositoryCommand::Delete { place, names } => delete(place, names),
        RepositoryCommand::Passphrase { place, new_passphrase_file } => {
            change_passphrase(place, new_passphrase_file.as_deref())
        }
        RepositoryCommand::Prune(args) => prune(args),
    }?;
    Ok(ExitCode::SUCCESS)
}

fn place_of(args: &PlaceArgs) -> Result<ObjectPlace> {
    let place = ObjectPlace::new(&args.repository, args.endpoint.as_deref());
    Ok(place.map_err(RepositoryError::Place)?)
}

/// Opens the repository; asks for its passphrase where it has one that is not in a file.
pub(crate) fn open(args: &PlaceArgs) -> Result<Repository> {
    let reached = Repository::reach(&place_of(args)?)?;
    let passphrase = passphrase_of(args, &reached)?;
    Ok(reached.open(passphrase.as_ref())?)
}

fn passphrase_of(args: &PlaceArgs, reached: &Reached) -> Result<Option<Passphrase>> {
    match passphrase_file(args) {
        // What says that it is not encrypted may have been put there by who sees the place, to see more.
        Some(_) if !reached.is_encrypted() => Err(RepositoryError::NotEncrypted.into()),
        Some(path) => read_passphrase(&path).map(Some),
        None if std::io::stdin().is_terminal() && reached.is_encrypted() && !args.unencrypted => {
            ask_passphrase("passphrase of the repository: ").map(Some)
        }
        None => Ok(None),
    }
}

/// The file that the command line names or the environment, which count alike.
fn passphrase_file(args: &PlaceArgs) -> Option<PathBuf> {
    if args.unencrypted {
        return None;
    }
    args.passphrase_file.clone().or_else(|| std::env::var_os(PASSPHRASE_FILE).map(PathBuf::from))
}

fn read_passphrase(path: &Path) -> Result<Passphrase> {
    let bytes = std::fs::read(path).map_err(|error| CliError::io("read", path, &error))?;
    check_passphrase(Passphrase::new(bytes))
}

fn ask_passphrase(prompt: &str) -> Result<Passphrase> {
    let asked = rpassword::prompt_password(prompt);
    let asked = asked.map_err(|error| CliError::io("ask on", Path::new("the terminal"), &error))?;
    check_passphrase(Passphrase::new(asked.into_bytes()))
}

fn ask_new_passphrase() -> Result<Passphrase> {
    let first = ask_passphrase("new passphrase: ")?;
    if !first.is_same(&ask_passphrase("the same again: ")?) {
        return Err(CliError::new(Code::Usage, "the passphrases differ"));
    }
    Ok(first)
}

fn check_passphrase(passphrase: Passphrase) -> Result<Passphrase> {
    if passphrase.is_empty() {
        return Err(CliError::new(Code::Usage, "the passphrase is empty"));
    }
    Ok(passphrase)
}

fn create(args: &PlaceArgs, encrypt: bool) -> Result<()> {
    let place = place_of(args)?;
    let passphrase = match (encrypt, passphrase_file(args)) {
        (true, Some(path)) => Some(read_passphrase(&path)?),
        (true, None) if std::io::stdin().is_terminal() => Some(ask_new_passphrase()?),
        (true, None) => {
            let message = "an encrypted repository needs a passphrase: --passphrase-file FILE, or a terminal";
            return Err(CliError::new(Code::Usage, message));
        }
        (false, Some(_)) => {
            let message = "there is a passphrase (--passphrase-file, or KVFS_PASSPHRASE_FILE): add --encrypt, or --unencrypted";
            return Err(CliError::new(Code::Usage, message));
        }
        (false, None) => None,
    };
    Repository::create(&place, passphrase.as_ref())?;
    tell(&format!("made a repository at {}", place.url()));
    Ok(())
}

fn change_passphrase(args: &PlaceArgs, new_file: Option<&Path>) -> Result<()> {
    let reached = Repository::reach(&place_of(args)?)?;
    if !reached.is_encrypted() {
        return Err(RepositoryError::NotEncrypted.into());
    }
    let former = passphrase_of(args, &reached)?.ok_or(RepositoryError::NeedsPassphrase)?;
    let passphrase = match new_file {
        Some(path) => read_passphrase(path)?,
        None if std::io::stdin().is_terminal() => ask_new_passphrase()?,
        None => {
            let message = "which passphrase is to be the new one? --new-passphrase-file FILE, or a terminal";
            return Err(CliError::new(Code::Usage, message));
        }
    };
    reached.change_passphrase(&former, &passphrase)?;
    tell("the repository has another passphrase");
    Ok(())
}

fn list(args: &PlaceArgs, json: bool) -> Result<ExitCode> {
    let Listing { snapshots, damaged } = open(args)?.snapshots()?;
    for error in &damaged {
        eprintln!("kvfs: {error}");
    }
    let code = if damaged.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Code::Damaged as u8) };
    if snapshots.is_empty() && !json {
        if damaged.is_empty() {
            tell_none("snapshots");
        }
        return Ok(code);
    }
    let mut text = String::new();
    if json {
        let lines: Vec<_> = snapshots.iter().map(as_json).collect();
        text = format!("{}\n", serde_json::Value::Array(lines));
    } else {
        text.push_str("ID        CREATED (UTC)        PUSHED (UTC)               SIZE  STORE     NAME\n");
        for Summary { id, name, store, created, pushed, bytes, .. } in &snapshots {
            let (id, store) = (&id.to_string()[..8], &store[..8]);
            let (created, pushed, bytes) = (date_time(*created), date_time(*pushed), human_bytes(*bytes));
            let name = printable(name);
            _ = writeln!(text, "{id}  {created:19}  {pushed:19}  {bytes:>10}  {store}  {name}");
        }
    }
    print(&text)?;
    Ok(code)
}

fn as_json(summary: &Summary) -> serde_json::Value {
    serde_json::json!({
        "id": summary.id.to_string(),
        "name": summary.name,
        "store": summary.store,
        "created": summary.created.as_secs_f64(),
        "pushed": summary.pushed.as_secs_f64(),
        "records": summary.records,
        "bytes": summary.bytes,
    })
}

fn verify(args: &PlaceArgs, data: bool, marks_damaged: bool, json: bool) -> Result<ExitCode> {
    let repository = open(args)?;
    let bar = Bar::new("verifying");
    let found = repository.verify(data, &mut |read, of| bar.show("verifying", Unit::Items, read, of))?;
    drop(bar);
    let marked = if marks_damaged { repository.mark_damaged(&found)? } else { 0 };
    if json {
        let line = serde_json::json!({
            "snapshots": found.snapshots, "chunks": found.chunks, "bytes_read": found.bytes_read,
            "findings": found.findings, "marked": marked,
        });
        print(&format!("{line}\n"))?;
    } else {
        let mut text = String::new();
        for line in &found.findings {
            _ = writeln!(text, "{}", printable(line));
        }
        let read = if data {
            format!(", {} read and compared", human_bytes(found.bytes_read))
        } else {
            String::new()
        };
        let verdict = match found.findings.len() {
            0 => "all is there".to_owned(),
            count => format!("{count} findings"),
        };
        if marked > 0 {
            _ = writeln!(
                text,
                "{marked} damaged objects are marked: the next push writes their content anew"
            );
        }
        _ = writeln!(text, "{} snapshots, {} objects{read}: {verdict}", found.snapshots, found.chunks);
        print(&text)?;
    }
    Ok(if found.findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Code::Damaged as u8) })
}

fn delete(args: &PlaceArgs, names: &[String]) -> Result<()> {
    let repository = open(args)?;
    // All or none: a name that is wrong is told before anything goes.
    for id in repository.find_each(names)? {
        repository.delete(id)?;
    }
    Ok(())
}

fn prune(args: &PruneArgs) -> Result<()> {
    let policy = Policy {
        last: args.keep_last,
        hourly: args.keep_hourly,
        daily: args.keep_daily,
        weekly: args.keep_weekly,
        monthly: args.keep_monthly,
        yearly: args.keep_yearly,
    };
    let repository = open(&args.place)?;
    let bar = Bar::new("pruning");
    let pruned = repository.prune(&policy, args.now, args.dry_run)?;
    drop(bar);
    if args.json {
        let snapshots: Vec<_> = pruned.snapshots.iter().map(as_json).collect();
        let line = serde_json::json!({
            "snapshots": snapshots, "removed": pruned.removed, "marked": pruned.marked, "young": pruned.young, "dry_run": args.dry_run,
        });
        return print(&format!("{line}\n"));
    }
    let would = if args.dry_run { "would go: " } else { "gone: " };
    let mut text = String::new();
    for Summary { id, name, created, .. } in &pruned.snapshots {
        let (id, created, name) = (&id.to_string()[..8], date_time(*created), printable(name));
        _ = writeln!(text, "{would}{id}  {created}  {name}");
    }
    _ = writeln!(
        text,
        "{would}{} snapshots, {} objects; {} more are marked and go a day later, {} stay until they are a week old",
        pruned.snapshots.len(),
        pruned.removed,
        pruned.marked,
        pruned.young
    );
    print(&text)
}

fn print(text: &str) -> Result<()> {
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| CliError::io("write", Path::new("standard output"), &error))
}
