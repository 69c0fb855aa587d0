//! How large everything is.
//!
//! Thread safety: plain data.

use clap::ValueEnum;

/// How much is done.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Suite {
    /// What the goals are meant for
    Full,
    /// A tenth
    Quick,
    /// To try the harness, not to quote
    Trial,
}

/// In files and bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub(crate) files: usize,
    pub(crate) stream_bytes: u64,
    /// Directories of the kernel's source that are unpacked.
    pub(crate) tree: &'static [&'static str],
    /// How often a writer is killed.
    pub(crate) take_overs: u32,
}

impl Sizes {
    pub(crate) fn of(suite: Suite) -> Self {
        match suite {
            Suite::Full => Self {
                files: 10_000,
                stream_bytes: 1 << 30,
                tree: &["fs", "include", "net", "sound"],
                take_overs: 10,
            },
            Suite::Quick => Self { files: 1000, stream_bytes: 128 << 20, tree: &["fs"], take_overs: 2 },
            Suite::Trial => Self { files: 160, stream_bytes: 16 << 20, tree: &["ipc"], take_overs: 1 },
        }
    }
}
