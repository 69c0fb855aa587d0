//! `kvfs stats`.

use std::process::ExitCode;

use crate::args::StatsArgs;
use crate::control::{Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::units::human_value;

pub(crate) fn run(args: &StatsArgs) -> Result<ExitCode> {
    let mut endpoint = Endpoint::open(Some(&args.target), true)?;
    let Response::Stats(stats) = endpoint.call(&Request::Stats)? else { return Err(Endpoint::confused()) };
    endpoint.close()?;
    if args.json {
        let map: serde_json::Map<_, _> =
            stats.into_iter().map(|(name, value)| (name, value.into())).collect();
        println!("{}", serde_json::Value::Object(map));
        return Ok(ExitCode::SUCCESS);
    }
    let width = stats.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    for (name, value) in stats {
        println!("{name:width$}  {}", human_value(&name, value));
    }
    Ok(ExitCode::SUCCESS)
}
