//! A client for `adya run exec`: each line on standard input is a transaction over lists, each answer says
//! what it saw. usage: history DIR si|serializable files|keys|both DIR: in a mounted kvfs A list is a file of
//! DIR, read and appended to through the transaction's view, or the value of a key of the keyspace that is
//! called as DIR; with `both` every other list is a file.
//!
//! `adya run exec --url "target/debug/examples/history /mnt/lists serializable both" -c strict-serializable`

use std::error::Error;
use std::fs::{self, File};
use std::io::{self, BufRead, Write};
use std::path::{Path, PathBuf};

use kvfs_rpc::client::blocking::{Store, Transaction};
use kvfs_rpc::client::{BeginOptions, ClientError};
use serde_json::{Value, json};

type Failed = Box<dyn Error>;

/// Errno of a file operation in a transaction that can't be committed any more.
const CANCELED: i32 = 125;

#[derive(Clone, Copy)]
enum Lists {
    Files,
    Keys,
    Both,
}

struct Client {
    store: Store,
    lists: Lists,
    serializable: bool,
    keyspace: String,
    /// Where the files are, from the root of the store.
    inside: PathBuf,
}

impl Client {
    fn new(dir: &Path, level: &str, lists: &str) -> Result<Self, Failed> {
        let mut store = Store::connect(dir)?;
        let mount = store.call(async |client| client.info().await)?.1;
        let inside = dir.strip_prefix(&mount)?.to_owned();
        let keyspace = dir.file_name().ok_or("DIR is no name for a keyspace")?.to_string_lossy().into_owned();
        // Which process makes the keyspace first is no part of the history.
        store.put(&keyspace, b"made", b"")?;
        let lists = match lists {
            "files" => Lists::Files,
            "keys" => Lists::Keys,
            "both" => Lists::Both,
            other => return Err(format!("lists are files, keys or both, not {other:?}").into()),
        };
        let serializable = match level {
            "si" => false,
            "serializable" => true,
            other => return Err(format!("the level is si or serializable, not {other:?}").into()),
        };
        Ok(Self { store, lists, serializable, keyspace, inside })
    }

    /// The path of a list that is a file.
    fn file(&self, txn: &mut Transaction, list: i64) -> Result<Option<PathBuf>, Failed> {
        let is_file = match self.lists {
            Lists::Files => true,
            Lists::Keys => false,
            Lists::Both => list % 2 == 0,
        };
        if !is_file {
            return Ok(None);
        }
        Ok(Some(txn.path(self.inside.join(name(list)))?))
    }

    fn read(&self, txn: &mut Transaction, list: i64) -> Result<String, Failed> {
        let text = match self.file(txn, list)? {
            Some(path) => match fs::read(path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
                other => other?,
            },
            None => txn.get(&self.keyspace, name(list).as_bytes())?.unwrap_or_default().to_vec(),
        };
        Ok(String::from_utf8(text)?)
    }

    fn append(&self, txn: &mut Transaction, list: i64, element: i64) -> Result<(), Failed> {
        if let Some(path) = self.file(txn, list)? {
            let mut file = File::options().append(true).create(true).open(path)?;
            // One request.
            return Ok(file.write_all(format!("{element},").as_bytes())?);
        }
        let text = format!("{}{element},", self.read(txn, list)?);
        Ok(txn.put(&self.keyspace, name(list).as_bytes(), text.as_bytes())?)
    }

    /// Runs the operations in one transaction; what they saw.
    fn run(&mut self, ops: &[Value]) -> Result<Vec<Value>, Failed> {
        let options = BeginOptions { serializable: self.serializable, tied: true, ..BeginOptions::default() };
        let mut txn = self.store.begin(options)?;
        let mut seen = Vec::new();
        for op in ops {
            let list = op[1].as_i64().ok_or("a list is a number")?;
            match op[0].as_str() {
                Some("append") => {
                    let element = op[2].as_i64().ok_or("an element is a number")?;
                    self.append(&mut txn, list, element)?;
                    seen.push(op.clone());
                }
                Some("r") => {
                    let text = self.read(&mut txn, list)?;
                    let elements: Result<Vec<i64>, _> = text.split_terminator(',').map(str::parse).collect();
                    seen.push(json!(["r", list, elements?]));
                }
                _ => return Err(format!("no such operation: {op}").into()),
            }
        }
        txn.commit()?;
        Ok(seen)
    }
}

fn name(list: i64) -> String {
    format!("list-{list}")
}

/// Whether the transaction has certainly not happened, because another one was in its way.
fn is_conflict(error: &(dyn Error + 'static)) -> bool {
    let is_canceled = |error: &io::Error| error.raw_os_error() == Some(CANCELED);
    match (error.downcast_ref::<ClientError>(), error.downcast_ref::<io::Error>()) {
        (Some(ClientError::Conflict(_)), _) => true,
        (Some(ClientError::Io(error)), _) | (None, Some(error)) => is_canceled(error),
        _ => false,
    }
}

fn main() -> Result<(), Failed> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [dir, level, lists] = &args[..] else {
        return Err("usage: history DIR si|serializable files|keys|both".into());
    };
    let mut client = Client::new(&Path::new(dir).canonicalize()?, level, lists)?;
    for line in io::stdin().lock().lines() {
        let request: Value = serde_json::from_str(&line?)?;
        let ops = request["value"].as_array().ok_or("a request has a value")?;
        let answer = match client.run(ops) {
            Ok(seen) => json!({"type": "ok", "value": seen}),
            Err(error) if is_conflict(&*error) => json!({"type": "fail", "error": error.to_string()}),
            Err(error) => json!({"type": "info", "error": error.to_string()}),
        };
        let mut out = io::stdout().lock();
        writeln!(out, "{answer}")?;
        out.flush()?;
    }
    Ok(())
}
