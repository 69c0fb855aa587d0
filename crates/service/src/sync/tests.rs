//! What a sync says of a store that has failed.

use crate::error::ErrorKind;
use crate::testing::{TestEngine, World};

#[test]
fn sync_of_a_failed_store_is_an_error() {
    let mut world = World::new(false);
    assert!(world.mounted().sync().expect("syncs").is_empty());
    world.engine = TestEngine { failure: Some("no device".to_owned()), ..TestEngine::default() };
    let error = world.mounted().sync().expect_err("can't be vouched for");
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.to_string().contains("no device"), "{error}");
}
