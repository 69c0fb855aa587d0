//! `kvfs stats`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvfs_fs::{ACCESSES_ATTRIBUTE, FileAccesses, XATTR_LEN_MAX};
use rustix::fs::getxattr;
use rustix::io::Errno;

use crate::args::StatsArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::output::print;
use crate::report::{accesses, memory, stats as report, zones};

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
    if !args.file.is_empty() {
        print(&files(&args.file, args.json)?)?;
        return Ok(ExitCode::SUCCESS);
    }
    let target = args.target.as_deref().or(args.store.as_deref());
    let (text, health) = Endpoint::with(target, true, |endpoint| {
        let text = match (args.zones, args.memory) {
            (true, _) => zones_of(endpoint, args.json),
            (false, true) => memory_of(endpoint, args.json),
            (false, false) => stats_of(endpoint, args.json),
        };
        Ok((text?, endpoint.call(&Request::Health)?))
    })?;
    if let Response::Health(health) = health
        && let Some(trouble) = health.trouble()
    {
        eprintln!("kvfs: {trouble}");
    }
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}

/// Of each file, by a call on its path, so that rights and transactions mean for it what they mean for its
/// attributes.
fn files(paths: &[PathBuf], is_json: bool) -> Result<String> {
    let mut all = Vec::new();
    for path in paths {
        let mut value = vec![0; XATTR_LEN_MAX];
        let len = getxattr(path, ACCESSES_ATTRIBUTE, &mut value[..]).map_err(|error| unfit(path, error))?;
        let text = std::str::from_utf8(&value[..len]).ok();
        let found = text.and_then(FileAccesses::parse).ok_or_else(control::confused)?;
        all.push((path.as_path(), found));
    }
    if is_json {
        return Ok(accesses::as_json(&all));
    }
    let texts: Vec<_> = all.iter().map(|(path, found)| accesses::as_text(path, found)).collect();
    Ok(texts.join("\n"))
}

fn unfit(path: &Path, error: Errno) -> CliError {
    match error {
        Errno::OPNOTSUPP | Errno::NODATA => {
            let message = format!("{} has no statistics: is it a file on kvfs?", path.display());
            CliError::new(Code::NotMounted, message)
        }
        error => CliError::io("read statistics of", path, &error.into()),
    }
}

fn zones_of(endpoint: &mut Endpoint, is_json: bool) -> Result<String> {
    match endpoint.call(&Request::Zones)? {
        Response::Zones(map) if is_json => Ok(zones::as_json(&map)),
        Response::Zones(map) => Ok(zones::as_text(&map)),
        _ => Err(control::confused()),
    }
}

fn memory_of(endpoint: &mut Endpoint, is_json: bool) -> Result<String> {
    let Response::Stats(stats) = endpoint.call(&Request::Stats)? else { return Err(control::confused()) };
    let (lines, sizes) = (memory::lines(&stats), memory::sizes(&stats));
    Ok(if is_json { memory::as_json(&lines, &sizes) } else { memory::as_text(&lines, &sizes) })
}

fn stats_of(endpoint: &mut Endpoint, is_json: bool) -> Result<String> {
    match (endpoint.call(&Request::Stats)?, endpoint.call(&Request::Operations)?) {
        (Response::Stats(stats), Response::Operations(operations)) if is_json => {
            Ok(report::as_json(&stats, &operations))
        }
        (Response::Stats(stats), Response::Operations(operations)) => {
            Ok(report::as_report(&stats, &operations))
        }
        _ => Err(control::confused()),
    }
}
