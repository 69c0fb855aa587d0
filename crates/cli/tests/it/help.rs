//! The command explains itself.

use crate::world::{World, kvfs};

#[test]
fn every_command_has_help_with_examples() {
    let mut commands: Vec<Vec<String>> = vec![Vec::new()];
    let mut seen = 0;
    while let Some(command) = commands.pop() {
        let mut words = command.clone();
        words.push("--help".to_owned());
        let help = kvfs(&words).ok();
        let listed =
            help.split_once("\nCommands:\n").map(|(_, rest)| rest.split("\n\n").next().unwrap_or(rest));
        let names = listed.unwrap_or("").lines().filter_map(|line| line.strip_prefix("  "));
        let names = names.filter(|line| !line.starts_with(' ')).filter_map(|line| line.split(' ').next());
        for name in names.filter(|&name| name != "help") {
            commands.push([command.as_slice(), &[name.to_owned()]].concat());
        }
        let name = format!("kvfs {}", command.join(" "));
        assert!(help.contains("Example"), "{name}: {help}");
        let has_own = help.split("Example").skip(1).any(|examples| examples.contains(name.trim_end()));
        assert!(has_own, "{name}: {help}");
        seen += 1;
    }
    assert!(seen > 60, "{seen} commands");
    let help = kvfs(&["--help"]).ok();
    for part in ["Examples:", "Exit codes:", "mkfs", "mount", "umount", "check", "stats", "kv", "version"] {
        assert!(help.contains(part), "{part}");
    }
    assert!(!help.contains("in-background"));
    assert!(!kvfs(&["mount", "--help"]).ok().contains("in-background"));
}

#[test]
fn completions_and_manual_come_from_the_command_itself() {
    for shell in ["bash", "zsh", "fish"] {
        let text = kvfs(&["completions", shell]).ok();
        assert!(text.contains("snapshot") && text.contains("umount"), "{shell}");
        assert!(!text.contains("in-background"), "{shell} offers what is hidden");
    }
    let world = World::new();
    kvfs(&["pages", &world.text("share")]).ok();
    let page = std::fs::read_to_string(world.path("share/man/man1/kvfs-mount.1")).unwrap();
    assert!(page.contains("undo_count=N") && page.contains(".SH \"EXAMPLES\""), "{page}");
    assert!(world.path("share/zsh/site-functions/_kvfs").exists());
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
