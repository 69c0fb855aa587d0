//! What is done on each file system, in this order: small files made; made with an fsync each; a tree
//! unpacked; searched, cold; a large file written; read, cold.
//!
//! Thread safety: belongs to one thread, which starts the clients of a row and waits for them.

use crate::sizes::Sizes;
use crate::storage::{Requests, Storage};
use crate::target::Target;
use anyhow::{Context, Result, ensure};
use kvfs_bench::goals::PUT_PER_1000;
use kvfs_bench::programs::Programs;
use kvfs_bench::results::{Class, Detail};
use kvfs_bench::units::Unit;
use kvfs_bench::{host, interrupt};
use kvfs_device::Rng;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

/// A row: of each distance one.
pub(crate) struct Row {
    pub(crate) key: &'static str,
    pub(crate) title: fn(&Sizes) -> String,
    pub(crate) class: Class,
}

pub(crate) const CREATE: Row = Row {
    key: "beyond-create",
    title: |sizes| format!("create {} x {FILE_BYTES} B", sizes.files),
    class: Class::SyncAtEnd,
};
pub(crate) const CREATE_SYNC: Row = Row {
    key: "beyond-create-sync",
    title: |_| format!("the same, {CLIENTS} clients"),
    class: Class::SyncEach,
};
pub(crate) const UNTAR: Row = Row { key: "beyond-untar", title: |_| "untar".into(), class: Class::SyncAtEnd };
pub(crate) const GREP: Row = Row { key: "beyond-grep", title: |_| "grep -r".into(), class: Class::Cold };
pub(crate) const WRITE: Row = Row {
    key: "beyond-write",
    title: |sizes| format!("write {} MiB", sizes.stream_bytes >> 20),
    class: Class::SyncAtEnd,
};
pub(crate) const READ: Row = Row {
    key: "beyond-read",
    title: |sizes| format!("read {} MiB", sizes.stream_bytes >> 20),
    class: Class::Cold,
};
pub(crate) const TAKE_OVER: Row = Row {
    key: "beyond-take-over",
    title: |_| "writer killed: until another's fsync".into(),
    class: Class::SyncEach,
};

/// In the order in which they are done.
pub(crate) const ROWS: [&Row; 7] = [&CREATE, &CREATE_SYNC, &UNTAR, &GREP, &WRITE, &READ, &TAKE_OVER];

const FILE_BYTES: usize = 4000;
const FILES_PER_DIRECTORY: usize = 1000;
const CLIENTS: usize = 16;
const STEP_BYTES: usize = 1 << 20;

/// A row that was measured.
pub(crate) struct Found {
    pub(crate) row: &'static Row,
    pub(crate) took: Duration,
    pub(crate) details: Vec<Detail>,
}

/// What the rows of a target share.
pub(crate) struct Rows<'a> {
    pub(crate) target: Target<'a>,
    pub(crate) storage: &'a Storage,
    pub(crate) sizes: &'a Sizes,
    pub(crate) tarball: &'a Path,
    pub(crate) seed: u64,
    pub(crate) found: Vec<Found>,
}

impl Rows<'_> {
    pub(crate) fn run(&mut self) -> Result<()> {
        self.time(&CREATE, Self::create)?;
        self.time(&CREATE_SYNC, Self::create_sync)?;
        fs::create_dir(self.target.dir().join("tree"))?;
        self.time(&UNTAR, Self::untar)?;
        self.target.make_cold()?;
        self.time(&GREP, Self::grep)?;
        self.time(&WRITE, Self::write)?;
        self.target.make_cold()?;
        self.time(&READ, Self::read)
    }

    fn time(&mut self, row: &'static Row, work: fn(&Self) -> Result<()>) -> Result<()> {
        interrupt::check()?;
        host::touch_free_memory()?;
        let before = self.storage.requests()?;
        let start = Instant::now();
        work(self).with_context(|| row.key.to_owned())?;
        let took = start.elapsed();
        let Requests { put, list, get, delete } = self.storage.requests()? - before;
        eprintln!("    {}: {:.2} s; {put} PUT, {get} GET, {list} LIST", row.key, took.as_secs_f64());
        let count = |name: &str, value: f64| Detail { name: name.into(), unit: Unit::Count, value };
        let mut details = vec![
            count("PUT", put as f64),
            count("GET, HEAD", get as f64),
            count("LIST", list as f64),
            count("DELETE", delete as f64),
        ];
        if row.key == CREATE.key {
            details.push(count(PUT_PER_1000, put as f64 * 1000.0 / self.sizes.files as f64));
        }
        self.found.push(Found { row, took, details });
        Ok(())
    }

    fn create(&self) -> Result<()> {
        let dir = self.target.dir().join("files");
        fs::create_dir(&dir)?;
        make_files(&dir, self.sizes.files, self.seed, &|_| Ok(()))?;
        self.target.sync()
    }

    fn create_sync(&self) -> Result<()> {
        let dir = self.target.dir().join("synced");
        fs::create_dir(&dir)?;
        thread::scope(|scope| {
            let client = |number: usize| {
                let own = dir.join(format!("client{number}"));
                let (files, seed) = (self.sizes.files / CLIENTS, self.seed + number as u64);
                scope.spawn(move || {
                    fs::create_dir(&own)?;
                    make_files(&own, files, seed, &|file| Ok(file.sync_all()?))
                })
            };
            let clients: Vec<_> = (0..CLIENTS).map(client).collect();
            clients.into_iter().try_for_each(|client| client.join().expect("clients do not panic"))
        })
    }

    fn untar(&self) -> Result<()> {
        let dir = self.target.dir().join("tree");
        let words = ["tar".as_ref(), "xf".as_ref(), self.tarball.as_os_str(), "-C".as_ref(), dir.as_os_str()];
        Programs::on_mount(&dir).run_durably(&words).map(drop)
    }

    fn grep(&self) -> Result<()> {
        host::grep_in_vain(&self.target.dir().join("tree"))
    }

    fn write(&self) -> Result<()> {
        let mut rng = Rng::new(self.seed);
        let mut step = vec![0; STEP_BYTES];
        rng.fill(&mut step);
        let mut file = File::create_new(self.target.dir().join("large"))?;
        for number in 0..self.sizes.stream_bytes / STEP_BYTES as u64 {
            step[..8].copy_from_slice(&number.to_le_bytes());
            file.write_all(&step)?;
        }
        Ok(file.sync_all()?)
    }

    fn read(&self) -> Result<()> {
        let mut file = File::open(self.target.dir().join("large"))?;
        let mut step = vec![0; STEP_BYTES];
        for number in 0..self.sizes.stream_bytes / STEP_BYTES as u64 {
            file.read_exact(&mut step)?;
            ensure!(step[..8] == number.to_le_bytes(), "step {number} is another's");
        }
        Ok(())
    }
}

/// Files of random bytes, `done` with each.
fn make_files(dir: &Path, count: usize, seed: u64, done: &dyn Fn(&File) -> Result<()>) -> Result<()> {
    let mut rng = Rng::new(seed);
    let mut content = vec![0; FILE_BYTES];
    for number in 0..count {
        let part = dir.join(format!("d{}", number / FILES_PER_DIRECTORY));
        if number % FILES_PER_DIRECTORY == 0 {
            fs::create_dir(&part)?;
            interrupt::check()?;
        }
        rng.fill(&mut content);
        let mut file = File::create_new(part.join(format!("file{number}")))?;
        file.write_all(&content)?;
        done(&file)?;
    }
    Ok(())
}
