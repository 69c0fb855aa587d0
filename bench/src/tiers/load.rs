//! Reads and overwrites of 4 KiB at popular places.
//!
//! Popular is a part of all stretches of 256 KiB, scattered over all files; which of them, and how popular
//! each is, follows from a seed. Two clients read past the caches of the kernel; one operation of twenty is
//! an overwrite. After a batch of operations a client syncs the file that it has written to.
//!
//! Thread safety: `Load` belongs to one thread, which starts the clients and ends them.

use anyhow::{Context, Result, ensure};
use kvfs_bench::image::Aligned;
use kvfs_bench::interrupt;
use kvfs_bench::zipf::Zipf;
use kvfs_device::Rng;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

const FILES: u64 = 8;
const STEP_BYTES: usize = 1 << 20;
const STRETCH_BYTES: u64 = 256 << 10;
const PAGE_BYTES: u64 = 4 << 10;
const CLIENTS: u64 = 2;
const BATCH: u32 = 64;
const OVERWRITES_ONE_OF: u64 = 20;

/// The files, and what is popular of them.
pub(crate) struct Load {
    files: Vec<File>,
    /// All stretches in the order in which they become popular, file and number.
    stretches: Vec<(usize, u64)>,
    /// How many are popular at a time.
    hot: usize,
    zipf: Zipf,
    seed: u64,
}

/// An operation that has ended.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    /// Since the clients were started.
    pub(crate) ended: Duration,
    pub(crate) took: Duration,
    pub(crate) kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Overwrite,
    Sync,
}

/// What a second of the load has brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Second {
    /// Since the clients were started.
    pub(crate) at: Duration,
    /// Reads and overwrites each second.
    pub(crate) rate: f64,
}

fn name(number: u64) -> String {
    format!("data-{number}")
}

/// Writes a file of so many bytes that no compression makes smaller, and makes it durable.
pub(crate) fn write_file(path: &Path, bytes: u64, rng: &mut Rng) -> Result<()> {
    let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
    let open = OpenOptions::new().create_new(true).write(true).custom_flags(direct).open(path);
    let file = open.with_context(|| format!("cannot make {}", path.display()))?;
    let mut step = Aligned::new(STEP_BYTES);
    rng.fill(step.bytes());
    for at in 0..bytes / STEP_BYTES as u64 {
        interrupt::check()?;
        // Another one each time, at the cost of a few numbers.
        step.bytes().chunks_mut(PAGE_BYTES as usize).for_each(|page| rng.fill(&mut page[..16]));
        file.write_all_at(step.bytes(), at * STEP_BYTES as u64)?;
    }
    Ok(file.sync_all()?)
}

/// Writes all files.
pub(crate) fn fill(dir: &Path, data_bytes: u64, seed: u64) -> Result<()> {
    let mut rng = Rng::new(seed);
    (0..FILES).try_for_each(|number| write_file(&dir.join(name(number)), data_bytes / FILES, &mut rng))
}

impl Load {
    /// On files that are filled.
    pub(crate) fn open(dir: &Path, data_bytes: u64, hot_bytes: u64, seed: u64) -> Result<Self> {
        let direct = rustix::fs::OFlags::DIRECT.bits().cast_signed();
        let open = |number| {
            let path: PathBuf = dir.join(name(number));
            let opened = OpenOptions::new().read(true).write(true).custom_flags(direct).open(&path);
            opened.with_context(|| format!("cannot open {}", path.display()))
        };
        let files = (0..FILES).map(open).collect::<Result<_>>()?;
        let of_file = data_bytes / FILES / STRETCH_BYTES;
        let mut stretches: Vec<_> =
            (0..FILES).flat_map(|file| (0..of_file).map(move |at| (file as usize, at))).collect();
        Rng::new(seed).shuffle(&mut stretches);
        let hot = (hot_bytes / STRETCH_BYTES) as usize;
        ensure!(hot > 0 && 2 * hot <= stretches.len(), "too little data for two sets of what is popular");
        Ok(Self { files, stretches, hot, zipf: Zipf::new(hot), seed })
    }

    /// From now on as many other stretches are popular.
    pub(crate) fn move_elsewhere(&mut self) {
        self.stretches.rotate_left(self.hot);
        self.seed += 1;
    }

    /// Works until `goes_on`, which is asked each second, says no.
    pub(crate) fn run(&self, mut goes_on: impl FnMut(Second) -> Result<bool>) -> Result<Vec<Operation>> {
        let (start, count, is_over) = (Instant::now(), AtomicU64::new(0), AtomicBool::new(false));
        thread::scope(|scope| {
            let clients: Vec<_> = (0..CLIENTS)
                .map(|client| {
                    let (count, is_over) = (&count, &is_over);
                    scope.spawn(move || self.work(client, start, count, is_over))
                })
                .collect();
            let watched = watch(
                start,
                &count,
                || clients.iter().any(thread::ScopedJoinHandle::is_finished),
                &mut goes_on,
            );
            is_over.store(true, Relaxed);
            let mut all = Vec::new();
            for client in clients {
                all.extend(client.join().expect("clients do not panic")?);
            }
            watched.map(|()| all)
        })
    }

    fn work(
        &self,
        client: u64,
        start: Instant,
        count: &AtomicU64,
        is_over: &AtomicBool,
    ) -> Result<Vec<Operation>> {
        let mut rng = Rng::new(self.seed * CLIENTS + client);
        let mut page = Aligned::new(PAGE_BYTES as usize);
        let mut done = Vec::new();
        while !is_over.load(Relaxed) {
            let written = rng.index(self.files.len());
            let mut is_dirty = false;
            for _ in 0..BATCH {
                let is_overwrite = rng.below(OVERWRITES_ONE_OF) == 0;
                let (file, offset) = self.place(&mut rng, is_overwrite.then_some(written));
                let begin = Instant::now();
                if is_overwrite {
                    rng.fill(&mut page.bytes()[..16]);
                    self.files[file].write_all_at(page.bytes(), offset)?;
                    is_dirty = true;
                } else {
                    self.files[file].read_exact_at(page.bytes(), offset)?;
                }
                let kind = if is_overwrite { Kind::Overwrite } else { Kind::Read };
                done.push(Operation { ended: start.elapsed(), took: begin.elapsed(), kind });
                count.fetch_add(1, Relaxed);
                if is_over.load(Relaxed) {
                    break;
                }
            }
            if is_dirty {
                let begin = Instant::now();
                self.files[written].sync_data()?;
                done.push(Operation { ended: start.elapsed(), took: begin.elapsed(), kind: Kind::Sync });
            }
        }
        Ok(done)
    }

    /// A popular page, of one file alone if that is given.
    fn place(&self, rng: &mut Rng, only: Option<usize>) -> (usize, u64) {
        loop {
            let (file, stretch) = self.stretches[self.zipf.draw(rng)];
            if only.is_none_or(|only| only == file) {
                let page = rng.below(STRETCH_BYTES / PAGE_BYTES);
                return (file, stretch * STRETCH_BYTES + page * PAGE_BYTES);
            }
        }
    }
}

/// Asks each second, until it is told to end, or a client has ended by itself.
fn watch(
    start: Instant,
    count: &AtomicU64,
    has_ended: impl Fn() -> bool,
    goes_on: &mut impl FnMut(Second) -> Result<bool>,
) -> Result<()> {
    let (mut counted, mut then) = (0, start);
    loop {
        thread::sleep(Duration::from_secs(1).saturating_sub(then.elapsed()));
        interrupt::check()?;
        let (now, all) = (Instant::now(), count.load(Relaxed));
        let rate = (all - counted) as f64 / (now - then).as_secs_f64();
        (counted, then) = (all, now);
        if has_ended() || !goes_on(Second { at: now - start, rate })? {
            return Ok(());
        }
    }
}

/// Seconds that all but one of a hundred operations of this kind stay below; `None`: there were too few to
/// tell.
pub(crate) fn at_99(operations: &[Operation], kind: Kind) -> Option<f64> {
    let mut took: Vec<_> = operations.iter().filter(|it| it.kind == kind).map(|it| it.took).collect();
    took.sort_unstable();
    took.get(took.len() * 99 / 100).filter(|_| took.len() >= 100).map(Duration::as_secs_f64)
}
