// SPDX-License-Identifier: MIT

//! Runs the lines of one scenario and collects the events that they cause.

use std::collections::{BTreeMap, VecDeque};

use super::line::{Client, Line, OWNERS};
use crate::core::model_tests::real::Real;
use crate::core::model_tests::{assert_drained, visible, Op, Seen, LOCKS, OWNERS as NAMES};
use crate::core::{ConnectionId, Decision, Hold, Owner, Reply, Token, WaiterId};

const LOCK_NAMES: [&str; 3] = ["k", "m", "n"];

/// An undecided wait, or a grant that is neither delivered nor revoked.
struct Wait {
    id: WaiterId,
    lock: usize,
    is_granted: bool,
}

/// The tokens of one lock seen so far.
#[derive(Default)]
struct Tokens {
    newest: Token,
    of_owners: BTreeMap<usize, Token>,
}

/// The lock manager and its environment in one scenario.
pub(super) struct Stage {
    real: Real,
    begin: i64,
    waits: BTreeMap<Client, Wait>,
    tokens: [Tokens; 3],
    /// Decisions and announcements that the scenario has not named yet, in order.
    decisions: VecDeque<String>,
    announcements: VecDeque<String>,
}

impl Stage {
    pub(super) fn new() -> Stage {
        let real = Real::new(true);
        let begin = real.now;
        Stage {
            real,
            begin,
            waits: BTreeMap::new(),
            tokens: Default::default(),
            decisions: VecDeque::new(),
            announcements: VecDeque::new(),
        }
    }

    /// Runs one line. Fails if the observed event or reply differs.
    pub(super) fn play(&mut self, line: &Line) -> Result<(), String> {
        if !matches!(line, Line::Seen(_) | Line::Times(..)) {
            self.assert_all_named()?;
        }
        match line {
            Line::At(at, line) => {
                self.advance(*at)?;
                self.play_at(line)?;
            }
            Line::Times(times, lines) => {
                for _ in 0..*times {
                    lines.iter().try_for_each(|line| self.play(line))?;
                }
            }
            line => self.play_at(line)?,
        }
        self.real.locks.verify();
        Ok(())
    }

    /// Ends the scenario. Fails if an event was not named, or if anything is remembered once all clients have
    /// left (9).
    pub(super) fn end(mut self) -> Result<(), String> {
        self.assert_all_named()?;
        self.real.timer = true;
        for client in self.waits.keys() {
            self.real.locks.connection_closed(ConnectionId(client.connection()), self.real.time());
        }
        for client in (0..OWNERS.len()).flat_map(|owner| (0..3).map(move |number| Client { owner, number })) {
            self.real.locks.connection_closed(ConnectionId(client.connection()), self.real.time());
        }
        let granted = self.waits.into_values().filter(|wait| wait.is_granted).map(|wait| wait.id);
        let granted: Vec<WaiterId> = granted.collect();
        assert_drained(&mut self.real, granted);
        Ok(())
    }

    fn play_at(&mut self, line: &Line) -> Result<(), String> {
        match line {
            Line::At(..) | Line::Times(..) => return Err("This line is not understood.".into()),
            Line::Call(client, op, reply) => self.call(*client, op, reply)?,
            Line::Happens(op) => self.happens(op),
            Line::Takes(lock, lease, reply) => {
                let taken = self.real.take(LOCKS[*lock], *lease);
                self.fire();
                equal(if taken { "taken" } else { "not free" }, reply, "-> ")?;
            }
            Line::Delivered(client) => self.delivered(*client)?,
            Line::Gone(client) => self.gone(*client),
            Line::Listen => self.real.listeners = true,
            Line::TimerIsLate => self.real.timer = false,
            Line::TimerFires => {
                self.real.timer = true;
                self.fire();
            }
            Line::Seen(event) => return self.seen(event),
            Line::Nothing => return self.assert_all_named(),
            Line::Queue(lock, expected) => equal(&self.queue(*lock), expected, &queue_of(*lock))?,
            Line::Holders(lock, expected) => equal(&self.holders(*lock), expected, &holders_of(*lock))?,
        }
        self.notice();
        Ok(())
    }

    fn call(&mut self, client: Option<Client>, op: &Op, expected: &str) -> Result<(), String> {
        let seen = self.real.step(op);
        let reply = match (seen, client, op) {
            (Some(Seen::Granted(reply)), Some(client), Op::Acquire { lock, .. }) => {
                self.granted(client, *lock, &reply)
            }
            (Some(Seen::Waits(id)), Some(client), Op::Acquire { lock, .. }) => {
                self.waits.insert(client, Wait { id, lock: *lock, is_granted: false });
                "waits".into()
            }
            (Some(Seen::Renewed(holds)), ..) => format!("holds {holds}"),
            (Some(Seen::Left(left)), ..) => format!("{left} left"),
            (Some(Seen::Broken(lost)), ..) => format!("{lost} lost"),
            (Some(Seen::Busy), ..) => "busy".into(),
            (Some(Seen::Quarantined), ..) => "quarantined".into(),
            (Some(Seen::Deadlock), ..) => "deadlock".into(),
            (Some(Seen::NotOwner), ..) => "not owner".into(),
            (Some(Seen::WrongType), ..) => "wrong type".into(),
            (Some(Seen::Unblocked), ..) => "unblocked".into(),
            (Some(Seen::Cancelled(true)), ..) => "undone".into(),
            (Some(Seen::Cancelled(false)), ..) => "nothing undone".into(),
            (seen, ..) => return Err(format!("The reply is {seen:?}.")),
        };
        equal(&reply, expected, "-> ")
    }

    fn happens(&mut self, op: &Op) {
        if let Op::Away { foreign_write } = *op {
            self.real.demote_and_promote(foreign_write);
        } else {
            self.real.step(op);
        }
    }

    fn delivered(&mut self, client: Client) -> Result<(), String> {
        let wait = self.waits.remove(&client).filter(|wait| wait.is_granted);
        let Some(wait) = wait else { return Err(format!("{} was granted nothing.", client.name())) };
        self.real.locks.delivered(wait.id, self.real.time());
        self.fire();
        Ok(())
    }

    /// Closes a connection with its wait, its undelivered grant and its bindings.
    fn gone(&mut self, client: Client) {
        match self.waits.remove(&client) {
            Some(wait) if wait.is_granted => self.real.locks.undelivered(wait.id),
            Some(wait) => assert!(self.real.locks.leave(wait.id), "an unknown wait"),
            None => {}
        }
        self.real.locks.connection_closed(ConnectionId(client.connection()), self.real.time());
        self.fire();
    }

    fn fire(&mut self) {
        if self.real.timer {
            self.real.fire();
        }
    }

    /// Advances the clock, but not past an event.
    fn advance(&mut self, at: i64) -> Result<(), String> {
        while self.real.now < self.begin + at {
            self.assert_all_named().map_err(|why| format!("at {} ms: {why}", self.real.now - self.begin))?;
            self.real.advance(1);
            self.notice();
        }
        let now = self.real.now - self.begin;
        if now > at {
            return Err(format!("It is {now} ms already."));
        }
        Ok(())
    }

    /// Translates decisions and announcements into the words of a scenario.
    fn notice(&mut self) {
        for (id, decision) in std::mem::take(&mut self.real.decisions) {
            let client = self.waits.iter().find(|(_, wait)| wait.id == id).map(|(client, _)| *client);
            // A repeated call may have replaced the wait of the same client.
            let Some(client) = client else {
                self.decisions.push_back(format!("an earlier wait ends: {}", name(&decision)));
                continue;
            };
            let lock = self.waits[&client].lock;
            let lock_name = LOCK_NAMES[lock];
            let event = if let Decision::Granted(reply) = &decision {
                if let Some(wait) = self.waits.get_mut(&client) {
                    wait.is_granted = true;
                }
                let reply = self.granted(client, lock, reply);
                format!("{} is granted {lock_name}, {reply}", client.name())
            } else {
                self.waits.remove(&client);
                format!("{}'s wait for {lock_name} ends: {}", client.name(), name(&decision))
            };
            self.decisions.push_back(event);
        }
        for key in std::mem::take(&mut self.real.messages) {
            if self.real.listeners {
                let lock = LOCKS.iter().position(|lock| *lock == key).unwrap();
                self.announcements.push_back(format!("{} is announced free", LOCK_NAMES[lock]));
            }
        }
    }

    /// Describes a grant in the words of a scenario.
    fn granted(&mut self, client: Client, lock: usize, reply: &Reply) -> String {
        let tokens = &mut self.tokens[lock];
        let known = tokens.of_owners.get(&client.owner).copied();
        let token = match reply.token {
            None => "",
            Some(token) if token > tokens.newest => ", a new token",
            Some(token) if Some(token) == known => ", the same token",
            Some(_) => ", an old token",
        };
        if let Some(token) = reply.token {
            tokens.newest = tokens.newest.max(token);
            tokens.of_owners.insert(client.owner, token);
        }
        format!("holds {}{token}", reply.holds)
    }

    fn seen(&mut self, expected: &str) -> Result<(), String> {
        for events in [&mut self.decisions, &mut self.announcements] {
            if events.front().is_some_and(|event| event == expected) {
                events.pop_front();
                return Ok(());
            }
        }
        match self.decisions.front().or(self.announcements.front()) {
            Some(event) => Err(format!("Instead: {event}")),
            None => Err("Nothing has happened.".into()),
        }
    }

    fn assert_all_named(&self) -> Result<(), String> {
        match self.decisions.front().or(self.announcements.front()) {
            Some(event) => Err(format!("Not named: {event}")),
            None => Ok(()),
        }
    }

    fn queue(&self, lock: usize) -> String {
        let waiting = self.real.waiting(LOCKS[lock]);
        let client = |id: &WaiterId| {
            self.waits.iter().find(|(_, wait)| wait.id == *id).map(|(client, _)| client.name())
        };
        list(waiting.iter().map(|id| client(id).unwrap_or_else(|| "an unknown wait".into())), ", ")
    }

    fn holders(&self, lock: usize) -> String {
        match visible(&self.real, LOCKS[lock]) {
            Some(holders) => list(holders.iter().map(|hold| self.hold(hold)), "; "),
            None => "wrong type".into(),
        }
    }

    fn hold(&self, hold: &Hold) -> String {
        let owner = NAMES.iter().position(|name| Owner::new(name) == hold.owner);
        let name = owner.and_then(|owner| OWNERS.get(owner)).unwrap_or(&"an external client");
        let count = match (hold.exclusive, hold.shared) {
            (exclusive, 0) => exclusive.to_string(),
            (0, shared) => format!("{shared} shared"),
            (exclusive, shared) => format!("{exclusive} and {shared} shared"),
        };
        format!("{name} {count} until {} ms", hold.expires_at - self.begin)
    }
}

fn list(items: impl Iterator<Item = String>, separator: &str) -> String {
    let items: Vec<String> = items.collect();
    if items.is_empty() {
        "nobody".into()
    } else {
        items.join(separator)
    }
}

fn queue_of(lock: usize) -> String {
    format!("queue of {}: ", LOCK_NAMES[lock])
}

fn holders_of(lock: usize) -> String {
    format!("holders of {}: ", LOCK_NAMES[lock])
}

fn equal(seen: &str, expected: &str, what: &str) -> Result<(), String> {
    if seen == expected {
        return Ok(());
    }
    Err(format!("Instead: {what}{seen}"))
}

fn name(decision: &Decision) -> &'static str {
    match decision {
        Decision::Granted(_) | Decision::GrantedAll(_) => "granted",
        Decision::TimedOut => "timed out",
        Decision::WrongType => "wrong type",
        Decision::Moved => "moved",
        Decision::Superseded => "superseded",
        Decision::Cancelled => "cancelled",
        Decision::Demoted => "demoted",
        Decision::Lost => "lost",
        Decision::Refused(_) => "refused",
    }
}
