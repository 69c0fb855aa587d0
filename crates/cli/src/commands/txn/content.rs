//! `kvfs txn diff --content`: what a transaction changes inside of text files, line by line.
//!
//! Both sides are read like any program reads them, on the main line and in the transaction's view, so
//! permissions are those of the calling user. The main line is as it is now: what changed there since the
//! transaction began shows up, too (and is a conflict, if both changed it).

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use kvfs_fuse::mount::open_place;
use rustix::fs::OFlags;
use similar::TextDiff;

use super::cover::{open_beneath, open_view};
use crate::control::ChangeLine;
use crate::error::{CliError, Code, Result};
use crate::output::printable_bytes;

/// Larger files are not compared (bytes).
const BYTES_MAX: u64 = 4 << 20;

/// The two sides of a comparison.
pub(super) struct Contents {
    main: OwnedFd,
    view: OwnedFd,
}

impl Contents {
    /// Sides that can be seen: `main`, the root of the main line, and `view`, that of the transaction.
    pub(super) fn between(main: OwnedFd, view: OwnedFd) -> Self {
        Self { main, view }
    }

    /// `main`: where the store is mounted.
    ///
    /// # Errors
    /// The view of transaction `id` can't be entered from here.
    pub(super) fn of(main: &Path, id: u64) -> Result<Self> {
        let view = main.join(".kvfs/txn").join(id.to_string());
        // Following the link mounts the view.
        let view = view.canonicalize().map_err(|error| {
            CliError::new(
                Code::Failed,
                format!(
                    "the files of transaction {id} can't be seen from here ({error}); those of a `kvfs txn run` are \
                     seen by its command alone: `kvfs txn run --review` shows what it changes"
                ),
            )
        })?;
        let main = open_place(main).map_err(|error| CliError::io("look at", main, &error))?;
        Ok(Self { main, view: open_view(&view)? })
    }

    /// Writes how the content of a changed file differs, as `diff -u` does; nothing for anything else.
    pub(super) fn write(&self, out: &mut impl Write, line: &ChangeLine) -> io::Result<()> {
        if line.kind != "file" {
            return Ok(());
        }
        let (before, after) = (line.from.as_ref().unwrap_or(&line.place), &line.place);
        let old = if line.sign == '+' { Side::none() } else { Side::read(&self.main, before) };
        let new = if line.sign == '-' { Side::none() } else { Side::read(&self.view, after) };
        match (old, new) {
            (Side::Text(old), Side::Text(new)) => {
                let name =
                    |side, path, is_there| if is_there { named(side, path) } else { "/dev/null".to_owned() };
                let names = (name("a", before, line.sign != '+'), name("b", after, line.sign != '-'));
                let diff = TextDiff::from_lines(&old, &new);
                write!(out, "{}", diff.unified_diff().header(&names.0, &names.1))
            }
            (Side::Unshown(why), _) | (_, Side::Unshown(why)) => {
                writeln!(out, "  (content not shown: {why})")
            }
        }
    }
}

fn named(side: &str, path: &[u8]) -> String {
    format!("{side}/{}", printable_bytes(path).trim_start_matches('/'))
}

enum Side {
    Text(String),
    Unshown(String),
}

impl Side {
    fn none() -> Self {
        Self::Text(String::new())
    }

    fn read(root: &OwnedFd, path: &[u8]) -> Self {
        let path = Path::new(OsStr::from_bytes(path));
        // Directories on the way may have become links since the comparison.
        let opened = open_beneath(root, path, OFlags::RDONLY | OFlags::NONBLOCK).map(File::from);
        let mut bytes = Vec::new();
        match opened.and_then(|file| file.take(BYTES_MAX + 1).read_to_end(&mut bytes)) {
            Err(error) => Self::Unshown(error.to_string()),
            Ok(_) if bytes.len() as u64 > BYTES_MAX => Self::Unshown("larger than 4 MiB".to_owned()),
            Ok(_) if bytes.contains(&0) => Self::Unshown("not a text".to_owned()),
            Ok(_) => {
                String::from_utf8(bytes).map_or_else(|_| Self::Unshown("not UTF-8".to_owned()), Self::Text)
            }
        }
    }
}
