//! Keyspaces that are empty beside others whose keys were deleted.

use kvfs_store::KeyRange;
use tempfile::TempDir;

use super::*;

#[test]
fn fences_between_keyspaces_are_no_keys_of_either() {
    let dir = TempDir::new().unwrap();
    create(dir.path());
    let store = open(dir.path());
    let names = ["first", "second", "third"];
    let spaces = names.map(|name| store.open_keyspace(name, KeyspaceKind::Tuple, None).unwrap());
    let all = |keyspace| {
        let mut cursor = store.cursor(keyspace, KeyRange::all()).unwrap();
        let mut keys = Vec::new();
        cursor.last().unwrap();
        while let Some((key, _)) = cursor.entry() {
            keys.insert(0, key.to_vec());
            cursor.prev().unwrap();
        }
        cursor.next().unwrap();
        assert_eq!(cursor.entry().map(|(key, _)| key.to_vec()), keys.first().cloned());
        cursor.seek_back(b"").unwrap();
        assert!(cursor.entry().is_none());
        keys
    };
    let keys = [vec![0], vec![0, 0], vec![1], vec![0xff; 9]];
    let mut batch = Batch::new();
    for key in &keys {
        batch.put(spaces[1], key.clone(), "v");
    }
    store.apply(batch, Durability::Buffered).unwrap();
    assert_eq!(spaces.map(all), [vec![], keys.to_vec(), vec![]]);
    let mut batch = Batch::new();
    batch.delete_range(spaces[1], vec![], vec![0xff; 10]);
    store.apply(batch, Durability::Buffered).unwrap();
    assert_eq!(spaces.map(all), [const { Vec::<Vec<u8>>::new() }; 3]);
}
