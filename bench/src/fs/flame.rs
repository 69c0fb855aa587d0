//! Where processors spend their time during a workload: `perf record`, folded and drawn as a flame graph.
//!
//! Thread safety: one recording at a time.

use anyhow::{Context, Result, ensure};
use kvfs_bench::host;
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

const SAMPLES_PER_SECOND: &str = "997";
const START_LIMIT: Duration = Duration::from_secs(10);

/// The directory that flame graphs go to.
pub(crate) struct Flames {
    dir: PathBuf,
}

impl Flames {
    /// Makes the directory and looks for `perf`.
    pub(crate) fn new(dir: &Path) -> Result<Self> {
        host::run("perf", &["--version"]).context("profiles need perf (Debian: linux-perf)")?;
        fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
        Ok(Self { dir: dir.to_owned() })
    }

    /// Records the whole machine, for the kernel and the daemon work beside the client.
    pub(crate) fn start(&self, workload: &str, target: &str) -> Result<Recording> {
        let stem = format!("{workload}-{target}").replace(' ', "-");
        let data = self.dir.join(format!("{stem}.perf"));
        // What an earlier invocation left would look like a recording that has begun.
        let _ = fs::remove_file(&data);
        let child = Command::new("perf")
            .args([
                "record",
                "--quiet",
                "--all-cpus",
                "-g",
                "-e",
                "cpu-clock",
                "-F",
                SAMPLES_PER_SECOND,
                "-o",
            ])
            .arg(&data)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run perf")?;
        let recording = Recording { child, data, svg: self.dir.join(format!("{stem}.svg")), title: stem };
        let has_begun = host::wait_until(START_LIMIT, || Ok(recording.data.exists()))?;
        ensure!(has_begun, "perf records nothing");
        Ok(recording)
    }
}

/// A recording under way.
pub(crate) struct Recording {
    child: Child,
    data: PathBuf,
    svg: PathBuf,
    title: String,
}

impl Recording {
    /// Ends it and draws; the raw data goes.
    pub(crate) fn finish(mut self) -> Result<()> {
        let pid = Pid::from_raw(self.child.id().cast_signed()).context("perf has no process id")?;
        kill_process(pid, Signal::INT)?;
        // It ends by the signal, which is no success.
        self.child.wait()?;
        let script = self.data.with_extension("script");
        let output = File::create(&script)?;
        let status = Command::new("perf")
            .args(["script", "-i"])
            .arg(&self.data)
            .stdout(output)
            .stderr(Stdio::null())
            .status()
            .context("cannot run perf script")?;
        ensure!(status.success(), "perf script failed, {status}");
        self.draw(&script)?;
        fs::remove_file(&script)?;
        fs::remove_file(&self.data)?;
        eprintln!("drawn: {}", self.svg.display());
        Ok(())
    }

    fn draw(&self, script: &Path) -> Result<()> {
        use inferno::collapse::Collapse;
        let folded = script.with_extension("folded");
        let mut options = inferno::collapse::perf::Options::default();
        options.nthreads = 1;
        let mut collapser = inferno::collapse::perf::Folder::from(options);
        collapser
            .collapse(BufReader::new(File::open(script)?), BufWriter::new(File::create(&folded)?))
            .context("the recording cannot be folded")?;
        let mut options = inferno::flamegraph::Options::default();
        options.title.clone_from(&self.title);
        let drawn = inferno::flamegraph::from_reader(
            &mut options,
            BufReader::new(File::open(&folded)?),
            BufWriter::new(File::create(&self.svg)?),
        );
        drawn.context("the recording cannot be drawn")
    }
}
