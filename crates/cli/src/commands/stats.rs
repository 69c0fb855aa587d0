//! `kvfs stats`.

use std::process::ExitCode;

use crate::args::StatsArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::report::{memory, stats as report, zones};

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
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

fn zones_of(endpoint: &mut Endpoint, is_json: bool) -> Result<String> {
    match endpoint.call(&Request::Zones)? {
        Response::Zones(map) if is_json => Ok(zones::as_json(&map)),
        Response::Zones(map) => Ok(zones::as_text(&map)),
        _ => Err(control::confused()),
    }
}

fn memory_of(endpoint: &mut Endpoint, is_json: bool) -> Result<String> {
    let Response::Stats(stats) = endpoint.call(&Request::Stats)? else { return Err(control::confused()) };
    let lines = memory::lines(&stats);
    Ok(if is_json { memory::as_json(&lines) } else { memory::as_text(&lines) })
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
