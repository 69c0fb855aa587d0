//! `kvfs grow`.

use std::process::ExitCode;

use crate::args::GrowArgs;
use crate::control::{self, Request, Response};
use crate::endpoint::Endpoint;
use crate::error::Result;
use crate::units::human_bytes;

pub(crate) fn run(args: &GrowArgs) -> Result<ExitCode> {
    let request = Request::Grow { bytes: args.size };
    let answer = Endpoint::with(Some(&args.target), false, |endpoint| endpoint.call(&request))?;
    let Response::Grown { before, after, behind } = answer else { return Err(control::confused()) };
    let target = args.target.display();
    if after == before {
        println!("{target} may take {} already; there is nothing to grow into", human_bytes(after));
    } else {
        println!("{target} may take {} now, {} before", human_bytes(after), human_bytes(before));
    }
    if let Some(behind) = behind {
        eprintln!(
            "kvfs: the file system that holds the store has room for {} of that; beyond, writes end with \"no space\"",
            human_bytes(behind)
        );
    }
    Ok(ExitCode::SUCCESS)
}
