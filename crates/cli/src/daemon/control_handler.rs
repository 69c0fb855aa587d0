//! The open transactions for callers on the mount itself: ioctl(2), and extended attributes of the
//! root. `docs/CALLS.md` is their manual.
//!
//! Thread safety: called by workers, so only what is given back as [`Answer::Later`] waits. Beginning and
//! dropping a transaction waits for nothing but memory, and now and then the disk.

use std::fmt::Write;
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use kvfs_fs::{Durability, FsError};
use kvfs_fuse::Errno;
use kvfs_fuse::bridge::{Answer, ControlCaller, ControlHandler};
use kvfs_fuse::dispatch::Ioctl;
use kvfs_rpc::ioctl::{self, Call, State as TxnState};
use kvfs_service::{Begin, Caller, ErrorKind, Service, ServiceError, Transactions};

use crate::units::{parse_duration, parse_duration_or_ever};

/// What the names of attributes begin with. Every user may set `system.` ones; for `user.` ones the kernel
/// wants that the caller may write to the root.
const PREFIXES: [&[u8]; 2] = [b"system.kvfs.txn.", b"user.kvfs.txn."];

/// The kernel holds the lock of the root for a setxattr. Dirty pages may wait for a transaction that wants
/// this lock to end, so a commit that has to wait for them for longer is refused, and they go on.
const PAGES_TIME_MAX: Duration = Duration::from_secs(1);

/// The handler of the mount that `service` serves.
pub(super) fn control_handler(service: &Arc<Service>) -> Arc<dyn ControlHandler> {
    Arc::new(ToTransactions(Arc::downgrade(service)))
}

/// Weak, because the transactions lead to the bridge that asks here.
struct ToTransactions(Weak<Service>);

impl ToTransactions {
    fn transactions(&self) -> Result<Arc<Transactions>, Errno> {
        let service = self.0.upgrade().ok_or(Errno::NODEV)?;
        service.transactions().cloned().map_err(|error| errno(&error))
    }
}

/// What a failure is for a caller that gets a number only.
pub(super) fn errno(error: &ServiceError) -> Errno {
    if let Some(error) = error.of_file_system() {
        return Errno::from_raw_os_error(error.errno());
    }
    match error {
        ServiceError::Unknown(_) => Errno::NOENT,
        ServiceError::NoFiles => Errno::OPNOTSUPP,
        error => match error.kind() {
            ErrorKind::Usage => Errno::INVAL,
            ErrorKind::InUse => Errno::BUSY,
            ErrorKind::NoSpace => Errno::NOSPC,
            ErrorKind::Denied => Errno::PERM,
            ErrorKind::NotMounted => Errno::NODEV,
            ErrorKind::Conflict => Errno::CANCELED,
            _ => Errno::IO,
        },
    }
}

fn begin(transactions: &Transactions, caller: &Caller, begin: &ioctl::Begin) -> Result<u64, Errno> {
    let begin = Begin {
        serializable: begin.serializable,
        timeout: Some(begin.timeout_ms).filter(|&ms| ms != 0).map(Duration::from_millis),
        idle_max: ioctl::idle_from_ms(begin.idle_ms_max),
        nice: begin.nice,
        label: begin.label.clone(),
        tied: false,
        needs_files: true,
    };
    transactions.begin(caller, begin).map_err(|error| {
        tracing::debug!(%error, "no transaction begun by a call on the mount");
        errno(&error)
    })
}

/// Commits, and says why not. `pages_max`: how long the dirty pages of its view may take.
fn commit(
    transactions: &Transactions,
    caller: &Caller,
    id: u64,
    is_durable: bool,
    pages_max: Option<Duration>,
) -> Result<(), (Errno, String)> {
    let committed = transactions.commit(caller, id, Durability::Buffered, pages_max);
    let committed = committed.map_err(|error| {
        let why = match &error {
            ServiceError::NotCommitted { view, error, .. } => match &**error {
                FsError::Canceled(doom) => view.lock_words().explain(doom),
                error => error.to_string(),
            },
            error => error.to_string(),
        };
        (errno(&error), why)
    })?;
    let synced = if is_durable { transactions.sync(committed.position) } else { Ok(()) };
    synced.map_err(|error| (Errno::from_raw_os_error(error.errno()), error.to_string()))
}

/// Commits what is done without waiting. Where it says no, the ordinary commit tells why.
fn ends_at_once(transactions: &Transactions, caller: &Caller, id: u64) -> bool {
    transactions.commit_unwritten(caller, id).unwrap_or(false)
}

/// How a transaction is, and why, if it is doomed.
fn state_of(transactions: &Transactions, caller: &Caller, id: u64) -> Result<(TxnState, String), Errno> {
    let state = transactions.state(caller, id).map_err(|error| errno(&error))?;
    Ok(match state {
        kvfs_service::TxnState::Open => (TxnState::Open, String::new()),
        kvfs_service::TxnState::Busy(what) => (TxnState::Busy, what.to_owned()),
        kvfs_service::TxnState::Doomed(why) => (TxnState::Doomed, why),
    })
}

/// The newest transaction of this label among those that are the caller's.
fn labelled(transactions: &Transactions, caller: &Caller, label: &str) -> Result<u64, Errno> {
    transactions.labelled(caller, label).ok_or(Errno::NOENT)
}

/// A number, or `label=…`.
fn named(transactions: &Transactions, caller: &Caller, name: &str) -> Result<u64, Errno> {
    match name.strip_prefix("label=") {
        Some(label) => labelled(transactions, caller, label),
        None => name.parse().map_err(|_| Errno::INVAL),
    }
}

impl ControlHandler for ToTransactions {
    fn ioctl(&self, caller: ControlCaller, command: u32, argument: &[u8]) -> Option<Answer<Ioctl>> {
        match command {
            ioctl::TXN_BEGIN => Some(Answer::Now(self.begin(caller, argument))),
            ioctl::TXN_COMMIT | ioctl::TXN_ABORT | ioctl::TXN_STATE | ioctl::TXN_VIEW => {
                Some(self.call(caller, command, argument).unwrap_or_else(|errno| Answer::Now(Err(errno))))
            }
            _ => None,
        }
    }

    fn is_ours(&self, name: &[u8]) -> bool {
        PREFIXES.iter().any(|prefix| name.starts_with(prefix))
    }

    fn set(&self, caller: ControlCaller, name: &[u8], value: &[u8]) -> Answer<()> {
        let done = self.transactions().and_then(|transactions| {
            let words = std::str::from_utf8(value).map_err(|_| Errno::INVAL)?;
            let words = words.trim_end_matches('\0').split_ascii_whitespace();
            set(&transactions, Caller::of_mount(caller.uid, caller.pid), behind_prefix(name), words)
        });
        done.unwrap_or_else(|errno| Answer::Now(Err(errno)))
    }

    fn get(&self, caller: ControlCaller, name: &[u8]) -> Result<Bytes, Errno> {
        let what = std::str::from_utf8(behind_prefix(name)).map_err(|_| Errno::NODATA)?;
        let text = get(&*self.transactions()?, &Caller::of_mount(caller.uid, caller.pid), what)?;
        Ok(text.into())
    }
}

impl ToTransactions {
    fn call(&self, caller: ControlCaller, command: u32, argument: &[u8]) -> Result<Answer<Ioctl>, Errno> {
        let (call, transactions) = (Call::from_bytes(argument).ok_or(Errno::INVAL)?, self.transactions()?);
        let asker = Caller::of_mount(caller.uid, caller.pid);
        Ok(match command {
            ioctl::TXN_COMMIT if call.asynchronous && ends_at_once(&transactions, &asker, call.id) => {
                Answer::Now(Ok(told(0, &call)))
            }
            ioctl::TXN_COMMIT => {
                Answer::Later(Box::new(move || Ok(commit_call(&transactions, &asker, &call))))
            }
            ioctl::TXN_VIEW => Answer::Later(Box::new(move || view(&transactions, &asker, &call))),
            ioctl::TXN_ABORT => Answer::Now(abort(&transactions, &asker, &call)),
            _ => Answer::Now(state(&transactions, &asker, &call)),
        })
    }

    fn begin(&self, caller: ControlCaller, argument: &[u8]) -> Result<Ioctl, Errno> {
        let mut arguments = ioctl::Begin::from_bytes(argument).ok_or(Errno::INVAL)?;
        if arguments.label.is_empty() {
            "ioctl".clone_into(&mut arguments.label);
        }
        let asker = Caller::of_mount(caller.uid, caller.pid);
        let id = begin(&*self.transactions()?, &asker, &arguments)?;
        let data = Bytes::copy_from_slice(&ioctl::Begin { id, idle_ms_max: 0, ..arguments }.to_bytes());
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

fn commit_call(transactions: &Transactions, caller: &Caller, call: &Call) -> Ioctl {
    match commit(transactions, caller, call.id, !call.asynchronous, None) {
        Ok(()) => told(0, call),
        // As a failure with an argument, which an error alone would not carry.
        Err((errno, text)) => told(-errno.raw_os_error(), &Call { text, ..call.clone() }),
    }
}

fn view(transactions: &Transactions, caller: &Caller, call: &Call) -> Result<Ioctl, Errno> {
    // First, for its errors.
    state_of(transactions, caller, call.id)?;
    match transactions.path(caller, call.id) {
        Ok(path) => match path.into_os_string().into_string() {
            Ok(text) => Ok(told(0, &Call { text, ..call.clone() })),
            Err(_) => Err(Errno::ILSEQ),
        },
        Err(error) => {
            Ok(told(-errno(&error).raw_os_error(), &Call { text: error.to_string(), ..call.clone() }))
        }
    }
}

fn abort(transactions: &Transactions, caller: &Caller, call: &Call) -> Result<Ioctl, Errno> {
    transactions.abort(caller, call.id).map_err(|error| errno(&error))?;
    Ok(told(0, call))
}

fn state(transactions: &Transactions, caller: &Caller, call: &Call) -> Result<Ioctl, Errno> {
    let (state, text) = state_of(transactions, caller, call.id)?;
    Ok(told(0, &Call { state, text, ..call.clone() }))
}

/// `begin`, `commit` or `abort`, with the words of the value.
fn set<'w>(
    transactions: &Arc<Transactions>,
    caller: Caller,
    what: &[u8],
    mut words: impl Iterator<Item = &'w str>,
) -> Result<Answer<()>, Errno> {
    match what {
        b"begin" => Ok(Answer::Now(begin(transactions, &caller, &parse_begin(words)?).map(drop))),
        b"commit" => {
            let id = named(transactions, &caller, words.next().ok_or(Errno::INVAL)?)?;
            let is_durable = match (words.next(), words.next()) {
                (None, None) => true,
                (Some("async"), None) => false,
                _ => return Err(Errno::INVAL),
            };
            if !is_durable && ends_at_once(transactions, &caller, id) {
                return Ok(Answer::Now(Ok(())));
            }
            let transactions = Arc::clone(transactions);
            Ok(Answer::Later(Box::new(move || {
                let pages_max = Some(PAGES_TIME_MAX);
                commit(&transactions, &caller, id, is_durable, pages_max).map_err(|(errno, _)| errno)
            })))
        }
        b"abort" => {
            let id = named(transactions, &caller, words.next().ok_or(Errno::INVAL)?)?;
            if words.next().is_some() {
                return Err(Errno::INVAL);
            }
            Ok(Answer::Now(abort(transactions, &caller, &Call { id, ..Call::default() }).map(drop)))
        }
        _ => Err(Errno::INVAL),
    }
}

/// `isolation=si|serializable`, `timeout=30s`, `idle=30s`, `nice=5`, `label=NAME`; each may be missing.
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
            ("idle", text) => {
                let idle_max = parse_duration_or_ever(text).map_err(|_| Errno::INVAL)?;
                begin.idle_ms_max = ioctl::idle_to_ms(Some(idle_max));
            }
            ("nice", text) => begin.nice = text.parse().map_err(|_| Errno::INVAL)?,
            ("label", text) if !text.is_empty() => text.clone_into(&mut begin.label),
            _ => return Err(Errno::INVAL),
        }
    }
    Ok(begin)
}

/// `list`, `id.LABEL`, or `state.ID`.
fn get(transactions: &Transactions, caller: &Caller, what: &str) -> Result<String, Errno> {
    match what.split_once('.') {
        None if what == "list" => {
            let mut text = String::new();
            for line in transactions.list(caller) {
                let isolation = if line.serializable { "serializable" } else { "si" };
                // Writing to a string never fails.
                let _ = writeln!(text, "{} {isolation} {} {}", line.id, line.uid, line.label);
            }
            Ok(text)
        }
        Some(("id", label)) => Ok(labelled(transactions, caller, label)?.to_string()),
        Some(("state", id)) => {
            let (state, text) = state_of(transactions, caller, named(transactions, caller, id)?)?;
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
        let begin =
            parse("label=photos isolation=serializable nice=5 timeout=30s idle=5m").expect("is valid");
        let expected = ioctl::Begin {
            serializable: true,
            nice: 5,
            timeout_ms: 30_000,
            idle_ms_max: 300_000,
            id: 0,
            label: "photos".to_owned(),
        };
        assert_eq!(begin, expected);
        let begin = parse("").expect("is valid");
        assert_eq!((&*begin.label, begin.idle_ms_max), ("setxattr", 0));
        assert_eq!(parse("idle=0").expect("is valid").idle_ms_max, u64::MAX);
        for bad in
            ["serializable", "isolation=rc", "nice=", "timeout=soon", "idle=soon", "label=", "color=red"]
        {
            assert_eq!(parse(bad), Err(Errno::INVAL), "{bad}");
        }
    }
}
