//! Who verifies a store, and what of.

use super::*;
use crate::testing::{TestEngine, World, assert_denied, stranger};

#[test]
fn owner_of_a_store_that_another_user_serves_has_one_check_at_a_time() {
    let owner = Caller::of_mount(Caller::own().uid + 2000, 1);
    let world = World::owned_by(owner.uid, false);
    let running = world.checks.lock();
    let refused = world.mounted().check(&owner).expect_err("is refused");
    assert_eq!(refused.kind(), ErrorKind::InUse);
    world.mounted().check(&Caller::own()).expect("is the server's");
    drop(running);
    world.mounted().check(&owner).expect("is the only one");
}

#[test]
fn check_tells_findings_of_the_engine_and_counts_of_both() {
    let mut world = World::new(false);
    let findings = vec!["run 3: wrong checksum".to_owned(), "odd".to_owned()];
    world.engine = TestEngine { findings, ..TestEngine::default() };
    let store = world.unmounted();
    assert_denied(store.check(&stranger()), "only root and the store's owner check the store");
    let checked = store.check(&Caller::own()).expect("checks");
    let places: Vec<&str> = checked.findings.iter().map(|finding| &*finding.place).collect();
    assert_eq!(places, ["run 3", "store"]);
    let names: Vec<&str> = checked.counts.iter().map(|(name, _)| &**name).collect();
    assert_eq!(names, ["runs", "directories", "files", "names", "orphans", "extended attributes"]);
}
