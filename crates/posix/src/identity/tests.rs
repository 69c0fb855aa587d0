//! What is kept of users.

use std::sync::Arc;

use super::*;

#[test]
fn groups_of_a_user_go_with_the_last_one_who_acts_for_it() {
    let actor = Actor::new(&Identity { uid: 1000, gid: 7, groups: vec![9, 7, 8] }, Arc::default());
    let child = actor.waiting(Arc::default());
    assert_eq!(child.groups(), [7, 8, 9]);
    let groups = Arc::downgrade(actor.caller.groups.as_ref().expect("has some"));
    drop(actor);
    assert!(groups.upgrade().is_some());
    drop(child);
    assert!(groups.upgrade().is_none(), "nothing else keeps them");
}

#[test]
fn users_are_in_the_groups_that_they_bring_along() {
    let Actor { caller, .. } = Actor::new(&Identity { uid: 1000, gid: 7, groups: vec![9] }, Arc::default());
    let is_in = |gid| caller.credentials.expect("has some").is_in_group(&caller, gid);
    assert_eq!([7, 8, 9].map(is_in), [true, false, true]);
}
