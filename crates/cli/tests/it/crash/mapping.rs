//! A thread that changes a file through a shared mapping, and what of it may be missing after a crash.
//!
//! Pages that were not synced belong to the kernel, which may write them or not, each on its own.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::Path;

use kvfs_device::Rng;

use super::mapped::{Mapping, PAGE_BYTES};

const PAGES: usize = 48;

/// The numbers that each page was filled with.
#[derive(Debug)]
pub(super) struct Mapped {
    name: String,
    written: Vec<u64>,
    synced: Vec<u64>,
    open: Option<Open>,
}

/// Outlives the work, so that dirty pages are there when the mount goes.
#[derive(Debug)]
struct Open {
    mapping: Mapping,
    file: File,
}

fn page(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(PAGE_BYTES / 8)
}

impl Mapped {
    /// Makes the file `name` below `mount`, durably, full of zeros that are written.
    pub(super) fn new(mount: &Path, name: String) -> io::Result<Self> {
        fs::write(mount.join(&name), vec![0; PAGES * PAGE_BYTES])?;
        let file = OpenOptions::new().read(true).write(true).open(mount.join(&name))?;
        file.sync_all()?;
        let open = Some(Open { mapping: Mapping::new(&file, PAGES * PAGE_BYTES)?, file });
        Ok(Self { name, written: vec![0; PAGES], synced: vec![0; PAGES], open })
    }

    /// Writes pages and syncs some of them until it fails.
    pub(super) fn run(&mut self, mut rng: Rng, steps_max: usize) -> io::Result<()> {
        let Some(Open { mapping, file }) = &mut self.open else { return Ok(()) };
        for number in 1..=steps_max as u64 {
            let at = rng.index(PAGES);
            mapping.write(at, &page(number));
            self.written[at] = number;
            if !rng.chance(1, 6) {
                continue;
            }
            let (first, last) = match rng.below(3) {
                0 => (at, at + 1),
                1 => (rng.index(at + 1), at + 1),
                _ => (0, PAGES),
            };
            if rng.chance(1, 2) {
                mapping.sync(first, last - first)?;
                self.synced[first..last].copy_from_slice(&self.written[first..last]);
            } else {
                if rng.chance(1, 2) { file.sync_all() } else { file.sync_data() }?;
                self.synced.clone_from(&self.written);
            }
        }
        Ok(())
    }

    /// Lets go of the mount.
    pub(super) fn close(&mut self) {
        self.open = None;
    }

    /// # Errors
    /// What is wrong, in words.
    pub(super) fn verify(&self, mount: &Path) -> Result<(), String> {
        let content = fs::read(mount.join(&self.name)).map_err(|error| format!("{}: {error}", self.name))?;
        if content.len() != PAGES * PAGE_BYTES {
            return Err(format!("{} has {} bytes", self.name, content.len()));
        }
        for (index, words) in content.chunks(PAGE_BYTES).enumerate() {
            let range = self.synced[index]..=self.written[index];
            for word in words.chunks(8) {
                let number = word.iter().rev().fold(0, |number, &byte| number << 8 | u64::from(byte));
                if !range.contains(&number) {
                    return Err(format!("{} page {index}: {number} is not in {range:?}", self.name));
                }
            }
        }
        Ok(())
    }
}
