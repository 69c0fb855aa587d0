//! The command explains itself.

use crate::world::kvfs;

#[test]
fn every_command_has_help_with_examples() {
    for command in ["mkfs", "mount", "umount", "check", "stats", "kv", "locks", "snapshot", "txn", "version"]
    {
        let help = kvfs(&[command, "--help"]).ok();
        assert!(help.contains("Example"), "{command}: {help}");
        assert!(help.contains(&format!("kvfs {command}")), "{command}: {help}");
    }
    let help = kvfs(&["--help"]).ok();
    for part in ["Examples:", "Exit codes:", "mkfs", "mount", "umount", "check", "stats", "kv", "version"] {
        assert!(help.contains(part), "{part}");
    }
    assert!(!help.contains("in-background"));
    assert!(!kvfs(&["mount", "--help"]).ok().contains("in-background"));
}

#[test]
fn version_tells_program_and_format() {
    let text = kvfs(&["version"]).ok();
    assert!(text.contains(env!("CARGO_PKG_VERSION")) && text.contains("format"), "{text}");
    let json: serde_json::Value = serde_json::from_str(&kvfs(&["version", "--json"]).ok()).unwrap();
    assert_eq!(json["version"], env!("CARGO_PKG_VERSION"));
    assert!(json["format"].is_u64());
}

#[test]
fn wrong_usage_is_told() {
    kvfs::<&str>(&[]).fails(2, &["Usage"]);
    kvfs(&["sparkle"]).fails(2, &["sparkle"]);
    kvfs(&["mount", "onlyone"]).fails(2, &["DIR"]);
    kvfs(&["mount", "--workers", "0", "/s", "/d"]).fails(2, &["workers"]);
    kvfs(&["mount", "--memory", "1M", "/s", "/d"]).fails(2, &["memory", "64M"]);
    kvfs(&["mount", "-o", "sparkle", "/s", "/d"]).fails(2, &["sparkle", "mount --help"]);
    kvfs(&["mkfs", "/s", "--size", "1X"]).fails(2, &["1X"]);
}
