//! Files over the engine, beside the reference that every engine is judged by.

use kvfs_fs::MountOptions;

use crate::driver::Driver;
use crate::setup::Setup;
use crate::{Engine, Slate, threads};

fn setup(inline_len_max: u32) -> Setup {
    Setup::with(Slate::keeping(0), inline_len_max, MountOptions::default())
}

#[test]
fn files_over_slatedb_behave_like_the_reference() {
    for (seed, inline_len_max) in [(1, 4096), (2, 100), (3, 0), (4, 65536)] {
        Driver::new(setup(inline_len_max), seed, 20_000).run(400);
    }
}

#[test]
fn threads_over_slatedb_leave_a_sound_tree() {
    for work in [threads::work_in_one_directory, threads::move_directories] {
        work(&setup(4096));
    }
}
