//! Random operations beside the reference.

use crate::driver::Driver;
use crate::setup::Setup;

fn number_from_env(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// Seeds to run: one chosen by hand (`KVFS_FS_SEED`), or so many (`KVFS_FS_ROUNDS`), else `count`.
fn seeds(count: u64) -> std::ops::RangeInclusive<u64> {
    match number_from_env("KVFS_FS_SEED") {
        Some(seed) => seed..=seed,
        None => 1..=number_from_env("KVFS_FS_ROUNDS").unwrap_or(count),
    }
}

fn run(inline_len_max: u32, size_max: u64, seeds_count: u64) {
    for seed in seeds(seeds_count) {
        Driver::new(Setup::new(inline_len_max), seed, size_max).run(600);
    }
}

#[test]
fn behaves_like_the_reference() {
    run(4096, 20_000, 60);
}

#[test]
fn behaves_like_the_reference_with_a_small_inline_threshold() {
    run(100, 20_000, 60);
}

#[test]
fn behaves_like_the_reference_without_inline_content() {
    run(0, 20_000, 30);
}

#[test]
fn behaves_like_the_reference_with_the_largest_inline_threshold() {
    run(65536, 100_000, 20);
}

#[test]
fn behaves_like_the_reference_while_the_inline_threshold_changes() {
    for seed in seeds(40) {
        let mut driver = Driver::new(Setup::new(4096), seed, 20_000);
        for inline_len_max in [4096, 100, 16_384, 0, 65_536, 1000, 4096, 0] {
            kvfs_fs::set_inline_len_max(&driver.setup.fs, inline_len_max).unwrap();
            driver.run(75);
        }
    }
}
