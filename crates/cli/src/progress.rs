//! Progress bars: one line on standard error, for a user at a terminal.
//!
//! A bar appears when something has taken a second, and goes when it is done. It is fed by the steps of the
//! work (`kvfs_store::progress`), which come from this thread or from the daemon; in between it tells that
//! time passes.
//!
//! Thread safety: a bar draws from a thread of its own. Invariants: at most one bar is up; none where
//! standard error is no terminal, or `--json` or `--quiet` was given.

use std::io::IsTerminal;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use kvfs_locks::{Condvar, Mutex, class};
use kvfs_store::progress::{self, Step, Unit};

/// What is done sooner needs no bar.
const PATIENCE: Duration = Duration::from_secs(1);

/// Between two looks at the clock.
const TICK: Duration = Duration::from_millis(200);

const SPINNER: &str = "{spinner} {msg} ({elapsed})";
const COUNT: &str = "{spinner} {msg}: {human_pos} ({elapsed})";
const SIZE: &str = "{spinner} {msg}: {bytes}, {bytes_per_sec} ({elapsed})";
const COUNT_OF: &str = "{spinner} {msg} [{bar:30}] {human_pos} of {human_len}, {eta} left";
const SIZE_OF: &str = "{spinner} {msg} [{bar:30}] {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";

static IS_WANTED: AtomicBool = AtomicBool::new(false);
static IS_UP: AtomicBool = AtomicBool::new(false);
static IS_QUIET: AtomicBool = AtomicBool::new(false);

/// Whether `--quiet` was given.
pub(crate) fn is_quiet() -> bool {
    IS_QUIET.load(Ordering::Relaxed)
}

/// Says in a line what has come of a command, for people: on a terminal, unless `--quiet` was given.
pub(crate) fn tell(line: &str) {
    if !is_quiet() && std::io::stderr().is_terminal() {
        eprintln!("kvfs: {line}");
    }
}

/// Says that a list has nothing to show, for people: where the list would be on a terminal.
pub(crate) fn tell_none(what: &str) {
    if std::io::stdout().is_terminal() {
        tell(&format!("no {what}"));
    }
}

/// Allows bars, if they would be seen.
pub(crate) fn allow(is_quiet: bool, is_json: bool) {
    IS_QUIET.store(is_quiet, Ordering::Relaxed);
    IS_WANTED.store(!is_quiet && !is_json && std::io::stderr().is_terminal(), Ordering::Relaxed);
}

/// What the bar and the thread that draws it share.
struct Shared {
    bar: ProgressBar,
    is_over: Mutex<bool, class::CliProgress>,
    changed: Condvar,
}

/// A bar; dropped, it goes. Without effect where it would not be seen, and below another one.
pub(crate) struct Bar {
    shared: Option<Arc<Shared>>,
    drawing: Option<JoinHandle<()>>,
}

impl Bar {
    /// Something begins, such as "mounting".
    pub(crate) fn new(what: &str) -> Self {
        let none = Self { shared: None, drawing: None };
        if !IS_WANTED.load(Ordering::Relaxed) || IS_UP.swap(true, Ordering::Relaxed) {
            return none;
        }
        let bar =
            ProgressBar::with_draw_target(None, ProgressDrawTarget::hidden()).with_style(style(SPINNER));
        bar.set_message(what.to_owned());
        let shared = Arc::new(Shared { bar, is_over: Mutex::new(false), changed: Condvar::new() });
        let draws = Arc::clone(&shared);
        let drawing = std::thread::Builder::new().name("progress".into()).spawn(move || draws.draw());
        // Without a thread there is no bar; the work goes on.
        Self { shared: Some(shared), drawing: drawing.ok() }
    }

    /// The work is here.
    pub(crate) fn show(&self, stage: &str, unit: Unit, done: u64, total: u64) {
        if let Some(shared) = &self.shared {
            shared.show(stage, unit, done, total);
        }
    }

    /// Carries out work on this thread, whose steps are shown.
    pub(crate) fn watch<T>(&self, work: impl FnOnce() -> T) -> T {
        let Some(shared) = self.shared.clone() else { return work() };
        let show = move |Step { stage, unit, done, total }| shared.show(stage, unit, done, total);
        progress::watched(show, work)
    }
}

impl Shared {
    fn show(&self, stage: &str, unit: Unit, done: u64, total: u64) {
        let template = match (unit, total) {
            (Unit::Items, 0) => COUNT,
            (Unit::Bytes, 0) => SIZE,
            (Unit::Items, _) => COUNT_OF,
            (Unit::Bytes, _) => SIZE_OF,
        };
        if self.bar.message() != stage {
            self.bar.set_message(stage.to_owned());
            self.bar.set_style(style(template));
            self.bar.reset_eta();
        }
        if total == 0 {
            self.bar.unset_length();
        } else {
            // What was estimated may be exceeded.
            self.bar.set_length(total.max(done));
        }
        self.bar.set_position(done);
    }

    /// Body of the thread.
    fn draw(&self) {
        let mut is_over = self.is_over.lock();
        self.changed.wait_while_for(&mut is_over, |is_over| !*is_over, PATIENCE);
        if *is_over {
            return;
        }
        self.bar.set_draw_target(ProgressDrawTarget::stderr());
        while !*is_over {
            self.bar.tick();
            self.changed.wait_while_for(&mut is_over, |is_over| !*is_over, TICK);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        let Some(shared) = self.shared.take() else { return };
        *shared.is_over.lock() = true;
        shared.changed.notify_all();
        if let Some(drawing) = self.drawing.take() {
            // A thread that panicked has drawn its last.
            let _ = drawing.join();
        }
        shared.bar.finish_and_clear();
        IS_UP.store(false, Ordering::Relaxed);
    }
}

fn style(template: &str) -> ProgressStyle {
    let style = ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_spinner());
    style.progress_chars("=> ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_are_valid_and_no_bar_shows_where_none_is_wanted() {
        for template in [SPINNER, COUNT, SIZE, COUNT_OF, SIZE_OF] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
        let bar = Bar::new("testing");
        assert!(bar.shared.is_none(), "no terminal was asked for");
        bar.show("reading", Unit::Bytes, 1, 2);
        assert_eq!(bar.watch(|| 3), 3);
    }
}
