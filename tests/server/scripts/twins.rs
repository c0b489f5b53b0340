// SPDX-License-Identifier: MIT

//! Commands run a history on one key, and scripts run it on its twin. After every step, both keys have the same hash and
//! TTL, and both replies mean the same.

use std::collections::BTreeMap;

use proptest::test_runner::{TestCaseError, TestCaseResult};
use proptest::{prop_assert, prop_assert_eq};
use redis::Value;

use super::calls::{channel, Answer, Call, Outcome, Variant, Way};
use super::desk::{Desk, Span, Stored};
use super::Op;
use crate::support::show;

const WAYS: [Way; 2] = [Way::Command, Way::Script];

/// Two keys for the same lock. In every array, the first element belongs to the commands and the second to the scripts.
struct Pair {
    variant: Variant,
    keys: [String; 2],
    stored: [Stored; 2],
    /// The last release of each owner: its number, and its replies if the server remembers them.
    releases: BTreeMap<usize, (u64, Option<[String; 2]>)>,
}

pub(super) fn run(desk: &mut Desk, variant: Variant, history: Vec<(usize, Op)>) -> TestCaseResult {
    // A name has its own channel and latch, with or without braces.
    let mut locks = ["*", "x{*}"].map(|name| Pair {
        variant,
        keys: ["command-*", "script-*"].map(|twin| desk.key(&name.replace('*', twin))),
        stored: [Stored::free(), Stored::free()],
        releases: BTreeMap::new(),
    });
    for (index, (lock, op)) in history.into_iter().enumerate() {
        let pair = &mut locks[lock];
        match &op {
            Op::End => pair.end(desk),
            Op::Expire => pair.expire(desk),
            op => pair.step(desk, op),
        }
        .map_err(|why| TestCaseError::fail(format!("step {index}, {op:?} of lock {lock}: {why}")))?;
    }
    desk.settle();
    prop_assert_eq!(desk.messages(), BTreeMap::new(), "messages after the end");
    Ok(())
}

impl Pair {
    fn step(&mut self, desk: &mut Desk, op: &Op) -> TestCaseResult {
        let (call, first) = self.call(desk, op);
        let again = first.is_some();
        let mut commands = self.both(desk, call);
        commands.extend(self.keys.iter().flat_map(|key| Stored::commands(key)));
        let (span, replies) = in_transaction(desk, commands);
        let texts = [show(&replies[0]), show(&replies[1])];
        let answers = [0, 1].map(|twin| call.answer(WAYS[twin], &texts[twin]));
        let stored = [Stored::read(&replies[2..6]), Stored::read(&replies[6..10])];

        let outcomes = answers.map(|answer| answer.outcome);
        let was_free = self.stored[0].holder.is_none();
        if was_free && self.variant == Variant::Oldest && matches!(call, Call::Release { .. }) {
            prop_assert_eq!(outcomes, [Outcome::NotOwner, Outcome::Freed]);
        } else {
            prop_assert_eq!(outcomes[0], outcomes[1], "outcomes of command and script");
        }
        prop_assert_eq!(stored[0].holder, stored[1].holder, "holders after command and script");
        for twin in [0, 1] {
            desk.seen.insert((WAYS[twin], outcomes[twin], again));
            stored[twin].assert_consistent(span)?;
            self.assert_ends(twin, call, outcomes[twin], again, &stored[twin], span)?;
        }
        assert_reported(&answers, again, &stored, span)?;
        let mut expected = BTreeMap::new();
        for twin in [0, 1] {
            if outcomes[twin] == Outcome::Freed && !again {
                expected.insert(channel(&self.keys[twin]), 1);
            }
        }
        prop_assert_eq!(desk.messages(), expected, "messages");
        if let Some(first) = first {
            prop_assert_eq!(texts, first, "the replies to a repeated release");
        } else if let Call::Release { owner, request, .. } = call {
            let remembered = self.variant == Variant::Latched && outcomes[0] != Outcome::NotOwner;
            self.releases.insert(owner, (request, remembered.then_some(texts)));
        }
        self.stored = stored;
        Ok(())
    }

    /// The call of an operation, and its first replies if it is repeated.
    fn call(&self, desk: &mut Desk, op: &Op) -> (Call, Option<[String; 2]>) {
        match *op {
            Op::Acquire { owner, lease } => (Call::Acquire { owner, lease }, None),
            Op::Release { owner, lease, again } => {
                let last = self.releases.get(&owner).filter(|_| again).cloned();
                let (request, first) = last.unwrap_or_else(|| (desk.request(), None));
                (Call::Release { owner, lease, request }, first)
            }
            Op::Renew { owner, lease } => (Call::Renew { owner, lease }, None),
            Op::Break => (Call::Break, None),
            Op::End | Op::Expire => unreachable!("these operations have no call"),
        }
    }

    fn both(&self, desk: &Desk, call: Call) -> Vec<String> {
        WAYS.iter().zip(&self.keys).map(|(way, key)| call.words(*way, key, &desk.scripts)).collect()
    }

    /// A new lease starts now for both twins; other leases do not change.
    fn assert_ends(
        &self,
        twin: usize,
        call: Call,
        outcome: Outcome,
        again: bool,
        after: &Stored,
        span: Span,
    ) -> TestCaseResult {
        let before = &self.stored[twin];
        let sets = matches!(outcome, Outcome::Granted | Outcome::Kept | Outcome::Renewed) && !again;
        match call.lease().filter(|_| sets) {
            Some(lease) => {
                prop_assert!(
                    span.ends(lease).contains(&after.end),
                    "{:?}: {:?} in {:?}",
                    WAYS[twin],
                    after,
                    span
                );
            }
            None if outcome == Outcome::Freed && !again => prop_assert_eq!(after.holder, None),
            None => {
                prop_assert_eq!((after.holder, after.end), (before.holder, before.end), "{:?}", WAYS[twin])
            }
        }
        Ok(())
    }

    /// The lease expires without a waiter.
    fn end(&mut self, desk: &mut Desk) -> TestCaseResult {
        let Some((owner, _)) = self.stored[0].holder else { return Ok(()) };
        let call = Call::Renew { owner, lease: 1 };
        let commands = self.both(desk, call);
        let (_, replies) = in_transaction(desk, commands);
        for (way, reply) in WAYS.into_iter().zip(&replies) {
            prop_assert_eq!(call.answer(way, &show(reply)).outcome, Outcome::Renewed);
        }
        for key in &self.keys {
            desk.until_gone(key)?;
        }
        self.is_gone(desk)
    }

    fn expire(&mut self, desk: &mut Desk) -> TestCaseResult {
        let held = self.stored[0].holder.is_some();
        let (_, replies) = desk.run(&self.keys.each_ref().map(|key| format!("PEXPIRE {key} -1")));
        prop_assert_eq!(replies, vec![Value::Int(held.into()); 2]);
        if held {
            self.is_gone(desk)?;
        }
        Ok(())
    }

    /// The key was deleted without a release. The module announces the free lock if a command had granted it. If a script
    /// had taken it, the module may announce it.
    fn is_gone(&mut self, desk: &mut Desk) -> TestCaseResult {
        self.stored = [Stored::free(), Stored::free()];
        desk.settle();
        let mut messages = desk.messages();
        messages.remove(&channel(&self.keys[1]));
        prop_assert_eq!(messages, BTreeMap::from([(channel(&self.keys[0]), 1)]), "messages");
        Ok(())
    }
}

/// Runs both twins in one transaction. A command's lease starts when the command runs. A script's lease may start with the
/// transaction, so the two can differ by a millisecond.
fn in_transaction(desk: &mut Desk, commands: Vec<String>) -> (Span, Vec<Value>) {
    let all: Vec<String> = [vec!["MULTI".to_owned()], commands, vec!["EXEC".to_owned()]].concat();
    let (span, mut replies) = desk.run(&all);
    match replies.pop() {
        Some(Value::Array(results)) => (span, results),
        other => panic!("EXEC replied {other:?}"),
    }
}

/// Asserts the values that only one kind of reply reports.
fn assert_reported(answers: &[Answer; 2], again: bool, stored: &[Stored; 2], span: Span) -> TestCaseResult {
    if let Some(holds) = answers[0].holds.filter(|_| !again) {
        prop_assert_eq!(
            holds,
            stored[0].holder.map_or(0, |(_, count)| count),
            "holds in the command's reply"
        );
    }
    if let Some(ttl) = answers[1].ttl {
        prop_assert!(span.ttls(stored[1].end).contains(&ttl), "{} in {:?} of {:?}", ttl, span, stored[1]);
    }
    Ok(())
}
