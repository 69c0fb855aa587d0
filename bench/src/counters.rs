//! What a piece of work used: processor time of client, daemons and machine, and what reached the device.
//!
//! Thread safety: plain values; reading them is a few small files under `/proc` and `/sys`.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::fs;
use std::ops::{Add, Sub};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// `USER_HZ`: the unit of processor times in `/proc`, the same on every Linux that Rust runs on.
const TICKS_PER_SECOND: f64 = 100.0;
/// The unit of `/sys/block/*/stat`, whatever the device's sectors are.
const SECTOR_BYTES: u64 = 512;

/// Where to look.
#[derive(Clone, Debug, Default)]
pub struct Probe {
    /// The device's statistics in `/sys`.
    pub device_stat: Option<PathBuf>,
    /// The process that serves the file system.
    pub daemon: Option<u32>,
}

/// What was used between two readings.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Usage {
    /// The benchmark and the programs that it ran (seconds).
    pub client_cpu_seconds: f64,
    /// `None` for a kernel file system.
    pub daemon_cpu_seconds: Option<f64>,
    /// Everything on the machine, with the kernel's threads; whatever else runs is in it too.
    pub machine_cpu_seconds: f64,
    /// `None` where nothing is counted.
    pub device: Option<DeviceUse>,
}

/// Requests as the device's driver saw them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceUse {
    /// Reads.
    pub read_requests: u64,
    /// And their length together.
    pub read_bytes: u64,
    /// Writes.
    pub write_requests: u64,
    /// And their length together.
    pub write_bytes: u64,
    /// Cache flushes.
    pub flush_requests: u64,
}

impl DeviceUse {
    /// Parses `/sys/block/*/stat`.
    pub fn parse(stat: &str) -> Option<Self> {
        let fields: Vec<u64> = stat.split_whitespace().map_while(|field| field.parse().ok()).collect();
        Some(Self {
            read_requests: *fields.first()?,
            read_bytes: *fields.get(2)? * SECTOR_BYTES,
            write_requests: *fields.get(4)?,
            write_bytes: *fields.get(6)? * SECTOR_BYTES,
            // Kernels before 5.5 do not count them.
            flush_requests: fields.get(15).copied().unwrap_or(0),
        })
    }
}

impl Sub for DeviceUse {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            read_requests: self.read_requests.saturating_sub(before.read_requests),
            read_bytes: self.read_bytes.saturating_sub(before.read_bytes),
            write_requests: self.write_requests.saturating_sub(before.write_requests),
            write_bytes: self.write_bytes.saturating_sub(before.write_bytes),
            flush_requests: self.flush_requests.saturating_sub(before.flush_requests),
        }
    }
}

impl Add for DeviceUse {
    type Output = Self;

    fn add(self, more: Self) -> Self {
        Self {
            read_requests: self.read_requests + more.read_requests,
            read_bytes: self.read_bytes + more.read_bytes,
            write_requests: self.write_requests + more.write_requests,
            write_bytes: self.write_bytes + more.write_bytes,
            flush_requests: self.flush_requests + more.flush_requests,
        }
    }
}

/// Begins before the work; [`Meter::stop`] ends the processor times, [`Meter::finish`] those of the device.
pub struct Meter {
    probe: Probe,
    usage: Usage,
    device: Option<DeviceUse>,
}

impl Meter {
    /// Reads everything once.
    pub fn start(probe: Probe) -> Result<Self> {
        let device = device_use(&probe)?;
        Ok(Self { usage: cpu_use(&probe)?, probe, device })
    }

    /// The work is done; what is written out later still counts at the device.
    pub fn stop(&mut self) -> Result<()> {
        let now = cpu_use(&self.probe)?;
        let before = self.usage;
        self.usage = Usage {
            client_cpu_seconds: now.client_cpu_seconds - before.client_cpu_seconds,
            daemon_cpu_seconds: now
                .daemon_cpu_seconds
                .zip(before.daemon_cpu_seconds)
                .map(|(now, before)| now - before),
            machine_cpu_seconds: now.machine_cpu_seconds - before.machine_cpu_seconds,
            device: None,
        };
        Ok(())
    }

    /// Everything was written out.
    pub fn finish(self) -> Result<Usage> {
        let device = device_use(&self.probe)?.zip(self.device).map(|(now, before)| now - before);
        Ok(Usage { device, ..self.usage })
    }
}

/// The statistics of the device under a directory, where the kernel has some.
pub fn device_stat_under(dir: &Path) -> Result<Option<PathBuf>> {
    let device = fs::metadata(dir).with_context(|| format!("cannot stat {}", dir.display()))?.dev();
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let path = PathBuf::from(format!("/sys/dev/block/{major}:{minor}/stat"));
    Ok(path.exists().then_some(path))
}

fn device_use(probe: &Probe) -> Result<Option<DeviceUse>> {
    let Some(path) = &probe.device_stat else { return Ok(None) };
    let stat = fs::read_to_string(path).with_context(|| format!("cannot read {}", path.display()))?;
    Ok(DeviceUse::parse(&stat))
}

fn cpu_use(probe: &Probe) -> Result<Usage> {
    let own = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    let own = own.tv_sec as f64 + own.tv_nsec as f64 / 1e9;
    let children = process_ticks("self", &[15, 16])?;
    let daemon = probe.daemon.map(|pid| process_ticks(&pid.to_string(), &[13, 14])).transpose()?;
    Ok(Usage {
        client_cpu_seconds: own + children / TICKS_PER_SECOND,
        daemon_cpu_seconds: daemon.map(|ticks| ticks / TICKS_PER_SECOND),
        machine_cpu_seconds: machine_ticks(&fs::read_to_string("/proc/stat")?) / TICKS_PER_SECOND,
        device: None,
    })
}

/// The sum of fields of `/proc/PID/stat`, counted from 0.
fn process_ticks(pid: &str, fields: &[usize]) -> Result<f64> {
    let path = format!("/proc/{pid}/stat");
    let stat = fs::read_to_string(&path).with_context(|| format!("cannot read {path}"))?;
    // The name before may hold spaces.
    let after_name = stat.rfind(')').map_or(stat.as_str(), |end| &stat[end + 2..]);
    let values: Vec<&str> = after_name.split_whitespace().collect();
    let value = |field: &usize| values.get(field - 2)?.parse::<f64>().ok();
    fields.iter().map(value).sum::<Option<f64>>().with_context(|| format!("{path} has too few fields"))
}

/// Busy time of all processors: user, nice, system, interrupts.
fn machine_ticks(stat: &str) -> f64 {
    let fields: Vec<f64> =
        stat.split_whitespace().skip(1).map_while(|field| field.parse().ok()).take(7).collect();
    [0, 1, 2, 5, 6].iter().filter_map(|&field| fields.get(field)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_statistics_are_read_in_sectors() {
        let stat = " 10 1 80 5 20 2 160 7 0 9 12 3 0 24 1 4 2";
        let expected = DeviceUse {
            read_requests: 10,
            read_bytes: 80 * 512,
            write_requests: 20,
            write_bytes: 160 * 512,
            flush_requests: 4,
        };
        assert_eq!(DeviceUse::parse(stat), Some(expected));
        assert_eq!(DeviceUse::parse("1 2 3"), None);
    }

    #[test]
    fn own_processor_time_is_found() {
        let usage =
            cpu_use(&Probe { daemon: Some(std::process::id()), ..Probe::default() }).expect("readable");
        assert!(usage.client_cpu_seconds > 0.0 && usage.machine_cpu_seconds > 0.0);
        assert!(usage.daemon_cpu_seconds.is_some());
    }

    #[test]
    fn idle_time_does_not_count() {
        assert!((machine_ticks("cpu  1 2 3 1000 500 4 5 6\ncpu0 1") - 15.0).abs() < 1e-9);
    }
}
