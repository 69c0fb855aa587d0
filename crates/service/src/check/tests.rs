//! Who verifies a store, and what of.

use super::*;
use crate::testing::{TestEngine, World, assert_denied, stranger};

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
