//! Calls that production code does not make.

use proc_macro2::TokenStream;

use crate::Finding;
use crate::source::{Source, TOOLS, flatten};

struct Ban {
    /// Rust tokens; white space does not matter.
    tokens: &'static str,
    instead: &'static str,
    /// Path prefixes where it is allowed.
    except: &'static [&'static str],
    /// Only these crates are looked at; empty = all.
    within: &'static [&'static str],
}

const CLOCK: &str = "crates/store/src/clock.rs";
const CLI: &str = "crates/cli/";
/// The one way to the files of a store, whose directory another user may own.
const STORE_DIR: &str = "crates/open/src/store_dir";
/// Sockets and plain files in it, for the daemon and the command.
const DAEMON_FILES: &str = "crates/cli/src/store_dir";
/// The directory of the public sockets, which is root's.
const PUBLIC: &str = "crates/cli/src/daemon/public.rs";
/// A directory with a new name, outside of any store.
const SESSION: &str = "crates/cli/src/commands/exec/session.rs";
const STORE_DIR_INSTEAD: &str = "go through StoreDir, which follows no link that another user has planted";

const BANS: &[Ban] = &[
    Ban {
        tokens: ".unwrap()",
        instead: "return a typed error, or `expect` an invariant",
        except: &[],
        within: &[],
    },
    Ban { tokens: "todo!", instead: "write it", except: &[], within: &[] },
    Ban { tokens: "unimplemented!", instead: "write it", except: &[], within: &[] },
    Ban { tokens: "dbg!", instead: "use tracing", except: &[], within: &[] },
    Ban { tokens: "println!", instead: "use tracing; output is the command's", except: &[CLI], within: &[] },
    Ban { tokens: "eprintln!", instead: "use tracing; output is the command's", except: &[CLI], within: &[] },
    Ban { tokens: "print!", instead: "use tracing; output is the command's", except: &[CLI], within: &[] },
    Ban { tokens: "eprint!", instead: "use tracing; output is the command's", except: &[CLI], within: &[] },
    Ban { tokens: "thread::sleep", instead: "wait on a condition", except: &[], within: &[] },
    Ban { tokens: "SystemTime::now", instead: "use kvfs_store::clock::Clock", except: &[CLOCK], within: &[] },
    Ban { tokens: "Instant::now", instead: "use kvfs_store::clock::Clock", except: &[CLOCK], within: &[] },
    Ban {
        tokens: "waitpid(None",
        instead: "`wait`: `None` leaves out children that have a process group of their own",
        except: &[],
        within: &[],
    },
    Ban { tokens: "process::exit", instead: "return an error", except: &[CLI], within: &[] },
    Ban {
        tokens: "std::fs",
        instead: "go through the device seam, where faults and crashes are tried",
        except: &[],
        within: &["store", "txn", "kvdb", "fs"],
    },
    Ban {
        tokens: "FileDevice::open",
        instead: STORE_DIR_INSTEAD,
        except: &[STORE_DIR],
        within: &["cli", "open", "capi"],
    },
    Ban {
        tokens: "FileDevice::create",
        instead: STORE_DIR_INSTEAD,
        except: &[STORE_DIR],
        within: &["cli", "open", "capi"],
    },
    Ban {
        tokens: "UnixListener::bind",
        instead: STORE_DIR_INSTEAD,
        except: &[DAEMON_FILES, PUBLIC],
        within: &["cli"],
    },
    Ban {
        tokens: "UnixStream::connect",
        instead: STORE_DIR_INSTEAD,
        except: &[DAEMON_FILES, PUBLIC],
        within: &["cli"],
    },
    Ban {
        tokens: "kvfs_socket::connect",
        instead: STORE_DIR_INSTEAD,
        except: &[DAEMON_FILES, PUBLIC],
        within: &["cli"],
    },
    Ban {
        tokens: "set_permissions",
        instead: STORE_DIR_INSTEAD,
        except: &[DAEMON_FILES, PUBLIC],
        within: &["cli"],
    },
    Ban {
        tokens: "DirBuilder::new",
        instead: STORE_DIR_INSTEAD,
        except: &[DAEMON_FILES, PUBLIC, SESSION],
        within: &["cli"],
    },
    Ban { tokens: "#[allow(", instead: "use `expect` with a reason", except: &[], within: &[] },
    Ban { tokens: "#![allow(", instead: "use `expect` with a reason", except: &[], within: &[] },
];

/// Tokens of a ban; an open bracket that is not closed stands for itself.
fn pattern(ban: &Ban) -> Vec<String> {
    let mut closing = Vec::new();
    for char in ban.tokens.chars() {
        match char {
            '(' => closing.push(')'),
            '[' => closing.push(']'),
            ')' | ']' => drop(closing.pop()),
            _ => {}
        }
    }
    let closed: String = ban.tokens.chars().chain(closing.iter().rev().copied()).collect();
    let mut tokens = Vec::new();
    if let Ok(stream) = closed.parse::<TokenStream>() {
        flatten(stream, &mut tokens);
    }
    let mut tokens: Vec<String> = tokens.into_iter().map(|(t, _)| t).collect();
    tokens.truncate(tokens.len().saturating_sub(closing.len()));
    assert!(!tokens.is_empty(), "a ban that matches nothing: {}", ban.tokens);
    tokens
}

/// Checks one source.
pub fn check(source: &Source) -> Vec<Finding> {
    if TOOLS.contains(&source.krate()) {
        return Vec::new();
    }
    let tokens = source.tokens();
    let mut findings = Vec::new();
    for ban in BANS {
        let elsewhere = !ban.within.is_empty() && !ban.within.contains(&source.krate());
        if elsewhere || ban.except.iter().any(|prefix| source.path.starts_with(prefix)) {
            continue;
        }
        let pattern = pattern(ban);
        for window in tokens.windows(pattern.len()) {
            if window.iter().zip(&pattern).all(|((token, _), wanted)| token == wanted) {
                findings.push(format!("{}:{}: `{}`: {}", source.path, window[0].1, ban.tokens, ban.instead));
            }
        }
    }
    findings
}

#[cfg(test)]
mod tests {
    use super::check;
    use crate::source::Source;

    fn findings(path: &str, text: &str) -> Vec<String> {
        check(&Source::parse(path, text).unwrap())
    }

    #[test]
    fn each_ban_is_found_at_its_line() {
        let text = "fn f() {\n  g().unwrap();\n  todo!();\n  std::thread::sleep(d);\n  println!(\"x\");\n}";
        let found = findings("crates/fs/src/x.rs", text);
        assert_eq!(found.len(), 4);
        assert!(found[0].starts_with("crates/fs/src/x.rs:2: "), "{}", found[0]);
        assert_eq!(findings("crates/fs/src/x.rs", "#[allow(dead_code)] fn f() {}").len(), 1);
        assert_eq!(findings("crates/kvdb/src/x.rs", "use std::fs::File;").len(), 1);
        assert_eq!(
            findings("crates/cli/src/x.rs", "fn f() { waitpid(None, o); waitpid(Some(p), o); }").len(),
            1
        );
    }

    #[test]
    fn files_of_a_store_are_reached_through_its_type_alone() {
        let text = "fn f() { FileDevice::open(path, false); UnixListener::bind(path); fs::set_permissions(path, mode); }";
        assert_eq!(findings("crates/cli/src/daemon/mod.rs", text).len(), 3);
        let device = "fn f() { FileDevice::open(path, false); }";
        assert!(findings("crates/open/src/store_dir/device.rs", device).is_empty());
        let socket = "fn f() { UnixListener::bind(path); }";
        assert!(findings("crates/cli/src/store_dir/sockets.rs", socket).is_empty());
        assert!(findings("crates/device/src/file.rs", text).is_empty());
    }

    #[test]
    fn words_are_not_calls() {
        let text = "//! .unwrap() and todo!()\nfn f() { g(\"println!\"); h.unwrap_or(1); }";
        assert!(findings("crates/fs/src/x.rs", text).is_empty());
    }

    #[test]
    fn seams_and_the_command_are_free() {
        assert!(findings("crates/store/src/clock.rs", "fn f() { SystemTime::now(); }").is_empty());
        assert!(findings("crates/cli/src/main.rs", "fn f() { println!(\"x\"); }").is_empty());
        assert!(
            findings("crates/fs/src/x.rs", "#[cfg(test)] mod tests { fn f() { g().unwrap(); } }").is_empty()
        );
    }
}
