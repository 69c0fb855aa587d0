//! The same transactions for those who come by calls on the mount itself: ioctl(2), and extended attributes of the
//! root. `docs/CALLS.md` is their manual.
//!
//! Thread safety: called by workers, so only what is given back as [`Answer::Later`] waits. Beginning and dropping a
//! transaction waits for nothing but memory, and now and then the disk.

use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{Durability, FsError};
use kvfs_fuse::Errno;
use kvfs_fuse::bridge::{Answer, Door, Visitor};
use kvfs_fuse::dispatch::Ioctl;
use kvfs_rpc::ioctl::{self, Call, State as TxnState};

use super::{Refusal, Transactions};
use crate::control::{Begin, Peer};
use crate::error::{CliError, Code};
use crate::service::Service;
use crate::units::parse_duration;

/// What the names of attributes begin with. Every user may set `system.` ones; for `user.` ones the kernel wants
/// that he may write to the root.
const PREFIXES: [&[u8]; 2] = [b"system.kvfs.txn.", b"user.kvfs.txn."];

/// The kernel holds the lock of the root for a setxattr. Dirty pages may wait for a transaction that wants this lock to
/// end, so a commit that has to wait for them for longer is refused, and they go on.
const PAGES_TIME_MAX: Duration = Duration::from_secs(1);

/// Longest label (bytes): it is for people.
const LABEL_LEN_MAX: usize = 80;

/// The door of the mount that `service` serves.
pub(crate) fn door(service: &Arc<Service>) -> Arc<dyn Door> {
    Arc::new(ToTransactions(Arc::downgrade(service)))
}

/// Weak, because the transactions lead to the bridge that asks here.
struct ToTransactions(Weak<Service>);

impl ToTransactions {
    fn transactions(&self) -> Result<Arc<Transactions>, Errno> {
        self.0.upgrade().and_then(|service| service.open_transactions()).ok_or(Errno::NODEV)
    }
}

impl From<&Refusal> for Errno {
    fn from(refusal: &Refusal) -> Self {
        match refusal {
            Refusal::Unknown(_) => Self::NOENT,
            Refusal::NotYours { .. } => Self::PERM,
            Refusal::Busy { .. } => Self::BUSY,
        }
    }
}

/// What a failure is for a caller who gets a number only.
fn errno(error: &CliError) -> Errno {
    match error.code {
        Code::Usage => Errno::INVAL,
        Code::InUse => Errno::BUSY,
        Code::NoSpace => Errno::NOSPC,
        Code::Denied => Errno::PERM,
        Code::NotMounted => Errno::NODEV,
        Code::Conflict => Errno::CANCELED,
        _ => Errno::IO,
    }
}

impl Transactions {
    fn begin_at_door(&self, peer: &Peer, begin: &ioctl::Begin) -> Result<u64, Errno> {
        if begin.nice < 0 && peer.uid != 0 {
            return Err(Errno::PERM);
        }
        if self.is_writeback() {
            return Err(Errno::OPNOTSUPP);
        }
        let label = begin.label.replace(char::is_control, " ");
        let begin = Begin {
            serializable: begin.serializable,
            timeout: Some(begin.timeout_ms).filter(|&ms| ms != 0).map(Duration::from_millis),
            nice: begin.nice,
            label: label[..label.floor_char_boundary(LABEL_LEN_MAX)].to_owned(),
            tied: false,
        };
        self.begin_unseen(peer, begin).map_err(|error| {
            tracing::debug!(%error, "no transaction begun by a call on the mount");
            errno(&error)
        })
    }

    /// Commits, and says why not. `pages_max`: how long the dirty pages of its view may take.
    fn commit_at_door(
        &self,
        peer: &Peer,
        id: u64,
        is_durable: bool,
        pages_max: Option<Duration>,
    ) -> Result<(), (Errno, String)> {
        let committed = self.commit_view(peer, id, Durability::Buffered, pages_max);
        let (view, done) = committed.map_err(|refusal| {
            let errno = Errno::from(&refusal);
            (errno, CliError::from(refusal).message)
        })?;
        let synced = done.and_then(|position| if is_durable { self.main.fs.sync(position) } else { Ok(()) });
        synced.map_err(|error| {
            let why = match &error {
                FsError::Canceled(doom) => view.explain(doom),
                error => error.to_string(),
            };
            (Errno::from_raw_os_error(error.errno()), why)
        })
    }

    /// Commits what is done without waiting. Where it says no, the ordinary commit tells why.
    fn ends_at_once(&self, peer: &Peer, id: u64) -> bool {
        self.commit_unwritten(peer, id).unwrap_or(false)
    }

    /// How a transaction is, and why, if it is doomed.
    fn state_at_door(&self, peer: &Peer, id: u64) -> Result<(TxnState, String), Errno> {
        match Self::of(&self.state.lock(), peer, id) {
            Ok(entry) => Ok(match entry.view.doom() {
                Some(doom) => (TxnState::Doomed, entry.view.explain(&doom)),
                None => (TxnState::Open, String::new()),
            }),
            Err(Refusal::Busy { what, .. }) => Ok((TxnState::Busy, what.to_owned())),
            Err(refusal) => Err((&refusal).into()),
        }
    }

    /// The newest transaction of this label among those that `peer` began or may act for.
    fn labelled(&self, peer: &Peer, label: &str) -> Result<u64, Errno> {
        let state = self.state.lock();
        let mut newest_first = state.open.iter().rev();
        let found = newest_first.find(|(_, entry)| entry.owner.uid == peer.uid && entry.owner.name == label);
        found.map(|(&id, _)| id).ok_or(Errno::NOENT)
    }

    /// A number, or `label=…`.
    fn named(&self, peer: &Peer, name: &str) -> Result<u64, Errno> {
        match name.strip_prefix("label=") {
            Some(label) => self.labelled(peer, label),
            None => name.parse().map_err(|_| Errno::INVAL),
        }
    }
}

impl Door for ToTransactions {
    fn ioctl(&self, who: Visitor, command: u32, argument: &[u8]) -> Option<Answer<Ioctl>> {
        match command {
            ioctl::TXN_BEGIN => Some(Answer::Now(self.begin(who, argument))),
            ioctl::TXN_COMMIT | ioctl::TXN_ABORT | ioctl::TXN_STATE | ioctl::TXN_VIEW => {
                Some(self.call(who, command, argument).unwrap_or_else(|errno| Answer::Now(Err(errno))))
            }
            _ => None,
        }
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    fn set(&self, who: Visitor, name: &[u8], value: &[u8]) -> Answer<()> {
        let done = self.transactions().and_then(|transactions| {
            let words = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
            let words = words.trim_end_matches('\0').split_ascii_whitespace();
            set(&transactions, Peer::of_mount(who.uid, who.pid), behind_prefix(name), words)
        });
        done.unwrap_or_else(|errno| Answer::Now(Err(errno)))
    }

    fn get(&self, who: Visitor, name: &[u8]) -> Result<Bytes, Errno> {
        let what = std::str::from_utf8(behind_prefix(name)).map_err(|_| Errno::NODATA)?;
        let text = get(&*self.transactions()?, &Peer::of_mount(who.uid, who.pid), what)?;
        Ok(text.into())
    }
}

impl ToTransactions {
    fn call(&self, who: Visitor, command: u32, argument: &[u8]) -> Result<Answer<Ioctl>, Errno> {
        let (call, transactions) = (Call::from_bytes(argument).ok_or(Errno::INVAL)?, self.transactions()?);
        let peer = Peer::of_mount(who.uid, who.pid);
        Ok(match command {
            ioctl::TXN_COMMIT if call.asynchronous && transactions.ends_at_once(&peer, call.id) => {
                Answer::Now(Ok(told(0, &call)))
            }
            ioctl::TXN_COMMIT => Answer::Later(Box::new(move || Ok(commit(&transactions, &peer, &call)))),
            ioctl::TXN_VIEW => Answer::Later(Box::new(move || view(&transactions, &peer, &call))),
            ioctl::TXN_ABORT => Answer::Now(abort(&transactions, &peer, &call)),
            _ => Answer::Now(state(&transactions, &peer, &call)),
        })
    }

    fn begin(&self, who: Visitor, argument: &[u8]) -> Result<Ioctl, Errno> {
        let begin = ioctl::Begin::from_bytes(argument).ok_or(Errno::INVAL)?;
        let label = if begin.label.is_empty() { "ioctl".to_owned() } else { begin.label.clone() };
        let begin = ioctl::Begin { label, ..begin };
        let peer = Peer::of_mount(who.uid, who.pid);
        let id = self.transactions()?.begin_at_door(&peer, &begin)?;
        let data = Bytes::copy_from_slice(&ioctl::Begin { id, ..begin }.to_bytes());
        Ok(Ioctl { result: 0, data })
    }
}

/// What a name is about.
fn behind_prefix(name: &[u8]) -> &[u8] {
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(*prefix)).unwrap_or(name)
}

fn told(result: i32, call: &Call) -> Ioctl {
    Ioctl { result, data: Bytes::copy_from_slice(&call.to_bytes()) }
}

fn commit(transactions: &Transactions, peer: &Peer, call: &Call) -> Ioctl {
    match transactions.commit_at_door(peer, call.id, !call.asynchronous, None) {
        Ok(()) => told(0, call),
        // As a failure with an argument, which an error alone would not carry.
        Err((errno, text)) => told(-errno.raw_os_error(), &Call { text, ..call.clone() }),
    }
}

fn view(transactions: &Transactions, peer: &Peer, call: &Call) -> Result<Ioctl, Errno> {
    // First, for its errors.
    transactions.state_at_door(peer, call.id)?;
    match transactions.path(peer, call.id) {
        Ok(path) => match path.into_os_string().into_string() {
            Ok(text) => Ok(told(0, &Call { text, ..call.clone() })),
            Err(_) => Err(Errno::ILSEQ),
        },
        Err(error) => Ok(told(-errno(&error).raw_os_error(), &Call { text: error.message, ..call.clone() })),
    }
}

fn abort(transactions: &Transactions, peer: &Peer, call: &Call) -> Result<Ioctl, Errno> {
    // First, for its errors.
    transactions.state_at_door(peer, call.id)?;
    transactions.abort(peer, call.id).map_err(|error| errno(&error))?;
    Ok(told(0, call))
}

fn state(transactions: &Transactions, peer: &Peer, call: &Call) -> Result<Ioctl, Errno> {
    let (state, text) = transactions.state_at_door(peer, call.id)?;
    Ok(told(0, &Call { state, text, ..call.clone() }))
}

/// `begin`, `commit` or `abort`, with the words of the value.
fn set<'w>(
    transactions: &Arc<Transactions>,
    peer: Peer,
    what: &[u8],
    mut words: impl Iterator<Item = &'w str>,
) -> Result<Answer<()>, Errno> {
    match what {
        b"begin" => {
            let begin = parse_begin(words)?;
            Ok(Answer::Now(transactions.begin_at_door(&peer, &begin).map(drop)))
        }
        b"commit" => {
            let id = transactions.named(&peer, words.next().ok_or(Errno::INVAL)?)?;
            let is_durable = match (words.next(), words.next()) {
                (None, None) => true,
                (Some("async"), None) => false,
                _ => return Err(Errno::INVAL),
            };
            if !is_durable && transactions.ends_at_once(&peer, id) {
                return Ok(Answer::Now(Ok(())));
            }
            let transactions = Arc::clone(transactions);
            Ok(Answer::Later(Box::new(move || {
                let pages_max = Some(PAGES_TIME_MAX);
                transactions.commit_at_door(&peer, id, is_durable, pages_max).map_err(|(errno, _)| errno)
            })))
        }
        b"abort" => {
            let id = transactions.named(&peer, words.next().ok_or(Errno::INVAL)?)?;
            if words.next().is_some() {
                return Err(Errno::INVAL);
            }
            Ok(Answer::Now(abort(transactions, &peer, &Call { id, ..Call::default() }).map(drop)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// `isolation=si|serializable`, `timeout=30s`, `nice=5`, `label=NAME`; each may be missing.
fn parse_begin<'w>(words: impl Iterator<Item = &'w str>) -> Result<ioctl::Begin, Errno> {
    let mut begin = ioctl::Begin { label: "setxattr".to_owned(), ..ioctl::Begin::default() };
    for word in words {
        match word.split_once('=').ok_or(Errno::INVAL)? {
            ("isolation", "si") => begin.serializable = false,
            ("isolation", "serializable") => begin.serializable = true,
            ("timeout", text) => {
                let timeout = parse_duration(text).map_err(|_| Errno::INVAL)?;
                begin.timeout_ms = u64::try_from(timeout.as_millis().max(1)).map_err(|_| Errno::INVAL)?;
            }
            ("nice", text) => begin.nice = text.parse().map_err(|_| Errno::INVAL)?,
            ("label", text) if !text.is_empty() => text.clone_into(&mut begin.label),
            _ => return Err(Errno::INVAL),
        }
    }
    Ok(begin)
}

/// `list`, `id.LABEL`, or `state.ID`.
fn get(transactions: &Transactions, peer: &Peer, what: &str) -> Result<String, Errno> {
    match what.split_once('.') {
        None if what == "list" => {
            let mut text = String::new();
            for line in transactions.list(peer) {
                let isolation = if line.serializable { "serializable" } else { "si" };
                // Writing to a string never fails.
                let _ = writeln!(text, "{} {isolation} {} {}", line.id, line.uid, line.label);
            }
            Ok(text)
        }
        Some(("id", label)) => Ok(transactions.labelled(peer, label)?.to_string()),
        Some(("state", id)) => {
            let (state, text) = transactions.state_at_door(peer, transactions.named(peer, id)?)?;
            Ok(match state {
                TxnState::Open => "open".to_owned(),
                TxnState::Busy => text,
                TxnState::Doomed => format!("doomed: {text}"),
            })
        }
        _ => Err(Errno::NODATA),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_begin_are_words() {
        let parse = |text: &'static str| parse_begin(text.split_ascii_whitespace());
        let begin = parse("label=photos isolation=serializable nice=5 timeout=30s").expect("is valid");
        let expected = ioctl::Begin {
            serializable: true,
            nice: 5,
            timeout_ms: 30_000,
            id: 0,
            label: "photos".to_owned(),
        };
        assert_eq!(begin, expected);
        assert_eq!(parse("").expect("is valid").label, "setxattr");
        for bad in ["serializable", "isolation=rc", "nice=", "timeout=soon", "label=", "color=red"] {
            assert_eq!(parse(bad), Err(Errno::INVAL), "{bad}");
        }
    }
}
