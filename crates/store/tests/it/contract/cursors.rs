//! Cursors: both directions, seeks, clamping, one position.

use bytes::Bytes;
use kvfs_store::{Cursor, KeyRange, Result};

use super::Fixture;

fn filled() -> Fixture {
    let f = Fixture::new();
    f.apply(|b| {
        for key in ["b", "d", "f", "h"] {
            b.put(f.plain, key, key);
        }
    });
    f
}

fn key(cursor: &dyn Cursor) -> Option<&str> {
    cursor.entry().map(|(key, value)| {
        assert_eq!(key, &value[..]);
        std::str::from_utf8(key).unwrap()
    })
}

#[test]
fn fresh_cursors_are_nowhere_and_move_to_either_end() -> Result<()> {
    let f = filled();
    let mut cursor = f.store.cursor(f.plain, KeyRange::all())?;
    assert_eq!(key(&*cursor), None);
    cursor.next()?;
    assert_eq!(key(&*cursor), Some("b"));
    let mut cursor = f.store.cursor(f.plain, KeyRange::all())?;
    cursor.prev()?;
    assert_eq!(key(&*cursor), Some("h"));
    cursor.next()?;
    assert_eq!(key(&*cursor), None);
    cursor.next()?;
    assert_eq!(key(&*cursor), None);
    cursor.prev()?;
    assert_eq!(key(&*cursor), Some("h"));
    cursor.first()?;
    cursor.prev()?;
    assert_eq!(key(&*cursor), None);
    cursor.next()?;
    assert_eq!(key(&*cursor), Some("b"));
    Ok(())
}

#[test]
fn seeks_go_to_neighbours_and_are_clamped() -> Result<()> {
    let f = filled();
    let mut cursor = f.store.cursor(f.plain, KeyRange::new("c", "h"))?;
    for (target, forward, back) in [
        ("a", Some("d"), None),
        ("d", Some("d"), Some("d")),
        ("e", Some("f"), Some("d")),
        ("z", None, Some("f")),
    ] {
        cursor.seek(target.as_bytes())?;
        assert_eq!(key(&*cursor), forward, "seek {target}");
        cursor.seek_back(target.as_bytes())?;
        assert_eq!(key(&*cursor), back, "seek_back {target}");
    }
    cursor.seek_back(b"h")?;
    assert_eq!(key(&*cursor), Some("f"));
    cursor.last()?;
    assert_eq!(key(&*cursor), Some("f"));
    cursor.first()?;
    assert_eq!(key(&*cursor), Some("d"));
    Ok(())
}

#[test]
fn empty_ranges_have_no_entries() -> Result<()> {
    let f = filled();
    for range in [KeyRange::new("d", "d"), KeyRange::new("h", "b"), KeyRange::new("d", "")] {
        let mut cursor = f.store.cursor(f.plain, range)?;
        cursor.next()?;
        assert_eq!(key(&*cursor), None);
        cursor.prev()?;
        assert_eq!(key(&*cursor), None);
        cursor.first()?;
        assert_eq!(key(&*cursor), None);
        cursor.last()?;
        assert_eq!(key(&*cursor), None);
        cursor.seek(b"d")?;
        assert_eq!(key(&*cursor), None);
        cursor.seek_back(b"d")?;
        assert_eq!(key(&*cursor), None);
    }
    Ok(())
}

#[test]
fn a_cursor_stays_at_its_position_and_hinders_no_writer() -> Result<()> {
    let f = filled();
    let mut cursor = f.store.cursor(f.plain, KeyRange::all())?;
    cursor.next()?;
    f.apply(|b| {
        b.delete(f.plain, "d");
        b.put(f.plain, "e", "e");
        b.put(f.plain, "f", "other");
    });
    let mut keys = Vec::new();
    while let Some(key) = key(&*cursor) {
        keys.push(key.to_owned());
        cursor.next()?;
    }
    assert_eq!(keys, ["b", "d", "f", "h"]);
    assert_eq!(f.store.get(f.plain, b"f")?, Some(Bytes::from("other")));
    Ok(())
}
