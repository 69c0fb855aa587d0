//! What a caller sees of failures.

use std::ffi::c_int;

use super::*;

fn last() -> String {
    // The pointer is this thread's own message.
    LAST.with(|last| last.borrow().to_string_lossy().into_owned())
}

#[test]
fn panic_in_a_call_becomes_eio_with_a_message() {
    let done: c_int = call(|| panic!("of a test"));
    assert_eq!(done, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::EIO));
    assert_eq!(last(), "kvfs panicked, which is a bug: of a test");
}

#[test]
fn failure_with_a_zero_byte_has_a_message_without() {
    let done: *const u8 = call(|| refuse(libc::ERANGE, "a\0b"));
    assert!(done.is_null());
    assert_eq!(last(), "a?b");
}

#[test]
fn call_that_succeeds_leaves_errno_alone() {
    set_errno(libc::ENOTTY);
    let done: c_int = call(|| {
        set_errno(libc::EAGAIN);
        Ok(0)
    });
    assert_eq!((done, errno()), (0, libc::ENOTTY));
}
