//! `kvfs stats`.

use std::process::ExitCode;

use crate::args::StatsArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::report::{stats as report, zones};

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
    let request = if args.zones { Request::Zones } else { Request::Stats };
    let target = args.target.as_deref().or(args.store.as_deref());
    let ask = |endpoint: &mut Endpoint| Ok((endpoint.call(&request)?, endpoint.call(&Request::Health)?));
    let (answer, health) = Endpoint::with(target, true, ask)?;
    if let Response::Health(health) = health
        && let Some(trouble) = health.trouble()
    {
        eprintln!("kvfs: {trouble}");
    }
    let text = match answer {
        Response::Zones(map) if args.json => zones::as_json(&map),
        Response::Zones(map) => zones::as_text(&map),
        Response::Stats(stats) if args.json => report::as_json(&stats),
        Response::Stats(stats) => report::as_report(&stats),
        _ => return Err(control::confused()),
    };
    print!("{text}");
    Ok(ExitCode::SUCCESS)
}
