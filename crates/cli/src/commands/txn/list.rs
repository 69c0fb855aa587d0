//! `kvfs txn list`.

use std::path::Path;
use std::process::ExitCode;

use super::connect;
use crate::args::TableForm;
use crate::control::{self, Request, Response, TxnLine};
use crate::error::Result;
use crate::names::Table;
use crate::output::with_bytes;
use crate::progress::tell_none;
use crate::units::{human_bytes, human_duration};

pub(super) fn run(store: Option<&Path>, form: TableForm) -> Result<ExitCode> {
    let (mut client, _) = connect(store)?;
    let Response::Transactions(lines) = client.call(&Request::Transactions)? else {
        return Err(control::confused());
    };
    if form.json {
        let list: Vec<_> = lines.iter().map(as_json).collect();
        println!("{}", serde_json::Value::Array(list));
    } else if lines.is_empty() {
        tell_none("transactions are open");
    } else {
        println!(
            "{:>6}  {:12}  {:>8}  {:>8}  {:>9}  {:>7}  STATE, COMMAND",
            "ID", "ISOLATION", "USER", "AGE", "WRITTEN", "LOCKS"
        );
        for line in &lines {
            println!(
                "{:>6}  {:12}  {:>8}  {:>8}  {:>9}  {:>7}  {}, {} (pid {})",
                line.id,
                isolation(line),
                Table::Users.shown(line.uid, form.numeric),
                human_duration(line.age),
                human_bytes(line.bytes_written),
                line.locks,
                line.state,
                line.label,
                line.pid
            );
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn isolation(line: &TxnLine) -> &'static str {
    if line.serializable { "serializable" } else { "si" }
}

fn as_json(line: &TxnLine) -> serde_json::Value {
    let value = serde_json::json!({
        "id": line.id,
        "isolation": isolation(line),
        "uid": line.uid,
        "pid": line.pid,
        "command": line.label,
        "age_seconds": line.age.as_secs_f64(),
        "state": line.state,
        "operations": line.operations,
        "bytes_written": line.bytes_written,
        "locks": line.locks,
    });
    with_bytes(value, "view", Some(&*line.view).filter(|view| !view.is_empty()))
}
