//! A large tree that `kvfs clone` makes a second time, and `kvfs rm -r` removes as a whole.
//!
//! Thread safety: belongs to one thread.

use crate::{Findings, PartInfo, PartName, Setup, row};
use anyhow::{Context, Result, bail, ensure};
use kvfs_bench::mount::{MountOptions, Mounted};
use kvfs_bench::units::Unit::{Bytes, Count, Seconds, Share};
use kvfs_bench::{host, interrupt};
use kvfs_device::Rng;
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

pub(crate) const PART: PartInfo = PartInfo {
    name: PartName::Trees,
    key: "trees",
    title: |setup| format!("a tree of {} files of 1,000 bytes, cloned, and removed as a whole", files(setup)),
    source: "Times are those of the commands, from their start to their end, durable then; the mount was synced before each. What is \
             removed is not kept for undo, which would hold its space.",
    needs_mount: true,
    rows: &[
        row("trees.files", "files", Count, None),
        row("trees.create-seconds", "all creates", Seconds, None),
        row("trees.clone", "kvfs clone", Seconds, None),
        row("trees.clone-bytes", "taken by the clone", Bytes, None),
        row("trees.command", "kvfs rm -r", Seconds, None),
        row("trees.free-before", "free before it", Bytes, None),
        row("trees.space-back", "until its names have gone, and df is still", Seconds, None),
        row("trees.free-after", "free then", Bytes, None),
        row("trees.df-back", "of what was taken, given back", Share, None),
    ],
    measure,
};

const FILE_BYTES: usize = 1000;
const FILES_PER_DIR: u64 = 1000;
/// Longest wait for the space.
const BACK_LIMIT: Duration = Duration::from_mins(10);
/// Nothing changes any more when `df` says the same for so long.
const QUIET: Duration = Duration::from_secs(2);

fn files(setup: &Setup) -> u64 {
    if setup.is_quick { 20_000 } else { 1_000_000 }
}

fn measure(setup: &Setup, findings: &mut Findings) -> Result<()> {
    let program = setup.program()?;
    // So that df tells of the store, and not of the disk that it lies on.
    let size_bytes = Some(if setup.is_quick { 1 << 30 } else { 8 << 30 });
    let options = MountOptions { size_bytes, options: Some("undo_count=0"), ..MountOptions::default() };
    let mounted = Mounted::new(program, setup.work, &options)?;
    let free = || Ok::<f64, anyhow::Error>(mounted.space()?.1 as f64);
    let empty = free()?;
    let tree = mounted.dir().join("tree");
    let start = Instant::now();
    grow(&tree, files(setup), &mut Rng::new(setup.seed))?;
    findings.add("trees.files", files(setup) as f64);
    findings.add("trees.create-seconds", start.elapsed().as_secs_f64());
    mounted.sync()?;
    let grown = free()?;

    let start = Instant::now();
    let copy = mounted.dir().join("copy");
    host::run(program, &["clone".as_ref(), tree.as_os_str(), copy.as_os_str()])?;
    findings.add("trees.clone", start.elapsed().as_secs_f64());
    mounted.sync()?;
    let full = free()?;
    findings.add("trees.clone-bytes", (grown - full).max(0.0));
    findings.add("trees.free-before", full);

    let start = Instant::now();
    host::run(program, &["rm".as_ref(), "-r".as_ref(), tree.as_os_str()])?;
    findings.add("trees.command", start.elapsed().as_secs_f64());
    ensure!(!tree.exists(), "{} is there still", tree.display());
    let (back, after) = space_back(&mounted)?;
    findings.add("trees.space-back", back.as_secs_f64());
    findings.add("trees.free-after", after);
    findings.add("trees.df-back", (after - full) / (empty - grown));
    mounted.remove()
}

fn grow(tree: &Path, files: u64, rng: &mut Rng) -> Result<()> {
    let mut content = [0; FILE_BYTES];
    for number in 0..files {
        let dir = tree.join(format!("{:04}", number / FILES_PER_DIR));
        if number % FILES_PER_DIR == 0 {
            interrupt::check()?;
            fs::create_dir_all(&dir)?;
        }
        rng.fill(&mut content);
        let path = dir.join(format!("{number:08}"));
        fs::write(&path, content).with_context(|| format!("cannot make {}", path.display()))?;
    }
    Ok(())
}

/// How long after now the names had gone and what is free changed for the last time, and how much that is
/// (bytes).
fn space_back(mounted: &Mounted) -> Result<(Duration, f64)> {
    let start = Instant::now();
    let (mut free, mut since) = (mounted.space()?.1, Duration::ZERO);
    while start.elapsed() < BACK_LIMIT {
        interrupt::check()?;
        std::thread::sleep(Duration::from_millis(50));
        let is_gone = mounted.stats()?.get("fs.trees_removing") == Some(&0);
        let now = mounted.space()?.1;
        if now != free || !is_gone {
            (free, since) = (now, start.elapsed());
        } else if start.elapsed().saturating_sub(since) > QUIET {
            return Ok((since, free as f64));
        }
    }
    bail!("the space of the tree is not back after {} s", BACK_LIMIT.as_secs())
}
