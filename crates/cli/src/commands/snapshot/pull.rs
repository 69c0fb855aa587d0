//! `kvfs snapshot pull`: a snapshot of a repository into a store.

use std::io::Read;
use std::path::Path;
use std::process::ExitCode;

use kvfs_fs::transfer::{StreamId, StreamReader};
use kvfs_repository::{Pull, Repository, Summary};

use super::arrival::{self, Origin};
use crate::args::PullArgs;
use crate::commands::repository::open;
use crate::error::Result;

pub(super) fn run(target: Option<&Path>, args: &PullArgs) -> Result<ExitCode> {
    let repository = open(&args.repository)?;
    let snapshot = repository.find(args.name.as_deref())?;
    arrival::take(target, &args.target, false, &mut Pulled { repository, snapshot })
}

/// The stream of a snapshot in a repository.
struct Pulled {
    repository: Repository,
    snapshot: Summary,
}

impl Origin for Pulled {
    fn stream(&self) -> StreamId {
        self.snapshot.id
    }

    fn bytes_expected(&self) -> u64 {
        self.snapshot.bytes
    }

    fn open(&mut self, behind: &StreamReader) -> Result<Box<dyn Read + '_>> {
        Ok(Box::new(Pull::new(&self.repository, self.snapshot.id, behind)?))
    }

    fn how_to_go_on(&self, _position: u64) -> String {
        "the same command".to_owned()
    }
}
