//! `kvfs check`.

use std::process::ExitCode;

use crate::args::CheckArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{Code, Result};
use crate::units::human_value;

pub(crate) fn run(args: &CheckArgs) -> Result<ExitCode> {
    if args.repair {
        return super::repair::run(args);
    }
    let target = args.target.as_deref().or(args.store.as_deref());
    let answer = Endpoint::with(target, true, |endpoint| endpoint.call(&Request::Check))?;
    let Response::Checked { findings, counts } = answer else { return Err(control::confused()) };
    if args.json {
        let counts: serde_json::Map<_, _> =
            counts.into_iter().map(|(name, value)| (identifier(&name), value.into())).collect();
        let clean = findings.is_empty();
        let list: Vec<_> = findings
            .iter()
            .map(|finding| serde_json::json!({ "place": finding.place, "detail": finding.detail }))
            .collect();
        println!("{}", serde_json::json!({ "clean": clean, "findings": list, "checked": counts }));
    } else {
        for finding in &findings {
            println!("damaged: {}: {}", finding.place, finding.detail);
        }
        let seen: Vec<String> = counts.iter().map(|(name, value)| counted(name, *value)).collect();
        let verdict =
            if findings.is_empty() { "clean".to_owned() } else { format!("{} findings", findings.len()) };
        println!("{verdict}: {}", seen.join(", "));
    }
    Ok(if findings.is_empty() { ExitCode::SUCCESS } else { ExitCode::from(Code::Damaged as u8) })
}

/// `12 runs`; `3.4 GiB verified` for what is named "bytes verified".
fn counted(name: &str, value: u64) -> String {
    format!("{} {}", human_value(name, value), name.strip_prefix("bytes ").unwrap_or(name))
}

/// A name as a key of JSON: `bytes_verified`.
fn identifier(name: &str) -> String {
    name.replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}
