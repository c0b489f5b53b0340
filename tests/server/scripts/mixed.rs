// SPDX-License-Identifier: MIT

//! One history on one key: each step is a command or a script. A model with owner, count and expiry gives the expected
//! outcome.

use std::collections::BTreeMap;

use proptest::test_runner::{TestCaseError, TestCaseResult};
use proptest::{prop_assert, prop_assert_eq};
use redis::Value;

use super::calls::{channel, Call, Outcome, Variant, Way};
use super::desk::{Desk, Stored};
use super::Op;
use crate::support::show;

/// A hold in the model.
#[derive(Clone, Debug)]
struct Hold {
    owner: usize,
    count: i64,
    /// The expiry of the lease that the server stored, after the test has checked it.
    end: i64,
    /// Whether a command has granted or renewed the hold, so that the module knows the lock.
    known: bool,
}

/// The expected effects of a call.
struct Expected {
    outcome: Outcome,
    /// The lease that the call sets.
    lease: Option<i64>,
    /// The allowed numbers of messages.
    messages: std::ops::RangeInclusive<usize>,
}

struct Mixed {
    variant: Variant,
    key: String,
    model: Option<Hold>,
    /// The last release of each owner: its number, its way, and its reply if the server remembers the reply.
    releases: BTreeMap<usize, (u64, Way, Option<String>)>,
}

pub(super) fn run(desk: &mut Desk, variant: Variant, history: Vec<(Way, Op)>) -> TestCaseResult {
    let mut mixed = Mixed { variant, key: desk.key("mixed-*"), model: None, releases: BTreeMap::new() };
    for (index, (way, op)) in history.into_iter().enumerate() {
        match op {
            Op::End => mixed.end(desk, way),
            Op::Expire => mixed.expire(desk),
            Op::Acquire { owner, lease } => mixed.step(desk, way, Call::Acquire { owner, lease }),
            Op::Release { owner, lease, again } => mixed.release(desk, way, (owner, lease, again)),
            Op::Renew { owner, lease } => mixed.step(desk, way, Call::Renew { owner, lease }),
            Op::Break => mixed.step(desk, way, Call::Break),
        }
        .map_err(|why| TestCaseError::fail(format!("step {index}, {op:?} by {way:?}: {why}")))?;
    }
    desk.settle();
    prop_assert_eq!(desk.messages(), BTreeMap::new(), "messages after the end");
    Ok(())
}

impl Mixed {
    fn release(
        &mut self,
        desk: &mut Desk,
        way: Way,
        (owner, lease, again): (usize, i64, bool),
    ) -> TestCaseResult {
        match self.releases.get(&owner).cloned().filter(|_| again) {
            None => {
                let request = desk.request();
                self.step(desk, way, Call::Release { owner, lease, request })
            }
            Some((request, way, None)) => self.step(desk, way, Call::Release { owner, lease, request }),
            Some((request, way, Some(first))) => {
                self.again(desk, way, Call::Release { owner, lease, request }, &first)
            }
        }
    }

    fn step(&mut self, desk: &mut Desk, way: Way, call: Call) -> TestCaseResult {
        let mut commands = vec![call.words(way, &self.key, &desk.scripts)];
        commands.extend(Stored::commands(&self.key));
        let (span, replies) = desk.run(&commands);
        let text = show(&replies[0]);
        let answer = call.answer(way, &text);
        let stored = Stored::read(&replies[1..]);
        desk.seen.insert((way, answer.outcome, false));

        let expected = self.expect(way, call);
        prop_assert_eq!(answer.outcome, expected.outcome);
        stored.assert_consistent(span)?;
        if let (Some(lease), Some(hold)) = (expected.lease, &mut self.model) {
            prop_assert!(span.ends(lease).contains(&stored.end), "{:?} in {:?}", stored, span);
            hold.end = stored.end;
        }
        self.assert_stored(&stored)?;
        if let Some(holds) = answer.holds {
            prop_assert_eq!(holds, self.model.as_ref().map_or(0, |hold| hold.count));
        }
        if let Some(ttl) = answer.ttl {
            prop_assert!(span.ttls(stored.end).contains(&ttl), "{} in {:?} of {:?}", ttl, span, stored);
        }
        self.assert_messages(desk, &expected)?;
        if let Call::Release { owner, request, .. } = call {
            let remembered = self.variant == Variant::Latched && answer.outcome != Outcome::NotOwner;
            self.releases.insert(owner, (request, way, remembered.then_some(text)));
        }
        Ok(())
    }

    /// Applies the call to the model, except for the lease's expiry.
    fn expect(&mut self, way: Way, call: Call) -> Expected {
        let silent = |outcome, lease| Expected { outcome, lease, messages: 0..=0 };
        let oldest = self.variant == Variant::Oldest && way == Way::Script;
        match (call, &mut self.model) {
            (Call::Acquire { owner, lease }, None) => {
                self.model = Some(Hold { owner, count: 1, end: 0, known: way == Way::Command });
                silent(Outcome::Granted, Some(lease))
            }
            (Call::Acquire { owner, lease }, Some(hold)) if hold.owner == owner => {
                hold.count += 1;
                hold.known |= way == Way::Command;
                silent(Outcome::Granted, Some(lease))
            }
            (Call::Acquire { .. }, Some(_)) => silent(Outcome::Busy, None),
            (Call::Release { owner, lease, .. }, Some(hold)) if hold.owner == owner => {
                hold.count -= 1;
                if hold.count > 0 {
                    return silent(Outcome::Kept, Some(lease));
                }
                self.freed(way)
            }
            (Call::Release { .. }, None) if oldest => {
                Expected { outcome: Outcome::Freed, lease: None, messages: 1..=1 }
            }
            (Call::Renew { owner, lease }, Some(hold)) if hold.owner == owner => {
                hold.known |= way == Way::Command;
                silent(Outcome::Renewed, Some(lease))
            }
            (Call::Release { .. } | Call::Renew { .. }, _) => silent(Outcome::NotOwner, None),
            (Call::Break, Some(_)) => self.freed(way),
            (Call::Break, None) => silent(Outcome::WasFree, None),
        }
    }

    /// Both a command and a script publish that the lock is free. If the module knew the lock, it notices the script's
    /// foreign delete, and may publish, too.
    fn freed(&mut self, way: Way) -> Expected {
        let known = self.model.take().is_some_and(|hold| hold.known);
        let twice = way == Way::Script && known;
        Expected { outcome: Outcome::Freed, lease: None, messages: 1..=if twice { 2 } else { 1 } }
    }

    /// A repeated release gets its first reply and changes nothing.
    fn again(&mut self, desk: &mut Desk, way: Way, call: Call, first: &str) -> TestCaseResult {
        let mut commands = vec![call.words(way, &self.key, &desk.scripts)];
        commands.extend(Stored::commands(&self.key));
        let (span, replies) = desk.run(&commands);
        let text = show(&replies[0]);
        let stored = Stored::read(&replies[1..]);
        desk.seen.insert((way, call.answer(way, &text).outcome, true));
        prop_assert_eq!(text.as_str(), first, "the reply to a repeated release");
        stored.assert_consistent(span)?;
        self.assert_stored(&stored)?;
        prop_assert_eq!(desk.messages(), BTreeMap::new(), "messages of a repeated release");
        Ok(())
    }

    fn assert_stored(&self, stored: &Stored) -> TestCaseResult {
        let hold = self.model.as_ref();
        prop_assert_eq!(stored.holder, hold.map(|hold| (hold.owner, hold.count)));
        prop_assert_eq!(stored.end, hold.map_or(-2, |hold| hold.end));
        Ok(())
    }

    fn assert_messages(&self, desk: &mut Desk, expected: &Expected) -> TestCaseResult {
        if expected.messages.start() != expected.messages.end() {
            desk.settle();
        }
        let mut messages = desk.messages();
        let ours = messages.remove(&channel(&self.key)).unwrap_or(0);
        prop_assert!(expected.messages.contains(&ours), "{} messages, not {:?}", ours, expected.messages);
        prop_assert_eq!(messages, BTreeMap::new(), "messages in other channels");
        Ok(())
    }

    /// The lease expires without a waiter.
    fn end(&mut self, desk: &mut Desk, way: Way) -> TestCaseResult {
        let Some(Hold { owner, known, .. }) = &mut self.model else { return Ok(()) };
        *known |= way == Way::Command;
        let call = Call::Renew { owner: *owner, lease: 1 };
        let (_, replies) = desk.run(&[call.words(way, &self.key, &desk.scripts)]);
        prop_assert_eq!(call.answer(way, &show(&replies[0])).outcome, Outcome::Renewed);
        desk.until_gone(&self.key)?;
        self.is_gone(desk)
    }

    fn expire(&mut self, desk: &mut Desk) -> TestCaseResult {
        let (_, replies) = desk.run(&[format!("PEXPIRE {} -1", self.key)]);
        prop_assert_eq!(&replies[0], &Value::Int(self.model.is_some().into()));
        self.is_gone(desk)
    }

    /// The key was deleted without a release. The module announces the free lock if it knows the lock. If only scripts have
    /// used the lock, the module may announce it.
    fn is_gone(&mut self, desk: &mut Desk) -> TestCaseResult {
        let messages = match self.model.take().map(|hold| hold.known) {
            Some(true) => 1..=1,
            Some(false) => 0..=1,
            None => return Ok(()),
        };
        desk.settle();
        self.assert_messages(desk, &Expected { outcome: Outcome::Freed, lease: None, messages })
    }
}
