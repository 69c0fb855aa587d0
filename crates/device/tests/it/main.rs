//! The devices against real files, and stacked on one another.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail the test by panicking")]

mod file;
mod stacked;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// A directory of its own for one test, removed at the end.
struct TempDir(PathBuf);

impl TempDir {
    /// Below the build directory, which is on a real disk where /tmp may be in memory.
    fn new() -> Self {
        Self::below(Path::new(env!("CARGO_TARGET_TMPDIR")))
    }

    fn below(parent: &Path) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("kvfs-device-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = parent.join(name);
        std::fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn join(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // A test that failed may have left anything; the build directory is scratch space.
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
