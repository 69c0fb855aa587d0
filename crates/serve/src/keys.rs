//! Calls about keys, in the view that the process sees.
//!
//! A walk of a client is a page of keys for each call: nothing is held for it between two.
//!
//! Thread safety: functions.

use bytes::Bytes;
use kvfs_fs::FsError;
use kvfs_kv::{KEYSPACES_PER_USER_MAX, KeyChange};
use kvfs_lane::{Call, decode, encode};
use kvfs_posix::{Process, ProcessKeys, Result};
use kvfs_store::{Cursor, KeyRange};
use rustix::io::Errno;

use crate::calls::{Answered, done, number};
use crate::session::refused;

pub(crate) fn answer(
    process: &Process,
    call: &Call<'_>,
    payload: &[u8],
    space: &mut [u8],
) -> Result<Answered> {
    let keys = ProcessKeys::of(process, KEYSPACES_PER_USER_MAX);
    match *call {
        Call::GetKey { keyspace, key } => match keys.get(keyspace, key.0)? {
            Some(value) => Ok(Answered::Bytes(value.into())),
            None => Ok(number(0)),
        },
        Call::WriteKeys { keyspace } => keys.write(keyspace, changes(payload)?).map(done),
        Call::DeleteKey { keyspace, key } => {
            keys.delete(keyspace, key.0).map(|existed| number(existed.into()))
        }
        Call::DeleteKeys { keyspace, start, end } => keys.delete_range(keyspace, range(start, end)).map(done),
        Call::ListKeys { keyspace, start, end, is_backwards, len } => {
            let len = space.len().min(len as usize);
            match keys.cursor(keyspace, &range(start, end))? {
                Some(mut cursor) => page(&mut *cursor, is_backwards, len, space).map(Answered::Payload),
                None => Ok(Answered::Payload(0)),
            }
        }
        Call::CreateKeyspace { name, mode } => keys.create_keyspace(name, mode).map(done),
        Call::DropKeyspace { name } => keys.drop_keyspace(name).map(done),
        Call::ListKeyspaces => {
            let names = keys.list_keyspaces()?;
            Ok(Answered::Bytes(names.into_iter().flat_map(|name| (name + "\0").into_bytes()).collect()))
        }
        _ => Err(refused(Errno::NOSYS)),
    }
}

fn changes(mut payload: &[u8]) -> Result<Vec<KeyChange>> {
    let (mut all, bytes) = (Vec::new(), |bytes: kvfs_lane::Bytes<'_>| Bytes::copy_from_slice(bytes.0));
    while !payload.is_empty() {
        kvfs_kv::check_count(all.len() + 1).map_err(FsError::from)?;
        let (change, rest) =
            decode::<kvfs_lane::KeyChange<'_>>(payload).map_err(|_| refused(Errno::PROTO))?;
        all.push(match change {
            kvfs_lane::KeyChange::Put { key, value } => {
                KeyChange::Put { key: bytes(key), value: bytes(value) }
            }
            kvfs_lane::KeyChange::Delete { key } => KeyChange::Delete { key: bytes(key) },
            kvfs_lane::KeyChange::DeleteRange { start, end } => KeyChange::DeleteRange(range(start, end)),
        });
        payload = rest;
    }
    Ok(all)
}

fn range(start: kvfs_lane::Bytes<'_>, end: Option<kvfs_lane::Bytes<'_>>) -> KeyRange {
    KeyRange { start: Bytes::copy_from_slice(start.0), end: end.map(|end| Bytes::copy_from_slice(end.0)) }
}

/// Writes keys and values until they have `len` bytes, or nothing more fits; returns their bytes.
fn page(cursor: &mut dyn Cursor, is_backwards: bool, len: usize, space: &mut [u8]) -> Result<usize> {
    let mut used = 0;
    loop {
        if is_backwards { cursor.prev() } else { cursor.next() }.map_err(FsError::from)?;
        let Some((key, value)) = cursor.entry() else { return Ok(used) };
        let entry = (kvfs_lane::Bytes(key), kvfs_lane::Bytes(value));
        match encode(&entry, &[], &mut space[used..]) {
            Ok(more) => used += more,
            Err(_) if used > 0 => return Ok(used),
            Err(_) => return Err(refused(Errno::OVERFLOW)),
        }
        if used >= len {
            return Ok(used);
        }
    }
}
