//! `kvfs trace`.

use std::fmt::Write;
use std::process::ExitCode;

use kvfs_service::ErrorKind;
use kvfs_service::units::human_latency;
use serde_json::Value;

use super::txn::connect;
use crate::args::TraceArgs;
use crate::control::{self, Request, Response, TraceLine, TraceRequest};
use crate::error::Result;
use crate::names::Table;
use crate::output::{self, Object, put_bytes};
use crate::units::{clock_time, human_bytes};

pub(crate) fn run(args: &TraceArgs) -> Result<ExitCode> {
    let (mut client, _) = connect(args.target.as_deref().or(args.store.as_deref()))?;
    let request =
        TraceRequest { slower: args.slower.unwrap_or_default(), kinds: args.kind.clone(), pid: args.pid };
    let Response::Done = client.call(&Request::Trace(request))? else { return Err(control::confused()) };
    if !args.form.json {
        output::print(HEADING)?;
    }
    loop {
        let (lines, lost) = match client.call(&Request::TraceNext) {
            Ok(Response::Traced { lines, lost }) => (lines, lost),
            Ok(Response::Closing) => break,
            Err(error) if error.kind() == ErrorKind::NotMounted => break,
            Ok(_) => return Err(control::confused()),
            Err(error) => return Err(error.into()),
        };
        let text =
            if args.form.json { as_json(&lines, lost) } else { as_text(&lines, lost, args.form.numeric) };
        if !text.is_empty() {
            output::print(&text)?;
        }
    }
    eprintln!("kvfs: the daemon of the store has ended");
    Ok(ExitCode::SUCCESS)
}

const HEADING: &str = "\
TIME                PID USER     COMMAND         KIND           TOOK     SIZE PATH
";

fn as_text(lines: &[TraceLine], lost: u64, numeric: bool) -> String {
    let mut text = String::new();
    for line in lines {
        // Writing to a string never fails.
        let _ = write!(
            text,
            "{} {:>7} {:8} {:15} {:11} {:>7} {:>8} ",
            clock_time(line.ended),
            if line.pid == 0 { "-".to_owned() } else { line.pid.to_string() },
            Table::Users.shown(line.uid, numeric),
            if line.command.is_empty() { "-".into() } else { line.command.escape_debug().to_string() },
            line.kind,
            human_latency(line.duration),
            if line.bytes == 0 { "-".to_owned() } else { human_bytes(line.bytes) },
        );
        if line.txn != 0 {
            let _ = write!(text, "[txn {}] ", line.txn);
        }
        text.push_str(&String::from_utf8_lossy(&line.target).escape_debug().to_string());
        if line.errno != 0 {
            let error = std::io::Error::from_raw_os_error(line.errno).to_string();
            let _ = write!(text, " ({})", error.split(" (os error").next().unwrap_or_default());
        }
        text.truncate(text.trim_end().len());
        text.push('\n');
    }
    if lost > 0 {
        let _ = writeln!(text, "… {lost} lost");
    }
    text
}

fn as_json(lines: &[TraceLine], lost: u64) -> String {
    let mut text = String::new();
    for line in lines {
        let _ = writeln!(text, "{}", object(line));
    }
    if lost > 0 {
        let _ = writeln!(text, "{}", serde_json::json!({ "lost": lost }));
    }
    text
}

fn object(line: &TraceLine) -> Value {
    let mut object = Object::new();
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    put("ended_seconds", line.ended.as_secs_f64().into());
    put("duration_ns", (line.duration.as_nanos() as u64).into());
    put("kind", line.kind.clone().into());
    put("uid", line.uid.into());
    put("pid", Some(line.pid).filter(|&pid| pid != 0).into());
    put("command", Some(line.command.clone()).filter(|command| !command.is_empty()).into());
    put("txn", Some(line.txn).filter(|&txn| txn != 0).into());
    put("bytes", line.bytes.into());
    put("errno", line.errno.into());
    put_bytes(&mut object, "path", Some(&*line.target).filter(|target| !target.is_empty()));
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn operation_is_a_line_whatever_its_name_holds() {
        let line = TraceLine {
            ended: Duration::from_micros(3_723_000_456),
            duration: Duration::from_micros(1200),
            kind: "unlink".to_owned(),
            uid: 0,
            pid: 7,
            command: "rm".to_owned(),
            txn: 5,
            target: b"/odd\nname".to_vec(),
            bytes: 2048,
            errno: 2,
        };
        let own = TraceLine { txn: 0, errno: 0, bytes: 0, target: Vec::new(), pid: 0, ..line.clone() };
        let text = as_text(&[line.clone(), own.clone()], 12, true);
        let lines: Vec<&str> = text.lines().collect();
        let first = "01:02:03.000456       7 0        rm              unlink       1.2 ms  2.0 KiB \
                     [txn 5] /odd\\nname (No such file or directory)";
        assert_eq!(lines[0], first);
        assert_eq!(lines[1], "01:02:03.000456       - 0        rm              unlink       1.2 ms        -");
        assert_eq!(lines[2], "… 12 lost");
        let json: Vec<Value> = as_json(&[line, own], 12)
            .lines()
            .map(|line| serde_json::from_str(line).expect("is JSON"))
            .collect();
        assert_eq!(
            (&json[0]["path"], &json[0]["txn"], &json[0]["duration_ns"]),
            (&"/odd\nname".into(), &5.into(), &1_200_000.into())
        );
        assert_eq!(
            (&json[1]["path"], &json[1]["pid"], &json[2]["lost"]),
            (&Value::Null, &Value::Null, &12.into())
        );
    }
}
