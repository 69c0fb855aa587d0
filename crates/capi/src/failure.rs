//! How functions fail: a value that says so, `errno`, and a message.
//!
//! Purpose: [`call`] runs the body of every exported function.
//!
//! Thread safety: each thread has its own last message. Invariant: a panic becomes EIO.

use std::any::Any;
use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::panic::{AssertUnwindSafe, catch_unwind};

use kvfs_fs::FsError;
use kvfs_posix::PosixError;
use kvfs_service::ErrorKind;
use kvfs_store::StoreError;

use crate::foreign::{errno, set_errno};

thread_local! {
    static LAST: RefCell<CString> = RefCell::default();
}

/// Why a function did nothing.
#[derive(Debug)]
pub(crate) struct Failure {
    errno: c_int,
    message: String,
}

pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

impl Failure {
    pub(crate) fn new(errno: c_int, message: impl Into<String>) -> Self {
        Self { errno, message: message.into() }
    }

    fn of_panic(panic: &(dyn Any + Send)) -> Self {
        let text = panic.downcast_ref::<&str>().copied();
        let text =
            text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("no message");
        Self::new(libc::EIO, format!("kvfs panicked, which is a bug: {text}"))
    }
}

/// A refusal as a result.
pub(crate) fn refuse<T>(errno: c_int, message: &str) -> Result<T> {
    Err(Failure::new(errno, message))
}

impl From<PosixError> for Failure {
    fn from(error: PosixError) -> Self {
        Self::new(error.errno().raw_os_error(), error.to_string())
    }
}

impl From<FsError> for Failure {
    fn from(error: FsError) -> Self {
        let is_of_caller = matches!(
            &error,
            FsError::Store(cause) if matches!(
                **cause,
                StoreError::KeyEmpty | StoreError::KeyTooLong { .. } | StoreError::ValueTooLong { .. }
            )
        );
        Self::new(if is_of_caller { libc::EINVAL } else { error.errno() }, error.to_string())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        FsError::from(error).into()
    }
}

impl From<kvfs_open::Error> for Failure {
    fn from(error: kvfs_open::Error) -> Self {
        let errno = match &error {
            kvfs_open::Error::Missing(_) => libc::ENOENT,
            kvfs_open::Error::Io { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            _ => match error.kind() {
                ErrorKind::Usage | ErrorKind::NotAStore => libc::EINVAL,
                ErrorKind::InUse | ErrorKind::MountPoint => libc::EBUSY,
                ErrorKind::NoSpace => libc::ENOSPC,
                ErrorKind::Denied => libc::EACCES,
                _ => libc::EIO,
            },
        };
        Self::new(errno, error.to_string())
    }
}

/// What a function returns when it fails.
pub(crate) trait Outcome {
    fn failed() -> Self;
}

impl Outcome for c_int {
    fn failed() -> Self {
        -1
    }
}

impl Outcome for isize {
    fn failed() -> Self {
        -1
    }
}

impl Outcome for i64 {
    fn failed() -> Self {
        -1
    }
}

impl<T> Outcome for Option<Box<T>> {
    fn failed() -> Self {
        None
    }
}

impl<T> Outcome for *mut T {
    fn failed() -> Self {
        std::ptr::null_mut()
    }
}

impl<T> Outcome for *const T {
    fn failed() -> Self {
        std::ptr::null()
    }
}

/// Runs the body of an exported function.
pub(crate) fn call<T: Outcome>(body: impl FnOnce() -> Result<T>) -> T {
    let before = errno();
    // What a panic may have left half done is behind locks that are not poisoned for it, as in the daemon.
    let done = catch_unwind(AssertUnwindSafe(body));
    let failure = match done {
        Ok(Ok(value)) => {
            // Whatever a lock or the kernel has said on the way.
            set_errno(before);
            return value;
        }
        Ok(Err(failure)) => failure,
        Err(panic) => Failure::of_panic(&*panic),
    };
    remember(&failure.message);
    set_errno(failure.errno);
    T::failed()
}

/// As [`call`], of what ends a handle and has nothing to say.
pub(crate) fn end<T>(handle: T) {
    let before = errno();
    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| drop(handle))) {
        remember(&Failure::of_panic(&*panic).message);
    }
    set_errno(before);
}

fn remember(message: &str) {
    let message = CString::new(message.replace('\0', "?")).unwrap_or_default();
    // A thread that ends has no message any more.
    let _ = LAST.try_with(|last| last.replace(message));
}

/// Why the last function of this library that failed in this thread did: a sentence in English, valid until
/// the next one fails. Never NULL.
#[unsafe(no_mangle)]
pub extern "C" fn kvfs_last_error() -> *const c_char {
    LAST.try_with(|last| last.borrow().as_ptr()).unwrap_or(c"".as_ptr())
}

#[cfg(test)]
mod tests;
