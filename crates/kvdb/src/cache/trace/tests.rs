use std::sync::{Arc, Mutex};

use kvfs_device::Rng;

use super::*;

/// A file that a test can look into.
#[derive(Clone, Default)]
pub(in crate::cache) struct Shared(Arc<Mutex<Vec<u8>>>);

impl Shared {
    pub(in crate::cache) fn bytes(&self) -> Vec<u8> {
        self.0.lock().expect("no writer panicked").clone()
    }
}

impl Write for Shared {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("no writer panicked").write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn some_accesses(count: usize) -> Vec<CacheAccess> {
    let mut rng = Rng::new(1);
    let edge = |rng: &mut Rng| [0, u32::MAX, rng.below(100) as u32, rng.next_u64() as u32][rng.index(4)];
    (0..count)
        .map(|_| {
            let event = CacheEvent::ALL[rng.index(4)];
            let bytes = if event.has_bytes() { edge(&mut rng) } else { 0 };
            let (zone, generation, offset) = (edge(&mut rng), edge(&mut rng), edge(&mut rng));
            CacheAccess { event, zone, generation, offset, tier: Tier::ALL[rng.index(2)], bytes }
        })
        .collect()
}

#[test]
fn accesses_come_back_as_they_were_recorded() {
    let (file, accesses) = (Shared::default(), some_accesses(20_000));
    let mut recorder = Recorder::new(Box::new(file.clone()), u64::MAX).expect("begins");
    for access in &accesses {
        assert!(recorder.add(access).expect("writes"));
    }
    let info = recorder.finish().expect("ends");
    let bytes = file.bytes();
    assert_eq!((info.events, info.bytes, info.is_full), (20_000, bytes.len() as u64, false));
    let found: io::Result<Vec<_>> = CacheTrace::new(&bytes).expect("is one").collect();
    assert_eq!(found.expect("is whole"), accesses);
}

#[test]
fn trace_that_is_full_ends_with_a_whole_access() {
    let file = Shared::default();
    let mut recorder = Recorder::new(Box::new(file.clone()), 1000).expect("begins");
    let taken = some_accesses(1000).iter().filter(|access| recorder.add(access).expect("writes")).count();
    let info = recorder.finish().expect("ends");
    assert!(info.is_full && (1000..1032).contains(&info.bytes), "{info:?}");
    assert_eq!(info.events, taken as u64);
    let bytes = file.bytes();
    assert_eq!(CacheTrace::new(&bytes).expect("is one").flatten().count(), taken);
}

#[test]
fn damage_is_an_error_and_then_the_end() {
    assert!(CacheTrace::new(b"something else").is_err());
    let cut = [MAGIC, &[0, 2]].concat();
    let found: Vec<_> = CacheTrace::new(&cut).expect("begins well").collect();
    assert!(matches!(&found[..], [Err(_)]), "{found:?}");
    let unknown = [MAGIC, &[9, 0, 0, 0, 0]].concat();
    assert!(matches!(CacheTrace::new(&unknown).expect("begins well").next(), Some(Err(_))));
}
