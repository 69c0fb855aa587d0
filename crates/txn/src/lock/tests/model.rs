//! Random owners and wants against a naive reference: a map from (owner, atom) to mode.

use std::collections::{BTreeMap, BTreeSet};

use kvfs_store::Keyspace;

use super::*;
use crate::{Fields, Guard, LockNameBuf, Mode, Phase, Rival};

/// Xorshift.
pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    pub(super) fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % bound
    }
}

const LETTERS: &[u8] = b"abcde";

/// A name as the indivisible things that it is about, in this small world.
fn atoms(name: &LockNameBuf) -> BTreeSet<String> {
    let letters = |from: &[u8], to: Option<&[u8]>| {
        let all = LETTERS.iter().map(|letter| [*letter]);
        let inside = all.filter(|letter| &letter[..] >= from && to.is_none_or(|to| &letter[..] < to));
        inside.map(|letter| letter[0] as char).collect::<Vec<_>>()
    };
    match name {
        LockNameBuf::Entry { directory, name } => [format!("entry {directory} {}", name[0] as char)].into(),
        LockNameBuf::Entries { directory } => {
            letters(b"", None).iter().map(|letter| format!("entry {directory} {letter}")).collect()
        }
        LockNameBuf::Blocks { inode, first, end } => {
            (*first..(*end).min(8)).map(|block| format!("block {inode} {block}")).collect()
        }
        LockNameBuf::Keys { keyspace, start, end } => letters(start, end.as_deref())
            .iter()
            .map(|letter| format!("key {} {letter}", keyspace.0))
            .collect(),
        LockNameBuf::Attributes { inode, fields } => (0..5)
            .filter(|bit| fields.bits() & (1 << bit) != 0)
            .map(|bit| format!("field {inode} {bit}"))
            .collect(),
        other => [other.to_string()].into(),
    }
}

fn random_name(random: &mut Random) -> LockNameBuf {
    let letter = |random: &mut Random| [LETTERS[random.below(5) as usize]];
    match random.below(12) {
        0..=3 => LockNameBuf::Entry { directory: 1, name: letter(random).to_vec().into() },
        4 => LockNameBuf::Entries { directory: 1 },
        5 | 6 => {
            let first = random.below(7);
            let end = if random.below(6) == 0 { u64::MAX } else { first + 1 + random.below(8 - first) };
            LockNameBuf::Blocks { inode: 9, first, end }
        }
        7 | 8 => LockNameBuf::Identity { directory: random.below(3) },
        9 => LockNameBuf::Attributes { inode: 9, fields: Fields::from_bits(1 + random.below(31) as u8) },
        _ => {
            let start = letter(random).to_vec();
            let mut end = start.clone();
            end.push(0);
            if random.below(3) == 0 {
                end = b"z".to_vec();
            }
            LockNameBuf::Keys { keyspace: Keyspace(1), start: start.into(), end: Some(end.into()) }
        }
    }
}

type Wants = Vec<(LockNameBuf, Mode)>;

fn random_wants(random: &mut Random) -> Wants {
    (0..=random.below(3))
        .map(|_| {
            let mode = [Mode::Exclusive, Mode::Shared, Mode::Increment][random.below(3) as usize];
            (random_name(random), mode)
        })
        .collect()
}

fn borrowed(wants: &Wants) -> Vec<Want<'_>> {
    wants.iter().map(|(name, mode)| Want { name: name.as_name(), mode: *mode }).collect()
}

fn collide(a: &Wants, b: &Wants) -> bool {
    a.iter().any(|(name_a, mode_a)| {
        b.iter()
            .any(|(name_b, mode_b)| !mode_a.compatible(*mode_b) && !atoms(name_a).is_disjoint(&atoms(name_b)))
    })
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum By {
    Main,
    Launder,
    Txn(u64),
}

/// An operation in two steps, as those that discover names are.
struct Op<'a> {
    by: By,
    steps: [Wants; 2],
    ticket: Option<Ticket>,
    guard: Option<Guard<'a>>,
}

impl Op<'_> {
    fn wants(&self) -> Wants {
        self.steps.concat()
    }

    fn is_parked(&self) -> bool {
        self.guard.is_none()
    }
}

struct World<'a> {
    fixture: &'a Fixture,
    escalates: bool,
    /// How often more was held than was asked for.
    collapsed: u64,
    seed: u64,
    owners: BTreeMap<u64, (Arc<LockOwner>, bool)>,
    ops: Vec<Op<'a>>,
    /// What each owner must hold.
    held: BTreeMap<(u64, String), Mode>,
}

impl<'a> World<'a> {
    /// Tries an operation; it stays while it holds latches, or waits.
    fn attempt(&mut self, mut op: Op<'a>) {
        let owner = match op.by {
            By::Txn(id) => match self.owners.get(&id) {
                Some((owner, _)) => Some(Arc::clone(owner)),
                None => return,
            },
            _ => None,
        };
        // Operations of transactions are over when they are granted; those of the main line stay for a while.
        let admission: &'a Admission = &self.fixture.admission;
        let mut reached: Wants = Vec::new();
        let outcome: Result<Option<Guard<'a>>, Refused> = (|| {
            if let Some(owner) = &owner {
                let first = borrowed(&op.steps[0]);
                let mut guard =
                    admission.try_acquire(Party::Txn(owner), &first, |_| true, op.ticket.as_ref())?;
                reached.extend(op.steps[0].clone());
                guard.try_extend(&borrowed(&op.steps[1]), |_| true)?;
                reached.extend(op.steps[1].clone());
                return Ok(None);
            }
            let party = if op.by == By::Launder { Party::Launder { pid: 1 } } else { Party::Main { pid: 1 } };
            let first = borrowed(&op.steps[0]);
            let mut guard = admission.try_acquire(party, &first, |_| true, op.ticket.as_ref())?;
            guard.try_extend(&borrowed(&op.steps[1]), |_| true)?;
            Ok(Some(guard))
        })();
        if let By::Txn(id) = op.by {
            for (name, mode) in &reached {
                for atom in atoms(name) {
                    let held = self.held.entry((id, atom)).or_insert(*mode);
                    *held = held.union(*mode);
                }
            }
        }
        match outcome {
            Ok(None) | Err(Refused::Doomed(_)) => {}
            Err(Refused::Full(share)) => assert!(self.escalates, "{share:?}"),
            Ok(Some(guard)) => {
                let wants = op.wants();
                let passes = |info: &crate::LockInfo| !collide(&wants, &vec![(info.name.clone(), info.mode)]);
                assert!(admission.list().iter().all(passes), "seed {}: passed a lock", self.seed);
                op.ticket = None;
                op.guard = Some(guard);
                self.ops.push(op);
            }
            Err(Refused::Wait(ticket)) => {
                op.ticket = Some(ticket);
                self.ops.push(op);
            }
        }
    }

    fn retry_one(&mut self, random: &mut Random) {
        let ready: Vec<usize> = (0..self.ops.len())
            .filter(|index| self.ops[*index].ticket.as_ref().is_some_and(Ticket::is_ready))
            .collect();
        if !ready.is_empty() {
            let op = self.ops.swap_remove(ready[random.below(ready.len() as u64) as usize]);
            self.attempt(op);
        }
    }

    fn step(&mut self, random: &mut Random, next_id: &mut u64) {
        match random.below(20) {
            0 | 1 if self.owners.len() < 6 => {
                *next_id += 1;
                let priority = random.below(3) as i32;
                let owner = self.fixture.begin_as(*next_id, &TxnTraits { priority, ..TxnTraits::default() });
                self.owners.insert(*next_id, (owner, false));
            }
            2..=9 if self.ops.len() < 12 => {
                let ids: Vec<u64> = self.owners.keys().copied().collect();
                let by = match random.below(8) {
                    0 => By::Launder,
                    1 | 2 => By::Main,
                    _ if ids.is_empty() => return,
                    _ => By::Txn(ids[random.below(ids.len() as u64) as usize]),
                };
                let second = if random.below(3) == 0 { random_wants(random) } else { Vec::new() };
                self.attempt(Op { by, steps: [random_wants(random), second], ticket: None, guard: None });
            }
            10..=14 => self.retry_one(random),
            15 if !self.ops.is_empty() => {
                // Done, or interrupted.
                let index = random.below(self.ops.len() as u64) as usize;
                let op = self.ops.swap_remove(index);
                if let Some(ticket) = &op.ticket
                    && random.below(2) == 0
                {
                    ticket.cancel();
                }
            }
            16 | 17 => self.ops.retain(Op::is_parked),
            18 => {
                let ids: Vec<u64> = self.owners.keys().copied().collect();
                if let Some(id) = ids.get(random.below(8) as usize) {
                    let (owner, committing) = self.owners.get_mut(id).unwrap();
                    if *committing || owner.doomed().is_some() {
                        let _ = owner.decide();
                        self.owners.remove(id);
                    } else {
                        *committing = owner.begin_commit().is_ok();
                    }
                }
            }
            _ => {
                self.fixture.clock.advance(Duration::from_millis(random.below(400)));
                self.fixture.admission.tick();
            }
        }
    }

    fn check(&mut self, step: usize) {
        let at = format!("seed {} step {step}", self.seed);
        let owners = &self.owners;
        self.held.retain(|(id, _), _| {
            owners.get(id).is_some_and(|(owner, _)| !matches!(owner.phase(), Phase::Doomed | Phase::Ended))
        });
        let list = self.fixture.admission.list();
        let mut listed: BTreeMap<(u64, String), Mode> = BTreeMap::new();
        for info in &list {
            let Rival::Txn { id, .. } = &info.holder else { panic!("{at}: held by the main line") };
            for atom in atoms(&info.name) {
                let mode = listed.entry((id.0, atom)).or_insert(info.mode);
                *mode = mode.union(info.mode);
            }
        }
        if self.escalates {
            for (key, mode) in &self.held {
                assert!(listed.get(key).is_some_and(|held| held.covers(*mode)), "{at}: {key:?} is not held");
            }
            self.collapsed += u64::from(listed.len() > self.held.len());
        } else {
            assert_eq!(listed, self.held, "{at}");
        }
        for ((id, atom), mode) in &listed {
            for ((other, other_atom), other_mode) in &listed {
                let fits = id == other || atom != other_atom || mode.compatible(*other_mode);
                assert!(fits, "{at}: {atom} is held by {id} and {other}");
            }
        }
        for (index, op) in self.ops.iter().enumerate() {
            let Some(ticket) = op.ticket.as_ref().filter(|ticket| !ticket.is_ready()) else { continue };
            let wants = op.wants();
            let by_holder = list.iter().any(|info| {
                let other = !matches!((&info.holder, op.by),
                    (Rival::Txn { id, .. }, By::Txn(own)) if id.0 == own);
                other && collide(&wants, &vec![(info.name.clone(), info.mode)])
            });
            let others = self.ops.iter().enumerate().filter(|(other, _)| *other != index);
            let by_other = others.into_iter().any(|(_, other)| collide(&wants, &other.wants()));
            assert!(by_holder || by_other, "{at}: {ticket:?} waits for nothing: {wants:?}");
        }
    }

    /// No new operations: everything must come to an end, without the help of time-outs.
    fn finish(&mut self, random: &mut Random) {
        self.ops.retain(Op::is_parked);
        loop {
            self.check(usize::MAX);
            let before =
                self.ops.iter().filter(|op| op.ticket.as_ref().is_some_and(Ticket::is_ready)).count();
            if before > 0 {
                self.retry_one(random);
                self.ops.retain(Op::is_parked);
                continue;
            }
            let busy: BTreeSet<u64> = self
                .ops
                .iter()
                .filter_map(|op| if let By::Txn(id) = op.by { Some(id) } else { None })
                .collect();
            let idle = self.owners.keys().find(|id| !busy.contains(id)).copied();
            let Some(idle) = idle else { break };
            self.owners.remove(&idle);
        }
        assert!(
            self.ops.is_empty() && self.owners.is_empty(),
            "seed {}: stuck: {:#?}\n{:#?}",
            self.seed,
            self.fixture.admission.list(),
            self.ops.iter().map(|op| (op.by, op.wants())).collect::<Vec<_>>()
        );
    }
}

#[test]
fn random_owners_behave_as_a_naive_table_says_and_all_come_to_an_end() {
    let mut collapsed = 0;
    for seed in 1..=250 {
        let mut random = Random::new(seed);
        let escalates = seed % 4 == 0;
        let bytes_max = if escalates { 6000 } else { usize::MAX };
        let fixture = Fixture::with(LockOptions { bytes_max, ..LockOptions::default() });
        let mut world = World {
            fixture: &fixture,
            escalates,
            collapsed: 0,
            seed,
            owners: BTreeMap::new(),
            ops: Vec::new(),
            held: BTreeMap::new(),
        };
        let mut next_id = 0;
        for step in 0..250 {
            world.step(&mut random, &mut next_id);
            world.check(step);
        }
        world.finish(&mut random);
        collapsed += world.collapsed;
        drop(world);
        assert!(fixture.is_idle(), "seed {seed}: something is left");
    }
    assert!(collapsed > 100, "{collapsed}");
}
