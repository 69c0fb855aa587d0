//! What the library costs beside the engine below it: figures 5.1 to 5.5 of the Edinburgh kvfs.
//!
//! The library works on an engine in this process. What it has asked of the engine was recorded before, and
//! the bare engine does the same on a store of its own; so does ext4 the calls.
//!
//! Thread safety: belongs to one thread.

mod bare;
mod database;
mod notes;
mod recorder;
mod subject;

use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::{Context, Result, ensure};
use kvfs_bench::calls::{Calls, System};
use kvfs_bench::disk::{Device, EXT4};
use kvfs_bench::image::Image;
use kvfs_bench::mount::unmount;
use kvfs_bench::summary::Summary;
use kvfs_bench::units::Unit::{Seconds, Times};
use kvfs_bench::{host, interrupt};
use kvfs_device::Rng;
use std::fs;
use std::path::Path;
use std::time::Instant;
use subject::SUBJECTS;

/// Lines of each work: ext4, and for each engine the library, the bare engine, and the first divided by the
/// second.
macro_rules! rows {
    (@engine $work:literal $title:literal $engine:literal) => {
        [
            row(concat!("edinburgh.", $engine, ".", $work, ".library"), concat!($title, ", library on ", $engine), Seconds, None),
            row(concat!("edinburgh.", $engine, ".", $work, ".bare"), concat!("  the same on bare ", $engine), Seconds, None),
            row(concat!("edinburgh.", $engine, ".", $work, ".ratio"), "  times as long", Times, None),
        ]
    };
    ($($work:literal $title:literal),* $(,)?) => {
        &[$(
            row(concat!("edinburgh.ext4.", $work), concat!($title, ", ext4"), Seconds, None),
            rows!(@engine $work $title "kvdb")[0], rows!(@engine $work $title "kvdb")[1], rows!(@engine $work $title "kvdb")[2],
            rows!(@engine $work $title "rocksdb")[0], rows!(@engine $work $title "rocksdb")[1], rows!(@engine $work $title "rocksdb")[2],
            rows!(@engine $work $title "leveldb")[0], rows!(@engine $work $title "leveldb")[1], rows!(@engine $work $title "leveldb")[2],
            rows!(@engine $work $title "memory")[0], rows!(@engine $work $title "memory")[1], rows!(@engine $work $title "memory")[2],
        )*]
    };
}

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Edinburgh,
    key: "edinburgh",
    title: |setup| {
        let scene = Scene::of(setup);
        format!(
            "the library beside the bare engine: {} x {FILES} files of {} KiB, {} nested directories",
            scene.rounds,
            FILE_BYTES >> 10,
            scene.directories
        )
    },
    source: "Edinburgh kvfs (2019), figures 5.1 to 5.5; it has curves and no numbers. Writes, creates and removals end with a sync (class: \
             fsync at end); reads and scans find caches warm. The bare engine does what the library was seen to ask of it: kvdb and memory by their \
             calls, RocksDB and LevelDB by theirs, with batches resolved. Medians of three stores each, in turns. ext4 is on a loop device with \
             direct I/O.",
    needs_mount: false,
    rows: rows!(
        "write-seq" "write in order",
        "read-seq" "read in order",
        "write-random" "write at random",
        "read-random" "read at random",
        "remove-files" "remove the files",
        "dirs-create" "create directories",
        "dirs-scan" "scan them",
        "dirs-remove" "remove them",
    ),
    measure,
};

const FILES: u32 = 512;
const FILE_BYTES: usize = 16 << 10;
/// Directories in each one that has any.
const FANOUT: u32 = 10;
/// Stores of each kind.
const REPEATS: u32 = 3;
const EXT4_BYTES: u64 = 1 << 30;

/// What is worked on.
struct Scene {
    rounds: u32,
    directories: u32,
    /// The numbers of files, shuffled.
    shuffled: Vec<u32>,
    content: Vec<u8>,
}

impl Scene {
    fn of(setup: &Setup) -> Self {
        let (rounds, directories) = if setup.is_quick { (4, 2_000) } else { (20, 10_000) };
        let mut rng = Rng::new(setup.seed);
        let mut content = vec![0; FILE_BYTES];
        rng.fill(&mut content);
        let mut shuffled: Vec<u32> = (0..FILES).collect();
        rng.shuffle(&mut shuffled);
        Self { rounds, directories, shuffled, content }
    }

    fn files(&self, name: char, is_random: bool) -> impl Iterator<Item = String> {
        let number = move |at: u32| if is_random { self.shuffled[at as usize] } else { at };
        (0..self.rounds)
            .flat_map(move |round| (0..FILES).map(move |at| format!("{name}{round}/file{:04}", number(at))))
    }

    /// Parents come before what is in them.
    fn nested(&self) -> impl DoubleEndedIterator<Item = String> {
        (1..=self.directories).map(|number| {
            let mut path = String::new();
            let mut at = number;
            while at > 0 {
                path = format!("d{}/{path}", at % FANOUT);
                at = (at - at % FANOUT) / FANOUT;
            }
            format!("n{}", path.trim_end_matches('/'))
        })
    }
}

/// One of the works, by its key.
struct Work {
    key: &'static str,
    run: fn(&dyn Calls, &Scene) -> Result<()>,
}

/// In the order in which they are done, all on one store.
const WORKS: &[Work] = &[
    Work { key: "write-seq", run: |calls, scene| write(calls, scene, 's', false) },
    Work { key: "read-seq", run: |calls, scene| read(calls, scene, 's', false) },
    Work { key: "write-random", run: |calls, scene| write(calls, scene, 'r', true) },
    Work { key: "read-random", run: |calls, scene| read(calls, scene, 'r', true) },
    Work { key: "remove-files", run: remove },
    Work {
        key: "dirs-create",
        run: |calls, scene| directories(calls, scene.nested(), |calls, path| calls.mkdir(path)),
    },
    Work { key: "dirs-scan", run: scan },
    Work {
        key: "dirs-remove",
        run: |calls, scene| directories(calls, scene.nested().rev(), |calls, path| calls.rmdir(path)),
    },
];

fn write(calls: &dyn Calls, scene: &Scene, name: char, is_random: bool) -> Result<()> {
    for round in 0..scene.rounds {
        calls.mkdir(&format!("{name}{round}"))?;
    }
    for path in scene.files(name, is_random) {
        calls.create(&path, &scene.content)?;
    }
    calls.sync()
}

fn read(calls: &dyn Calls, scene: &Scene, name: char, is_random: bool) -> Result<()> {
    let mut buffer = vec![0; FILE_BYTES + 1];
    for path in scene.files(name, is_random) {
        let length = calls.read(&path, &mut buffer)?;
        ensure!(buffer[..length] == scene.content, "{path} has other content");
    }
    Ok(())
}

fn remove(calls: &dyn Calls, scene: &Scene) -> Result<()> {
    for path in scene.files('s', false).chain(scene.files('r', true)) {
        calls.unlink(&path)?;
    }
    calls.sync()
}

fn directories(
    calls: &dyn Calls,
    paths: impl Iterator<Item = String>,
    call: fn(&dyn Calls, &str) -> Result<()>,
) -> Result<()> {
    for path in paths {
        call(calls, &path).with_context(|| path)?;
    }
    calls.sync()
}

fn scan(calls: &dyn Calls, scene: &Scene) -> Result<()> {
    let mut found = 0;
    for path in scene.nested() {
        found += calls.list(&path, false)?.len();
    }
    // All but those that are in none of them.
    let expected = scene.nested().filter(|path| path.contains('/')).count();
    ensure!(found == expected, "{found} of {expected} directories are found");
    Ok(())
}

/// Does all works and times them; `behind` is called after each.
fn timed(calls: &dyn Calls, scene: &Scene, mut behind: impl FnMut() -> Result<()>) -> Result<Vec<f64>> {
    let mut times = Vec::new();
    for work in WORKS {
        interrupt::check()?;
        let start = Instant::now();
        (work.run)(calls, scene).context(work.key)?;
        times.push(start.elapsed().as_secs_f64());
        behind()?;
    }
    Ok(times)
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let scene = Scene::of(setup);
    let ext4 = on_ext4(setup, &scene)?;
    for (work, times) in WORKS.iter().zip(by_work(&ext4)) {
        findings.add(&format!("edinburgh.ext4.{}", work.key), median(times)?);
    }
    for subject in SUBJECTS {
        let dir = setup.work.join(subject.name);
        fs::create_dir(&dir)?;
        let run = (subject.measure)(&dir, &scene)?;
        fs::remove_dir_all(&dir)?;
        for ((work, library), bare) in WORKS.iter().zip(by_work(&run.library)).zip(by_work(&run.bare)) {
            let key = |what| format!("edinburgh.{}.{}.{what}", subject.name, work.key);
            let (library, bare) = (median(library)?, median(bare)?);
            findings.add(&key("library"), library);
            findings.add(&key("bare"), bare);
            findings.add(&key("ratio"), library / bare);
        }
    }
    if !cfg!(feature = "engines") {
        findings.note("built without RocksDB and LevelDB (the feature \"engines\")".into());
    }
    Ok(())
}

/// From the times of all works in each repeat to those of each work.
fn by_work(runs: &[Vec<f64>]) -> Vec<Vec<f64>> {
    (0..WORKS.len()).map(|work| runs.iter().map(|run| run[work]).collect()).collect()
}

fn median(times: Vec<f64>) -> Result<f64> {
    Ok(Summary::of(times).context("nothing was timed")?.median)
}

fn on_ext4(setup: &Setup, scene: &Scene) -> Result<Vec<Vec<f64>>> {
    let device = Device::new(Image::prepare(&setup.work.join("ext4.image"), EXT4_BYTES, false)?)?;
    let dir = setup.work.join("ext4");
    fs::create_dir(&dir)?;
    let mut runs = Vec::new();
    for _ in 0..REPEATS {
        EXT4.make(device.path())?;
        EXT4.mount(device.path(), &dir)?;
        let run = System::new(&dir).and_then(|calls| timed(&calls, scene, || Ok(())));
        unmount(Path::new(&dir))?;
        runs.push(run?);
        host::touch_free_memory()?;
    }
    Ok(runs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_directory_comes_once_and_behind_its_parent() {
        let scene = Scene { rounds: 1, directories: 1234, shuffled: Vec::new(), content: Vec::new() };
        let mut seen = std::collections::BTreeSet::new();
        for path in scene.nested() {
            if let Some((parent, _)) = path.rsplit_once('/') {
                assert!(seen.contains(parent), "{path}");
            }
            assert!(seen.insert(path));
        }
        assert_eq!(seen.len(), 1234);
    }

    #[test]
    fn library_and_bare_engine_do_all_works() {
        let shuffled = (0..FILES).rev().collect();
        let scene = Scene { rounds: 1, directories: 120, shuffled, content: vec![7; FILE_BYTES] };
        for subject in SUBJECTS {
            let dir =
                std::env::temp_dir().join(format!("kvfs-edinburgh-{}-{}", subject.name, std::process::id()));
            fs::create_dir(&dir).expect("a new directory");
            let run = (subject.measure)(&dir, &scene);
            fs::remove_dir_all(&dir).expect("removed");
            let run = run.unwrap_or_else(|error| panic!("{}: {error:#}", subject.name));
            assert!(run.library.iter().chain(&run.bare).all(|times| times.len() == WORKS.len()));
        }
    }
}
