//! Figures: how long every target took, relative to one of them, as SVG and PNG.
//!
//! Thread safety: pure functions; turning into pixels reads the system's fonts once.

use crate::results::{Results, WorkloadInfo};
use crate::summary::Summary;
use anyhow::{Context, Result};
use std::fmt::Write;
use std::sync::{Arc, LazyLock};

const WIDTH: f64 = 900.0;
const LABEL_WIDTH: f64 = 270.0;
const VALUE_WIDTH: f64 = 110.0;
const BAR_HEIGHT: f64 = 11.0;
const HEAD_HEIGHT: f64 = 64.0;
/// Bars end here, in powers of two to either side.
const SCALE_MAX: f64 = 5.0;
const COLORS: [&str; 10] = [
    "#d1495b", "#2a6f97", "#61a5c2", "#89c2d9", "#8d99ae", "#c9a227", "#5f8d4e", "#7b2d8b", "#b56576",
    "#444444",
];

/// One group of workloads.
pub struct Figure {
    /// File name without its ending.
    pub file: String,
    /// For people.
    pub title: String,
    /// The drawing.
    pub svg: String,
}

/// A figure for each group that holds something.
pub fn all(results: &Results) -> Vec<Figure> {
    let mut groups: Vec<&str> = Vec::new();
    for row in results.rows() {
        if !groups.contains(&row.group.as_str()) {
            groups.push(&row.group);
        }
    }
    groups
        .into_iter()
        .map(|group| {
            let rows: Vec<&WorkloadInfo> = results.rows().filter(|row| row.group == group).collect();
            Figure { file: group.to_owned(), title: group.to_owned(), svg: draw(results, group, &rows) }
        })
        .collect()
}

/// The same drawing in pixels, two for each point.
pub fn png(svg: &str) -> Result<Vec<u8>> {
    let options = resvg::usvg::Options { fontdb: Arc::clone(&FONTS), ..Default::default() };
    let tree = resvg::usvg::Tree::from_str(svg, &options).context("the figure is no SVG")?;
    let size = tree.size();
    let (width, height) = ((size.width() * 2.0).ceil() as u32, (size.height() * 2.0).ceil() as u32);
    let mut pixels = resvg::tiny_skia::Pixmap::new(width, height).context("the figure is empty")?;
    pixels.fill(resvg::tiny_skia::Color::WHITE);
    resvg::render(&tree, resvg::tiny_skia::Transform::from_scale(2.0, 2.0), &mut pixels.as_mut());
    pixels.encode_png().context("the figure cannot be encoded")
}

static FONTS: LazyLock<Arc<resvg::usvg::fontdb::Database>> = LazyLock::new(|| {
    let mut fonts = resvg::usvg::fontdb::Database::new();
    fonts.load_system_fonts();
    // The generic name in the drawings is looked up here; any font is better than none.
    let families: Vec<String> =
        fonts.faces().filter_map(|face| Some(face.families.first()?.0.clone())).collect();
    let family = families.iter().find(|name| name.contains("Sans")).or(families.first()).cloned();
    if let Some(family) = family {
        fonts.set_sans_serif_family(family);
    }
    Arc::new(fonts)
});

/// What times are divided by: the first of these that was measured.
fn base<'a>(results: &'a Results, rows: &[&WorkloadInfo]) -> Option<&'a str> {
    let was_measured = |target: &str| rows.iter().any(|row| results.seconds(&row.key, target).is_some());
    let preferred = ["ext4", "rocksdb", "kvfs"].into_iter();
    let names = preferred.chain(results.targets.iter().map(|target| target.name.as_str()));
    names.into_iter().find(|name| was_measured(name))
}

fn draw(results: &Results, title: &str, rows: &[&WorkloadInfo]) -> String {
    let base = base(results, rows).unwrap_or("kvfs");
    let targets: Vec<(usize, &str)> = results
        .targets
        .iter()
        .enumerate()
        .filter(|(_, target)| rows.iter().any(|row| results.seconds(&row.key, &target.name).is_some()))
        .map(|(index, target)| (index, target.name.as_str()))
        .collect();
    let row_height = targets.len() as f64 * (BAR_HEIGHT + 2.0) + 12.0;
    let height = HEAD_HEIGHT + rows.len() as f64 * row_height;
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height}\" width=\"{WIDTH}\" \
         height=\"{height}\" font-family=\"sans-serif\" font-size=\"11\" role=\"img\"><title>{}</title>\n",
        escaped(title)
    );
    let _ = writeln!(
        svg,
        "<text x=\"0\" y=\"14\" font-size=\"13\">{}: time divided by that of {base}; left of 1 is faster; whiskers from \
         least to greatest</text>",
        escaped(title)
    );
    legend(&mut svg, &targets);
    axis(&mut svg, height);
    for (number, row) in rows.iter().enumerate() {
        let top = HEAD_HEIGHT + number as f64 * row_height;
        let class = row.class.title();
        let _ = writeln!(
            svg,
            "<text x=\"0\" y=\"{:.0}\">{}</text><text x=\"0\" y=\"{:.0}\" fill=\"#777\">{class}</text>",
            top + 12.0,
            escaped(&row.title),
            top + 26.0,
        );
        let Some(unit) = results.seconds(&row.key, base).or_else(|| results.seconds(&row.key, "kvfs")) else {
            continue;
        };
        for (line, (color, target)) in targets.iter().enumerate() {
            let top = top + line as f64 * (BAR_HEIGHT + 2.0);
            match results.seconds(&row.key, target) {
                Some(seconds) => bar(&mut svg, top, COLORS[color % COLORS.len()], &seconds, unit.median),
                None => {
                    let _ = writeln!(
                        svg,
                        "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"#aaa\">not measured</text>",
                        at(1.0) + 4.0,
                        top + 9.0
                    );
                }
            }
        }
    }
    svg.push_str("</svg>");
    svg
}

fn legend(svg: &mut String, targets: &[(usize, &str)]) {
    let mut left = 0.0;
    for (color, target) in targets {
        let _ = writeln!(
            svg,
            "<rect x=\"{left:.0}\" y=\"24\" width=\"10\" height=\"10\" fill=\"{}\"/>\
             <text x=\"{:.0}\" y=\"33\">{}</text>",
            COLORS[color % COLORS.len()],
            left + 14.0,
            escaped(target)
        );
        left += 26.0 + 7.0 * target.len() as f64;
    }
}

/// Where a ratio is, on a scale of powers of two.
fn at(ratio: f64) -> f64 {
    let middle = f64::midpoint(LABEL_WIDTH, WIDTH - VALUE_WIDTH);
    let half = (WIDTH - VALUE_WIDTH - LABEL_WIDTH) / 2.0;
    middle + ratio.log2().clamp(-SCALE_MAX, SCALE_MAX) / SCALE_MAX * half
}

fn axis(svg: &mut String, height: f64) {
    for power in -5..=5 {
        let ratio = f64::from(power).exp2();
        let label = if power < 0 { format!("1/{}", 1 << -power) } else { (1 << power).to_string() };
        let color = if power == 0 { "#555" } else { "#ddd" };
        let _ = writeln!(
            svg,
            "<path d=\"M{x:.1} 56V{height}\" stroke=\"{color}\"/>\
             <text x=\"{x:.1}\" y=\"52\" text-anchor=\"middle\" fill=\"#777\">{label}</text>",
            x = at(ratio)
        );
    }
}

fn bar(svg: &mut String, top: f64, color: &str, seconds: &Summary, unit: f64) {
    let (from, to) = (at(1.0), at(seconds.median / unit));
    let middle = top + BAR_HEIGHT / 2.0;
    let _ = writeln!(
        svg,
        "<rect x=\"{:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{BAR_HEIGHT}\" fill=\"{color}\"/>\
         <path d=\"M{:.1} {middle:.1}H{:.1}\" stroke=\"#000\"/>\
         <text x=\"{:.1}\" y=\"{:.1}\">{}</text>",
        from.min(to),
        (to - from).abs().max(1.0),
        at(seconds.min / unit),
        at(seconds.max / unit),
        WIDTH - VALUE_WIDTH + 8.0,
        top + 9.0,
        crate::report::seconds_text(seconds.median)
    );
}

/// For text between tags and in attributes.
pub fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_grow_to_the_right_and_stay_on_the_paper() {
        assert!(at(0.5) < at(1.0) && at(1.0) < at(2.0));
        assert!(at(1e9) <= WIDTH - VALUE_WIDTH && at(1e-9) >= LABEL_WIDTH);
    }

    #[test]
    fn a_drawing_becomes_pixels() {
        let svg = draw(&Results::default(), "a < b", &[]);
        assert!(svg.contains("a &lt; b"));
        let png = png(&svg).expect("drawn");
        assert_eq!(&png[1..4], b"PNG");
    }
}
