//! Scripts of the lock table: commands, each followed by what it showed, indented.
//!
//! With `KVFS_REWRITE=1` in the environment the files are written anew: read the difference before you commit
//! it. Commands:
//!
//! ```text
//! begin ID [nice N] [wait MS] [timeout MS]     a transaction
//! ID NAME: MODE WHAT, MODE WHAT ...            operation NAME of it wants all of these
//! main NAME: ... | launder NAME: ...           the same outside of transactions; latches go at once
//! retry NAME | cancel NAME
//! commit ID | decide ID | end ID | doom ID | advance MS | show
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use kvfs_store::Keyspace;

use super::*;
use crate::{DoomReason, Fields, LockNameBuf, Mode};

struct Operation {
    party: String,
    wants: Vec<(LockNameBuf, Mode)>,
    ticket: Ticket,
    /// It was shown as ready already.
    shown: bool,
}

struct Script {
    fixture: Fixture,
    owners: BTreeMap<u64, Arc<LockOwner>>,
    waiting: BTreeMap<String, Operation>,
    out: String,
}

fn name(text: &str) -> LockNameBuf {
    let (kind, rest) = text.trim().split_once(' ').unwrap_or((text, ""));
    let mut words = rest.split_whitespace();
    let id: u64 = words.next().and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("{text}"));
    let rest = words.next().unwrap_or_default();
    let bytes = |text: &str| text.to_owned().into_bytes().into();
    let attributes = |fields| LockNameBuf::Attributes { inode: id, fields };
    let (start, end) = rest.split_once("..").unwrap_or((rest, ""));
    match kind {
        "entry" => LockNameBuf::Entry { directory: id, name: bytes(rest) },
        "entries" => LockNameBuf::Entries { directory: id },
        "identity" => LockNameBuf::Identity { directory: id },
        "counters" => LockNameBuf::Counters { directory: id },
        "placement" => LockNameBuf::Placement { directory: id },
        "size" => attributes(Fields::SIZE),
        "times" => attributes(Fields::TIMES),
        "attributes" => attributes(Fields::ALL),
        "blocks" => LockNameBuf::Blocks {
            inode: id,
            first: start.parse().unwrap(),
            end: end.parse().unwrap_or(u64::MAX),
        },
        "file" => LockName::file(id).into(),
        "key" => {
            let end = Some(bytes(&format!("{rest}\0")));
            LockNameBuf::Keys { keyspace: Keyspace(id as u32), start: bytes(rest), end }
        }
        "keys" => {
            let end = (!end.is_empty()).then(|| bytes(end));
            LockNameBuf::Keys { keyspace: Keyspace(id as u32), start: bytes(start), end }
        }
        _ => panic!("what is {text}?"),
    }
}

fn want(text: &str) -> (LockNameBuf, Mode) {
    let (mode, what) = text.trim().split_once(' ').unwrap_or_else(|| panic!("{text}"));
    let mode = match mode {
        "shared" => Mode::Shared,
        "exclusive" => Mode::Exclusive,
        "increment" => Mode::Increment,
        _ => panic!("which mode is {mode}?"),
    };
    (name(what), mode)
}

impl Script {
    fn new() -> Self {
        Self {
            fixture: Fixture::new(),
            owners: BTreeMap::new(),
            waiting: BTreeMap::new(),
            out: String::new(),
        }
    }

    fn say(&mut self, text: &str) {
        writeln!(self.out, "  {text}").unwrap();
    }

    fn attempt(&mut self, label: &str, party: &str, wants: Vec<(LockNameBuf, Mode)>, again: Option<&Ticket>) {
        let borrowed: Vec<Want<'_>> =
            wants.iter().map(|(name, mode)| Want { name: name.as_name(), mode: *mode }).collect();
        let owner;
        let by = match party {
            "main" => Party::Main { pid: 7 },
            "launder" => Party::Launder { pid: 8 },
            id => {
                owner = Arc::clone(&self.owners[&id.parse().unwrap()]);
                Party::Txn(&owner)
            }
        };
        let outcome = self.fixture.admission.try_acquire(by, &borrowed, |_| true, again).map(drop);
        match outcome {
            Ok(()) => self.say("granted"),
            Err(Refused::Full(share)) => panic!("{share:?}"),
            Err(Refused::Doomed(doom)) => self.say(&format!("refused: {doom}")),
            Err(Refused::Wait(ticket)) => {
                self.say("waits");
                let party = party.to_owned();
                self.waiting.insert(label.to_owned(), Operation { party, wants, ticket, shown: false });
            }
        }
    }

    fn begin(&mut self, words: &[&str]) {
        let id = words[1].parse().unwrap();
        let mut traits = TxnTraits::default();
        for option in words[2..].chunks(2) {
            let ms = || Some(Duration::from_millis(option[1].parse().unwrap()));
            match option[0] {
                "nice" => traits.priority = option[1].parse().unwrap(),
                "wait" => traits.lock_wait_max = ms(),
                "timeout" => traits.timeout = ms(),
                other => panic!("begin with {other}?"),
            }
        }
        self.owners.insert(id, self.fixture.begin_as(id, &traits));
    }

    fn run(&mut self, line: &str) {
        if let Some((head, wants)) = line.split_once(':') {
            let (party, label) = head.split_once(' ').unwrap_or_else(|| panic!("{line}"));
            return self.attempt(label, party, wants.split(',').map(want).collect(), None);
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let owner = || Arc::clone(&self.owners[&words[1].parse().unwrap()]);
        let outcome = |result: Result<(), Doom>| match result {
            Ok(()) => "done".to_owned(),
            Err(doom) => format!("refused: {doom}"),
        };
        match words[0] {
            "begin" => self.begin(&words),
            "retry" => {
                let op = self.waiting.remove(words[1]).unwrap_or_else(|| panic!("{line}"));
                self.attempt(words[1], &op.party, op.wants, Some(&op.ticket));
            }
            "cancel" => self.waiting.remove(words[1]).unwrap().ticket.cancel(),
            "commit" => self.say(&outcome(owner().begin_commit())),
            "decide" => self.say(&outcome(owner().decide())),
            "end" => self.owners.remove(&words[1].parse().unwrap()).unwrap().end(),
            "doom" => {
                let done = owner().doom(Doom::new(DoomReason::Aborted));
                self.say(if done { "done" } else { "too late" });
            }
            "advance" => {
                self.fixture.clock.advance(Duration::from_millis(words[1].parse().unwrap()));
                self.fixture.admission.tick();
            }
            "show" => self.show(),
            _ => panic!("what is {line}?"),
        }
    }

    fn show(&mut self) {
        for info in self.fixture.admission.transactions() {
            let doom = info.doom.map(|doom| format!(", {doom}")).unwrap_or_default();
            self.say(&format!(
                "transaction {} nice {} {:?}: {} names, {} waiting{doom}",
                info.id, info.priority, info.phase, info.names_count, info.waiting_count
            ));
        }
        for info in self.fixture.admission.list() {
            self.say(&format!("{} {} by {}, {:?}", info.name, info.mode, info.holder, info.age));
            for waiter in info.waiters {
                let (who, mode, name) = (waiter.waiter, waiter.mode, waiter.name);
                self.say(&format!("  {who} wants {name} {mode}, {:?}", waiter.waited));
            }
        }
    }

    fn show_ready(&mut self) {
        let mut ready = Vec::new();
        for (name, op) in &mut self.waiting {
            if op.ticket.is_ready() && !op.shown {
                op.shown = true;
                ready.push(name.clone());
            }
        }
        if !ready.is_empty() {
            self.say(&format!("ready: {}", ready.join(", ")));
        }
    }
}

/// The script with what its commands show.
fn play(text: &str) -> String {
    let mut script = Script::new();
    for line in text.lines().filter(|line| !line.starts_with("  ")) {
        script.out += line;
        script.out += "\n";
        if !line.is_empty() && !line.starts_with('#') {
            script.run(line);
            script.show_ready();
        }
    }
    script.out
}

#[test]
fn scripts_show_what_they_say() {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/lock/tests/scripts");
    let mut count = 0;
    for file in std::fs::read_dir(&directory).unwrap() {
        let path = file.unwrap().path();
        let expected = std::fs::read_to_string(&path).unwrap();
        let shown = play(&expected);
        if std::env::var_os("KVFS_REWRITE").is_some() {
            std::fs::write(&path, shown).unwrap();
        } else {
            assert_eq!(shown, expected, "{} (KVFS_REWRITE=1 writes it anew)", path.display());
        }
        count += 1;
    }
    assert!(count >= 4, "{count} scripts in {}", directory.display());
}
