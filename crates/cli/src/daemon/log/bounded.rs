//! A log that takes a bounded part of the disk, whatever clients make the daemon say.
//!
//! A file that has grown to [`LOG_BYTES_MAX`] becomes `kvfs.log.old`, and another one is begun; where that
//! fails, it is emptied, and where that fails, nothing more is written until it can be. One place of the
//! program says at most [`SITE_MESSAGES_MAX`] messages in a period; how many were left out is said when the
//! next one begins. So no client pushes out what others caused. Messages that are asked for (debug, trace)
//! are not counted.
//!
//! Thread safety: one lock, held while a line is written.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use kvfs_locks::{Mutex, class};
use kvfs_store::clock::{Clock, SystemClock};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

use crate::store_dir::StoreDir;

/// Length at which another file is begun (bytes).
const LOG_BYTES_MAX: u64 = 4 << 20;

/// Messages of one place in the program within [`SITE_PERIOD`].
const SITE_MESSAGES_MAX: u64 = 100;
const SITE_PERIOD: Duration = Duration::from_mins(1);

/// Messages that could not be written.
static MESSAGES_LOST: AtomicU64 = AtomicU64::new(0);

/// How many messages could not be written, because the log could not be, or no room be made in it.
pub(crate) fn messages_lost() -> u64 {
    MESSAGES_LOST.load(Ordering::Relaxed)
}

/// What one place has said in its period.
struct Site {
    since: Duration,
    messages: u64,
}

struct State {
    file: File,
    bytes: u64,
    sites: HashMap<Identifier, Site>,
}

/// See the module.
pub(super) struct BoundedLog {
    /// Opens the file, after it was renamed if it has grown over its length.
    open: Box<dyn Fn() -> io::Result<File> + Send + Sync>,
    bytes_max: u64,
    clock: Arc<dyn Clock>,
    state: Mutex<State, class::CliDaemonLogBoundedState>,
}

impl BoundedLog {
    /// `STORE/kvfs.log`.
    pub(super) fn open(store: &StoreDir) -> io::Result<Self> {
        let store = store.clone();
        let open = Box::new(move || store.open_log(LOG_BYTES_MAX));
        Self::with(open, LOG_BYTES_MAX, Arc::new(SystemClock::new()))
    }

    fn with(
        open: Box<dyn Fn() -> io::Result<File> + Send + Sync>,
        bytes_max: u64,
        clock: Arc<dyn Clock>,
    ) -> io::Result<Self> {
        let file = open()?;
        let bytes = file.metadata()?.len();
        Ok(Self { open, bytes_max, clock, state: Mutex::new(State { file, bytes, sites: HashMap::new() }) })
    }

    /// Whether a place may say something more in its period, and how much it could not say in the one before.
    fn admit(&self, site: Identifier) -> (bool, u64) {
        let now = self.clock.monotonic();
        let mut state = self.state.lock();
        let site = state.sites.entry(site).or_insert(Site { since: now, messages: 0 });
        let mut left_out = 0;
        if now.saturating_sub(site.since) >= SITE_PERIOD {
            left_out = site.messages.saturating_sub(SITE_MESSAGES_MAX);
            *site = Site { since: now, messages: 0 };
        }
        site.messages += 1;
        (site.messages <= SITE_MESSAGES_MAX, left_out)
    }

    fn append(&self, line: &[u8]) -> io::Result<()> {
        let mut state = self.state.lock();
        let written = self.make_room(&mut state).and_then(|()| state.file.write_all(line));
        match &written {
            Ok(()) => state.bytes += line.len() as u64,
            Err(_) => _ = MESSAGES_LOST.fetch_add(1, Ordering::Relaxed),
        }
        written
    }

    /// Begins another file, if this one is long enough.
    fn make_room(&self, state: &mut State) -> io::Result<()> {
        if state.bytes <= self.bytes_max {
            return Ok(());
        }
        match (self.open)() {
            Ok(file) => state.file = file,
            Err(error) => {
                state.file.set_len(0)?;
                writeln!(
                    state.file,
                    "what was here before is gone, because no other file can be begun: {error}"
                )?;
            }
        }
        state.bytes = state.file.metadata()?.len();
        Ok(())
    }
}

/// Where one message goes: the subscriber writes it at once.
pub(super) enum Line<'l> {
    To(&'l BoundedLog),
    LeftOut,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if let Self::To(log) = self {
            log.append(bytes)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'l> MakeWriter<'l> for BoundedLog {
    type Writer = Line<'l>;

    fn make_writer(&'l self) -> Line<'l> {
        Line::To(self)
    }

    fn make_writer_for(&'l self, meta: &Metadata<'_>) -> Line<'l> {
        if *meta.level() > Level::INFO {
            return Line::To(self);
        }
        let (is_admitted, left_out) = self.admit(meta.callsite());
        if left_out > 0 {
            let line = format!("{left_out} messages from {} were left out\n", meta.target());
            // A log that can't be written has no reader to be told.
            let _ = self.append(line.as_bytes());
        }
        if is_admitted { Line::To(self) } else { Line::LeftOut }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::OpenOptions;
    use std::path::{Path, PathBuf};

    use kvfs_store::clock::ManualClock;
    use tracing_subscriber::fmt;
    use tracing_subscriber::prelude::*;

    use super::*;

    /// As the directory of a store opens its log.
    fn opener(path: PathBuf, bytes_max: u64) -> Box<dyn Fn() -> io::Result<File> + Send + Sync> {
        Box::new(move || {
            if path.metadata().is_ok_and(|found| found.len() > bytes_max) {
                std::fs::rename(&path, path.with_extension("log.old"))?;
            }
            OpenOptions::new().create(true).append(true).open(&path)
        })
    }

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    #[test]
    fn log_that_clients_fill_stays_bounded_and_counts_what_was_left_out() {
        let dir = std::env::temp_dir().join(format!("kvfs-bounded-log-{}", std::process::id()));
        std::fs::create_dir_all(&dir).expect("makes a directory");
        let path = dir.join("kvfs.log");
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
        let log = BoundedLog::with(opener(path.clone(), 1 << 20), 1 << 20, clock.clone()).expect("opens");
        let subscriber = tracing_subscriber::registry().with(fmt::layer().with_ansi(false).with_writer(log));
        let _guard = tracing::subscriber::set_default(subscriber);
        let say = |text: &str| tracing::warn!(text, "a client asked for it");
        (0..10_000).for_each(|_| say("again and again"));
        assert_eq!(read(&path).lines().count(), 100);
        tracing::warn!("another place is heard");
        assert!(read(&path).contains("another place is heard"));
        clock.advance(SITE_PERIOD);
        say("again");
        assert!(read(&path).contains("9900 messages from"), "{}", read(&path));
        let long = "x".repeat(100_000);
        for _ in 0..50 {
            clock.advance(SITE_PERIOD);
            say(&long);
        }
        let lens = [&path, &path.with_extension("log.old")]
            .map(|path| path.metadata().map_or(0, |found| found.len()));
        assert!(lens.iter().all(|&len| len > 0 && len <= (1 << 20) + 200_000), "{lens:?}");
        std::fs::remove_dir_all(&dir).expect("removes it");
    }

    #[test]
    fn log_that_cannot_be_laid_aside_is_emptied_and_stays_bounded() {
        let dir = std::env::temp_dir().join(format!("kvfs-bounded-log-stuck-{}", std::process::id()));
        let path = dir.join("kvfs.log");
        // Nothing is renamed onto a directory.
        std::fs::create_dir_all(path.with_extension("log.old")).expect("makes a directory");
        let clock = Arc::new(ManualClock::at(Duration::from_secs(1)));
        let log = BoundedLog::with(opener(path.clone(), 1000), 1000, clock).expect("opens");
        let line = [b'x'; 99].as_slice();
        for _ in 0..1000 {
            log.append(&[line, b"\n"].concat()).expect("is written");
            assert!(path.metadata().expect("is there").len() <= 1200);
        }
        assert!(read(&path).starts_with("what was here before is gone"), "{}", read(&path));
        // A file that can't be emptied either, takes nothing more.
        log.state.lock().file = File::open(&path).expect("opens to read");
        std::fs::write(&path, [b'x'; 2000]).expect("writes");
        log.state.lock().bytes = 2000;
        let lost = messages_lost();
        assert!(log.append(b"more").is_err() && messages_lost() > lost);
        std::fs::remove_dir_all(&dir).expect("removes it");
    }

    #[test]
    fn log_of_a_store_that_cannot_be_laid_aside_is_emptied() {
        let dir = std::env::temp_dir().join(format!("kvfs-store-log-stuck-{}", std::process::id()));
        let store = StoreDir::prepare(&dir).expect("makes it");
        std::fs::create_dir(dir.join("kvfs.log.old")).expect("makes a directory");
        std::fs::write(dir.join("kvfs.log"), [b'x'; 2000]).expect("writes");
        drop(store.open_log(1000).expect("opens the log"));
        let text = read(&dir.join("kvfs.log"));
        assert!(
            text.starts_with("what was here before could not be laid aside") && text.len() < 200,
            "{text}"
        );
        std::fs::remove_dir_all(&dir).expect("removes it");
    }
}
