//! Restores of what was removed as a tree, and of what is in such trees.

use kvfs_fs::{NodeId, Pause};

use crate::detached::{finish, go_on, grown, remove};
use crate::setup::Random;
use crate::snapshots::{Tree, rename, restore, restore_paths, tree};
use crate::undo::{keeping, look, mess, over_the_engine, same};

const ROOT: NodeId = NodeId::ROOT;

/// What was made, moved and changed in the tree between the snapshot and the removal came back with it.
#[test]
fn restore_of_a_removed_tree_leaves_out_what_came_after_the_snapshot() {
    for (seed, parts) in (1..=40).flat_map(|seed| [(seed, false), (seed, true)]) {
        let main = if seed % 4 == 0 { over_the_engine(16 << 10) } else { keeping(100) };
        let mut random = Random::new(seed);
        let top = grown(&main, &mut random);
        main.dir(ROOT, "other");
        let before = tree(&main).0;
        main.store.create_snapshot("whole").unwrap();
        mess(&main, &mut random, top, "n", 30);
        // Some of it goes with another tree.
        let name = main.list(top, 50, false).into_iter().find(|listed| listed.name.starts_with(b"n"));
        if let Some(listed) = name.filter(|_| seed % 2 == 0) {
            let name = String::from_utf8_lossy(&listed.name).into_owned();
            rename(&main, (top, &name), (look(&main, ROOT, "other"), "moved"));
            remove(&main, ROOT, "other");
        }
        remove(&main, ROOT, "tree");
        go_on(&main, random.below(20));
        let paths: &[&str] = if parts { &["/tree"] } else { &[] };
        let pause = Pause::of(&main.fs);
        let restored = match paths {
            [] => restore(&main, "whole"),
            paths => restore_paths(&main, "whole", paths),
        };
        restored.unwrap_or_else(|error| panic!("seed {seed}, parts {parts}: {error}"));
        drop(pause);
        let inside =
            |tree: Tree| -> Tree { tree.into_iter().filter(|(path, _)| path.starts_with("/tree")).collect() };
        let context = format!("seed {seed}, parts {parts}");
        main.assert_sound(&context);
        finish(&main);
        same(&inside(tree(&main).0), &inside(before), &context);
        main.assert_sound(&context);
    }
}

/// Of what the snapshot has on the device there is room for once alone.
#[test]
fn a_restored_file_takes_no_space_again() {
    const STEP_BYTES: u64 = 1 << 20;
    let main = over_the_engine(STEP_BYTES);
    let available = || main.store.space().available_bytes;
    let content = |step: u64| vec![step as u8 + 1; STEP_BYTES as usize];
    let file = main.file(ROOT, "large");
    let mut steps = 0;
    while steps * STEP_BYTES < available() + available() / 2 {
        main.write_at(file, steps * STEP_BYTES, &content(steps)).unwrap();
        steps += 1;
    }
    // Sparse, so that it is more than one stretch.
    main.write_at(file, (steps + 1) * STEP_BYTES, b"far").unwrap();
    let sparse = main.getattr(&main.caller, file).unwrap();
    main.store.create_snapshot("whole").unwrap();
    main.unlink(&main.caller, ROOT, b"large").unwrap();
    main.forget(file, 1);
    main.housekeep().unwrap();
    let before = available();
    restore(&main, "whole").unwrap();
    let taken = before.saturating_sub(available());
    assert!(taken < 4 * STEP_BYTES, "{taken} bytes for {steps} MiB");
    let file = look(&main, ROOT, "large");
    let restored = main.getattr(&main.caller, file).unwrap();
    assert_eq!((restored.size, restored.blocks), (sparse.size, sparse.blocks));
    let mut piece = vec![0; STEP_BYTES as usize];
    let mut read = |step: u64| {
        let read_bytes = main.read(&main.caller, file, step * STEP_BYTES, &mut piece).unwrap();
        piece[..read_bytes].to_vec()
    };
    for step in 0..steps {
        assert!(read(step) == content(step), "MiB {step}");
    }
    assert_eq!(read(steps + 1), b"far");
    main.assert_sound("restored");
}
