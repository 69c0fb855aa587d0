use super::*;

fn asked(list: &str) -> Asked {
    let mut asked = Asked { mount: MountOptions::default(), ours: Ours::default() };
    asked.apply(list, false).expect("is valid");
    asked
}

/// What a mount by `mounted` says to a remount by `options`.
fn remount(mounted: &str, options: &str) -> Result<Remount> {
    let options: Vec<String> = options.split(',').map(str::to_owned).collect();
    asked(mounted).remount(&options)
}

#[test]
fn options_of_a_remount_change_something_equal_what_is_or_are_refused_by_name() {
    let change = remount("commit=2", "commit=2,commit=5,placement=hot-cold").expect("changes");
    assert_eq!(change.commit_interval, Some(Duration::from_secs(5)));
    assert_eq!(change.placement.as_deref(), Some("hot-cold"));
    assert_eq!(remount("commit=2", "noexec").expect("is the kernel's"), Remount::default());

    // Of each option: what differs is refused, what is as before is not, and the last one counts.
    let all = [
        ("noatime", "relatime"),
        ("nodiratime", "diratime"),
        ("writeback", ""),
        ("nosteer", ""),
        ("io_uring", ""),
        ("noacl", "acl"),
        ("lazytime", "nolazytime"),
        ("nobtime", ""),
        ("private_snapshots", ""),
        ("allow_other", "no_allow_other"),
        ("no_default_permissions", "default_permissions"),
        ("max_read=4096", "max_read=0"),
        ("undo_count=3", "undo_count=16"),
        ("undo_age=5m", "undo_age=1h"),
        ("txn_idle=0", "txn_idle=8h"),
        ("slow=0", "slow=1s"),
        ("metrics=127.0.0.1:9100", ""),
        ("size=1G", ""),
        ("memory=64M", "memory=65M"),
        ("workers=3", ""),
        ("io_limit=1M", "io_limit=0"),
        ("dirty_bytes=4M", "dirty_bytes=0"),
        ("cache=lru", "cache=tiered"),
        ("cache_size=1G", "cache_size=0"),
        ("lease=5s", "lease=6s"),
        ("timeout=90s", "timeout=0"),
        ("durability=local", "durability=storage"),
        ("follow", ""),
        ("cache_trace=/trace", ""),
        ("store_owner=1", ""),
    ];
    for (option, otherwise) in all {
        let begun_with = if option.starts_with("memory") { otherwise } else { "rw" };
        let refused = remount(begun_with, &format!("commit=5,{option}")).expect_err(option);
        assert_eq!(refused.code, Code::Usage, "{option}");
        assert!(
            refused.message.starts_with(&format!("{option} needs another mount: ")),
            "{}",
            refused.message
        );
        assert_eq!(remount(option, option).expect("is as before"), Remount::default(), "{option}");
        if !otherwise.is_empty() {
            let refused = remount(option, otherwise).expect_err(otherwise).message;
            assert!(refused.starts_with(&format!("{otherwise} needs")), "{refused}");
            remount(option, &format!("{otherwise},{option}")).expect("the last one counts");
        }
    }
    let defaults = "undo_count=16,undo_age=1h,txn_idle=8h,slow=1s,io_limit=0,cache=tiered,relatime,acl";
    remount("rw", defaults).expect("are the defaults");
    remount("rw", "create,nonempty,take_over,nofail,x-systemd.automount,fsname=a")
        .expect("are about the moment of a mount");
    assert!(remount("rw", "size=1G").expect_err("is no way").message.contains("kvfs grow"));
    assert!(remount("rw", "sparkle").expect_err("is unknown").message.contains("unknown mount option"));
}
