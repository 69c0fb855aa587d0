//! The picture as PNG, with its labels, a legend and the scale.

use std::io::Write;

use png::{BitDepth, ColorType, Encoder, EncodingError};

use super::{LOOKS, font, footnote, label, look_of};
use crate::control::HeatLines;

/// Pixels of a cell, with the gap behind it.
pub(super) const CELL: usize = 8;
const GAP: usize = 1;
pub(super) const MARGIN: usize = 16;

/// Pixels for each one of a letter.
const LETTER_SCALE: usize = 2;
const LETTER_WIDTH: usize = (font::WIDTH + 1) * LETTER_SCALE;
pub(super) const LINE: usize = (font::HEIGHT + 4) * LETTER_SCALE;
/// So many letters are in a line, however few cells there are.
const LETTERS_MIN: usize = 80;

/// Places in the palette behind those of [`LOOKS`].
const PAPER: u8 = LOOKS.len() as u8;
const INK: u8 = PAPER + 1;

/// An image of indexed colours.
struct Canvas {
    width: usize,
    pixels: Vec<u8>,
}

impl Canvas {
    /// Makes it taller.
    fn add_rows(&mut self, rows: usize) {
        self.pixels.resize(self.pixels.len() + rows * self.width, PAPER);
    }

    fn height(&self) -> usize {
        self.pixels.len() / self.width
    }

    /// What is outside is left out.
    fn fill(&mut self, (x, y): (usize, usize), side: usize, colour: u8) {
        for row in y..(y + side).min(self.height()) {
            let to = (x + side).min(self.width);
            self.pixels[row * self.width..][x.min(to)..to].fill(colour);
        }
    }

    fn write(&mut self, (x, y): (usize, usize), text: &str) {
        for (place, letter) in text.chars().enumerate() {
            for (right, down) in font::pixels(letter) {
                let at = (x + place * LETTER_WIDTH + right * LETTER_SCALE, y + down * LETTER_SCALE);
                self.fill(at, LETTER_SCALE, INK);
            }
        }
    }

    /// In a line of its own at the bottom.
    fn add_line(&mut self, text: &str) {
        let y = self.height();
        self.add_rows(LINE);
        self.write((MARGIN, y), text);
    }

    fn add_cells(&mut self, looks: &[usize], width: usize) {
        for row in looks.chunks(width) {
            let y = self.height();
            self.add_rows(CELL);
            for (at, &look) in row.iter().enumerate() {
                self.fill((MARGIN + at * CELL, y), CELL - GAP, look as u8);
            }
        }
    }

    /// What each colour means, in as many lines as it takes.
    fn add_legend(&mut self) {
        let (mut x, mut y) = (MARGIN, self.height());
        self.add_rows(LINE);
        for (look, shown) in LOOKS.iter().enumerate() {
            let len = LETTER_WIDTH * (shown.meaning.len() + 4);
            if x + len > self.width - MARGIN && x > MARGIN {
                (x, y) = (MARGIN, self.height());
                self.add_rows(LINE);
            }
            self.fill((x, y), font::HEIGHT * LETTER_SCALE, look as u8);
            self.write((x + 2 * LETTER_WIDTH, y), shown.meaning);
            x += len;
        }
    }
}

fn draw(lines: &HeatLines, width: usize) -> Canvas {
    let inner = (width * CELL).max(LETTERS_MIN * LETTER_WIDTH);
    let mut canvas = Canvas { width: inner + 2 * MARGIN, pixels: Vec::new() };
    canvas.add_rows(MARGIN);
    for device in &lines.devices {
        let looks: Vec<usize> = device.cells.iter().map(|&cell| look_of(cell)).collect();
        canvas.add_line(&label(device));
        canvas.add_cells(&looks, width);
        canvas.add_rows(MARGIN);
    }
    canvas.add_legend();
    canvas.add_line(&footnote(lines));
    canvas.add_rows(MARGIN);
    canvas
}

/// Writes the picture, with so many cells in a row; how many pixels it has, across and down.
///
/// # Errors
/// What it is written to fails.
pub(crate) fn write_png(
    to: impl Write,
    lines: &HeatLines,
    width: usize,
) -> Result<(usize, usize), EncodingError> {
    let canvas = draw(lines, width);
    let size = (canvas.width, canvas.height());
    let mut encoder = Encoder::new(to, size.0 as u32, size.1 as u32);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    let paper_and_ink = [[255; 3], [0; 3]];
    encoder.set_palette(LOOKS.iter().map(|look| look.rgb).chain(paper_and_ink).flatten().collect::<Vec<_>>());
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&canvas.pixels)?;
    writer.finish()?;
    Ok(size)
}
