use super::*;
use crate::memtable::testing::{Rng, for_seeds};

fn random(rng: &mut Rng) -> (u16, Vec<u8>) {
    let offset = rng.below(BLOCK_BYTES as u64);
    let most = if rng.below(4) == 0 { 4096 } else { 70 };
    let len = 1 + rng.below((BLOCK_BYTES as u64 - offset).min(most));
    (offset as u16, vec![1 + rng.below(255) as u8; len as usize])
}

#[test]
fn patches_come_to_the_same_in_every_way() {
    for_seeds(60, |rng| {
        let patches: Vec<_> = (0..=rng.below(12)).map(|_| random(rng)).collect();
        let base = vec![7; BLOCK_BYTES];
        let mut expected = base.clone();
        for (offset, data) in &patches {
            expected[usize::from(*offset)..][..data.len()].copy_from_slice(data);
        }
        let operands: Vec<Bytes> = patches.iter().map(|(offset, data)| operand(*offset, data)).collect();
        let slices: Vec<&[u8]> = operands.iter().map(|operand| &operand[..]).collect();
        assert_eq!(Patches.resolve(b"k", Some(&base), &slices).unwrap().unwrap(), expected);

        let mut overlay = Overlay::default();
        operands.iter().rev().for_each(|operand| overlay.put_below(operand));
        let mut block = base.clone();
        overlay.apply(&mut block);
        assert_eq!(block, expected);
        assert_eq!(overlay.is_whole(), patches_cover(&patches));

        let folded =
            operands.iter().cloned().reduce(|older, newer| Patches.fold(b"k", &older, &newer).unwrap());
        let folded = folded.unwrap();
        assert_eq!(folded, overlay.operand());
        assert_eq!(Patches.resolve(b"k", Some(&base), &[&folded]).unwrap().unwrap(), expected);

        let (newer, older) = operands.split_at(operands.len() / 2);
        let mut parts = [newer, older].map(|operands| {
            let mut overlay = Overlay::default();
            for operand in operands {
                overlay.put_below(operand);
            }
            overlay
        });
        let [upper, lower] = &mut parts;
        upper.put_overlay_below(lower);
        let mut all = Overlay::default();
        for operand in &operands {
            all.put_below(operand);
        }
        assert_eq!(upper.operand(), all.operand());
    });
}

fn patches_cover(patches: &[(u16, Vec<u8>)]) -> bool {
    (0..BLOCK_BYTES).all(|at| {
        patches
            .iter()
            .any(|(offset, data)| (usize::from(*offset)..usize::from(*offset) + data.len()).contains(&at))
    })
}

#[test]
fn an_absent_block_counts_as_zeros() {
    let mut expected = vec![0; BLOCK_BYTES];
    expected[BLOCK_BYTES - 1] = 9;
    let operand = operand(BLOCK_BYTES as u16 - 1, &[9]);
    assert_eq!(Patches.resolve(b"k", None, &[&operand]).unwrap().unwrap(), expected);
}

#[test]
fn what_is_no_operand_changes_nothing() {
    for broken in [&[][..], &[1], &[0, 0, 5, 0, 1], &[0xff, 0x0f, 2, 0, 1, 1]] {
        let mut overlay = Overlay::default();
        overlay.put_below(broken);
        assert_eq!(overlay.operand(), Bytes::new());
    }
}
