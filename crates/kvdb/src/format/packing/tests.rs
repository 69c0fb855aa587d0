//! What was packed comes back, and what was not packed does no harm.

use kvfs_device::Rng;

use super::*;

const ALL: [Compression; 4] =
    [Compression::Lz4, Compression::Zstd(1), Compression::Zstd(3), Compression::Zstd(19)];

/// Bytes that repeat themselves more or less.
fn bytes(rng: &mut Rng, len: usize) -> Vec<u8> {
    let bits = rng.below(9);
    let alphabet = 1 + rng.below(1 << bits);
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        if bytes.len() > 16 && rng.below(3) == 0 {
            let from = rng.below(bytes.len() as u64 - 8) as usize;
            let count = (1 + rng.below(200) as usize).min(bytes.len() - from).min(len - bytes.len());
            bytes.extend_from_within(from..from + count);
        } else {
            bytes.push(rng.below(alphabet) as u8);
        }
    }
    bytes
}

#[test]
fn what_was_packed_comes_back_and_wins_a_sector() {
    let mut packer = Packer::default();
    for seed in 0..300 {
        let mut rng = Rng::new(seed);
        // Of any magnitude: a sector more or less counts among the small ones.
        let len_max = (4096 << rng.below(7)).min(160 << 10);
        let len = rng.below(len_max) as usize;
        let raw = bytes(&mut rng, len);
        for compression in ALL {
            let Some((codec, stored)) = packer.pack(&raw, compression) else { continue };
            assert!(stored.len().div_ceil(4096) < raw.len().div_ceil(4096), "seed {seed}, {compression}");
            let mut back = vec![0xee; raw.len()];
            unpack(codec, stored, &mut back).unwrap_or_else(|error| panic!("seed {seed}: {error}"));
            assert!(back == raw, "seed {seed}, {compression}");
            // Told another length, it refuses.
            let mut longer = vec![0; raw.len() + 1];
            assert!(unpack(codec, stored, &mut longer).is_err(), "seed {seed}");
            assert!(unpack(codec, stored, &mut longer[..raw.len() - 1]).is_err(), "seed {seed}");
        }
    }
}

#[test]
fn what_gets_no_smaller_stays_as_it_is() {
    let mut packer = Packer::default();
    let mut rng = Rng::new(7);
    let noise: Vec<u8> = (0..128 << 10).map(|_| rng.below(256) as u8).collect();
    for compression in ALL {
        assert!(packer.pack(&noise, compression).is_none());
        assert!(packer.pack(&[0; 4096], compression).is_none(), "one sector stays one");
        assert!(packer.pack(&[0; 4097], compression).is_some());
        assert!(packer.pack(&[], compression).is_none());
    }
    assert!(packer.pack(&[0; 8192], Compression::None).is_none());
}

#[test]
fn garbage_is_refused_or_fills_what_was_announced() {
    let mut packer = Packer::default();
    for seed in 0..2000 {
        let mut rng = Rng::new(seed);
        let raw = bytes(&mut rng, 20_000);
        for (codec, compression) in [(Codec::Lz4, Compression::Lz4), (Codec::Zstd, Compression::Zstd(3))] {
            let mut stored = match packer.pack(&raw, compression) {
                Some((_, stored)) if rng.below(2) == 0 => stored.to_vec(),
                _ => (0..rng.below(500)).map(|_| rng.below(256) as u8).collect(),
            };
            for _ in 0..=rng.below(4) {
                if !stored.is_empty() {
                    let at = rng.below(stored.len() as u64) as usize;
                    stored[at] ^= 1 << rng.below(8);
                }
            }
            stored.truncate(stored.len() - rng.below(stored.len() as u64 / 4 + 1) as usize);
            let mut room = vec![0xaa; 20_000 + 64];
            let (out, behind) = room.split_at_mut(20_000);
            let _ = unpack(codec, &stored, out);
            assert!(behind.iter().all(|&byte| byte == 0xaa), "seed {seed}: wrote behind its end");
        }
    }
}
