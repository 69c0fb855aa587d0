//! Figures beside those of the thesis: one page, and each figure as an SVG file.
//!
//! Machines, sizes and programs differ, so only ratios stand beside each other. Where the thesis gives a
//! number in its text, it is cited; what only its drawings show is left out.
//!
//! Thread safety: plain functions.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

use crate::Row;

const WIDTH: f64 = 760.0;
const LABEL_WIDTH: f64 = 250.0;
const BAR_HEIGHT: f64 = 14.0;
const OURS: &str = "#2a6f97";
const THEIRS: &str = "#c9a227";

/// One line of a figure: what was measured here, and what the thesis has.
struct Line {
    label: &'static str,
    /// Name of the row.
    row: &'static str,
    /// What it is divided by.
    base: &'static str,
    thesis: Option<f64>,
}

const fn line(label: &'static str, row: &'static str, base: &'static str, thesis: Option<f64>) -> Line {
    Line { label, row, base, thesis }
}

struct Figure {
    file: &'static str,
    title: &'static str,
    /// What the bars are.
    scale: &'static str,
    /// Where the thesis's numbers are, and what differs.
    note: &'static str,
    lines: &'static [Line],
}

const PAIRS: &str = "64 B pairs, main line, 1 thread";
const SERIAL: &str = "16 MiB of blocks each, 1 thread";

const FIGURES: &[Figure] = &[
    Figure {
        file: "figure-4.1",
        title: "64-byte pairs at random keys (figure 4.1)",
        scale: "throughput, main line with one thread = 1; more is better",
        note: "Thesis, section 4.2.1: 10 GB on four cores; main line 1,465 s with one thread and 2,170 s with ten, one \
               transaction 1,508 s, four 899 s, ten 1,180 s. Here two cores; ten threads stand beside two.",
        lines: &[
            line("main line, 1 thread", PAIRS, PAIRS, Some(1.0)),
            line(
                "main line, 2 threads (thesis: 10)",
                "64 B pairs, main line, 2 threads",
                PAIRS,
                Some(1465.0 / 2170.0),
            ),
            line("1 transaction", "64 B pairs, 1 transaction", PAIRS, Some(1465.0 / 1508.0)),
            line("2 transactions", "64 B pairs, 2 transactions, a thread each", PAIRS, None),
            line("4 transactions", "64 B pairs, 4 transactions, a thread each", PAIRS, Some(1465.0 / 899.0)),
        ],
    },
    Figure {
        file: "figures-4.2-4.3",
        title: "Serializable transactions of 16 MiB that overlap (figures 4.2, 4.3)",
        scale: "throughput with the commits, one thread = 1; more is better",
        note: "Thesis, section 4.2.2: 1,920 transactions, 846.13 s without overlap and 852.07 s with all, which is almost as \
               if they ran one after the other; without group commit the commits take what the operations gain.",
        lines: &[
            line(
                "overlap 0 %",
                "16 MiB of blocks each, 2 threads, overlap 0 %",
                SERIAL,
                Some(852.07 / 846.13),
            ),
            line("overlap 25 %", "16 MiB of blocks each, 2 threads, overlap 25 %", SERIAL, None),
            line("overlap 50 %", "16 MiB of blocks each, 2 threads, overlap 50 %", SERIAL, None),
            line("overlap 75 %", "16 MiB of blocks each, 2 threads, overlap 75 %", SERIAL, None),
            line("overlap 100 %", "16 MiB of blocks each, 2 threads, overlap 100 %", SERIAL, Some(1.0)),
        ],
    },
    Figure {
        file: "figures-4.6-4.7",
        title: "A real tree and a build in one transaction (figures 4.6, 4.7; trees: table 4.3)",
        scale: "time, without a transaction = 1; less is better",
        note: "Thesis, section 4.4.1, all operations together, 93 % of the time in the compiler: Samba 63.29 s without, \
               64.58 s at snapshot isolation, 70.68 s serializable. Linux 240.18 s; almost no and 10 % overhead. Here each \
               operation is a transaction of its own: Debian's Linux source, and a build of 100 modules in C.",
        lines: &[
            line(
                "build, snapshot isolation",
                "build, snapshot isolation",
                "build, no transaction",
                Some(64.58 / 63.29),
            ),
            line("build, serializable", "build, serializable", "build, no transaction", Some(70.68 / 63.29)),
            line("unpack, snapshot isolation", "unpack, snapshot isolation", "unpack, no transaction", None),
            line("unpack, serializable", "unpack, serializable", "unpack, no transaction", None),
            line("find, snapshot isolation", "find, snapshot isolation", "find, no transaction", None),
            line("find, serializable", "find, serializable", "find, no transaction", None),
            line(
                "read all, snapshot isolation",
                "read all, snapshot isolation",
                "read all, no transaction",
                None,
            ),
            line("read all, serializable", "read all, serializable", "read all, no transaction", None),
            line("remove, snapshot isolation", "remove, snapshot isolation", "remove, no transaction", None),
            line("remove, serializable", "remove, serializable", "remove, no transaction", None),
        ],
    },
    Figure {
        file: "figure-4.8",
        title: "Builds at once, each in a transaction (figure 4.8)",
        scale: "time, without transactions = 1; less is better",
        note: "Thesis, section 4.4.2: four kernels at once, 514.45 s without transactions, 491.10 s with one at snapshot \
               isolation for each. Here two builds.",
        lines: &[line(
            "snapshot isolation",
            "two builds at once, snapshot isolation",
            "two builds at once, no transaction",
            Some(491.10 / 514.45),
        )],
    },
];

/// A bar with its whisker.
struct Bar {
    label: &'static str,
    ours: Option<[f64; 3]>,
    thesis: Option<f64>,
}

/// Writes the page and the figures into `dir`. What was not measured is left out.
pub(crate) fn write(dir: &Path, machine: &str, rows: &[Row]) -> Result<()> {
    fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut body = String::new();
    for figure in FIGURES {
        let bars: Vec<Bar> = figure.lines.iter().map(|line| bar(line, rows)).collect();
        if bars.iter().all(|bar| bar.ours.is_none()) {
            continue;
        }
        let svg = draw(figure, &bars);
        fs::write(dir.join(format!("{}.svg", figure.file)), &svg)?;
        // Writing to a string cannot fail.
        let _ = write!(body, "<h2>{}</h2>\n{svg}\n<p>{}</p>\n", escaped(figure.title), escaped(figure.note));
    }
    let _ = write!(body, "<h2>All values</h2>\n{}", table(rows));
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>kvfs: transactions</title>\n\
         <style>body {{ font: 15px sans-serif; max-width: 800px; margin: 2em auto }} td, th {{ padding: 0 1em 0 0; \
         text-align: left }} td.n {{ text-align: right }}</style></head>\n<body><h1>Transactions, beside the thesis</h1>\n\
         <p>{}</p>\n<p>Thesis: the KVFS thesis of 2012. Only ratios are comparable: its machine had four cores, an SSD of \
         2009 and 4 GB of memory.</p>\n{body}</body></html>\n",
        escaped(machine)
    );
    let path = dir.join("index.html");
    fs::write(&path, page).with_context(|| format!("cannot write {}", path.display()))
}

/// The ratio of a line, with the least and the greatest that its runs gave.
fn bar(line: &Line, rows: &[Row]) -> Bar {
    let find = |name: &str| rows.iter().find(|row| row.name == name).map(|row| &row.value);
    let ours = find(line.row)
        .zip(find(line.base))
        .map(|(value, base)| [value.median / base.median, value.min / base.median, value.max / base.median]);
    Bar { label: line.label, ours, thesis: line.thesis }
}

fn draw(figure: &Figure, bars: &[Bar]) -> String {
    let values = bars.iter().flat_map(|bar| bar.ours.map(|ours| ours[2]).into_iter().chain(bar.thesis));
    let max = values.fold(1.0_f64, f64::max) * 1.08;
    let at = |value: f64| LABEL_WIDTH + value / max * (WIDTH - LABEL_WIDTH - 50.0);
    let row_height = 2.0 * BAR_HEIGHT + 10.0;
    let height = 44.0 + bars.len() as f64 * row_height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         font-family=\"sans-serif\" font-size=\"12\" role=\"img\"><title>{}</title>\n",
        escaped(figure.title)
    );
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"14\">{}</text>\n<rect x=\"0\" y=\"22\" width=\"10\" height=\"10\" fill=\"{OURS}\"/>\
         <text x=\"14\" y=\"31\">here (median, least to greatest)</text>\
         <rect x=\"220\" y=\"22\" width=\"10\" height=\"10\" fill=\"{THEIRS}\"/><text x=\"234\" y=\"31\">thesis</text>",
        escaped(figure.scale)
    );
    for (index, bar) in bars.iter().enumerate() {
        let top = 42.0 + index as f64 * row_height;
        let _ = writeln!(svg, "<text x=\"0\" y=\"{}\">{}</text>", top + 18.0, escaped(bar.label));
        if let Some([median, min, max]) = bar.ours {
            rectangle(&mut svg, top, at(0.0), at(median), OURS);
            let middle = top + BAR_HEIGHT / 2.0;
            let _ = writeln!(
                svg,
                "<path d=\"M{:.1} {middle}H{:.1}\" stroke=\"#000\"/><text x=\"{:.1}\" y=\"{}\">{median:.2}</text>",
                at(min),
                at(max),
                at(max) + 4.0,
                top + 12.0
            );
        }
        if let Some(thesis) = bar.thesis {
            let top = top + BAR_HEIGHT + 1.0;
            rectangle(&mut svg, top, at(0.0), at(thesis), THEIRS);
            let _ =
                writeln!(svg, "<text x=\"{:.1}\" y=\"{}\">{thesis:.2}</text>", at(thesis) + 4.0, top + 12.0);
        }
    }
    let _ = write!(
        svg,
        "<path d=\"M{x:.1} 38V{height}\" stroke=\"#888\" stroke-dasharray=\"3 3\"/></svg>",
        x = at(1.0)
    );
    svg
}

fn rectangle(svg: &mut String, top: f64, from: f64, to: f64, color: &str) {
    let _ = writeln!(
        svg,
        "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>",
        (to - from).max(0.0)
    );
}

fn table(rows: &[Row]) -> String {
    let mut text =
        String::from("<table><tr><th>experiment<th>median<th>least<th>greatest<th>unit<th>ratio</tr>\n");
    for row in rows {
        let value = &row.value;
        let ratio = row.ratio.as_ref().map_or_else(String::new, |ratio| {
            let goal = ratio.goal.map_or_else(String::new, |goal| {
                format!(" ({})", goal.text(ratio.value, |limit| limit.to_string()))
            });
            format!("{:.3} × {}{goal}", ratio.value, ratio.to)
        });
        let _ = writeln!(
            text,
            "<tr><td>{}<td class=\"n\">{:.3}<td class=\"n\">{:.3}<td class=\"n\">{:.3}<td>{}<td>{}</tr>",
            escaped(&row.name),
            value.median,
            value.min,
            value.max,
            row.unit,
            escaped(&ratio)
        );
    }
    text.push_str("</table>\n");
    text
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
