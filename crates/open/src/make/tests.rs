use super::*;

const NEW: Option<u64> = Some(CAPACITY_BYTES_MIN);

fn make(path: &Path) -> Result<u64> {
    make_store(path, NewStore::of_size(NEW), |dir| own_device(dir, NEW))
}

#[test]
fn a_directory_is_of_one_making_and_another_one_removes_nothing() {
    let base = tempfile::tempdir().expect("a directory");
    let path = base.path().join("store");
    let made = make_store(&path, NewStore::of_size(NEW), |dir| {
        let late = make(&path).expect_err("another one is under way");
        assert_eq!(late.kind(), ErrorKind::InUse, "{late}");
        let device = own_device(dir, NEW);
        let late = make(&path).expect_err("another one is under way");
        assert_eq!(late.kind(), ErrorKind::InUse, "{late}");
        assert!(path.join("device").exists());
        device
    });
    made.expect("makes");
    let late = make(&path).expect_err("there is one");
    assert!(late.to_string().contains("already holds a store"), "{late}");
    assert!(path.join("device").exists());
}

#[test]
fn a_making_that_fails_leaves_the_directory_as_it_was() {
    let base = tempfile::tempdir().expect("a directory");
    let (old, new) = (base.path().join("old"), base.path().join("new"));
    std::fs::create_dir(&old).expect("makes");
    for path in [&old, &new] {
        let failed = make_store(path, NewStore::of_size(NEW), |dir| {
            own_device(dir, NEW)?;
            Err(Error::new(ErrorKind::Failed, "as a test wants it"))
        });
        failed.expect_err("fails");
    }
    assert!(!StoreDir::is_occupied(&old) && old.exists() && !new.exists());
    make(&old).expect("makes");
    make(&new).expect("makes");
}
