//! `kvfs stats`.

use std::process::ExitCode;

use crate::args::StatsArgs;
use crate::control::{Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::report::{stats as report, zones};

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
    let mut endpoint = Endpoint::open(Some(&args.target), true)?;
    if args.zones {
        let Response::Zones(map) = endpoint.call(&Request::Zones)? else { return Err(Endpoint::confused()) };
        endpoint.close()?;
        print!("{}", if args.json { zones::as_json(&map) } else { zones::as_text(&map) });
        return Ok(ExitCode::SUCCESS);
    }
    let Response::Stats(stats) = endpoint.call(&Request::Stats)? else { return Err(Endpoint::confused()) };
    endpoint.close()?;
    print!("{}", if args.json { report::as_json(&stats) } else { report::as_text(&stats) });
    Ok(ExitCode::SUCCESS)
}
