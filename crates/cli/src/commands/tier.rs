//! `kvfs tier`: the devices of a store.

use std::ffi::{OsStr, OsString};
use std::fmt::Write;
use std::fs::Metadata;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use kvfs_kvdb::Placement;
use kvfs_store::Tier;
use serde_json::{Value, json};

use crate::args::{
    TierAddArgs, TierArgs, TierCommand, TierDevicesArgs, TierDrainArgs, TierLimitArgs, TierListArgs,
    TierPlacementArgs,
};
use crate::control::{
    self, BudgetLine, DeviceLine, DrainLine, NewDeviceLine, PlacementLine, Request, Response, TierRequest,
    TrafficLine,
};
use crate::endpoint::Endpoint;
use crate::error::{CliError, Code, Result};
use crate::output::{print, with_bytes};
use crate::units::{human_bytes, human_duration};

pub(crate) fn run(args: &TierArgs) -> Result<ExitCode> {
    match &args.command {
        TierCommand::List(args) => list(args, false),
        TierCommand::Status(args) => list(args, true),
        TierCommand::Add(args) => add(args),
        TierCommand::Drain(args) => drain(args),
        TierCommand::Refill(args) => each(
            args,
            false,
            |id| TierRequest::Refill { id },
            |name, _, _| println!("{name} is filled again"),
        ),
        TierCommand::Remove(args) => each(
            args,
            true,
            |id| TierRequest::Remove { id },
            |name, _, _| println!("{name} is no device of the store any more"),
        ),
        TierCommand::Placement(args) => tell_placement(args),
        TierCommand::Limit(args) => limit(args),
    }
}

fn limit(args: &TierLimitArgs) -> Result<ExitCode> {
    let TierLimitArgs { ref target, bytes_per_second } = *args;
    let answer = Endpoint::with(Some(target), true, |endpoint| {
        if !endpoint.is_of_daemon() {
            let message =
                format!("{} is not mounted, and nothing moves; a limit is for one mount", target.display());
            return Err(CliError::new(Code::NotMounted, message));
        }
        endpoint.call(&Request::Tier(TierRequest::Limit { bytes_per_second }))
    })?;
    let Response::Placement(line) = answer else { return Err(control::confused()) };
    print(&placement_text(&line))?;
    Ok(ExitCode::SUCCESS)
}

/// Tells of the policy, after it was changed if one is named.
fn tell_placement(args: &TierPlacementArgs) -> Result<ExitCode> {
    // Words that make no sense are told before a store is opened.
    if let Some(policy) = &args.policy {
        let checked = policy.parse::<Placement>().map(drop);
        checked.map_err(|error| CliError::new(Code::Usage, error.to_string()))?;
    }
    let line = Endpoint::with(Some(&args.target), args.policy.is_none(), |endpoint| {
        placement(endpoint, args.policy.clone())
    })?;
    let text = if args.json {
        let value = json!({
            "policy": line.policy,
            "left_bytes": line.bytes_left,
            "looked_seconds_ago": line.looked_ago.map(|ago| ago.as_secs_f64()),
            "moved_bytes": line.bytes_moved,
            "moving": line.is_moving,
            "moving_seconds": line.took.as_secs_f64(),
            "limit_bytes": line.limit,
            "trouble": line.trouble,
            "hot_from": line.hot_from,
            "budget": line.budget.map(|budget| json!({
                "day_bytes": budget.bytes_per_day,
                "last_day_bytes": budget.bytes_last_day,
                "spent_seconds": budget.spent_for.as_secs_f64(),
            })),
        });
        format!("{value}\n")
    } else {
        placement_text(&line)
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn placement(endpoint: &mut Endpoint, policy: Option<String>) -> Result<PlacementLine> {
    match endpoint.call(&Request::Tier(TierRequest::Placement { policy, keeps: true }))? {
        Response::Placement(line) => Ok(line),
        _ => Err(control::confused()),
    }
}

/// The policy, and what moves between the tiers.
fn placement_text(line: &PlacementLine) -> String {
    let PlacementLine { policy, bytes_left, looked_ago, bytes_moved, is_moving, took, limit, .. } = line;
    let PlacementLine { trouble, hot_from, budget, .. } = line;
    let state = match trouble {
        _ if *is_moving => ", and move".to_owned(),
        _ if *bytes_left == 0 => String::new(),
        Some(why) => format!(", and nothing moves: {why}; it is tried again"),
        None => ", and wait for their turn".to_owned(),
    };
    let rate = match took.as_secs_f64() {
        seconds if *bytes_moved > 0 && seconds > 0.0 => {
            format!(", {} each second", human_bytes((*bytes_moved as f64 / seconds) as u64))
        }
        _ => String::new(),
    };
    let limit = match limit {
        0 => String::new(),
        limit => format!(", at most {} each second", human_bytes(*limit)),
    };
    let heat = match hot_from {
        0 => String::new(),
        count => format!("what was lately read {count} times or more is hot\n"),
    };
    let (left, moved) = (human_bytes(*bytes_left), human_bytes(*bytes_moved));
    let left = match looked_ago {
        None => "nothing was looked for yet that lies on another tier than it should".to_owned(),
        Some(ago) if ago.as_secs() == 0 => format!("{left} lie on another tier than they should"),
        Some(ago) => {
            format!("{left} lie on another tier than they should, as of {} ago", human_duration(*ago))
        }
    };
    let budget = budget.map_or_else(String::new, budget_text);
    format!("placement={policy}\n{left}{state}\n{moved} were moved{rate}{limit}\n{heat}{budget}")
}

/// What was written to fast devices, and what is kept from them now.
fn budget_text(budget: BudgetLine) -> String {
    let BudgetLine { bytes_per_day, bytes_last_day, spent_for } = budget;
    let (day, last) = (human_bytes(bytes_per_day), human_bytes(bytes_last_day));
    let spent = if spent_for.is_zero() {
        String::new()
    } else {
        format!(
            "for {} new content goes to slow devices, and none is moved to fast ones: they are an hour's part ahead of their budget\n",
            human_duration(spent_for)
        )
    };
    format!("{last} of {day} a day were written to fast devices in the last 24 hours\n{spent}")
}

fn list(args: &TierListArgs, with_status: bool) -> Result<ExitCode> {
    let (lines, placed) = Endpoint::with(args.target.as_deref(), true, |endpoint| {
        let placed = if with_status { Some(placement(endpoint, None)?) } else { None };
        Ok((devices(endpoint)?, placed))
    })?;
    let text = match (args.json, placed) {
        (true, _) => format!("{}\n", Value::Array(lines.iter().map(as_json).collect())),
        (false, Some(placed)) => {
            table(&lines) + &lines.iter().map(status).collect::<String>() + &placement_text(&placed)
        }
        (false, None) => table(&lines),
    };
    print(&text)?;
    Ok(ExitCode::SUCCESS)
}

fn devices(endpoint: &mut Endpoint) -> Result<Vec<DeviceLine>> {
    match endpoint.call(&Request::Tier(TierRequest::List))? {
        Response::Devices(lines) => Ok(lines),
        _ => Err(control::confused()),
    }
}

fn add(args: &TierAddArgs) -> Result<ExitCode> {
    Endpoint::with(Some(&args.target), false, |endpoint| {
        for device in &args.devices {
            let path = std::path::absolute(&device.path);
            let path = path.map_err(|error| CliError::io("find", &device.path, &error))?;
            let new = NewDeviceLine {
                path: path.into_os_string().into_vec(),
                is_slow: device.tier == Tier::Slow,
                size_bytes: device.size,
                force: args.force,
            };
            let answer = endpoint.call(&Request::Tier(TierRequest::Add(new)))?;
            let Response::DeviceAdded(id) = answer else { return Err(control::confused()) };
            let lines = devices(endpoint)?;
            let bytes = lines.iter().find(|line| line.id == id).map_or(0, |line| line.bytes_total);
            println!(
                "{} is device {id} of the store, {}, with {}",
                device.path.display(),
                device.tier,
                human_bytes(bytes)
            );
            warn_of_holes(&device.path);
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Warns of a file whose file system could not set all its space aside.
pub(super) fn warn_of_holes(path: &Path) {
    let has_holes = |file: &Metadata| file.is_file() && file.blocks() * 512 < file.len();
    if std::fs::metadata(path).is_ok_and(|file| has_holes(&file)) {
        let path = path.display();
        eprintln!(
            "kvfs: warning: the file system of {path} can't set space aside; where it has none left, the store fails"
        );
    }
}

fn drain(args: &TierDrainArgs) -> Result<ExitCode> {
    let waits = !args.no_wait;
    let mut all_empty = true;
    each(
        &args.what,
        true,
        |id| TierRequest::Drain { ids: vec![id], waits },
        |name, id, lines| {
            let Some(line) = lines.iter().find(|line| line.id == id) else { return };
            all_empty &= line.is_empty() || !waits;
            let store = args.what.target.display();
            if line.is_empty() {
                println!("{name} is empty; `kvfs tier remove {store} {id}` lets go of it");
            } else if waits {
                eprintln!("kvfs: {name}: {}", movement(line));
            } else {
                println!("{name} is drained in the background; `kvfs tier status {store}` tells how far");
            }
        },
    )?;
    Ok(if all_empty { ExitCode::SUCCESS } else { ExitCode::from(Code::Failed as u8) })
}

/// Asks for each device in turn, and tells of it. `drains`: from all of them at once, or one would be emptied
/// into the next.
fn each(
    args: &TierDevicesArgs,
    drains: bool,
    request: impl Fn(u32) -> TierRequest,
    mut tell: impl FnMut(&str, u32, &[DeviceLine]),
) -> Result<ExitCode> {
    Endpoint::with(Some(&args.target), false, |endpoint| {
        let known = devices(endpoint)?;
        // All are known before the first one is touched.
        let wanted: Result<Vec<_>> =
            args.devices.iter().map(|name| Ok((name, find(&known, name)?))).collect();
        let wanted = wanted?;
        if drains {
            let ids = wanted.iter().map(|&(_, id)| id).collect();
            endpoint.call(&Request::Tier(TierRequest::Drain { ids, waits: false }))?;
        }
        for (name, id) in wanted {
            let answer = endpoint.call(&Request::Tier(request(id)))?;
            let Response::Devices(lines) = answer else { return Err(control::confused()) };
            tell(&shown(name, id), id, &lines);
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// The device that a number or path means.
fn find(lines: &[DeviceLine], name: &OsString) -> Result<u32> {
    let number: Option<u32> = name.to_str().and_then(|name| name.parse().ok());
    let place = std::fs::canonicalize(name).unwrap_or_else(|_| PathBuf::from(name));
    let is_it = |line: &&DeviceLine| Some(line.id) == number || path_of(line) == Some(&place);
    lines.iter().find(is_it).map(|line| line.id).ok_or_else(|| {
        let name = Path::new(name).display();
        CliError::new(
            Code::Usage,
            format!("the store has no device {name}; `kvfs tier list` shows which it has"),
        )
    })
}

fn shown(name: &OsStr, id: u32) -> String {
    let name = Path::new(name).display().to_string();
    if name == id.to_string() { format!("device {id}") } else { name }
}

fn path_of(line: &DeviceLine) -> Option<&Path> {
    line.path.as_deref().map(|path| Path::new(OsStr::from_bytes(path)))
}

fn table(lines: &[DeviceLine]) -> String {
    let mut text =
        format!("{:>3}  {:4}  {:>9}  {:>9}  {:>9}  DEVICE\n", "ID", "TIER", "SIZE", "STORED", "FREE");
    for line in lines {
        let size = human_bytes(line.bytes_total);
        let (stored, free) = (human_bytes(line.bytes_live), human_bytes(line.bytes_free));
        let mark = match &line.drain {
            Some(_) if line.is_empty() => "  (drained)",
            Some(_) => "  (being drained)",
            None => "",
        };
        let path = path_of(line).map_or_else(|| "missing".to_owned(), |path| path.display().to_string());
        // Writing to a string never fails.
        let _ = writeln!(
            text,
            "{:>3}  {:4}  {size:>9}  {stored:>9}  {free:>9}  {path}{mark}",
            line.id, line.tier
        );
    }
    text
}

/// A line for what moves, one for what was read and written, and one for what has failed.
fn status(line: &DeviceLine) -> String {
    let mut text = format!("device {}: {}\n", line.id, movement(line));
    if line.path.is_some() {
        let _ = writeln!(text, "device {}: {}", line.id, traffic(&line.traffic));
    }
    if let Some(first) = &line.failure {
        let _ = writeln!(
            text,
            "device {}: failed {} times since it was opened, first {first}",
            line.id, line.failures
        );
    }
    text
}

/// What moves away from the device, and if nothing does, why.
fn movement(line: &DeviceLine) -> String {
    if line.path.is_none() {
        return "it is missing; what lies there can't be read, and the store not be written to".to_owned();
    }
    let left = human_bytes(line.bytes_live);
    match &line.drain {
        None => "nothing moves: it is not to be drained".to_owned(),
        Some(_) if line.is_empty() => "it is empty, and can be removed".to_owned(),
        Some(DrainLine { trouble: Some(why), .. }) => {
            format!("{left} are left, and nothing moves: {why}; it is tried again until `kvfs tier refill`")
        }
        Some(drain @ DrainLine { is_moving: true, .. }) => {
            format!("it is being drained, {left} are left{}", speed(drain, line.bytes_live))
        }
        Some(_) => format!("{left} are left, and wait for their turn"),
    }
}

/// Since the store was opened.
fn traffic(traffic: &TrafficLine) -> String {
    let part = |count: u64, in_row: u64| in_row.saturating_mul(100).checked_div(count).unwrap_or(0);
    let TrafficLine { reads, reads_in_row, bytes_read, writes, writes_in_row, bytes_written, flushes } =
        *traffic;
    format!(
        "{} read in {reads} reads, {} % in a row; {} written in {writes} writes, {} % in a row; {flushes} flushes",
        human_bytes(bytes_read),
        part(reads, reads_in_row),
        human_bytes(bytes_written),
        part(writes, writes_in_row)
    )
}

/// As far as something has moved.
fn speed(drain: &DrainLine, bytes_left: u64) -> String {
    let seconds = drain.took.as_secs_f64();
    if drain.bytes_moved == 0 || seconds <= 0.0 {
        return String::new();
    }
    let rate = drain.bytes_moved as f64 / seconds;
    let left = human_duration(Duration::from_secs_f64(bytes_left as f64 / rate));
    format!("; {} each second, about {left} more", human_bytes(rate as u64))
}

fn as_json(line: &DeviceLine) -> Value {
    let drain = line.drain.as_ref().map(|drain| {
        json!({
            "moving": drain.is_moving,
            "moved_bytes": drain.bytes_moved,
            "seconds": drain.took.as_secs_f64(),
            "trouble": drain.trouble,
        })
    });
    let value = json!({
        "id": line.id,
        "tier": line.tier,
        "size_bytes": line.bytes_total,
        "stored_bytes": line.bytes_live,
        "free_bytes": line.bytes_free,
        "empty": line.is_empty(),
        "drain": drain,
        "reads": line.traffic.reads,
        "reads_in_row": line.traffic.reads_in_row,
        "read_bytes": line.traffic.bytes_read,
        "writes": line.traffic.writes,
        "writes_in_row": line.traffic.writes_in_row,
        "written_bytes": line.traffic.bytes_written,
        "flushes": line.traffic.flushes,
        "failures": line.failures,
        "first_failure": line.failure,
    });
    with_bytes(value, "path", line.path.as_deref())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placement_says_what_moves_and_why_not() {
        let mut line =
            PlacementLine { policy: "static".to_owned(), bytes_moved: 3 << 30, ..Default::default() };
        let text = placement_text(&line);
        assert!(text.starts_with("placement=static\nnothing was looked for yet"), "{text}");
        line.looked_ago = Some(Duration::ZERO);
        let text = "placement=static\n0 B lie on another tier than they should\n3.0 GiB were moved\n";
        assert_eq!(placement_text(&line), text);
        (line.bytes_left, line.trouble) = (2 << 20, Some("no room".to_owned()));
        line.looked_ago = Some(Duration::from_secs(12));
        let text = placement_text(&line);
        assert!(text.contains(
            "\n2.0 MiB lie on another tier than they should, as of 12 s ago, and nothing moves: no room; it"
        ));
        (line.is_moving, line.took, line.limit) = (true, Duration::from_secs(96), 50 << 20);
        let text = placement_text(&line);
        assert!(
            text.contains(
                "should, as of 12 s ago, and move\n3.0 GiB were moved, 32.0 MiB each second, at most 50.0 MiB each"
            )
        );
        let mut budget =
            BudgetLine { bytes_per_day: 20 << 30, bytes_last_day: 3 << 30, ..BudgetLine::default() };
        assert_eq!(
            budget_text(budget),
            "3.0 GiB of 20.0 GiB a day were written to fast devices in the last 24 hours\n"
        );
        budget.spent_for = Duration::from_secs(32);
        assert!(budget_text(budget).contains("\nfor 32 s new content goes to slow devices"));
    }

    fn line(id: u32, drain: Option<DrainLine>) -> DeviceLine {
        DeviceLine {
            id,
            path: Some(b"/dev/x".to_vec()),
            tier: "slow".to_owned(),
            bytes_total: 4 << 30,
            bytes_free: 1 << 30,
            bytes_live: 2 << 30,
            drain,
            ..DeviceLine::default()
        }
    }

    #[test]
    fn the_table_and_the_status_say_what_moves_and_why_nothing_does() {
        let moving =
            DrainLine { is_moving: true, bytes_moved: 1 << 30, took: Duration::from_secs(16), trouble: None };
        let text = table(&[line(1, Some(moving.clone()))]);
        assert_eq!(
            text.lines().nth(1),
            Some("  1  slow    4.0 GiB    2.0 GiB    1.0 GiB  /dev/x  (being drained)")
        );
        let said = |line: &DeviceLine| movement(line);
        assert_eq!(
            said(&line(1, Some(moving))),
            "it is being drained, 2.0 GiB are left; 64.0 MiB each second, about 32 s more"
        );
        let stuck = DrainLine { trouble: Some("the disk is gone".to_owned()), ..DrainLine::default() };
        assert_eq!(
            said(&line(1, Some(stuck))),
            "2.0 GiB are left, and nothing moves: the disk is gone; it is tried again until `kvfs tier refill`"
        );
        assert!(said(&line(0, None)).contains("nothing moves"));
        let busy = TrafficLine { reads: 8, reads_in_row: 2, bytes_read: 1 << 20, ..TrafficLine::default() };
        assert!(traffic(&busy).starts_with("1.0 MiB read in 8 reads, 25 % in a row; 0 B written"));
        let empty = DeviceLine { bytes_free: 4 << 30, ..line(1, Some(DrainLine::default())) };
        assert!(said(&empty).contains("can be removed"));
        let missing = DeviceLine { path: None, ..line(1, None) };
        assert!(said(&missing).contains("missing") && table(&[missing]).contains("missing"));
        assert_eq!(find(&[line(3, None)], &"3".into()).expect("is there"), 3);
        assert_eq!(find(&[line(3, None)], &"/dev/x".into()).expect("is there"), 3);
        assert_eq!(find(&[line(3, None)], &"4".into()).expect_err("is not there").code, Code::Usage);
    }
}
