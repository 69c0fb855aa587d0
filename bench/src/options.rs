//! Options that programs of this package share: how often, where, and what becomes of the results.
//!
//! Thread safety: plain values.

use std::path::PathBuf;

/// See the module. What is given twice counts as it is given last.
#[derive(Debug, clap::Args)]
pub struct Options {
    /// How often everything is measured
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..), overrides_with = "runs")]
    pub runs: u32,

    /// Where images, stores and data go: a directory on the disk to measure
    #[arg(long, value_name = "DIR", default_value = "/var/tmp/kvfs-bench")]
    pub work: PathBuf,

    /// Also keep the results in this file, saved step by step
    #[arg(long, value_name = "PATH", overrides_with = "json")]
    pub json: Option<PathBuf>,

    /// Keep what --json holds and measure only what is missing
    #[arg(long, requires = "json")]
    pub resume: bool,

    /// Also write a page with tables and figures (SVG and PNG) into this directory
    #[arg(long, value_name = "DIR", overrides_with = "plots")]
    pub plots: Option<PathBuf>,

    /// Measure nothing: show what this file holds
    #[arg(long, value_name = "JSON")]
    pub report: Option<PathBuf>,
}
