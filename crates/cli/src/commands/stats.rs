//! `kvfs stats`.

use std::process::ExitCode;

use crate::args::StatsArgs;
use crate::control::{Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::report::{stats as report, zones};

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
    let request = if args.zones { Request::Zones } else { Request::Stats };
    let text = match Endpoint::with(Some(&args.target), true, |endpoint| endpoint.call(&request))? {
        Response::Zones(map) if args.json => zones::as_json(&map),
        Response::Zones(map) => zones::as_text(&map),
        Response::Stats(stats) if args.json => report::as_json(&stats),
        Response::Stats(stats) => report::as_text(&stats),
        _ => return Err(Endpoint::confused()),
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
