//! Frames: `length: u32le ‖ postcard bytes`, bounded.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize, de::DeserializeOwned};

/// Longest frame either side accepts (bytes): a value of the largest size fits, with room for a page
/// of scan results.
const FRAME_LEN_MAX: usize = 8 << 20;

/// Which keys a scan returns.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ScanRange {
    pub(crate) prefix: Vec<u8>,
    pub(crate) start: Option<Vec<u8>>,
    pub(crate) end: Option<Vec<u8>>,
    pub(crate) reverse: bool,
    /// Most entries in this page.
    pub(crate) limit: u64,
}

/// What the command asks of the daemon.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Request {
    Get { keyspace: String, key: Vec<u8> },
    Put { keyspace: String, key: Vec<u8>, value: Vec<u8> },
    Delete { keyspace: String, key: Vec<u8> },
    /// One page; ask again from behind the last key while `more` is set.
    Scan { keyspace: String, range: ScanRange },
    Keyspaces,
    Stats,
    Check,
}

/// One key with its value.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Entry {
    pub(crate) key: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

/// What the daemon answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) enum Response {
    Done,
    Value(Option<Vec<u8>>),
    /// Whether the key was there.
    Deleted(bool),
    Page { entries: Vec<Entry>, more: bool },
    Keyspaces(Vec<String>),
    Stats(Vec<(String, u64)>),
    /// Findings of the checker (empty: clean) and what it looked at.
    Checked { findings: Vec<String>, counts: Vec<(String, u64)> },
    Failed { code: u8, message: String },
}

pub(crate) fn write_frame(stream: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let bytes = postcard::to_stdvec(message).map_err(io::Error::other)?;
    if bytes.len() > FRAME_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "message is too long"));
    }
    stream.write_all(&(bytes.len() as u32).to_le_bytes())?;
    stream.write_all(&bytes)
}

/// The next frame, or `None` when the peer has closed the connection between frames.
pub(crate) fn read_frame<T: DeserializeOwned>(stream: &mut impl Read) -> io::Result<Option<T>> {
    let mut len = [0; 4];
    match stream.read_exact(&mut len) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        Err(error) => return Err(error),
    }
    let len = u32::from_le_bytes(len) as usize;
    if len > FRAME_LEN_MAX {
        return Err(io::Error::new(io::ErrorKind::InvalidData, format!("frame of {len} bytes is too long")));
    }
    let mut bytes = vec![0; len];
    stream.read_exact(&mut bytes)?;
    postcard::from_bytes(&bytes).map(Some).map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_round_trip_and_bad_ones_are_refused() {
        let mut wire = Vec::new();
        write_frame(&mut wire, &Request::Get { keyspace: "tags".into(), key: b"k".to_vec() }).expect("writes");
        let back: Option<Request> = read_frame(&mut &wire[..]).expect("reads");
        assert!(matches!(back, Some(Request::Get { keyspace, key }) if keyspace == "tags" && key == b"k"));

        assert!(read_frame::<Request>(&mut &[][..]).expect("clean end").is_none());
        assert!(read_frame::<Request>(&mut &wire[..wire.len() - 1]).is_err(), "cut off");
        assert!(read_frame::<Request>(&mut &u32::MAX.to_le_bytes()[..]).is_err(), "too long");
        assert!(read_frame::<Request>(&mut &[1, 0, 0, 0, 0xff][..]).is_err(), "no such request");
    }
}
