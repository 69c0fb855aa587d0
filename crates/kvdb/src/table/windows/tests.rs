//! Windows: which owner finds them, what goes first, and which thread reads what is planned.

use kvfs_device::{Device, MemoryDevice};

use super::*;
use crate::format::{Extent, ZoneId, ZoneUse};
use crate::space::{Budget, Stream, Zones};

const KIB: usize = 1 << 10;

fn load(windows: &Windows, owner: Owner, addr: u64, len: usize, byte: u8) -> Option<Arc<Window>> {
    windows.load(owner, addr, len, |buf, _| {
        buf.fill(byte);
        Ok::<_, ()>(())
    })
}

#[test]
fn a_window_is_found_by_its_owner_and_every_part() {
    let windows = Windows::new(Accountant::new(64 << 20));
    let (mine, other) = (windows.new_owner(), windows.new_owner());
    load(&windows, mine, 1 << 20, 64 * KIB, 7).expect("room");
    let found = windows.find(mine, (1 << 20) + 4096, 4096).expect("within");
    assert_eq!(found.bytes().expect("read").at((1 << 20) + 4096, 4096), [7; 4096]);
    assert_eq!(found.bytes_from((1 << 20) + 4096), 60 * KIB);
    assert!(windows.find(other, 1 << 20, 4096).is_none());
    assert!(windows.find(mine, (1 << 20) + 60 * KIB as u64, 8192).is_none(), "past its end");
    windows.forget(mine);
    assert!(windows.find(mine, 1 << 20, 4096).is_none());
}

#[test]
fn a_failed_read_leaves_no_window() {
    let accountant = Accountant::new(64 << 20);
    let windows = Windows::new(Arc::clone(&accountant));
    let owner = windows.new_owner();
    assert!(windows.load(owner, 1 << 20, 64 * KIB, |_, _| Err("broken")).is_none());
    assert!(windows.find(owner, 1 << 20, 4096).is_none());
    assert_eq!(accountant.used(Pool::Io), 0);
}

#[test]
fn windows_stay_within_their_share_and_the_oldest_goes_first() {
    let accountant = Accountant::new(32 << 20);
    let windows = Windows::new(Arc::clone(&accountant));
    let owner = windows.new_owner();
    for n in 0..64 {
        load(&windows, owner, n << 20, 256 * KIB, n as u8).expect("room");
        assert!(accountant.used(Pool::Io) <= 2 << 20, "a sixteenth of the ceiling");
    }
    assert!(windows.find(owner, 63 << 20, 4096).is_some());
    assert!(windows.find(owner, 56 << 20, 4096).is_none());
    let held: Vec<_> = (57..64).filter_map(|n| windows.find(owner, n << 20, 4096)).collect();
    assert!(load(&windows, owner, 99 << 20, 256 * KIB, 0).is_none(), "all are in use");
    drop(held);
    assert!(load(&windows, owner, 99 << 20, 256 * KIB, 0).is_some());
}

#[test]
fn however_little_memory_there_is_two_windows_fit() {
    let windows = Windows::new(Accountant::new(0));
    let owner = windows.new_owner();
    for n in 0..3 {
        load(&windows, owner, n << 20, 64 * KIB, 0).expect("room");
    }
    assert!(windows.find(owner, 0, 1).is_none());
    assert!(windows.find(owner, 1 << 20, 1).is_some() && windows.find(owner, 2 << 20, 1).is_some());
}

/// What a piece has in a zone, full of sevens.
struct Stored {
    device: Arc<dyn Device>,
    zones: Arc<Zones>,
    extent: Extent,
}

impl Stored {
    fn new() -> Self {
        let device: Arc<dyn Device> = Arc::new(MemoryDevice::new(64 << 20));
        let zones = Zones::new(Arc::clone(&device), 1 << 20, 64 << 20, ZoneId(1));
        let extent = zones.allocate(Stream::FlushTuple, 512 << 10, Budget::Ordinary).expect("empty");
        device.write_at(&vec![7; 512 * KIB], extent.addr).expect("memory");
        Self { device, zones, extent }
    }

    /// The address of its `n`th 64 KiB.
    fn at(&self, n: u64) -> u64 {
        self.extent.addr + (n << 16)
    }

    fn plan(&self, windows: &Windows, owner: Owner, n: u64) {
        let zone_use =
            ZoneUse { zone: self.zones.zone_of(self.extent.addr), bytes: 4096, pieces: 1, end: 4096 };
        let hold = ZoneHold::new(Arc::clone(&self.device), Arc::clone(&self.zones), zone_use);
        windows.plan(owner, 64 * KIB, hold, || Some(self.at(n)..self.at(n + 1)));
    }

    fn holds(&self) -> u64 {
        let bytes_live: u64 = self.zones.rows().iter().map(|zone| zone.bytes_live).sum();
        (bytes_live - u64::from(self.extent.len)) / 4096
    }
}

#[test]
fn planned_window_is_read_by_the_serving_thread_or_the_first_reader() {
    let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(64 << 20)));
    let nines = |buf: &mut [u8], _: u64| {
        buf.fill(9);
        Ok::<_, ()>(())
    };
    let owner = windows.new_owner();
    assert!(!windows.can_plan(), "no thread serves");
    stored.plan(&windows, owner, 0);
    let early = windows.find(owner, stored.at(0), 4096).expect("planned");
    assert!(early.bytes().is_none() && stored.holds() == 1);
    assert!(windows.fill(&early, nines));
    windows.while_served(|| {
        stored.plan(&windows, owner, 1);
        while stored.holds() > 0 {
            std::thread::yield_now();
        }
        let late = windows.find(owner, stored.at(1), 4096).expect("planned");
        assert!(windows.can_plan() && windows.fill(&late, nines));
        assert_eq!(late.bytes().expect("read").at(stored.at(1), 4096), [7; 4096], "not read a second time");
    });
    assert_eq!(early.bytes().expect("read").at(stored.at(0), 4096), [9; 4096], "nor this");
    stored.plan(&windows, owner, 2);
    assert!(stored.holds() == 0 && !windows.can_plan(), "nothing is held for a thread that has ended");
}

#[test]
fn what_is_planned_pushes_out_only_what_walks_are_through_with() {
    let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(0)));
    let owner = windows.new_owner();
    let first = load(&windows, owner, 32 << 20, 64 * KIB, 0).expect("room");
    stored.plan(&windows, owner, 0);
    stored.plan(&windows, owner, 1);
    assert!(windows.find(owner, stored.at(1), 1).is_none(), "a reader is in the first one");
    first.note_use((32 << 20) + 32768, 4096, Direction::Forward);
    stored.plan(&windows, owner, 1);
    assert!(windows.find(owner, stored.at(1), 1).is_none(), "no walk, but a look-up");
    first.note_use((32 << 20) + 36864, 16384, Direction::Forward);
    drop(first);
    stored.plan(&windows, owner, 1);
    stored.plan(&windows, owner, 2);
    windows.close();
    assert!(windows.find(owner, 32 << 20, 1).is_none(), "the reader has left it");
    assert!(windows.find(owner, stored.at(0), 1).is_some());
    assert!(windows.find(owner, stored.at(1), 1).is_some());
    assert!(windows.find(owner, stored.at(2), 1).is_none(), "no room for it");
}

#[test]
fn planned_window_without_a_reader_goes_in_the_end() {
    let (stored, windows) = (Stored::new(), Windows::new(Accountant::new(0)));
    let owner = windows.new_owner();
    // Without the queue nothing else refers to them.
    windows.close();
    stored.plan(&windows, owner, 0);
    stored.plan(&windows, owner, 1);
    for _ in 0..20 {
        stored.plan(&windows, owner, 2);
        assert!(windows.find(owner, stored.at(1), 1).is_some(), "a reader comes to it again and again");
    }
    assert!(windows.find(owner, stored.at(0), 1).is_none());
    assert!(windows.find(owner, stored.at(2), 1).is_some());
}

#[test]
fn a_walk_wants_the_next_window_half_way_through_until_there_is_one() {
    let windows = Windows::new(Accountant::new(64 << 20));
    let owner = windows.new_owner();
    let at = |kib: u64| (1 << 20) + (kib << 10);
    let load = || load(&windows, owner, 1 << 20, 256 * KIB, 0).expect("room");
    let window = load();
    for kib in [0, 32, 64] {
        assert!(!window.note_use(at(kib), 32 * KIB, Direction::Forward));
    }
    assert!(window.note_use(at(96), 32 * KIB, Direction::Forward));
    window.follow(|| false);
    assert!(!window.note_use(at(128), 16 * KIB, Direction::Forward), "it was refused just now");
    assert!(window.note_use(at(144), 16 * KIB, Direction::Forward), "it was refused");
    window.follow(|| true);
    assert!(!window.note_use(at(160), 64 * KIB, Direction::Forward), "once");
    let window = load();
    assert!(!window.note_use(at(192), 4 * KIB, Direction::Forward), "a single look is no walk");
    let window = load();
    assert!(!window.note_use(at(160), 96 * KIB, Direction::Backward));
    assert!(window.note_use(at(128), 32 * KIB, Direction::Backward));
}
