//! One HTML page with everything, and the figures beside it as files.
//!
//! Thread safety: plain functions.

use crate::figures::{self, escaped};
use crate::goals;
use crate::report::{memory_text, requests_text, seconds_text, summary_text, title};
use crate::results::{Results, WorkloadInfo};
use anyhow::{Context, Result};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

const STYLE: &str = "body { font: 14px sans-serif; max-width: 1200px; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse } td, th { padding: 2px 10px 2px 0; text-align: left; border-bottom: 1px solid #eee }
td.n { text-align: right; white-space: nowrap } .good { color: #2d6a4f } .bad { color: #b00020 }
.small { color: #777; font-size: 12px } svg { max-width: 100%; height: auto }";

/// Writes `index.html`, `table.txt` and each figure as SVG and PNG into `dir`; returns the page's path.
pub fn write(dir: &Path, results: &Results) -> Result<PathBuf> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    fs::write(dir.join("table.txt"), crate::report::text(results))?;
    let mut drawn = String::new();
    for figure in figures::all(results) {
        fs::write(dir.join(format!("{}.svg", figure.file)), &figure.svg)?;
        fs::write(dir.join(format!("{}.png", figure.file)), figures::png(&figure.svg)?)?;
        // Writing to a string cannot fail, here and below.
        let _ = writeln!(drawn, "<h3>{}</h3>\n{}", escaped(&figure.title), figure.svg);
    }
    let mut machines = String::new();
    for machine in &results.machines {
        let _ = writeln!(machines, "<p>{}</p>", escaped(&machine.line()));
    }
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kvfs, measured</title>\n\
         <style>{STYLE}</style></head>\n<body><h1>kvfs beside its rivals</h1>\n{machines}\
         <h2>Goals</h2>\n{}<h2>Times</h2>\n{}<h2>Figures</h2>\n{drawn}<h2>Every cell</h2>\n{}{}<h2>Targets</h2>\n{}{}\
         </body></html>\n",
        goals_table(results),
        times_table(results),
        cells_table(results),
        details_table(results),
        targets_list(results),
        failures_list(results)
    );
    let path = dir.join("index.html");
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))?;
    Ok(path)
}

fn goals_table(results: &Results) -> String {
    let mut text = String::from(
        "<table><tr><th>workload<th>against<th>its time / that of kvfs<th>at least<th>verdict</tr>\n",
    );
    for verdict in goals::judge(results) {
        let class = if verdict.is_reached() { "good" } else { "bad" };
        let _ = writeln!(
            text,
            "<tr><td>{} <span class=\"small\">{}</span><td>{} <span class=\"small\">{}</span><td class=\"n\">{:.2}\
             <td class=\"n\">{:.2}<td class=\"{class}\">{}</tr>",
            escaped(&title(results, &verdict.workload)),
            verdict.ours,
            verdict.other,
            escaped(&verdict.against),
            verdict.ratio,
            verdict.factor,
            verdict.text()
        );
    }
    text + "</table>\n"
}

fn times_table(results: &Results) -> String {
    let mut text = String::from(
        "<p>Medians; below them how many times as long as kvfs.</p>\n<table><tr><th>workload<th>",
    );
    for target in &results.targets {
        let _ = write!(text, "<th>{}", escaped(&target.name));
    }
    text.push_str("</tr>\n");
    for row in results.rows() {
        let _ = write!(text, "<tr><td>{}<td class=\"small\">{}", escaped(&row.title), row.class.title());
        for target in &results.targets {
            text.push_str("<td class=\"n\">");
            if let Some(seconds) = results.seconds(&row.key, &target.name) {
                text.push_str(&seconds_text(seconds.median));
            }
            if let Some(ratio) =
                results.ratios(&row.key, &target.name, "kvfs").filter(|_| target.name != "kvfs")
            {
                let class = if ratio.median >= 1.0 { "good" } else { "bad" };
                let _ = write!(text, "<br><span class=\"{class}\">× {:.2}</span>", ratio.median);
            }
        }
        text.push_str("</tr>\n");
    }
    text + "</table>\n"
}

fn cells_table(results: &Results) -> String {
    let mut text = String::from(
        "<p>Times: median [least-greatest]. Processor seconds: the benchmark with its programs, the daemon, the whole \
         machine with the kernel's threads. At the device until everything was written out: MiB in requests.</p>\n\
         <table><tr><th>workload<th>target<th>time<th>client<th>daemon<th>machine<th>read<th>written<th>flushes</tr>\n",
    );
    for row in results.rows() {
        for target in &results.targets {
            cell_row(&mut text, results, row, &target.name);
        }
    }
    text + "</table>\n"
}

fn cell_row(text: &mut String, results: &Results, row: &WorkloadInfo, target: &str) {
    let Some(seconds) = results.seconds(&row.key, target) else { return };
    let _ = write!(
        text,
        "<tr><td>{}<td>{}<td class=\"n\">{}",
        escaped(&row.full_title()),
        escaped(target),
        summary_text(&seconds)
    );
    let median = |value: fn(&crate::counters::Usage) -> Option<f64>| {
        results.median(&row.key, target, |sample| value(&sample.usage))
    };
    let cpu = [
        median(|usage| Some(usage.client_cpu_seconds)),
        median(|usage| usage.daemon_cpu_seconds),
        median(|usage| Some(usage.machine_cpu_seconds)),
    ];
    for value in cpu {
        let _ =
            write!(text, "<td class=\"n\">{}", value.map_or_else(String::new, |value| format!("{value:.2}")));
    }
    let read = (
        median(|usage| Some(usage.device?.read_bytes as f64)),
        median(|usage| Some(usage.device?.read_requests as f64)),
    );
    let written = (
        median(|usage| Some(usage.device?.write_bytes as f64)),
        median(|usage| Some(usage.device?.write_requests as f64)),
    );
    for (bytes, requests) in [read, written] {
        let shown =
            bytes.zip(requests).map_or_else(String::new, |(bytes, requests)| requests_text(bytes, requests));
        let _ = write!(text, "<td class=\"n\">{shown}");
    }
    let flushes = median(|usage| Some(usage.device?.flush_requests as f64));
    let _ = writeln!(
        text,
        "<td class=\"n\">{}</tr>",
        flushes.map_or_else(String::new, |value| format!("{value:.0}"))
    );
}

/// What was measured beside the times; empty without.
fn details_table(results: &Results) -> String {
    if results.rows().all(|row| results.details(&row.key).is_empty()) {
        return String::new();
    }
    let mut text = String::from("<h2>Beside the times</h2>\n<p>Medians.</p>\n<table><tr><th>workload<th>");
    for target in &results.targets {
        let _ = write!(text, "<th>{}", escaped(&target.name));
    }
    text.push_str("</tr>\n");
    for row in results.rows() {
        for (name, unit) in results.details(&row.key) {
            let _ = write!(text, "<tr><td>{}<td>{}", escaped(&row.title), escaped(name));
            for target in &results.targets {
                let value = results.detail(&row.key, &target.name, name);
                let _ =
                    write!(text, "<td class=\"n\">{}", value.map_or_else(String::new, |it| unit.text(it)));
            }
            text.push_str("</tr>\n");
        }
    }
    text + "</table>\n"
}

fn targets_list(results: &Results) -> String {
    let mut text = String::from("<table>\n");
    for target in &results.targets {
        let _ = writeln!(
            text,
            "<tr><td>{}<td>{}{}</tr>",
            escaped(&target.name),
            escaped(&target.about),
            escaped(&memory_text(target))
        );
    }
    text + "</table>\n"
}

fn failures_list(results: &Results) -> String {
    let mut text = String::new();
    for failure in &results.failures {
        let _ = writeln!(
            text,
            "<p class=\"bad\">FAILED, run {}: {}: {}: {}</p>",
            failure.run,
            escaped(&failure.target),
            escaped(&failure.workload),
            escaped(&failure.error)
        );
    }
    text
}
