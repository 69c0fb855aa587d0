//! The picture in a terminal: two cells a character in colours, or one without.

use std::fmt::Write;

use super::{LOOKS, footnote, label, look_of};
use crate::control::HeatLines;

const RESET: &str = "\x1b[0m";

/// With so many cells in a row.
pub(crate) fn as_text(lines: &HeatLines, width: usize, is_colour: bool) -> String {
    let mut text = String::new();
    for device in &lines.devices {
        let looks: Vec<usize> = device.cells.iter().map(|&cell| look_of(cell)).collect();
        text += &label(device);
        text.push('\n');
        if is_colour {
            looks.chunks(2 * width).for_each(|pair| push_pair(&mut text, pair, width));
        } else {
            looks.chunks(width).for_each(|row| push_row(&mut text, row));
        }
        text.push('\n');
    }
    text += &legend(is_colour);
    text += &footnote(lines);
    text.push('\n');
    text
}

/// In a frame, so that what is empty is seen.
fn push_row(text: &mut String, row: &[usize]) {
    let cells: String = row.iter().map(|&look| LOOKS[look].character).collect();
    // Writing to a string never fails.
    let _ = writeln!(text, "|{cells}|");
}

/// Two rows, the first one in the upper halves.
fn push_pair(text: &mut String, pair: &[usize], width: usize) {
    let (upper, lower) = pair.split_at(pair.len().min(width));
    let mut before = None;
    for (at, &look) in upper.iter().enumerate() {
        let below = lower.get(at);
        if before != Some((look, below)) {
            let _ = match below {
                Some(&below) => write!(text, "\x1b[38;5;{};48;5;{}m", LOOKS[look].ansi, LOOKS[below].ansi),
                None => write!(text, "{RESET}\x1b[38;5;{}m", LOOKS[look].ansi),
            };
        }
        text.push('▀');
        before = Some((look, below));
    }
    text.push_str(RESET);
    text.push('\n');
}

fn legend(is_colour: bool) -> String {
    let item = |look: &super::Look| match (is_colour, look.character) {
        (true, _) => format!("\x1b[48;5;{}m  {RESET} {}", look.ansi, look.meaning),
        (false, ' ') => format!("' ' {}", look.meaning),
        (false, character) => format!("{character} {}", look.meaning),
    };
    let items: Vec<_> = LOOKS.iter().map(item).collect();
    format!("{}\n{}\n", items[..3].join("  "), items[3..].join("  "))
}
