//! Checkpoints of branches beside copies that are clones: before one or behind it.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Weak};

use kvfs_fs::{Caller, Credentials, FileSystem, FsError, NodeId, SetAttr};

use crate::setup::Setup;
use crate::undo::{look, over_the_engine};

const ROOT: NodeId = NodeId::ROOT;

/// Checkpoints its branch when the copy asks for what its user may: while it is under way.
#[derive(Debug)]
struct Checkpointing {
    branch: Weak<FileSystem>,
    asked: AtomicU32,
}

impl Credentials for Checkpointing {
    fn keeps_set_id(&self, _: &Caller) -> bool {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let branch = self.branch.upgrade().unwrap();
        let done = branch.branches().checkpoint();
        assert!(matches!(done, Err(FsError::Busy(_))), "{done:?}");
        false
    }

    fn is_in_group(&self, _: &Caller, _: u32) -> bool {
        false
    }
}

/// A branch with a large copy in it, of which a crash takes what was not checkpointed.
fn copied(is_kept: bool) -> Setup {
    let main = over_the_engine(1 << 20);
    let source = main.file(ROOT, "source");
    let part = vec![b'x'; 1 << 20];
    for at in 0..17 {
        main.write_at(source, at << 20, &part).unwrap();
    }
    main.fs.branches().create("b", 1000).unwrap();
    let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
    let (source, target) = (look(&branch, ROOT, "source"), branch.file(ROOT, "target"));
    let set_id = SetAttr { mode: Some(0o4755), ..SetAttr::default() };
    branch.setattr(&branch.caller, target, &set_id).unwrap();
    branch.branches().checkpoint().unwrap();
    let credentials: &'static Checkpointing =
        Box::leak(Box::new(Checkpointing { branch: Arc::downgrade(&branch.fs), asked: AtomicU32::new(0) }));
    let user = Caller { uid: 1000, credentials: Some(credentials), ..Caller::default() };
    let copied = branch.copy_file_range(&user, source, 0, target, 0, 17 << 20).unwrap();
    assert_eq!(copied.bytes, 17 << 20, "in one call");
    assert!(credentials.asked.load(Ordering::Relaxed) > 0);
    if is_kept {
        branch.branches().checkpoint().unwrap();
    }
    drop(branch);
    main
}

#[test]
fn checkpoint_of_a_branch_comes_before_a_large_copy_or_behind_it() {
    for is_kept in [false, true] {
        let main = copied(is_kept);
        let branch = main.through(main.fs.open_branch("b").unwrap(), main.options);
        let target = look(&branch, ROOT, "target");
        let size = branch.getattr(&branch.caller, target).unwrap().size;
        assert_eq!(size, if is_kept { 17 << 20 } else { 0 });
        let longer = SetAttr { size: Some(17 << 20), ..SetAttr::default() };
        branch.setattr(&branch.caller, target, &longer).unwrap();
        let expected = if is_kept { b'x' } else { 0 };
        assert!(branch.read_all(target).iter().all(|&byte| byte == expected));
        drop(branch);
        crate::branches::merge(&main, "b").unwrap();
        main.assert_sound("merged");
    }
}
