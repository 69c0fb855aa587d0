//! `kvfs defrag`.

use std::process::ExitCode;
use std::time::Duration;

use serde_json::json;

use crate::args::{DefragArgs, PolicyArg};
use crate::control::{
    self, DefragPlanLine, DefragRequest, DefragmentedLine, FragmentationLine, Request, Response,
};
use crate::endpoint::Endpoint;
use crate::error::{Code, Result};
use crate::units::{human_bytes, human_duration};

pub(crate) fn run(args: &DefragArgs) -> Result<ExitCode> {
    let DefragArgs { target, dry_run, policy, limit, json } = args;
    let request = Request::Defrag(DefragRequest {
        rewrite: *policy == PolicyArg::Rewrite,
        bytes_per_second: limit.unwrap_or(0),
        dry_run: *dry_run,
    });
    let answer = Endpoint::with(Some(target), *dry_run, |endpoint| endpoint.call(&request))?;
    match answer {
        Response::DefragPlan(DefragPlanLine { now, zones, zones_freed, bytes }) => {
            if *json {
                let plan = json!({ "zones": zones, "zones_freed": zones_freed, "bytes": bytes });
                println!("{}", json!({ "now": as_json(&now), "plan": plan }));
            } else {
                print!("{}", table(&[("now", &now)]));
                println!("{}", plan_text(zones, zones_freed, bytes));
            }
            Ok(ExitCode::SUCCESS)
        }
        Response::Defragmented(DefragmentedLine { before, after, bytes_moved, took, is_complete }) => {
            if *json {
                let (before, after) = (as_json(&before), as_json(&after));
                let seconds = took.as_secs_f64();
                println!(
                    "{}",
                    json!({ "before": before, "after": after, "bytes_moved": bytes_moved, "seconds": seconds,
                            "complete": is_complete })
                );
            } else {
                print!("{}", table(&[("before", &before), ("after", &after)]));
                println!("{} moved in {}", human_bytes(bytes_moved), seconds_text(took));
            }
            if is_complete {
                return Ok(ExitCode::SUCCESS);
            }
            eprintln!(
                "kvfs: {} is defragmented in part: it was ended, or found too little space; \
                 what is done stays, and another run goes on",
                target.display()
            );
            Ok(ExitCode::from(Code::Failed as u8))
        }
        _ => Err(control::confused()),
    }
}

fn plan_text(zones: u64, zones_freed: u64, bytes: u64) -> String {
    if zones == 0 {
        return "nothing would be moved".to_owned();
    }
    format!(
        "{zones} zones would be emptied, {} copied; {zones_freed} zones would be free",
        human_bytes(bytes)
    )
}

fn seconds_text(took: Duration) -> String {
    if took < Duration::from_mins(1) { format!("{:.1} s", took.as_secs_f64()) } else { human_duration(took) }
}

/// A column for each state.
fn table(states: &[(&str, &FragmentationLine)]) -> String {
    let row = |name: &str, cell: &dyn Fn(&(&str, &FragmentationLine)) -> String| {
        let cells: Vec<String> = states.iter().map(|state| format!("{:>11}", cell(state))).collect();
        let cells = cells.concat();
        format!("{name:20}{cells}\n")
    };
    [
        row("", &|(name, _)| (*name).to_owned()),
        row("zones used", &|(_, line)| line.zones_used.to_string()),
        row("zones needed", &|(_, line)| line.zones_needed.to_string()),
        row("data", &|(_, line)| human_bytes(line.bytes_live)),
        row("mean stretch of data", &|(_, line)| human_bytes(line.stretch_bytes_mean)),
    ]
    .concat()
}

fn as_json(line: &FragmentationLine) -> serde_json::Value {
    json!({
        "zones_used": line.zones_used,
        "zones_needed": line.zones_needed,
        "zone_bytes": line.zone_bytes,
        "live_bytes": line.bytes_live,
        "stretch_mean_bytes": line.stretch_bytes_mean,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_columns_of_a_table() {
        let line = |zones_used| FragmentationLine {
            zones_used,
            zones_needed: 4,
            zone_bytes: 8 << 20,
            bytes_live: 30 << 20,
            stretch_bytes_mean: 1 << 17,
        };
        let text = table(&[("before", &line(12)), ("after", &line(5))]);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "                         before      after");
        assert_eq!(lines[1], "zones used                   12          5");
        assert_eq!(lines[4], "mean stretch of data    128 KiB    128 KiB");
        assert_eq!(plan_text(0, 0, 0), "nothing would be moved");
    }
}
