//! Data flows one way: front ends → fs → kv → txn → store trait → engine → device.

use crate::Finding;

/// What each crate may depend on. A crate that is not listed is a finding: give it a place here and in
/// `docs/ARCHITECTURE.md`.
const MAY_USE: &[(&str, &[&str])] = &[
    ("locks", &[]),
    ("memory", &[]),
    ("device", &["locks", "memory"]),
    ("store", &[]),
    ("kvdb", &["locks", "memory", "store", "device"]),
    ("engine-memory", &["store"]),
    ("engine-transactions", &["locks", "store"]),
    ("engine-common", &["locks", "store", "engine-transactions"]),
    ("engine-rocksdb", &["locks", "store", "engine-common"]),
    ("engine-leveldb", &["locks", "store", "engine-common"]),
    ("engine-slatedb", &["locks", "store", "engine-common", "engine-transactions", "objects"]),
    ("objects", &[]),
    ("txn", &["locks", "store"]),
    ("kv", &["locks", "txn", "store"]),
    ("fs", &["locks", "kv", "txn", "store"]),
    ("socket", &["locks"]),
    ("fuse", &["locks", "fs", "memory", "socket"]),
    ("rpc", &["locks", "socket", "fs", "kv", "txn", "store"]),
    ("service", &["locks", "fs", "kv", "store"]),
    ("control", &["locks", "socket", "service", "fs", "store"]),
    (
        "open",
        &[
            "locks",
            "device",
            "store",
            "kvdb",
            "engine-common",
            "engine-leveldb",
            "engine-memory",
            "engine-rocksdb",
            "engine-slatedb",
            "engine-transactions",
            "fs",
            "service",
            "socket",
        ],
    ),
    ("repository", &["objects", "fs", "kv", "store"]),
    ("posix", &["locks", "socket", "service", "fs", "kv", "store"]),
    ("lane", &["socket"]),
    ("serve", &["locks", "lane", "socket", "store", "kv", "fs", "posix"]),
    ("client", &["lane", "store", "kv", "fs", "posix"]),
    ("preload", &["lane"]),
    ("capi", &["store", "kv", "fs", "open", "service", "posix", "client"]),
    (
        "cli",
        &[
            "locks",
            "memory",
            "device",
            "store",
            "kvdb",
            "txn",
            "kv",
            "fs",
            "fuse",
            "socket",
            "rpc",
            "service",
            "control",
            "open",
            "posix",
            "lane",
            "serve",
            "repository",
        ],
    ),
    ("sim", &["device", "store", "kvdb", "txn", "fs", "fuse"]),
    ("bench", &["device", "store", "kvdb", "txn", "fs", "fuse", "rpc"]),
    ("tidy", &[]),
];

/// Crates that nothing may depend on, not even in tests.
const LEAVES: &[&str] = &["cli", "sim", "bench", "tidy"];

/// Checks the manifest of the crate `kvfs-<name>`. Dev-dependencies may go up (a test of `fs` may run
/// on the engine), but never to a leaf.
///
/// # Errors
/// A manifest that is not TOML.
pub fn check(name: &str, manifest: &str) -> Result<Vec<Finding>, String> {
    let at = format!("crates of kvfs-{name}: Cargo.toml");
    let manifest: toml::Table = manifest.parse().map_err(|e| format!("{at}: {e}"))?;
    let Some((_, allowed)) = MAY_USE.iter().find(|(n, _)| *n == name) else {
        return Ok(vec![format!(
            "{at}: crate `{name}` has no place in the layers (crates/tidy/src/layers.rs)"
        )]);
    };
    let mut findings = Vec::new();
    for section in ["dependencies", "build-dependencies", "dev-dependencies"] {
        let Some(table) = manifest.get(section).and_then(toml::Value::as_table) else { continue };
        for used in table.keys().filter_map(|k| k.strip_prefix("kvfs-")) {
            let dev = section == "dev-dependencies";
            if LEAVES.contains(&used) || (!dev && !allowed.contains(&used)) {
                findings.push(format!("{at}: `{name}` must not use `{used}` ([{section}])"));
            }
        }
    }
    Ok(findings)
}

#[cfg(test)]
mod tests {
    use super::check;

    #[test]
    fn an_edge_upwards_is_found() {
        let manifest = "[dependencies]\nkvfs-fs.workspace = true\nkvfs-store.workspace = true\n";
        assert_eq!(check("kvdb", manifest).unwrap().len(), 1);
        assert_eq!(check("fuse", manifest).unwrap().len(), 1);
        assert_eq!(check("cli", manifest).unwrap().len(), 0);
    }

    #[test]
    fn tests_may_go_up_but_not_to_a_leaf() {
        assert!(check("fs", "[dev-dependencies]\nkvfs-kvdb.workspace = true\n").unwrap().is_empty());
        assert_eq!(check("fs", "[dev-dependencies]\nkvfs-sim.workspace = true\n").unwrap().len(), 1);
    }

    #[test]
    fn an_unknown_crate_is_found() {
        assert_eq!(check("extra", "").unwrap().len(), 1);
    }
}
