//! kvfs without a mount: programs under `kvfs exec`, on a store that the first of them serves.
//!
//! Invariant: as long as it is "mounted", a command holds the server, so that the store is open between
//! timings as it is on a mount; the server ends with it.

use super::{Kvfs, Target};
use crate::workload::ScenarioName;
use anyhow::{Context, Result, bail, ensure};
use kvfs_bench::counters::Probe;
use kvfs_bench::host;
use kvfs_bench::memory::{MemoryPeak, MemoryWatch};
use kvfs_bench::programs::Programs;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Where programs see the work of a scenario.
pub(super) const WORK: &str = "/kvfs/work";

/// Says that it is there, and lives until its input ends.
const HOLDER: [&str; 3] = ["sh", "-c", "echo && exec cat"];
/// Closing a store writes out everything.
const CLOSE_LIMIT: Duration = Duration::from_mins(5);

/// See the module.
pub(crate) struct Exec {
    /// Never mounted.
    mount: Kvfs,
    session: Option<Session>,
    peak: Option<MemoryPeak>,
}

/// A command that holds the server of the store.
struct Session {
    holder: Child,
    server: u32,
    watch: Option<MemoryWatch>,
}

impl Session {
    fn begin(kvfs: &Path, store: &Path) -> Result<Self> {
        let mut command = Command::new(kvfs);
        command.args(["exec", "--store"]).arg(store).arg("--").args(HOLDER);
        // Ctrl-C on the terminal must not end it under a workload.
        let mut holder = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("cannot run {command:?}"))?;
        let mut output = holder.stdout.take().context("its output is a pipe")?;
        let begun = output.read_exact(&mut [0]).context("kvfs exec has ended at once");
        match begun.and_then(|()| server_of(store)) {
            Ok(server) => Ok(Self { holder, server, watch: Some(MemoryWatch::start(server)) }),
            Err(error) => {
                end(&mut holder)?;
                Err(error)
            }
        }
    }

    /// Ends the command, and with it the server.
    fn finish(mut self) -> Result<MemoryPeak> {
        end(&mut self.holder)?;
        let server = format!("/proc/{}", self.server);
        let ended = host::wait_until(CLOSE_LIMIT, || Ok(!Path::new(&server).exists()))?;
        let peak = self.watch.take().map(MemoryWatch::finish).unwrap_or_default();
        ensure!(ended, "the server of the store, process {}, has not ended", self.server);
        Ok(peak)
    }
}

/// The command ends with its input.
fn end(holder: &mut Child) -> Result<()> {
    drop(holder.stdin.take());
    let status = holder.wait()?;
    ensure!(status.success(), "kvfs exec: {status}");
    Ok(())
}

/// Its process.
fn server_of(store: &Path) -> Result<u32> {
    let socket = store.join("files.sock");
    let stream =
        UnixStream::connect(&socket).with_context(|| format!("cannot reach {}", socket.display()))?;
    let peer = rustix::net::sockopt::socket_peercred(&stream)?;
    Ok(peer.pid.as_raw_nonzero().get().unsigned_abs())
}

impl Exec {
    /// On the store of `mount`.
    pub(crate) fn new(mount: Kvfs) -> Self {
        Self { mount, session: None, peak: None }
    }
}

impl Target for Exec {
    fn name(&self) -> &'static str {
        "exec"
    }

    fn about(&self) -> String {
        format!("{}; programs under `kvfs exec`, without a mount", self.mount.about())
    }

    fn mount_fresh(&mut self) -> Result<()> {
        self.unmount()?;
        self.mount.make_store()?;
        self.mount()?;
        self.programs(Path::new("")).run(&["mkdir", WORK]).map(drop)
    }

    /// Of the machine: nothing is mounted.
    fn dir(&self) -> &Path {
        self.mount.dir()
    }

    fn mount(&mut self) -> Result<()> {
        self.session = Some(Session::begin(self.mount.program(), self.mount.store())?);
        Ok(())
    }

    fn unmount(&mut self) -> Result<()> {
        let Some(session) = self.session.take() else { return Ok(()) };
        self.peak = Some(self.peak.unwrap_or_default().max(session.finish()?));
        Ok(())
    }

    fn probe(&self) -> Result<Probe> {
        let daemon = self.session.as_ref().map(|session| session.server);
        Ok(Probe { daemon, ..self.mount.probe()? })
    }

    fn sync(&self) -> Result<()> {
        if self.session.is_none() {
            bail!("the store is not served");
        }
        self.programs(Path::new("")).run(&["sync", "-f", WORK]).map(drop)
    }

    fn programs(&self, _: &Path) -> Programs {
        Programs::under_exec(self.mount.program(), self.mount.store(), Path::new(WORK))
    }

    fn memory_peak(&self) -> Option<MemoryPeak> {
        self.peak
    }

    fn memory_limit_bytes(&self) -> Option<u64> {
        Some(self.mount.default_memory_limit_bytes())
    }

    fn unfit_for(&self, scenario: ScenarioName) -> Option<&'static str> {
        (scenario != ScenarioName::Exec).then_some("is for programs alone")
    }
}

impl Drop for Exec {
    fn drop(&mut self) {
        if let Err(error) = self.unmount() {
            eprintln!("after kvfs exec: {error:#}");
        }
    }
}
