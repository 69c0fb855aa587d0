//! Does the same random operations in two directories, as several users, and compares every answer: value by
//! value, errno by errno, and the trees at the end of each episode. usage: differential ONE OTHER
//! [--operations N] [--seed S] [--differences N] as root; OTHER is the reference, such as ext4
//!
//! An episode is a list of operations on a fresh, empty directory. One that comes out differently is shrunk
//! to the fewest operations that still do, and printed; its seed replays it. After N of them (1 unless said)
//! it ends.
//!
//! Not compared: times that the system sets (only those that an operation has set), sizes of directories,
//! allocated blocks, the order of listings.

mod actor;
mod generate;
mod op;
mod outcome;
mod tree;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvfs_device::Rng;
use rustix::fs::Mode;

use actor::Cast;
use op::{Act, Op};

/// Operations of an episode: enough for trees of some depth, few enough to shrink.
const EPISODE_OPS: u64 = 400;

type Failed = Box<dyn std::error::Error>;

struct Args {
    one: PathBuf,
    other: PathBuf,
    operations: u64,
    seed: u64,
    differences_max: u64,
}

fn parse() -> Result<Args, Failed> {
    let mut words = std::env::args().skip(1);
    let mut dirs = Vec::new();
    let (mut operations, mut seed, mut differences_max) = (200_000, u64::from(std::process::id()), 1);
    while let Some(word) = words.next() {
        let option = match word.as_str() {
            "--operations" => &mut operations,
            "--seed" => &mut seed,
            "--differences" => &mut differences_max,
            _ => {
                dirs.push(PathBuf::from(word));
                continue;
            }
        };
        *option = words.next().ok_or_else(|| format!("{word} wants a number"))?.parse()?;
    }
    let [one, other] = <[PathBuf; 2]>::try_from(dirs).map_err(|_| "two directories are wanted")?;
    Ok(Args { one, other, operations, seed, differences_max })
}

/// Where an episode came out differently.
struct Difference {
    /// The operation, or none when the trees differ at the end.
    at: Option<usize>,
    text: String,
}

/// Runs `acts` in fresh directories; the first difference.
fn run_episode(args: &Args, acts: &[Act]) -> Result<Option<Difference>, Failed> {
    let (one, other) = (args.one.join("episode"), args.other.join("episode"));
    for dir in [&one, &other] {
        tree::remove(dir)?;
        rustix::fs::mkdir(dir, Mode::from_raw_mode(0o777))?;
    }
    let cast = Cast::start(&one, &other)?;
    for (index, act) in acts.iter().enumerate() {
        let (got, wanted) = cast.perform(act)?;
        if got != wanted {
            return Ok(Some(Difference {
                at: Some(index),
                text: format!("{act}\n    one:   {got}\n    other: {wanted}"),
            }));
        }
    }
    drop(cast);
    Ok(tree::compare(&one, &other)?.map(|text| Difference { at: None, text }))
}

/// The fewest operations that still come out differently: drops ever shorter stretches.
fn shrink(args: &Args, mut acts: Vec<Act>, mut found: Difference) -> Result<(Vec<Act>, Difference), Failed> {
    if let Some(at) = found.at {
        acts.truncate(at + 1);
    }
    let mut stretch = acts.len().div_ceil(2);
    loop {
        let mut from = 0;
        while from < acts.len() {
            let to = (from + stretch).min(acts.len());
            let fewer: Vec<Act> = acts[..from].iter().chain(&acts[to..]).cloned().collect();
            match run_episode(args, &fewer)? {
                Some(difference) => (acts, found) = (fewer, difference),
                None => from = to,
            }
            if let Some(at) = found.at {
                acts.truncate(at + 1);
            }
        }
        if stretch == 1 {
            return Ok((acts, found));
        }
        stretch = stretch.div_ceil(2);
    }
}

fn run(args: &Args) -> Result<bool, Failed> {
    rustix::process::umask(Mode::empty());
    let episodes = args.operations.div_ceil(EPISODE_OPS);
    let mut differences = 0;
    let mut kinds = std::collections::BTreeMap::<&str, u64>::new();
    for episode in 0..episodes {
        let seed = args.seed.wrapping_add(episode);
        let mut rng = Rng::new(seed);
        let acts: Vec<Act> = (0..EPISODE_OPS).map(|_| generate::act(&mut rng)).collect();
        for act in &acts {
            *kinds.entry(act.op.name()).or_default() += 1;
        }
        if let Some(found) = run_episode(args, &acts)? {
            let (acts, found) = shrink(args, acts, found)?;
            println!("seed {seed}: {} operations are enough:", acts.len());
            for act in &acts {
                println!("  {act}");
            }
            println!("  {}", found.text);
            differences += 1;
            if differences == args.differences_max {
                break;
            }
        }
    }
    for dir in [&args.one, &args.other] {
        tree::remove(&dir.join("episode"))?;
    }
    let done: u64 = kinds.values().sum();
    let kinds: Vec<String> = kinds.iter().map(|(name, count)| format!("{name} {count}")).collect();
    println!("{done} operations from seed {}, {differences} differences: {}", args.seed, kinds.join(", "));
    Ok(differences == 0)
}

fn main() -> ExitCode {
    let same = parse().and_then(|args| run(&args));
    match same {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("differential: {error}");
            ExitCode::from(2)
        }
    }
}

/// Shared by the parts: `dir` and a path below it, however odd that is.
fn below(dir: &Path, path: &str) -> PathBuf {
    // Not `join`: a trailing slash stays, and an empty path is the directory's name with one.
    PathBuf::from(format!("{}/{path}", dir.display()))
}

// What the parts know of an operation.
impl Op {
    fn name(&self) -> &'static str {
        match self {
            Self::Open { .. } => "open",
            Self::TmpFile { .. } => "tmpfile",
            Self::LinkSlot { .. } => "linkfd",
            Self::Close { .. } => "close",
            Self::Read { .. } => "read",
            Self::Write { .. } => "write",
            Self::Truncate { .. } | Self::TruncateSlot { .. } => "truncate",
            Self::Allocate { .. } => "fallocate",
            Self::CopyRange { .. } => "copy_file_range",
            Self::Mkdir { .. } => "mkdir",
            Self::Mknod { .. } => "mknod",
            Self::Rmdir { .. } => "rmdir",
            Self::Unlink { .. } => "unlink",
            Self::Rename { .. } => "rename",
            Self::Link { .. } => "link",
            Self::Symlink { .. } => "symlink",
            Self::Readlink { .. } => "readlink",
            Self::Chmod { .. } | Self::ChmodSlot { .. } => "chmod",
            Self::Chown { .. } => "chown",
            Self::Utimens { .. } => "utimens",
            Self::Access { .. } => "access",
            Self::Stat { .. } | Self::StatSlot { .. } => "stat",
            Self::List { .. } => "list",
            Self::SetXattr { .. } => "setxattr",
            Self::GetXattr { .. } => "getxattr",
            Self::RemoveXattr { .. } => "removexattr",
            Self::ListXattr { .. } => "listxattr",
        }
    }
}
