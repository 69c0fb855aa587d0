//! Inputs made of others: what a fuzzer would try that learns nothing, from a seed.
//!
//! Purpose: `make test` repeats the same inputs on every machine, compiled with everything else; `make fuzz`
//! looks for new ones.
//!
//! Thread safety: a mutator belongs to one thread. Invariant: inputs depend on the seed and the corpus alone.

use kvfs_device::Rng;

/// As `make fuzz` bounds them.
const INPUT_BYTES_MAX: usize = 8192;
/// Changes of one input, at most: few leave a valid beginning, many leave nothing of it.
const CHANGES_MAX: u64 = 8;
/// Bytes at the borders of what fields may hold.
const EDGES: [u8; 6] = [0, 1, 0x7f, 0x80, 0xfe, 0xff];

/// Makes inputs of a corpus.
#[derive(Debug)]
pub struct Mutator {
    corpus: Vec<Vec<u8>>,
    rng: Rng,
}

impl Mutator {
    /// Of `corpus`, in the order that `seed` gives. The empty input is always a part of it.
    pub fn new(mut corpus: Vec<Vec<u8>>, seed: u64) -> Self {
        corpus.push(Vec::new());
        Self { corpus, rng: Rng::new(seed) }
    }

    /// The next input, at most 8 KiB.
    pub fn next_input(&mut self) -> Vec<u8> {
        let mut input = self.any().clone();
        for _ in 0..=self.rng.below(CHANGES_MAX) {
            self.change(&mut input);
        }
        input.truncate(INPUT_BYTES_MAX);
        input
    }

    fn any(&mut self) -> &Vec<u8> {
        let index = self.rng.index(self.corpus.len());
        &self.corpus[index]
    }

    /// A range of `len` bytes: short ones as often as long ones.
    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.rng.index(len + 1);
        let scale = 1 << self.rng.below(10);
        let end = start + self.rng.index(scale.min(len - start) + 1);
        start..end
    }

    fn change(&mut self, input: &mut Vec<u8>) {
        let range = self.range(input.len());
        match self.rng.below(7) {
            0 if !input.is_empty() => {
                let bit = self.rng.index(input.len() * 8);
                input[bit / 8] ^= 1 << (bit % 8);
            }
            1 => {
                let edge = EDGES[self.rng.index(EDGES.len())];
                input[range].fill(edge);
            }
            2 => self.rng.fill(&mut input[range]),
            3 => drop(input.drain(range)),
            // Once more, right behind itself.
            4 => {
                let part = input[range.clone()].to_vec();
                input.splice(range.end..range.end, part);
            }
            5 => {
                let mut part = vec![0; 1 << self.rng.below(8)];
                self.rng.fill(&mut part);
                input.splice(range.start..range.start, part);
            }
            // A part of another one.
            _ => {
                let other = self.any().clone();
                let part = other[self.range(other.len())].to_vec();
                input.splice(range, part);
            }
        }
    }
}
