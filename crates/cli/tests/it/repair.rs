//! `kvfs check --repair` as a user runs it.

use std::fs;
use std::path::Path;

use kvfs_kvdb::format::SUPERBLOCK_ADDRS;

use crate::world::{World, fingerprint, kvfs};

const SECTOR: usize = 4096;
const IN_USE: i32 = 3;
const DAMAGED: i32 = 5;
const REPAIRED: i32 = 11;
const IN_PART: i32 = 12;

/// A store with a key in each of two keyspaces, closed.
fn made(world: &World) -> String {
    let store = world.store("store");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "artist"]).ok();
    kvfs(&["kv", "put", "-s", &store, "notes", "note", "a note on something"]).ok();
    store
}

fn spoil(device: &Path, is_there: impl Fn(&[u8]) -> bool) {
    let mut bytes = fs::read(device).unwrap();
    let mut found = 0;
    for sector in bytes.chunks_mut(SECTOR).filter(|sector| is_there(sector)) {
        // Behind the header; a block of one record is short.
        sector[36..60].fill(0xa5);
        found += 1;
    }
    assert!(found > 0, "it is on the device");
    fs::write(device, bytes).unwrap();
}

fn holds(sector: &[u8], words: &[u8]) -> bool {
    sector.windows(words.len()).any(|window| window == words)
}

#[test]
fn a_sound_store_is_clean_and_a_damaged_superblock_is_written_anew() {
    let world = World::new();
    let store = made(&world);
    assert_eq!(kvfs(&["check", "--repair", &store]).ok(), "clean: nothing to repair\n");
    let device = world.path("store/device");
    let mut bytes = fs::read(&device).unwrap();
    bytes[SUPERBLOCK_ADDRS[0] as usize + 100] ^= 1;
    fs::write(&device, bytes).unwrap();
    let before = fingerprint(&store);
    let dry = kvfs(&["check", "--repair", "--dry-run", "--json", &store]);
    assert_eq!(dry.code, Some(REPAIRED), "{dry:?}");
    let json: serde_json::Value = serde_json::from_slice(&dry.stdout).unwrap();
    assert_eq!(
        (&json["clean"], &json["dry_run"], &json["lost"]),
        (&false.into(), &true.into(), &serde_json::json!([]))
    );
    assert_eq!(fingerprint(&store), before, "nothing was written");
    let repaired = kvfs(&["check", "--repair", &store]);
    assert_eq!(repaired.code, Some(REPAIRED), "{repaired:?}");
    assert_eq!(kvfs(&["check", "--repair", &store]).ok(), "clean: nothing to repair\n");
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).ok(), "artist");
}

#[test]
fn what_is_lost_is_listed_and_the_rest_is_there_in_a_copy_and_in_place() {
    let world = World::new();
    let store = made(&world);
    let device = world.path("store/device");
    // The block of one keyspace, but not what the journal remembers.
    spoil(&device, |sector| sector.starts_with(b"KVtb") && holds(sector, b"artist"));
    let before = fingerprint(&store);
    let copy = world.text("copy");
    let repaired = kvfs(&["check", "--repair", "--copy-to", &copy, &store]);
    assert_eq!(repaired.code, Some(IN_PART), "{repaired:?}");
    let said = String::from_utf8_lossy(&repaired.stdout);
    assert!(said.contains("lost: keyspace tags: up to 1 keys from song to song are lost"), "{said}");
    assert_eq!(fingerprint(&store), before, "the damaged store is as it was");
    kvfs(&["check", &copy]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &copy, "notes", "note"]).ok(), "a note on something");
    kvfs(&["check", "--repair", "--copy-to", &copy, &store]).fails(IN_USE, &["already holds a store"]);

    kvfs(&["check", &store]).fails(DAMAGED, &[]);
    assert_eq!(kvfs(&["check", "--repair", &store]).code, Some(IN_PART));
    kvfs(&["check", &store]).ok();
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "tags", "song"]).code, Some(1), "it is gone");
    assert_eq!(kvfs(&["kv", "get", "-s", &store, "notes", "note"]).ok(), "a note on something");
    kvfs(&["kv", "put", "-s", &store, "tags", "song", "again"]).ok();
}

#[test]
fn the_zones_are_a_picture() {
    let world = World::new();
    let store = made(&world);
    let picture = kvfs(&["stats", "--zones", &store]).ok();
    assert!(picture.lines().next().is_some_and(|line| line.trim_start().starts_with("0  SJJ")), "{picture}");
    assert!(picture.contains("M manifest") && picture.contains("data.dead_bytes"), "{picture}");
    let json: serde_json::Value =
        serde_json::from_str(&kvfs(&["stats", "--zones", "--json", &store]).ok()).unwrap();
    assert_eq!(json["zones"][0]["use"], "superblocks");
    assert_eq!(json["zones"].as_array().unwrap().len() as u64, json["zones.present"].as_u64().unwrap());
}
