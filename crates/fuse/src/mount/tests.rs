use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use super::*;

#[test]
fn options_are_taken_in_order_and_the_rest_is_left() {
    let mut options = MountOptions::default();
    let rest =
        options.apply("ro,noatime,rw,memory=1G,nosuid,x-systemd.automount,allow_other,writeback").unwrap();
    assert_eq!(rest, ["memory=1G", "writeback"]);
    assert!(!options.read_only && options.nosuid && options.allow_other);
    assert_eq!(options.atime, AtimeMode::Noatime);
    assert!(matches!(options.apply("max_read=lots"), Err(MountError::Option { .. })));
}

#[test]
fn strictatime_is_refused_with_what_to_use() {
    let refused = MountOptions::default().apply("rw,strictatime").unwrap_err();
    assert!(refused.to_string().contains("use relatime"), "{refused}");
}

#[test]
fn lists_for_the_kernel_and_for_fusermount() {
    let mut options = MountOptions::default();
    options.apply("allow_other,max_read=4096,fsname=a,ro,noexec").unwrap();
    assert_eq!(
        options.syscall_data(5, 10, 20),
        "fd=5,rootmode=40000,user_id=10,group_id=20,allow_other,default_permissions,max_read=4096"
    );
    options.source = PathBuf::from(OsStr::from_bytes(b"with,comma\xff"));
    let list = options.fusermount_list();
    assert_eq!(
        list.as_bytes(),
        b"allow_other,default_permissions,max_read=4096,ro,noexec,nosuid,nodev,fsname=with\\,comma\xff,subtype=kvfs"
    );
    assert!(options.flags().contains(rustix::mount::MountFlags::RDONLY | rustix::mount::MountFlags::NOEXEC));
}

#[test]
fn a_missing_point_and_a_file_are_told_apart() {
    let missing = mount(Path::new("/nowhere/at/all"), &MountOptions::default()).unwrap_err();
    assert!(matches!(missing, MountError::Point { .. }), "{missing}");
    let file = mount(Path::new("/proc/self/status"), &MountOptions::default()).unwrap_err();
    assert!(matches!(file, MountError::NotDirectory { .. }), "{file}");
}

#[test]
fn unmounting_nothing_says_so() {
    let dir = std::env::temp_dir().join("no-such-mount");
    let error = unmount_by_syscall(&dir, &dir, UnmountFlags::empty()).unwrap_err();
    assert!(matches!(error, MountError::NotMounted { .. } | MountError::NotPermitted { .. }), "{error}");
}

#[test]
fn words_of_the_mount_points_path_are_no_reason() {
    let point = Path::new("/home/me/busybox/access");
    let message = "fusermount3: failed to unmount /home/me/busybox/access: Operation not permitted";
    assert_eq!(
        fusermount::reason(message, point),
        "fusermount3: failed to unmount : Operation not permitted"
    );
    let refused = MountError::Fusermount { point: point.to_owned(), message: message.to_owned() };
    assert!(refused.to_string().contains(message), "{refused}");
    assert!(refused.is_denied());
    let message = "fusermount3: failed to open /home/me/busybox/access: Input/output error".to_owned();
    assert!(!MountError::Fusermount { point: point.to_owned(), message }.is_denied());
}
