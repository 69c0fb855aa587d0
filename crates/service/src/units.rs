//! Sizes and times for people, as messages have them.

use std::time::Duration;

/// `12 s`, `3 min`, `5 h`.
pub fn human_duration(duration: Duration) -> String {
    match duration.as_secs() {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7200 => format!("{} min", seconds / 60),
        seconds => format!("{} h", seconds / 3600),
    }
}

/// A time of which parts of a second matter: `850 ns`, `12 µs`, `3.4 ms`, `1.2 s`; from two minutes on as
/// [`human_duration`].
pub fn human_latency(duration: Duration) -> String {
    let nanos = duration.as_nanos() as f64;
    let (value, unit) = match duration.as_nanos() {
        0..1_000 => return format!("{nanos} ns"),
        1_000..1_000_000 => (nanos / 1e3, "µs"),
        1_000_000..1_000_000_000 => (nanos / 1e6, "ms"),
        _ if duration.as_secs() >= 120 => return human_duration(duration),
        _ => (nanos / 1e9, "s"),
    };
    if value < 10.0 { format!("{value:.1} {unit}") } else { format!("{value:.0} {unit}") }
}

/// `1.5 GiB`, `12 KiB`, `7 B`.
pub fn human_bytes(bytes: u64) -> String {
    const UNITS: [&str; 6] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 || value >= 100.0 {
        format!("{value:.0} {}", UNITS[unit])
    } else {
        format!("{value:.1} {}", UNITS[unit])
    }
}
