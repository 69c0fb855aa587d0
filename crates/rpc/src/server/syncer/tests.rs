//! What waiting requests are told.

use tokio::runtime::Builder;

use super::*;

#[test]
fn sync_that_panics_fails_its_group_and_the_next_one_is_synced() {
    const PANICS: Position = Position(1);
    let syncer = Syncer::start(|position| {
        assert_ne!(position, PANICS);
        Ok(())
    });
    let syncer = syncer.expect("starts");
    let runtime = Builder::new_current_thread().build().expect("starts");
    let failed = runtime.block_on(syncer.sync(PANICS)).expect("is answered").expect_err("has failed");
    assert!(matches!(failed, StoreError::Io { .. }), "{failed}");
    let later = runtime.block_on(syncer.sync(Position(2))).expect("is answered");
    assert!(later.is_ok(), "{later:?}");
}
