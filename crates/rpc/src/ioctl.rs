//! Transactions, and operations on trees, by ioctl(2) on anything of a mount: the numbers and layouts, for
//! both ends. `docs/CALLS.md` has them as a C header.
//!
//! Thread safety: pure functions. Invariants: numbers are in the byte order of the machine; layouts have
//! neither padding nor pointers, so they are the same for programs of 32 and 64 bits; unknown bits are
//! refused, so that they can get a meaning.

use std::time::Duration;

use rustix::ioctl::{Opcode, opcode};

/// First byte of all numbers.
const GROUP: u8 = b'k';

/// Begins a transaction: takes and gives a [`Begin`].
pub const TXN_BEGIN: Opcode = opcode::read_write::<[u8; Begin::LEN]>(GROUP, 0x60);
/// Commits one: takes and gives a [`Call`].
pub const TXN_COMMIT: Opcode = opcode::read_write::<[u8; Call::LEN]>(GROUP, 0x61);
/// Drops one: takes and gives a [`Call`].
pub const TXN_ABORT: Opcode = opcode::read_write::<[u8; Call::LEN]>(GROUP, 0x62);
/// Asks how one is: takes and gives a [`Call`].
pub const TXN_STATE: Opcode = opcode::read_write::<[u8; Call::LEN]>(GROUP, 0x63);
/// Asks where its files are: takes and gives a [`Call`], with the path as text.
pub const TXN_VIEW: Opcode = opcode::read_write::<[u8; Call::LEN]>(GROUP, 0x64);
/// The attribute to be set, to nothing, on what [`TREE`] is called on, before each call and by the same
/// thread: the kernel refuses it where the mount is read-only.
pub const TREE_ANNOUNCEMENT: &str = "system.kvfs.tree";
/// An operation on a tree: takes and gives a [`TreeCall`].
pub const TREE: Opcode = opcode::read_write::<[u8; TreeCall::LEN]>(GROUP, 0x65);

const SERIALIZABLE: u32 = 1;
/// The number of a [`Begin`] is, as it is passed, the idle time.
const IDLE: u32 = 2;
const ASYNCHRONOUS: u32 = 1;

/// The argument of [`TXN_BEGIN`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begin {
    /// As if transactions ran one after the other; else each sees the state at its begin.
    pub serializable: bool,
    /// Of two in each other's way the one with the greater number gives way.
    pub nice: i32,
    /// It is given up when it takes longer (ms); 0: never.
    pub timeout_ms: u64,
    /// It is given up when it goes without an operation for longer (ms); 0: as the mount says; the greatest
    /// number: never. Passed, and not answered.
    pub idle_ms_max: u64,
    /// Answered: its number.
    pub id: u64,
    /// What it is called in lists and messages.
    pub label: String,
}

/// An idle time as it is passed; `None`: as the mount says.
pub fn idle_to_ms(idle_max: Option<Duration>) -> u64 {
    idle_max.map_or(0, |idle| u64::try_from(idle.as_millis().max(1)).unwrap_or(u64::MAX))
}

/// An idle time that was passed; `None`: as the mount says.
pub fn idle_from_ms(idle_ms_max: u64) -> Option<Duration> {
    match idle_ms_max {
        0 => None,
        u64::MAX => Some(Duration::MAX),
        ms => Some(Duration::from_millis(ms)),
    }
}

impl Begin {
    /// Bytes of the argument.
    pub const LEN: usize = 96;
    const LABEL: usize = 24;

    /// As it is passed. A label that is too long is cut.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        let has_idle = self.idle_ms_max != 0;
        let flags = u32::from(self.serializable) * SERIALIZABLE + u32::from(has_idle) * IDLE;
        let number = if has_idle { self.idle_ms_max } else { self.id };
        out[..4].copy_from_slice(&flags.to_ne_bytes());
        out[4..8].copy_from_slice(&self.nice.to_ne_bytes());
        out[8..16].copy_from_slice(&self.timeout_ms.to_ne_bytes());
        out[16..24].copy_from_slice(&number.to_ne_bytes());
        put_text(&mut out[Self::LABEL..], &self.label);
        out
    }

    /// What was passed; `None`: not such an argument, or from a program that knows more.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let flags = u32::from_ne_bytes(field(bytes, 0)?);
        (flags & !(SERIALIZABLE | IDLE) == 0).then_some(())?;
        let number = u64::from_ne_bytes(field(bytes, 16)?);
        let (idle_ms_max, id) = if flags & IDLE != 0 { (number, 0) } else { (0, number) };
        Some(Self {
            serializable: flags & SERIALIZABLE != 0,
            nice: i32::from_ne_bytes(field(bytes, 4)?),
            timeout_ms: u64::from_ne_bytes(field(bytes, 8)?),
            idle_ms_max,
            id,
            label: text(&bytes[Self::LABEL..]),
        })
    }
}

/// How a transaction is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum State {
    /// It takes calls.
    #[default]
    Open = 0,
    /// It is being committed or aborted.
    Busy = 1,
    /// It can't be committed any more; the text says why.
    Doomed = 2,
}

/// The argument of the other calls.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Call {
    /// Which transaction.
    pub id: u64,
    /// A commit is answered before it is on the disk.
    pub asynchronous: bool,
    /// Answered by [`TXN_STATE`].
    pub state: State,
    /// Answered: why it failed, why it is doomed, or where the files are.
    pub text: String,
}

impl Call {
    /// Bytes of the argument.
    pub const LEN: usize = 4096;
    const TEXT: usize = 16;

    /// As it is passed. A text that is too long is cut.
    pub fn to_bytes(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..8].copy_from_slice(&self.id.to_ne_bytes());
        out[8..12].copy_from_slice(&(u32::from(self.asynchronous) * ASYNCHRONOUS).to_ne_bytes());
        out[12..16].copy_from_slice(&(self.state as u32).to_ne_bytes());
        put_text(&mut out[Self::TEXT..], &self.text);
        out
    }

    /// What was passed; `None`: not such an argument, or from a program that knows more.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let flags = u32::from_ne_bytes(field(bytes, 8)?);
        (flags & !ASYNCHRONOUS == 0).then_some(())?;
        let state = match u32::from_ne_bytes(field(bytes, 12)?) {
            0 => State::Open,
            1 => State::Busy,
            2 => State::Doomed,
            _ => return None,
        };
        Some(Self {
            id: u64::from_ne_bytes(field(bytes, 0)?),
            asynchronous: flags & ASYNCHRONOUS != 0,
            state,
            text: text(&bytes[Self::TEXT..]),
        })
    }
}

/// Operations of [`TREE`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[repr(u32)]
pub enum TreeOperation {
    /// What is at the path goes, with all that is below.
    #[default]
    Remove = 1,
    /// What is at the path is cloned to the other one, with all that is below.
    Clone = 2,
}

/// The argument of [`TREE`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TreeCall {
    /// What is to be done.
    pub operation: TreeOperation,
    /// Answered on the main line: the transaction in which it was done. In a view it is part of that
    /// one's: 0.
    pub id: u64,
    /// Passed: where, from the directory that the call is made on.
    pub path: Vec<u8>,
    /// Passed by operations that have a second path, as the first one.
    pub other: Vec<u8>,
    /// Answered in the place of the first path: why it failed, and where.
    pub text: String,
}

impl TreeCall {
    /// Bytes of the argument.
    pub const LEN: usize = 8192;
    const PATH: usize = 16;
    /// Bytes of a path, its end included: as long as a path of POSIX may be, but for the head.
    const PATH_LEN: usize = (Self::LEN - Self::PATH) / 2;
    const OTHER: usize = Self::PATH + Self::PATH_LEN;

    /// As it is passed; `None`: a path is too long, or has a zero byte.
    pub fn to_bytes(&self) -> Option<[u8; Self::LEN]> {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&(self.operation as u32).to_ne_bytes());
        out[8..16].copy_from_slice(&self.id.to_ne_bytes());
        for (at, path) in [(Self::PATH, &self.path), (Self::OTHER, &self.other)] {
            (path.len() < Self::PATH_LEN && !path.contains(&0)).then_some(())?;
            out[at..at + path.len()].copy_from_slice(path);
        }
        Some(out)
    }

    /// What was passed; `None`: not such an argument, or from a program that knows more.
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; Self::LEN] = bytes.try_into().ok()?;
        let operation = match u32::from_ne_bytes(field(bytes, 0)?) {
            1 => TreeOperation::Remove,
            2 => TreeOperation::Clone,
            _ => return None,
        };
        let (flags, id) = (u32::from_ne_bytes(field(bytes, 4)?), u64::from_ne_bytes(field(bytes, 8)?));
        let path = |at: usize| {
            let part = &bytes[at..at + Self::PATH_LEN];
            part.iter().position(|&byte| byte == 0).map(|len| part[..len].to_vec())
        };
        let (path, other) = (path(Self::PATH)?, path(Self::OTHER)?);
        let has_other = operation == TreeOperation::Clone;
        (flags == 0 && (has_other || other.is_empty())).then_some(Self {
            operation,
            id,
            path,
            other,
            text: String::new(),
        })
    }

    /// As it is answered. A text that is too long is cut.
    pub fn answered(&self) -> [u8; Self::LEN] {
        let mut out = [0; Self::LEN];
        out[..4].copy_from_slice(&(self.operation as u32).to_ne_bytes());
        out[8..16].copy_from_slice(&self.id.to_ne_bytes());
        put_text(&mut out[Self::PATH..Self::OTHER], &self.text);
        out
    }

    /// What was answered: number and text.
    pub fn answer(bytes: &[u8; Self::LEN]) -> (u64, String) {
        (field(bytes, 8).map(u64::from_ne_bytes).unwrap_or_default(), text(&bytes[Self::PATH..Self::OTHER]))
    }
}

fn field<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

/// The last byte stays NUL.
fn put_text(out: &mut [u8], text: &str) {
    let len = text.floor_char_boundary(out.len() - 1);
    out[..len].copy_from_slice(&text.as_bytes()[..len]);
}

/// Up to the first NUL.
fn text(bytes: &[u8]) -> String {
    let len = bytes.iter().position(|&byte| byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_are_as_documented() {
        let label = "ä".repeat(50);
        let begin = Begin { serializable: true, nice: -5, timeout_ms: 1500, idle_ms_max: 0, id: 7, label };
        let bytes = begin.to_bytes();
        assert_eq!(bytes[..4], 1u32.to_ne_bytes());
        assert_eq!(bytes[4..8], (-5i32).to_ne_bytes());
        assert_eq!(bytes[8..16], 1500u64.to_ne_bytes());
        assert_eq!(bytes[16..24], 7u64.to_ne_bytes());
        assert_eq!(bytes[95], 0);
        assert_eq!(Begin::from_bytes(&bytes), Some(Begin { label: "ä".repeat(35), ..begin.clone() }));
        let bytes = Begin { idle_ms_max: 2500, ..begin.clone() }.to_bytes();
        assert_eq!((&bytes[..4], &bytes[16..24]), (&3u32.to_ne_bytes()[..], &2500u64.to_ne_bytes()[..]));
        let passed = Begin { label: "ä".repeat(35), idle_ms_max: 2500, id: 0, ..begin };
        assert_eq!(Begin::from_bytes(&bytes), Some(passed));
        let call = Call { id: 9, asynchronous: true, state: State::Doomed, text: "why".to_owned() };
        let bytes = call.to_bytes();
        assert_eq!((&bytes[..8], &bytes[16..20]), (&9u64.to_ne_bytes()[..], &b"why\0"[..]));
        assert_eq!(Call::from_bytes(&bytes), Some(call));
        assert_eq!(Call::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn what_a_newer_program_passes_is_refused() {
        let mut bytes = Begin::default().to_bytes();
        bytes[..4].copy_from_slice(&4u32.to_ne_bytes());
        assert_eq!(Begin::from_bytes(&bytes), None);
        let mut bytes = Call::default().to_bytes();
        bytes[8..12].copy_from_slice(&6u32.to_ne_bytes());
        assert_eq!(Call::from_bytes(&bytes), None);
        let mut bytes = Call::default().to_bytes();
        bytes[12..16].copy_from_slice(&3u32.to_ne_bytes());
        assert_eq!(Call::from_bytes(&bytes), None);
    }

    #[test]
    fn a_tree_is_named_by_its_path_and_answered_in_words() {
        let call = TreeCall { path: b"a/\xff".to_vec(), ..TreeCall::default() };
        let bytes = call.to_bytes().expect("is short");
        assert_eq!((&bytes[..4], &bytes[16..20]), (&1u32.to_ne_bytes()[..], &b"a/\xff\0"[..]));
        assert_eq!(TreeCall::from_bytes(&bytes), Some(call.clone()));
        let answer = TreeCall { id: 9, text: "ä".repeat(3000), ..call.clone() }.answered();
        assert_eq!(TreeCall::answer(&answer), (9, "ä".repeat(2043)));
        for path in [vec![b'a'; 4088], b"a\0b".to_vec()] {
            assert_eq!(TreeCall { path, ..call.clone() }.to_bytes(), None);
        }
        for (at, value) in [(0, 3), (4, 1), (16 + 4088, 1)] {
            let mut newer = bytes;
            newer[at] = value;
            assert_eq!(TreeCall::from_bytes(&newer), None, "byte {at}");
        }
        assert_eq!(TreeCall::from_bytes(&bytes[1..]), None);
    }

    #[test]
    fn idle_times_are_passed_as_milliseconds() {
        for idle in [None, Some(Duration::from_millis(1)), Some(Duration::from_hours(8)), Some(Duration::MAX)]
        {
            assert_eq!(idle_from_ms(idle_to_ms(idle)), idle);
        }
        assert_eq!(idle_to_ms(Some(Duration::ZERO)), 1, "0 is the mount's");
    }

    #[test]
    fn the_numbers_never_change() {
        assert_eq!(
            [TXN_BEGIN, TXN_COMMIT, TXN_ABORT, TXN_STATE, TXN_VIEW, TREE],
            [0xc060_6b60, 0xd000_6b61, 0xd000_6b62, 0xd000_6b63, 0xd000_6b64, 0xe000_6b65]
        );
    }
}
