//! Every fuzz target over its corpus and over inputs made of it, the same ones each time. `make fuzz` looks
//! for new ones.
//!
//! An input that makes a target panic is kept as `artifacts/TARGET/repeated`; `cargo fuzz run TARGET FILE`
//! repeats it.

use std::path::Path;
use std::{env, fs, thread};

use kvfs_fuzz::mutate::Mutator;
use kvfs_fuzz::{arguments, journal, manifest, messages, pieces, requests, streams, superblock};

/// Another one tries other inputs: `FUZZ_SEED`.
const SEED: u64 = 1;

/// Keeps the input of the moment, if it turns out to be a finding.
struct Trial<'a> {
    target: &'a str,
    seed: u64,
    input: Vec<u8>,
}

impl Drop for Trial<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("artifacts").join(self.target);
            let path = directory.join("repeated");
            let kept = fs::create_dir_all(&directory).and_then(|()| fs::write(&path, &self.input));
            eprintln!("target {}, seed {}, input in {}: {kept:?}", self.target, self.seed, path.display());
        }
    }
}

fn corpus(target: &str) -> Vec<Vec<u8>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("corpus").join(target);
    let entries = fs::read_dir(&directory).expect("each target has a corpus");
    let mut paths: Vec<_> = entries.map(|entry| entry.expect("the corpus can be read").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("the corpus can be read")).collect()
}

/// Runs `target` over its corpus, and over `inputs` inputs made of it.
fn repeat(target: &str, run: fn(&[u8]), inputs: usize) {
    let seed = env::var("FUZZ_SEED").map_or(SEED, |seed| seed.parse().expect("FUZZ_SEED is a number"));
    let corpus = corpus(target);
    let mut mutator = Mutator::new(corpus.clone(), seed);
    let made = std::iter::from_fn(|| Some(mutator.next_input())).take(inputs);
    for input in corpus.into_iter().chain(made) {
        let trial = Trial { target, seed, input };
        run(&trial.input);
    }
}

#[test]
fn no_superblock_panics() {
    repeat("superblock", superblock::run, 100_000);
}

#[test]
fn no_journal_panics() {
    repeat("journal", journal::run, 100_000);
}

#[test]
fn no_manifest_panics() {
    repeat("manifest", manifest::run, 100_000);
}

#[test]
fn no_piece_panics() {
    repeat("pieces", pieces::run, 100_000);
}

#[test]
fn no_stream_panics() {
    repeat("streams", streams::run, 10_000);
}

#[test]
fn no_request_panics() {
    repeat("requests", requests::run, 1000);
}

#[test]
fn no_message_panics() {
    repeat("messages", messages::run, 500);
}

#[test]
fn no_command_line_panics() {
    repeat("arguments", arguments::run, 3000);
}
