//! Flipped bits on the medium: a read gives the right data or says that they are corrupt.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use kvfs_device::{Device, FaultDevice, MemoryDevice, Rng, SECTOR_BYTES};
use kvfs_store::{KeyRange, Read, StoreError};

use crate::engine::{Engine, OpenStore};
use crate::ops::{generate, short};
use crate::session::{Session, writes_only};
use crate::spaces::{Handles, SPACES, SpaceIndex};

/// What became of the flips.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Flips {
    /// The store did not open.
    pub refused: usize,
    /// Some read said that data are corrupt; all others were right.
    pub noticed: usize,
    /// Everything was right all the same.
    pub harmless: usize,
}

/// Content of one keyspace.
type Content = Vec<(Bytes, Bytes)>;

/// Writes a store by the steps of `seed`, closes it, and opens it `flips` times with one byte of the
/// medium changed. Only bytes in sectors that hold something are changed.
///
/// # Errors
/// A report for people: which byte, what was read.
pub fn flip_sweep(engine: &dyn Engine, steps: usize, flips: usize, seed: u64) -> Result<Flips, String> {
    let (medium, content) =
        write(engine, steps, seed).map_err(|problem| format!("seed {seed}: {problem}"))?;
    let image = medium.snapshot();
    let sectors: Vec<usize> = image
        .chunks(SECTOR_BYTES)
        .enumerate()
        .filter(|(_, sector)| sector.iter().any(|&byte| byte != 0))
        .map(|(index, _)| index)
        .collect();
    let mut rng = Rng::new(seed);
    let mut outcome = Flips::default();
    for _ in 0..flips {
        let offset = sectors[rng.index(sectors.len())] * SECTOR_BYTES + byte_in_sector(&mut rng);
        let mask = 1 << rng.index(8);
        let result = catch_unwind(AssertUnwindSafe(|| look(engine, &medium, offset as u64, mask, &content)));
        let result = result.unwrap_or_else(|_| Err("panicked, see above".to_owned()));
        match result
            .map_err(|problem| format!("seed {seed}, byte {offset} flipped by {mask:#x}: {problem}"))?
        {
            Seen::Refused => outcome.refused += 1,
            Seen::Noticed => outcome.noticed += 1,
            Seen::Harmless => outcome.harmless += 1,
        }
    }
    Ok(outcome)
}

/// Half of the flips hit the beginning of a sector, where headers are.
fn byte_in_sector(rng: &mut Rng) -> usize {
    if rng.chance(1, 2) { rng.index(256) } else { rng.index(SECTOR_BYTES) }
}

/// As [`flip_sweep`], for tests.
///
/// # Panics
/// With the report.
pub fn assert_notices_flips(engine: &dyn Engine, steps: usize, flips: usize, seed: u64) -> Flips {
    flip_sweep(engine, steps, flips, seed).unwrap_or_else(|report| panic!("{report}"))
}

/// A closed store on its medium, and its content.
fn write(engine: &dyn Engine, steps: usize, seed: u64) -> Result<(Arc<MemoryDevice>, Vec<Content>), String> {
    let medium = Arc::new(MemoryDevice::growable(0, engine.device_bytes_max()));
    let device = Arc::clone(&medium) as Arc<dyn Device>;
    let mut session = Session::create(engine, &device).map_err(|error| error.to_string())?;
    for step in generate(&writes_only(steps), seed) {
        session = session.step(engine, &device, &step).map_err(|error| format!("{step:?}: {error}"))?;
    }
    session.compare()?;
    let model = session.history.model();
    let content = (0..SPACES.len() as SpaceIndex).map(|space| {
        let mut content = Content::new();
        let mut cursor = model.cursor(session.history.handles().get(space), KeyRange::all())?;
        cursor.first()?;
        while let Some((key, value)) = cursor.entry() {
            content.push((Bytes::copy_from_slice(key), value.clone()));
            cursor.next()?;
        }
        Ok(content)
    });
    let content: Result<_, StoreError> = content.collect();
    let content = content.map_err(|error| error.to_string())?;
    session.open.close().map_err(|error| error.to_string())?;
    Ok((medium, content))
}

enum Seen {
    Refused,
    Noticed,
    Harmless,
}

fn look(
    engine: &dyn Engine,
    medium: &MemoryDevice,
    offset: u64,
    mask: u8,
    content: &[Content],
) -> Result<Seen, String> {
    let device = FaultDevice::new(medium.fork());
    device.flip(offset, mask);
    let opened =
        engine.open(Arc::new(device)).and_then(|open| Handles::open(&*open.store()).map(|h| (open, h)));
    let Ok((open, handles)) = opened else { return Ok(Seen::Refused) };
    let mut noticed = false;
    for (content, space) in content.iter().zip(0..) {
        noticed |= look_at_keys(&*open, &handles, space, content)?;
        noticed |= walk(&*open, &handles, space, content)?;
    }
    Ok(if noticed { Seen::Noticed } else { Seen::Harmless })
}

/// Whether `error` is an honest answer to a flipped bit.
fn expect_corrupt(error: &StoreError) -> Result<(), String> {
    match error {
        StoreError::Corrupt { .. } => Ok(()),
        other => Err(format!("a flipped bit is corruption, not \"{other}\"")),
    }
}

/// Gets every key; gives whether corruption was reported.
fn look_at_keys(
    open: &dyn OpenStore,
    handles: &Handles,
    space: SpaceIndex,
    content: &Content,
) -> Result<bool, String> {
    let store = open.store();
    let mut noticed = false;
    for (key, expected) in content {
        match store.get(handles.get(space), key) {
            Ok(Some(value)) if value == *expected => {}
            Ok(found) => {
                let found = found.map_or("nothing".to_owned(), |value| short(&value).to_string());
                let name = SPACES[space as usize].name;
                return Err(format!("{name} {} is {found}, not {}", short(key), short(expected)));
            }
            Err(error) => {
                expect_corrupt(&error)?;
                noticed = true;
            }
        }
    }
    Ok(noticed)
}

/// Walks through everything up to the first corruption; gives whether there was one.
fn walk(
    open: &dyn OpenStore,
    handles: &Handles,
    space: SpaceIndex,
    content: &Content,
) -> Result<bool, String> {
    let store = open.store();
    let name = SPACES[space as usize].name;
    let mut cursor = match store.cursor(handles.get(space), KeyRange::all()) {
        Ok(cursor) => cursor,
        Err(error) => return expect_corrupt(&error).map(|()| true),
    };
    let mut moved = cursor.first();
    for (key, value) in content {
        if let Err(error) = moved {
            return expect_corrupt(&error).map(|()| true);
        }
        if cursor.entry() != Some((&key[..], value)) {
            return Err(format!("a walk over {name} misses {} = {}", short(key), short(value)));
        }
        moved = cursor.next();
    }
    match moved {
        Err(error) => expect_corrupt(&error).map(|()| true),
        Ok(()) if cursor.entry().is_some() => Err(format!("a walk over {name} finds more than there is")),
        Ok(()) => Ok(false),
    }
}
