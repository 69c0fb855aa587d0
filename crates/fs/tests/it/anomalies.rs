//! The anomalies that isolation is about, each as a script of interleaved steps, over files, keys and both,
//! at both levels: what a level forbids never happens, and what it allows does.
//!
//! One thread plays all parties. A step that must wait for another's lock holds its transaction up, and is
//! tried again whenever another transaction has ended; a canceled transaction takes no further steps.

use bytes::Bytes;
use kvfs_fs::{FsError, NodeId, RenameMode, Result, Ticket};
use kvfs_store::{Isolation, KeyRange, Keyspace, KeyspaceKind};

use crate::setup::Setup;
use crate::views::{begin, commit};

const ROOT: NodeId = NodeId::ROOT;

/// What X and Y are, and the places where things are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Files,
    Keys,
    /// X and the left place are files, Y and the right place are keys.
    Both,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Item {
    X,
    Y,
}

use Item::{X, Y};

/// A step of a transaction, which is known by its number.
#[derive(Debug, Clone, Copy)]
enum Step {
    Begin(usize),
    Read(usize, Item),
    Write(usize, Item, u8),
    /// Makes something new in the place of the item.
    Make(usize, Item, &'static str),
    /// Counts what is in the place of the item.
    Count(usize, Item),
    /// Moves the first directory into the second.
    Move(usize, &'static str, &'static str),
    RemoveDir(usize, &'static str),
    MakeIn(usize, &'static str),
    Commit(usize),
    Abort(usize),
}

use Step::{Abort, Begin, Commit, Count, Make, MakeIn, Move, Read, RemoveDir, Write};

impl Step {
    fn party(self) -> usize {
        match self {
            Begin(party)
            | Read(party, _)
            | Write(party, ..)
            | Make(party, ..)
            | Count(party, _)
            | Move(party, ..)
            | RemoveDir(party, _)
            | MakeIn(party, _)
            | Commit(party)
            | Abort(party) => party,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    Open,
    Committed,
    Gone,
}

/// One party of a script.
struct Party {
    view: Option<Setup>,
    end: End,
    /// What its reads and counts gave, in order.
    seen: Vec<u64>,
    /// Steps that are still to be done; the first may be waiting, with its ticket.
    held_up: Vec<Step>,
    ticket: Option<Ticket>,
}

/// What came of a script.
#[derive(Debug)]
struct Outcome {
    ends: Vec<End>,
    seen: Vec<Vec<u64>>,
    x: u64,
    y: u64,
    is_sound: bool,
}

impl Outcome {
    fn committed(&self, party: usize) -> bool {
        self.ends[party] == End::Committed
    }
}

struct Play {
    main: Setup,
    over: Over,
    keyspace: Keyspace,
    parties: Vec<Party>,
}

impl Play {
    fn new(over: Over) -> Self {
        let main = Setup::new(100);
        let keyspace = main.store.open_keyspace("items", KeyspaceKind::Tuple, None).unwrap();
        for name in ["x", "y"] {
            let file = main.file(ROOT, name);
            main.write_at(file, 0, b"0").unwrap();
            main.keys().set(&main.caller, keyspace, name.as_bytes(), Some("0".into())).unwrap();
        }
        for name in ["a", "b", "x-place", "y-place"] {
            main.dir(ROOT, name);
        }
        Self { main, over, keyspace, parties: Vec::new() }
    }

    fn is_file(&self, item: Item) -> bool {
        match self.over {
            Over::Files => true,
            Over::Keys => false,
            Over::Both => item == X,
        }
    }

    fn read(&self, on: &Setup, item: Item) -> Result<u64> {
        let name = name(item).as_bytes();
        let mut digit = [0];
        if self.is_file(item) {
            let node = on.lookup(&on.caller, ROOT, name)?.node;
            on.read(&on.caller, node, 0, &mut digit)?;
        } else {
            digit[0] = on.keys().get(&on.caller, self.keyspace, name)?.unwrap()[0];
        }
        Ok(u64::from(digit[0] - b'0'))
    }

    fn write(&self, on: &Setup, item: Item, value: u8) -> Result<()> {
        let name = name(item).as_bytes();
        let digit = [b'0' + value];
        if self.is_file(item) {
            let node = on.lookup(&on.caller, ROOT, name)?.node;
            return on.write_at(node, 0, &digit).map(drop);
        }
        let value = Some(Bytes::copy_from_slice(&digit));
        on.keys().set(&on.caller, self.keyspace, name, value).map(drop)
    }

    fn make(&self, on: &Setup, place: Item, new: &str) -> Result<()> {
        let place_name = format!("{}-place", name(place));
        if self.is_file(place) {
            let dir = on.lookup(&on.caller, ROOT, place_name.as_bytes())?.node;
            return on.create(&on.caller, dir, new.as_bytes(), 0o644, true).map(drop);
        }
        let key = format!("{place_name}/{new}");
        on.keys().set(&on.caller, self.keyspace, key.as_bytes(), Some("new".into())).map(drop)
    }

    fn count(&self, on: &Setup, place: Item) -> Result<u64> {
        let place_name = format!("{}-place", name(place));
        if self.is_file(place) {
            let dir = on.lookup(&on.caller, ROOT, place_name.as_bytes())?.node;
            let listed = on.list_once(dir, 0, 100, false)?;
            return Ok(listed.iter().filter(|entry| !entry.name.starts_with(b".")).count() as u64);
        }
        let range = KeyRange::prefix(format!("{place_name}/").as_bytes());
        let mut cursor = on.keys().cursor(&on.caller, self.keyspace, range)?;
        let mut count = 0;
        cursor.next()?;
        while cursor.entry().is_some() {
            count += 1;
            cursor.next()?;
        }
        Ok(count)
    }

    /// Does a step; what it saw.
    fn perform(&self, on: &Setup, step: Step) -> Result<Option<u64>> {
        let dir = |name: &str| on.lookup(&on.caller, ROOT, name.as_bytes()).map(|entry| entry.node);
        match step {
            Read(_, item) => return self.read(on, item).map(Some),
            Count(_, place) => return self.count(on, place).map(Some),
            Write(_, item, value) => self.write(on, item, value)?,
            Make(_, place, new) => self.make(on, place, new)?,
            Move(_, from, to) => {
                let (from, to) = (from.as_bytes(), dir(to)?);
                on.rename(&on.caller, ROOT, from, to, from, RenameMode::Replace)?;
            }
            RemoveDir(_, name) => on.rmdir(&on.caller, ROOT, name.as_bytes())?,
            MakeIn(_, name) => drop(on.create(&on.caller, dir(name)?, b"inside", 0o644, true)?),
            Commit(_) => drop(commit(on)?),
            Begin(_) | Abort(_) => {}
        }
        Ok(None)
    }

    /// Takes a step of a party that is not held up; whether its transaction ended, which may let others go
    /// on.
    fn step(&mut self, step: Step, isolation: Isolation) -> bool {
        let index = step.party();
        if let Begin(_) = step {
            let view = Some(begin(&self.main, isolation));
            let party = Party { view, end: End::Open, seen: Vec::new(), held_up: Vec::new(), ticket: None };
            self.parties.push(party);
            assert_eq!(self.parties.len(), index + 1, "parties begin in order");
            return false;
        }
        let Some(view) = self.parties[index].view.as_ref() else { return false };
        let done = self.perform(view, step);
        let party = &mut self.parties[index];
        party.ticket = None;
        let end = match (step, done) {
            (_, Err(FsError::Parked(ticket))) => {
                party.held_up.insert(0, step);
                party.ticket = Some(ticket);
                return false;
            }
            // Refused by what others have committed, or canceled: its program gives up.
            (_, Err(_)) | (Abort(_), Ok(_)) => End::Gone,
            (Commit(_), Ok(_)) => End::Committed,
            (_, Ok(seen)) => {
                party.seen.extend(seen);
                return false;
            }
        };
        if let Some(view) = party.view.take() {
            if end == End::Gone {
                view.txn().unwrap().abort();
            }
            party.end = end;
            party.held_up.clear();
        }
        true
    }

    /// Parties that were held up try again, until none gets on.
    fn go_on(&mut self, isolation: Isolation) {
        let mut goes_on = true;
        while goes_on {
            goes_on = false;
            for index in 0..self.parties.len() {
                while !self.parties[index].held_up.is_empty() {
                    let step = self.parties[index].held_up.remove(0);
                    let waiting = self.parties[index].held_up.len();
                    goes_on |= self.step(step, isolation);
                    if self.parties[index].held_up.len() > waiting {
                        break;
                    }
                    goes_on = true;
                }
            }
        }
    }

    fn run(mut self, script: &[Step], isolation: Isolation) -> Outcome {
        for &step in script {
            let party = self.parties.get_mut(step.party());
            if let Some(party) = party.filter(|party| !party.held_up.is_empty()) {
                party.held_up.push(step);
            } else {
                self.step(step, isolation);
            }
            self.go_on(isolation);
        }
        let (x, y) = (self.read(&self.main, X).unwrap(), self.read(&self.main, Y).unwrap());
        let report = kvfs_fs::check::check(&self.main.store).unwrap();
        Outcome {
            ends: self.parties.iter().map(|party| party.end).collect(),
            seen: self.parties.iter().map(|party| party.seen.clone()).collect(),
            x,
            y,
            is_sound: report.problems.is_empty(),
        }
    }
}

fn name(item: Item) -> &'static str {
    if item == X { "x" } else { "y" }
}

/// An anomaly: a script that makes it where nothing forbids it, and how it shows.
struct Anomaly {
    name: &'static str,
    script: &'static [Step],
    happened: fn(&Outcome) -> bool,
    /// At the snapshot level; serializable transactions never show any.
    is_allowed: bool,
    /// Not about keys.
    is_of_files: bool,
}

const fn forbidden(name: &'static str, script: &'static [Step], happened: fn(&Outcome) -> bool) -> Anomaly {
    Anomaly { name, script, happened, is_allowed: false, is_of_files: false }
}

const fn allowed(name: &'static str, script: &'static [Step], happened: fn(&Outcome) -> bool) -> Anomaly {
    Anomaly { name, script, happened, is_allowed: true, is_of_files: false }
}

const fn of_files(name: &'static str, script: &'static [Step], happened: fn(&Outcome) -> bool) -> Anomaly {
    Anomaly { name, script, happened, is_allowed: false, is_of_files: true }
}

const ANOMALIES: &[Anomaly] = &[
    forbidden(
        "dirty write",
        &[
            Begin(0),
            Begin(1),
            Write(0, X, 1),
            Write(1, X, 2),
            Write(1, Y, 2),
            Write(0, Y, 1),
            Commit(0),
            Commit(1),
        ],
        |o| o.x != o.y,
    ),
    forbidden("dirty read", &[Begin(0), Begin(1), Write(0, X, 1), Read(1, X), Commit(1), Abort(0)], |o| {
        o.seen[1].contains(&1)
    }),
    forbidden(
        "intermediate read",
        &[Begin(0), Begin(1), Write(0, X, 1), Read(1, X), Write(0, X, 2), Commit(0), Read(1, Y), Commit(1)],
        |o| o.seen[1].contains(&1),
    ),
    forbidden(
        "lost update",
        &[Begin(0), Begin(1), Read(0, X), Read(1, X), Write(0, X, 1), Write(1, X, 2), Commit(0), Commit(1)],
        |o| o.committed(0) && o.committed(1) && o.seen[0] == o.seen[1],
    ),
    forbidden(
        "read skew",
        &[Begin(0), Begin(1), Read(0, X), Write(1, X, 1), Write(1, Y, 1), Commit(1), Read(0, Y), Commit(0)],
        |o| o.committed(0) && o.seen[0] == [0, 1],
    ),
    forbidden(
        "a read that does not repeat",
        &[Begin(0), Begin(1), Read(0, X), Write(1, X, 1), Commit(1), Read(0, X), Commit(0)],
        |o| o.committed(0) && o.seen[0] == [0, 1],
    ),
    allowed(
        "write skew",
        &[
            Begin(0),
            Begin(1),
            Read(0, X),
            Read(0, Y),
            Read(1, X),
            Read(1, Y),
            Write(0, X, 1),
            Write(1, Y, 1),
            Commit(0),
            Commit(1),
        ],
        |o| o.committed(0) && o.committed(1) && o.seen[0] == [0, 0] && o.seen[1] == [0, 0],
    ),
    forbidden(
        "phantom",
        &[Begin(0), Begin(1), Count(0, X), Make(1, X, "new"), Commit(1), Count(0, X), Commit(0)],
        |o| o.committed(0) && o.seen[0] == [0, 1],
    ),
    allowed(
        "phantom skew",
        &[
            Begin(0),
            Begin(1),
            Count(0, Y),
            Count(1, X),
            Make(0, X, "mine"),
            Make(1, Y, "theirs"),
            Commit(0),
            Commit(1),
        ],
        |o| o.committed(0) && o.committed(1) && o.seen[0] == [0] && o.seen[1] == [0],
    ),
    forbidden(
        "long fork",
        &[
            Begin(0),
            Begin(1),
            Write(0, X, 1),
            Write(1, Y, 1),
            Begin(2),
            Read(2, X),
            Commit(0),
            Begin(3),
            Read(3, X),
            Read(3, Y),
            Commit(1),
            Begin(4),
            Read(4, Y),
            Read(4, X),
            Read(2, Y),
            Commit(2),
            Commit(3),
            Commit(4),
        ],
        |o| {
            let saw = |first: u64, second: u64| {
                [(2, true), (3, true), (4, false)].iter().any(|&(party, x_first)| {
                    let pair = if x_first { [first, second] } else { [second, first] };
                    o.committed(party) && o.seen[party] == pair
                })
            };
            saw(1, 0) && saw(0, 1)
        },
    ),
    of_files(
        "dangling link",
        &[Begin(0), Begin(1), MakeIn(0, "a"), RemoveDir(1, "a"), Commit(0), Commit(1)],
        |o| !o.is_sound || (o.committed(0) && o.committed(1)),
    ),
    of_files(
        "dangling link, removed first",
        &[Begin(0), Begin(1), RemoveDir(1, "a"), MakeIn(0, "a"), Commit(1), Commit(0)],
        |o| !o.is_sound || (o.committed(0) && o.committed(1)),
    ),
    of_files(
        "detached directory cycle",
        &[Begin(0), Begin(1), Move(0, "a", "b"), Move(1, "b", "a"), Commit(0), Commit(1)],
        |o| !o.is_sound || (o.committed(0) && o.committed(1)),
    ),
];

#[test]
fn each_anomaly_happens_where_it_is_allowed_and_nowhere_else() {
    let mut wrong = Vec::new();
    for anomaly in ANOMALIES {
        for over in [Over::Files, Over::Keys, Over::Both] {
            if anomaly.is_of_files && over != Over::Files {
                continue;
            }
            for isolation in [Isolation::Snapshot, Isolation::Serializable] {
                let outcome = Play::new(over).run(anomaly.script, isolation);
                let is_allowed = anomaly.is_allowed && isolation == Isolation::Snapshot;
                let context = format!("{}, {over:?}, {isolation:?}: {outcome:?}", anomaly.name);
                assert!(outcome.is_sound, "{context}");
                assert!(
                    outcome.ends.iter().all(|end| *end != End::Open),
                    "a party waits for ever: {context}"
                );
                // A verdict on parties that have all given up would say nothing.
                assert!(outcome.ends.contains(&End::Committed), "no party got through: {context}");
                if (anomaly.happened)(&outcome) != is_allowed {
                    wrong.push(context);
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}
