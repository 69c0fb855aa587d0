//! Limits, kinds, and a full store.

use kvfs_store::{BATCH_BYTES_MAX, BLOCK_BYTES, KEY_LEN_MAX, Keyspace, StoreError, VALUE_LEN_MAX};

use super::Fixture;

#[test]
fn keys_values_and_batches_have_limits() {
    let f = Fixture::new();
    let key = vec![1; KEY_LEN_MAX];
    f.apply(|b| b.put(f.plain, key.clone(), vec![0; VALUE_LEN_MAX]));
    let long = [key, vec![1]].concat();
    let too_long = f.try_apply(|b| b.put(f.plain, long.clone(), "v"));
    assert!(matches!(too_long, Err(StoreError::KeyTooLong { len: 4097, .. })));
    let too_long = f.try_apply(|b| b.put(f.plain, "k", vec![0; VALUE_LEN_MAX + 1]));
    assert!(matches!(too_long, Err(StoreError::ValueTooLong { .. })));
    assert!(matches!(f.try_apply(|b| b.delete(f.plain, "")), Err(StoreError::KeyEmpty)));
    let too_large = f.try_apply(|b| {
        for key in 0..=(BATCH_BYTES_MAX / VALUE_LEN_MAX) as u32 {
            b.put(f.plain, key.to_be_bytes().to_vec(), vec![0; VALUE_LEN_MAX]);
        }
    });
    assert!(matches!(too_large, Err(StoreError::BatchTooLarge { .. })));
    let ragged = f.try_apply(|b| b.put_blocks(f.blocks, "f", 0, vec![0; BLOCK_BYTES + 1]));
    assert!(matches!(ragged, Err(StoreError::BlockShape { .. })));
    assert_eq!(f.store.position().0, 1);
}

#[test]
fn operations_fit_the_kind_of_their_keyspace() {
    let f = Fixture::new();
    f.put("a", "1");
    let wrong = [
        f.try_apply(|b| b.put(f.blocks, "k", "v")),
        f.try_apply(|b| b.merge(f.blocks, "k", "v")),
        f.try_apply(|b| {
            b.delete(f.plain, "a");
            b.put_blocks(f.plain, "k", 0, vec![0; BLOCK_BYTES]);
        }),
    ];
    for result in wrong {
        assert!(matches!(result, Err(StoreError::WrongKind { .. })), "{result:?}");
    }
    let read = f.store.read_blocks(f.plain, b"k", 0, &mut [0; BLOCK_BYTES]);
    assert!(matches!(read, Err(StoreError::WrongKind { .. })));
    f.apply(|b| {
        b.delete(f.blocks, "12345678");
        b.delete_range(f.blocks, "a", "b");
    });
    assert!(f.store.get(f.plain, b"a").unwrap().is_some());
}

#[test]
fn unknown_keyspaces_are_refused() {
    let f = Fixture::new();
    let unknown = Keyspace(17);
    assert!(matches!(f.store.get(unknown, b"k"), Err(StoreError::NoKeyspace(_))));
    assert!(matches!(f.try_apply(|b| b.delete(unknown, "k")), Err(StoreError::NoKeyspace(_))));
}
