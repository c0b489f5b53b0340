// SPDX-License-Identifier: MIT

//! A client that acquires, uses and releases locks with every option of the commands.

use std::sync::atomic::Ordering;
use std::thread;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::RngExt;
use serde_json::Value;

use super::link::{Breakage, Line};
use super::{Promise, Shared};
use crate::record::{Acquire, Claim, Command, Outcome, Release, Renew};
use crate::wire::End;

/// A hold that the client believes it has.
#[derive(Clone)]
struct Held {
    key: String,
    owner: String,
    token: Option<i64>,
    id: Option<String>,
}

pub(super) struct Client<'a> {
    shared: &'a Shared,
    number: u32,
    rng: StdRng,
    line: Line<'a>,
    spare: Line<'a>,
    /// Number of name changes of each owner.
    names: Vec<u32>,
    held: Vec<Held>,
    /// A call with an ID and a reply, which the client may repeat needlessly.
    last: Option<Command>,
    call: u32,
}

impl<'a> Client<'a> {
    pub(super) fn new(shared: &'a Shared, number: u32) -> Client<'a> {
        let names = vec![0; shared.settings.owners.max(1) as usize];
        let (line, spare) = (Line::new(shared, number), Line::new(shared, number));
        let rng = shared.rng(number);
        Client { shared, number, rng, line, spare, names, held: Vec::new(), last: None, call: 0 }
    }

    pub(super) fn run(mut self) {
        for call in 0.. {
            if self.shared.is_late() || self.shared.is_enough(call) {
                break;
            }
            self.call = call;
            let generation = call / self.shared.settings.calls_per_key.max(1);
            self.shared.generation.fetch_max(generation, Ordering::Relaxed);
            self.one_call();
        }
        // Releases the remaining holds early; their leases would end them anyway.
        while let Some(held) = self.held.pop() {
            let release =
                Release { keys: vec![held.key], owner: held.owner, all: true, ..Release::default() };
            self.line.call(Command::Release(release), None);
        }
    }

    fn chance(&mut self, of_a_hundred: u32) -> bool {
        self.rng.random_range(0..100) < of_a_hundred
    }

    fn one_call(&mut self) {
        let features = self.shared.settings.features;
        if self.chance(10) {
            thread::sleep(Duration::from_micros(self.rng.random_range(0..5_000)));
        }
        self.maybe_suspend();
        let held = self.held.choose(&mut self.rng).cloned();
        let busy = u32::try_from(self.held.len()).unwrap_or(9).min(6);
        match (self.rng.random_range(0..100), held) {
            (0..2, _) if features.breaks && self.chance(25) => {
                let key = self.some_key();
                self.line.call(Command::Break { key }, None);
            }
            (2..4, _) => self.repeat(),
            (4..6, held) => {
                let owner = held.map_or_else(|| self.some_owner().1, |held| held.owner);
                let (key, claim) = (self.some_key(), Claim::Owner(owner));
                self.line.call(Command::Check { key, claim }, None);
            }
            (6..12, Some(held)) => self.renew(held),
            (12..25, Some(held)) if features.guard => self.guard(&held),
            (25..27, Some(held)) if features.cancel && held.id.is_some() => self.cancel_held(&held),
            (draw, Some(_)) if draw < 35 + 10 * busy => self.release(),
            _ => self.acquire(),
        }
    }

    /// Sends and reads nothing for a while, like a suspended process.
    fn maybe_suspend(&mut self) {
        let still = self.shared.settings.still;
        if still > 0 && self.rng.random_range(0..1000) < still {
            let length = Duration::from_millis(self.rng.random_range(100..900));
            if self.rng.random() {
                thread::sleep(length);
            } else {
                self.line.suspend_for = length;
            }
        }
    }

    fn some_key(&mut self) -> String {
        let slot = self.rng.random_range(0..self.shared.settings.keys);
        self.shared.key(slot, self.call)
    }

    /// An owner of this client: its index and its name.
    fn some_owner(&mut self) -> (usize, String) {
        let index = self.rng.random_range(0..self.names.len());
        (index, self.name(index))
    }

    fn name(&self, index: usize) -> String {
        format!("c{}o{index}e{}", self.number, self.names[index])
    }

    /// Gives the owner another name, because its holds are unknown.
    fn rename(&mut self, owner: &str) {
        self.retire(owner);
        self.held.retain(|held| held.owner != owner);
        // Ends watchdogs that would otherwise renew unknown holds forever.
        self.line.close(End::Close);
    }

    /// Replaces this owner name for all later calls.
    fn retire(&mut self, owner: &str) {
        for index in 0..self.names.len() {
            if self.name(index) == owner {
                self.names[index] += 1;
            }
        }
    }

    fn breakage(&mut self) -> Option<Breakage> {
        if self.rng.random_range(0..1000) >= self.shared.settings.broken {
            return None;
        }
        let end = if self.rng.random() { End::Close } else { End::Reset };
        let after = Duration::from_micros(self.rng.random_range(0..3_000));
        Some(match self.rng.random_range(0..10) {
            0..3 => Breakage::Part(self.rng.random_range(1..60), end),
            // A half-closed connection cannot send WAIT.
            8.. if !matches!(self.shared.settings.promise, Promise::Wait(_)) => Breakage::Half,
            _ => Breakage::Unread(after, end),
        })
    }

    fn lease(&mut self) -> Option<i64> {
        let lease: Option<i64> = match self.rng.random_range(0..100) {
            0..10 => None,
            10..25 => Some(self.rng.random_range(5..40)),
            25..90 => Some(self.rng.random_range(40..200)),
            _ => Some(self.rng.random_range(200..800)),
        };
        lease.map(|lease| lease * i64::from(self.shared.settings.stretch))
    }

    fn acquire(&mut self) {
        let features = self.shared.settings.features;
        let (index, owner) = self.some_owner();
        // Most owners use one kind of hold, so that the checker knows their holds.
        let shares = if index % 2 == 1 { 92 } else { 4 };
        let shared = features.shared && self.chance(shares);
        let several = features.several && self.chance(12);
        let mut keys = vec![self.some_key()];
        if several {
            for _ in 0..self.rng.random_range(0..3) {
                let key = self.some_key();
                if !keys.contains(&key) {
                    keys.push(key);
                }
            }
        }
        let block = match self.rng.random_range(0..10) {
            0..4 => None,
            4..6 => Some(self.rng.random_range(1..50)),
            6..8 => Some(self.rng.random_range(50..500)),
            _ => Some(0),
        };
        let seconds = self.chance(4);
        let id = self.chance(60).then(|| format!("r{}n{}", self.number, self.call));
        let watchdog = features.bound && self.chance(8);
        let acquire = Acquire {
            keys,
            several,
            owner,
            lease: if seconds { Some(1_000) } else { self.lease() },
            seconds,
            block,
            shared,
            limit: (shared && !several && self.chance(40)).then(|| self.rng.random_range(1..4)),
            once: features.once && self.chance(8),
            fence: self.chance(60),
            watchdog,
            watchdog_max: watchdog.then(|| self.rng.random_range(100..800)),
            ephemeral: features.bound && self.chance(8),
            id,
            replicas: self.shared.settings.promise.replicas(),
            ..Acquire::default()
        };
        let is_cancelled =
            features.cancel && acquire.id.is_some() && acquire.block.is_some() && self.chance(6);
        let outcome = if is_cancelled {
            self.acquire_and_cancel(acquire.clone())
        } else {
            let breakage = self.breakage();
            self.line.call(Command::Acquire(acquire.clone()), breakage)
        };
        self.resolve_acquire(acquire, outcome, is_cancelled);
    }

    /// Cancels the call on another connection while it waits.
    fn acquire_and_cancel(&mut self, acquire: Acquire) -> Outcome {
        let after = Duration::from_micros(self.rng.random_range(0..20_000));
        let Some(pending) = self.line.send(Command::Acquire(acquire.clone())) else { return Outcome::Unsent };
        thread::sleep(after);
        cancel(&mut self.spare, &acquire);
        self.line.receive(pending)
    }

    /// Retries until the outcome of the call is known.
    fn resolve_acquire(&mut self, acquire: Acquire, mut outcome: Outcome, mut is_cancelled: bool) {
        let mut was_unknown = false;
        for _ in 0..6 {
            if outcome != Outcome::Unknown {
                break;
            }
            was_unknown = true;
            if acquire.id.is_none() || is_cancelled || self.chance(25) {
                break;
            }
            let breakage = if self.chance(20) { self.breakage() } else { None };
            outcome = self.line.call(Command::Acquire(acquire.clone()), breakage);
        }
        match &outcome {
            Outcome::Reply(reply) if !reply.is_null() => {
                self.shared.granted.fetch_add(1, Ordering::Relaxed);
                for (number, key) in acquire.keys.iter().enumerate() {
                    let token = token(if acquire.several { &reply[number] } else { reply });
                    let held = Held {
                        key: key.clone(),
                        owner: acquire.owner.clone(),
                        token,
                        id: acquire.id.clone(),
                    };
                    if !is_cancelled {
                        self.held.push(held);
                    }
                }
                if acquire.id.is_some() {
                    self.last = Some(Command::Acquire(acquire));
                }
            }
            _ if was_unknown => {
                // Undoes the unknown outcome. Without an ID the outcome stays unknown.
                if acquire.id.is_some() && self.shared.settings.features.cancel {
                    is_cancelled = cancel(&mut self.line, &acquire);
                }
                if !is_cancelled {
                    self.rename(&acquire.owner);
                }
            }
            _ => {}
        }
    }

    fn release(&mut self) {
        let Some(index) = (0..self.held.len()).collect::<Vec<_>>().choose(&mut self.rng).copied() else {
            return;
        };
        let held = self.held.swap_remove(index);
        let several = self.shared.settings.features.several && self.chance(10);
        let mut keys = vec![held.key];
        if several {
            let others =
                self.held.iter().filter(|other| other.owner == held.owner && !keys.contains(&other.key));
            if let Some(other) = others.map(|other| other.key.clone()).next() {
                keys.push(other);
            }
            let owner = &held.owner;
            for key in &keys[1..] {
                if let Some(at) = self.held.iter().position(|one| one.key == *key && one.owner == *owner) {
                    self.held.swap_remove(at);
                }
            }
        }
        let all = self.chance(8);
        if all {
            self.held.retain(|other| other.owner != held.owner || !keys.contains(&other.key));
        }
        let owner = held.owner;
        let id = self.chance(60).then(|| format!("r{}n{}", self.number, self.call));
        // A lease that was set without the required acknowledgement may be lost.
        let may_set = self.shared.settings.promise == Promise::Primary;
        let lease = if may_set && !several && self.chance(10) { self.lease() } else { None };
        let release = Release { keys, several, owner: owner.clone(), lease, all, id, ..Release::default() };
        let breakage = self.breakage();
        let mut outcome = self.line.call(Command::Release(release.clone()), breakage);
        let mut was_unknown = false;
        for _ in 0..6 {
            if outcome != Outcome::Unknown || release.id.is_none() {
                break;
            }
            was_unknown = true;
            outcome = self.line.call(Command::Release(release.clone()), None);
        }
        if self.shared.settings.names_once {
            self.retire(&owner);
        }
        match outcome {
            Outcome::Unknown => self.rename(&owner),
            Outcome::Error(_) if was_unknown => self.rename(&owner),
            Outcome::Error(_) => {
                self.held.retain(|other| other.owner != owner || !release.keys.contains(&other.key))
            }
            Outcome::Reply(_) if release.id.is_some() => self.last = Some(Command::Release(release)),
            Outcome::Reply(_) | Outcome::Unsent => {}
        }
    }

    fn renew(&mut self, held: Held) {
        let features = self.shared.settings.features;
        let several = features.several && self.chance(10);
        let lease = self.lease();
        let (watchdog, ephemeral) = (features.bound && self.chance(8), features.bound && self.chance(8));
        // A client has several owners, so two of them can wait for each other in a way that the server cannot detect.
        let watchdog_max = watchdog.then(|| self.rng.random_range(100..800));
        let (keys, owner) = (vec![held.key], held.owner);
        let owner_name = owner.clone();
        let replicas = self.shared.settings.promise.replicas();
        let renew = Renew {
            keys,
            several,
            owner: owner_name,
            lease,
            watchdog,
            watchdog_max,
            ephemeral,
            replicas,
            session: None,
        };
        let breakage = self.breakage();
        if self.line.call(Command::Renew(renew), breakage) == Outcome::Unknown {
            self.rename(&owner);
        }
    }

    fn guard(&mut self, held: &Held) {
        let entry = format!("{} {}:{}", held.owner, self.number, self.call);
        let claim = match held.token {
            Some(token) if self.chance(50) => Claim::Token(token),
            _ => Claim::Owner(held.owner.clone()),
        };
        let breakage = self.breakage();
        self.line.call(Command::Guard { key: held.key.clone(), claim, entry }, breakage);
    }

    fn cancel_held(&mut self, held: &Held) {
        let Some(id) = held.id.clone() else { return };
        let command = Command::Cancel { key: held.key.clone(), owner: held.owner.clone(), id, session: None };
        let breakage = self.breakage();
        if self.line.call(command, breakage) == Outcome::Unknown {
            self.rename(&held.owner);
        }
        if self.shared.settings.names_once {
            self.retire(&held.owner);
        }
        let same = |other: &Held| other.key == held.key && other.owner == held.owner && other.id == held.id;
        self.held.retain(|other| !same(other));
    }

    /// Repeats an old call with an ID that already has its reply.
    fn repeat(&mut self) {
        if let Some(last) = self.last.take() {
            self.line.call(last, None);
        }
    }
}

/// Cancels an acquire at each of its locks. Returns whether every cancel got a reply.
fn cancel(line: &mut Line<'_>, acquire: &Acquire) -> bool {
    let Some(id) = &acquire.id else { return false };
    acquire.keys.iter().fold(true, |all, key| {
        let command =
            Command::Cancel { key: key.clone(), owner: acquire.owner.clone(), id: id.clone(), session: None };
        // A repeated cancel gets the same reply.
        let answered = (0..4).any(|_| matches!(line.call(command.clone(), None), Outcome::Reply(_)));
        all && answered
    })
}

pub(super) fn token(reply: &Value) -> Option<i64> {
    let parts = reply.as_array()?;
    let at = parts.iter().position(|part| part == "token")?;
    parts.get(at + 1)?.as_i64()
}
