//! Many lives of one manifest, each ended by a crash: the state is always that of a commit, no older
//! than the last one that returned, whatever data was written to zones that had become free.

use kvfs_device::{AlignedBuf, CrashDevice, CrashMode};

use super::*;
use crate::format::SUPERBLOCK_ADDRS;

/// Writes nonsense to free space and gives it back, as flushes and merges would.
fn scribble(rng: &mut Rng, device: &dyn Device, zones: &Zones) {
    let mut extents = Vec::new();
    for _ in 0..rng.below(40) {
        let Ok(extent) = zones.allocate_up_to(Stream::FlushTuple, ZONE_BYTES, Budget::Ordinary) else {
            break;
        };
        let sector = AlignedBuf::from_slice(&[rng.next_u64() as u8; 4096]);
        // The first sector is where a manifest begins.
        let sectors = u64::from(extent.len) / 4096;
        for index in [0, rng.below(sectors)] {
            device.write_at(sector.as_ref(), extent.addr + index * 4096).unwrap();
        }
        extents.push(extent);
    }
    for extent in extents {
        zones.release(extent);
    }
}

/// The states that commits led to, with the number of device events when each commit began and
/// returned.
struct Life {
    states: Vec<(usize, usize, ManifestState)>,
}

impl Life {
    fn check(&self, image: &Arc<dyn Device>, event: usize, place: &str) -> ManifestState {
        let (_, state, _) = open(image).unwrap_or_else(|error| panic!("{place}, event {event}: {error}"));
        let first = self.states.iter().rposition(|(_, returned, _)| *returned <= event).unwrap_or(0);
        let possible: Vec<_> = self.states[first..].iter().filter(|(began, ..)| *began <= event).collect();
        assert!(
            possible.iter().any(|(.., possible)| *possible == state),
            "{place}, event {event}: no such state"
        );
        state
    }
}

#[test]
fn after_any_crash_the_state_is_that_of_a_commit() {
    let mut rewrites = 0;
    for seed in 0..24 {
        let mut rng = Rng::new(seed);
        let base: Arc<dyn Device> = Arc::new(MemoryDevice::new(ZONES * u64::from(ZONE_BYTES)));
        create(&base);
        let (mut image, mut state) = (base, ManifestState::default());
        for life_index in 0..5 {
            let place = format!("seed {seed}, life {life_index}");
            let crash = Arc::new(CrashDevice::over(image).with_log().unwrap());
            let device: Arc<dyn Device> = crash.clone();
            let (manifest, found, zones) = open(&device).unwrap();
            assert_eq!(found, state, "{place}");
            let mut life = Life { states: vec![(0, 0, state.clone())] };
            manifest.begin_epoch().unwrap();
            let mut editor = Editor::new(rng.next_u64(), state);
            for _ in 0..rng.range(5, 60) {
                scribble(&mut rng, device.as_ref(), &zones);
                let edits = editor.commit();
                let began = crash.events_len();
                manifest.commit(&edits).unwrap();
                life.states.push((began, crash.events_len(), editor.state.clone()));
            }
            rewrites += manifest.size().1;
            for _ in 0..10 {
                let event = rng.index(crash.events_len() + 1);
                let crashed = crash.image_at(event, rng.next_u64(), CrashMode::Any).unwrap();
                life.check(&(Arc::new(crashed) as Arc<dyn Device>), event, &place);
            }
            let event = rng.index(crash.events_len() + 1);
            image = Arc::new(crash.image_at(event, rng.next_u64(), CrashMode::Any).unwrap());
            state = life.check(&image, event, &place);
        }
    }
    assert!(rewrites > 50, "{rewrites} rewrites");
}

#[test]
fn a_crash_at_each_event_of_a_rewrite_loses_nothing() {
    let crash = Arc::new(CrashDevice::in_memory(ZONES << 16, ZONES << 16).with_log().unwrap());
    let device: Arc<dyn Device> = crash.clone();
    let (manifest, zones) = create(&device);
    let mut editor = Editor::new(5, ManifestState::default());
    let mut rng = Rng::new(6);
    let mut life = Life { states: vec![(0, crash.events_len(), editor.state.clone())] };
    let first = crash.events_len();
    while manifest.size().1 < 4 {
        let edits = editor.commit();
        let began = crash.events_len();
        manifest.commit(&edits).unwrap();
        life.states.push((began, crash.events_len(), editor.state.clone()));
        if rng.chance(1, 4) {
            scribble(&mut rng, device.as_ref(), &zones);
        }
    }
    for event in first..=crash.events_len() {
        for (seed, mode) in CrashMode::EACH.into_iter().enumerate() {
            let image: Arc<dyn Device> = Arc::new(crash.image_at(event, seed as u64, mode).unwrap());
            life.check(&image, event, &format!("{mode:?}"));
        }
    }
}

#[test]
fn either_superblock_may_rot_at_any_time() {
    let memory = Arc::new(MemoryDevice::new(ZONES << 16));
    let device: Arc<dyn Device> = memory.clone();
    let (manifest, zones) = create(&device);
    manifest.begin_epoch().unwrap();
    let mut editor = Editor::new(8, ManifestState::default());
    let mut rng = Rng::new(9);
    for commit in 0..100 {
        manifest.commit(&editor.commit()).unwrap();
        scribble(&mut rng, device.as_ref(), &zones);
        for addr in SUPERBLOCK_ADDRS {
            let image: Arc<dyn Device> = Arc::new(memory.fork());
            image.write_at(&[0x55; 4096], addr).unwrap();
            assert!(open(&image).unwrap().1 == editor.state, "commit {commit}, slot at byte {addr}");
        }
    }
    assert!(manifest.size().1 > 3);
}

#[test]
fn a_crash_while_a_store_is_made_leaves_no_store_or_an_empty_one() {
    let crash = Arc::new(CrashDevice::in_memory(ZONES << 16, ZONES << 16).with_log().unwrap());
    let device: Arc<dyn Device> = crash.clone();
    let (manifest, _) = create(&device);
    manifest.begin_epoch().unwrap();
    manifest.commit(&[Edit::NextId(99)]).unwrap();
    // Another store is made in the same place, and nothing of the old one may show through.
    let first = crash.events_len();
    let mut second = superblock();
    second.uuid[0] += 1;
    let zones = zones_of(&device, &second);
    Manifest::create(device.clone(), zones, second.clone()).unwrap();
    let mut empty = 0;
    for event in first + 3..=crash.events_len() {
        for seed in 0..20 {
            let image: Arc<dyn Device> = Arc::new(crash.image_at(event, seed, CrashMode::Any).unwrap());
            if let Ok((manifest, state, _)) = open(&image) {
                assert_eq!((manifest.superblock().uuid, state), (second.uuid, ManifestState::default()));
                empty += 1;
            }
        }
    }
    assert!(empty > 20);
}

/// Edits that fill a run with pieces of about 2 KiB each.
fn fill_run(run: RunId, pieces: u64) -> Vec<Edit> {
    let mut edits = vec![Edit::AddRun { keyspace: 0, run, age: 1 }];
    for id in 0..pieces {
        let (mut first, mut last) = (vec![7; 1000], vec![7; 1000]);
        first[..8].copy_from_slice(&(2 * id).to_be_bytes());
        last[..8].copy_from_slice(&(2 * id + 1).to_be_bytes());
        edits.push(Edit::AddPiece { keyspace: 0, run, piece: piece(id, &first, &last) });
    }
    edits
}

#[test]
fn what_an_unfinished_rewrite_left_does_not_disturb_the_next_one() {
    let crash = Arc::new(CrashDevice::in_memory(ZONES << 16, ZONES << 16).with_log().unwrap());
    let device: Arc<dyn Device> = crash.clone();
    let (manifest, _) = create(&device);
    manifest.begin_epoch().unwrap();
    manifest.commit(&[Edit::AddKeyspace { id: 0, name: "data".into(), kind: KeyspaceKind::Tuple }]).unwrap();
    manifest.commit(&fill_run(RunId(1), 40)).unwrap();
    let room = |manifest: &Manifest| {
        manifest.superblock().manifest_zones.len() as u64 * u64::from(ZONE_BYTES) - manifest.size().0
    };
    let mut next_id = 0;
    while room(&manifest) > 4096 {
        next_id += 1;
        manifest.commit(&[Edit::NextId(next_id)]).unwrap();
    }
    // This rewrite has written its snapshot when power fails.
    let began = crash.events_len();
    manifest.commit(&fill_run(RunId(2), 5)).unwrap();
    let is_superblock = |event: &&kvfs_device::CrashEvent| {
        event.index >= began && event.len > 0 && SUPERBLOCK_ADDRS.contains(&event.offset)
    };
    let at = crash.events().iter().find(is_superblock).unwrap().index;
    let unfinished = manifest.superblock();
    let image: Arc<dyn Device> = Arc::new(crash.image_at(at, 0, CrashMode::KeepAll).unwrap());

    let (manifest, _, _) = open(&image).unwrap();
    manifest.begin_epoch().unwrap();
    manifest.commit(&[Edit::DropRun { keyspace: 0, run: RunId(1) }]).unwrap();
    manifest.commit(&fill_run(RunId(2), 5)).unwrap();
    let again = manifest.superblock();
    assert_eq!(again.manifest_seq, unfinished.manifest_seq);
    assert_eq!(again.manifest_zones[0], unfinished.manifest_zones[0]);
    for next_id in next_id + 1..next_id + 5 {
        let state = open(&image).unwrap().1;
        assert_eq!((state.next_id, state.keyspaces[&0].runs.len()), (next_id - 1, 1));
        manifest.commit(&[Edit::NextId(next_id)]).unwrap();
    }
}
