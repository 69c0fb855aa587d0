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
