use super::*;

fn call(line: &str) -> Call {
    let words: Vec<OsString> = line.split(' ').map(Into::into).collect();
    called_as(&words).expect("is the name of a helper")
}

fn words(line: &str) -> String {
    let words = call(line).words;
    words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_mount_8_says_is_put_into_our_words() {
    assert_eq!(words("/sbin/mount.fuse.kvfs /s /d -o rw,noatime"), "mount -o rw,noatime -- /s /d");
    assert_eq!(words("mount.fuse.kvfs -n -v -o ro /s /d -t fuse.kvfs"), "mount -o ro -- /s /d");
    assert_eq!(words("mount.fuse.kvfs -s -o odd /s /d"), "mount --sloppy -o odd -- /s /d");
    assert_eq!(words("mount.fuse.kvfs -r /s /d"), "mount -o ro -- /s /d");
    assert_eq!(words("mount.fuse.kvfs /s /d"), "mount -- /s /d");
    assert!(call("mount.fuse.kvfs -f /s /d").is_fake);
    assert_eq!(words("/sbin/umount.fuse.kvfs /d -l"), "umount --lazy -- /d");
    assert_eq!(words("umount.fuse.kvfs -f -n /d"), "umount --abort-open -- /d");
}

#[test]
fn remount_is_passed_on_and_other_names_are_no_helpers() {
    assert_eq!(words("mount.fuse.kvfs /s /d -o rw,remount,ro"), "mount -o rw,remount,ro -- /s /d");
    assert!(called_as(&["kvfs".into(), "mount".into()]).is_none());
    assert!(called_as(&[]).is_none());
}

#[test]
fn exit_codes_are_those_of_mount_8() {
    assert_eq!((exit_code(Code::Usage), exit_code(Code::InUse)), (1, 32));
}
