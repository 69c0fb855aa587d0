//! What is reported of a call when it is answered.
//!
//! Thread safety: functions. Invariants: ends of transactions are reported by their registry, not here;
//! nothing is read of a file system to say what a call was about, since a transaction may count that as a
//! read of its own.

use std::sync::Arc;
use std::time::Duration;

use kvfs_fs::operations::{Operation, OperationKind, Recorder, Target};
use kvfs_lane::{At, Bytes, Call, decode};
use kvfs_posix::SharedFile;

use crate::calls::Done;
use crate::server::Visitor;
use crate::session::Session;

/// What a call does; `None`: it is not reported here.
pub(crate) fn kind_of(call: &Call<'_>) -> Option<OperationKind> {
    use OperationKind as K;
    Some(match call {
        Call::Open { .. } => K::Open,
        Call::Close { .. } => K::Release,
        Call::Stat { .. } => K::Getattr,
        Call::Access { .. } => K::Access,
        Call::Chmod { .. } | Call::Chown { .. } | Call::Utimens { .. } | Call::Truncate { .. } => K::Setattr,
        Call::StatFs { .. } => K::Statfs,
        Call::Mkdir { .. } => K::Mkdir,
        Call::Mknod { .. } => K::Mknod,
        Call::Symlink { .. } => K::Symlink,
        Call::Link { .. } => K::Link,
        Call::Unlink { is_directory: true, .. } => K::Rmdir,
        Call::Unlink { .. } | Call::Remove { .. } | Call::RemoveTree { .. } => K::Unlink,
        Call::Rename { .. } => K::Rename,
        Call::Readlink { .. } => K::Readlink,
        Call::Getxattr { .. } => K::Getxattr,
        Call::Setxattr { .. } => K::Setxattr,
        Call::Listxattr { .. } => K::Listxattr,
        Call::Removexattr { .. } => K::Removexattr,
        Call::Read { .. } => K::Read,
        Call::Write { .. } => K::Write,
        Call::Seek { .. } => K::Seek,
        Call::List { .. } | Call::ListFrom { .. } => K::Readdir,
        Call::Sync { .. } => K::Fsync,
        Call::SyncAll => K::Syncfs,
        Call::Allocate { .. } => K::Fallocate,
        Call::Copy { .. } | Call::CloneTree { .. } => K::Copy,
        Call::Flock { waits: true, .. } | Call::Lock { waits: true, .. } => K::LockWait,
        Call::Flock { .. } | Call::Lock { .. } | Call::FindLock { .. } => K::Lock,
        Call::GetKey { .. } => K::KeyGet,
        Call::WriteKeys { .. } => K::KeyWrite,
        Call::DeleteKey { .. } | Call::DeleteKeys { .. } => K::KeyDelete,
        Call::ListKeys { .. } => K::KeyScan,
        Call::CreateKeyspace { .. } | Call::DropKeyspace { .. } | Call::ListKeyspaces => K::Keyspace,
        Call::Begin { .. } | Call::Commit { .. } | Call::Abort { .. } => return None,
        _ => K::Other,
    })
}

/// The call in `message`, which came in at `start`, is answered now.
pub(crate) fn tell(
    recorder: &dyn Recorder,
    start: Duration,
    session: &Arc<Session>,
    message: &[u8],
    done: &Done,
) {
    let Some(kind) = done.kind else { return };
    let &Visitor { uid, pid, txn, .. } = session.begun().visitor();
    let call = recorder.wants_target(start).then(|| decode::<Call<'_>>(message).ok()).flatten();
    let target = call.as_ref().map_or(Target::None, |(call, _)| target_of(session, call));
    let &Done { errno, bytes, .. } = done;
    recorder.record(&Operation { kind, start, uid, pid, txn, errno, bytes, has_waited: false, target });
}

fn target_of<'c>(session: &Arc<Session>, call: &Call<'c>) -> Target<'c> {
    let keyspace = |keyspace, key| Target::Key { keyspace, key };
    match *call {
        Call::Open { at, .. }
        | Call::Stat { at }
        | Call::Access { at, .. }
        | Call::Chmod { at, .. }
        | Call::Chown { at, .. }
        | Call::Utimens { at, .. }
        | Call::Truncate { at, .. }
        | Call::StatFs { at }
        | Call::Mkdir { at, .. }
        | Call::Mknod { at, .. }
        | Call::Symlink { at }
        | Call::Unlink { at, .. }
        | Call::Readlink { at }
        | Call::Getxattr { at, .. }
        | Call::Setxattr { at, .. }
        | Call::Listxattr { at }
        | Call::Removexattr { at, .. }
        | Call::Remove { at }
        | Call::RemoveTree { at }
        | Call::CloneTree { source: at, .. }
        | Call::Chdir { at }
        | Call::Link { old: at, .. }
        | Call::Rename { old: at, .. } => place(session, at),
        Call::Read { handle, .. }
        | Call::Write { handle, .. }
        | Call::Seek { handle, .. }
        | Call::List { handle, .. }
        | Call::ListFrom { handle, .. }
        | Call::Sync { handle }
        | Call::Allocate { handle, .. }
        | Call::Copy { from: handle, .. }
        | Call::Flock { handle, .. }
        | Call::Lock { handle, .. }
        | Call::FindLock { handle, .. }
        | Call::PathOf { handle } => open_file(session, handle, b""),
        Call::GetKey { keyspace: name, key: Bytes(key) }
        | Call::DeleteKey { keyspace: name, key: Bytes(key) }
        | Call::DeleteKeys { keyspace: name, start: Bytes(key), .. }
        | Call::ListKeys { keyspace: name, start: Bytes(key), .. } => keyspace(name, key),
        Call::WriteKeys { keyspace: name }
        | Call::CreateKeyspace { name, .. }
        | Call::DropKeyspace { name } => keyspace(name, b""),
        _ => Target::None,
    }
}

fn place<'c>(session: &Arc<Session>, at: At<'c>) -> Target<'c> {
    match (at.base, at.path) {
        (_, Some(Bytes(path))) if path.starts_with(b"/") => Target::Path(path),
        (Some(base), path) => open_file(session, base, path.map_or(b"", |Bytes(path)| path)),
        (None, Some(Bytes(path))) => Target::Path(path),
        (None, None) => Target::Path(b"/"),
    }
}

/// What is open, or what is beneath it at a path.
fn open_file<'c>(session: &Arc<Session>, handle: u64, name: &'c [u8]) -> Target<'c> {
    let file = session.opened(handle).and_then(|fd| SharedFile::of(session.process(), fd).ok());
    file.map_or(Target::None, |file| Target::Inode { inode: file.inode(), name })
}
