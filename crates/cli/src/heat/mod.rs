//! Pictures of how often what lies where in a store was lately read: in characters, in colours of a terminal,
//! as PNG, in JSON.
//!
//! Thread safety: plain functions of what the daemon has told. Invariant: each form shows the same cells in
//! the same rows.

mod font;
mod image;
mod text;

use std::borrow::Cow;

use serde_json::{Value, json};

use crate::control::{DeviceHeatLine, HeatCellLine, HeatLines};
use crate::output::with_bytes;
use crate::units::human_bytes;
pub(crate) use image::write_png;
pub(crate) use text::as_text;

/// How something is shown.
struct Look {
    character: char,
    /// Of the 256 colours of a terminal.
    ansi: u8,
    rgb: [u8; 3],
    meaning: &'static str,
}

/// Nothing; what has no count; never read lately; and from there on a step for each doubling.
const LOOKS: [Look; 11] = [
    Look { character: ' ', ansi: 235, rgb: [236, 236, 236], meaning: "nothing" },
    Look { character: '/', ansi: 244, rgb: [150, 150, 150], meaning: "rows, metadata, dead" },
    Look { character: '.', ansi: 18, rgb: [0, 0, 135], meaning: "not read lately" },
    Look { character: ':', ansi: 20, rgb: [0, 0, 215], meaning: "1" },
    Look { character: '-', ansi: 26, rgb: [0, 95, 215], meaning: "2" },
    Look { character: '=', ansi: 37, rgb: [0, 175, 175], meaning: "4" },
    Look { character: '+', ansi: 71, rgb: [95, 175, 95], meaning: "8" },
    Look { character: '*', ansi: 178, rgb: [215, 175, 0], meaning: "16" },
    Look { character: '#', ansi: 208, rgb: [255, 135, 0], meaning: "32" },
    Look { character: '%', ansi: 202, rgb: [255, 95, 0], meaning: "64" },
    Look { character: '@', ansi: 196, rgb: [255, 0, 0], meaning: "128 times or more" },
];

/// Which of [`LOOKS`] a cell has.
fn look_of(cell: HeatCellLine) -> usize {
    match cell {
        HeatCellLine::Free => 0,
        HeatCellLine::Other => 1,
        HeatCellLine::Counted(0) => 2,
        HeatCellLine::Counted(count) => 3 + count.ilog2() as usize,
    }
}

/// What stands above the cells of a device.
fn label(device: &DeviceHeatLine) -> String {
    let DeviceHeatLine { id, tier, bytes_total, bytes_counted, bytes_hot, cell_bytes, .. } = device;
    let path = device.path.as_deref().map_or(Cow::Borrowed("missing"), String::from_utf8_lossy);
    let percent = bytes_hot.saturating_mul(100).checked_div(*bytes_counted).unwrap_or(0);
    format!(
        "device {id}, {tier}, {}: {}, {} of content, {percent} % of it hot; {} a cell",
        path.escape_debug(),
        human_bytes(*bytes_total),
        human_bytes(*bytes_counted),
        human_bytes(*cell_bytes)
    )
}

/// What the last line says.
fn footnote(lines: &HeatLines) -> String {
    format!("hot: read {} times or more lately; counts are halved from time to time", lines.hot_from)
}

/// For machines.
pub(crate) fn as_json(lines: &HeatLines) -> String {
    let cell = |cell: &HeatCellLine| match cell {
        HeatCellLine::Free => Value::Null,
        HeatCellLine::Other => json!(-1),
        HeatCellLine::Counted(count) => json!(count),
    };
    let device = |device: &DeviceHeatLine| {
        let value = json!({
            "id": device.id,
            "tier": device.tier,
            "size_bytes": device.bytes_total,
            "content_bytes": device.bytes_counted,
            "hot_bytes": device.bytes_hot,
            "cell_bytes": device.cell_bytes,
            "cells": device.cells.iter().map(cell).collect::<Vec<_>>(),
        });
        with_bytes(value, "path", device.path.as_deref())
    };
    let devices: Vec<_> = lines.devices.iter().map(device).collect();
    format!("{}\n", json!({ "counted": lines.was_counted, "hot_from": lines.hot_from, "devices": devices }))
}

#[cfg(test)]
mod tests;
