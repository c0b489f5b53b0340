// SPDX-License-Identifier: MIT

//! The grammar of a scenario's lines.
//!
//! ```text
//! alice acquires k[, OPTION…] -> holds 1[, a new token] | busy | quarantined | waits | deadlock | unblocked | wrong type
//! alice waits for k[, OPTION…]                  with `BLOCK`; the call is queued
//!     OPTION: shared | once | limit 2 | lease 20 ms | at most 50 ms | fenced | id 1 | watchdog | ephemeral | replicas
//! alice releases k[, all][, shared][, lease 20 ms][, id 1] -> 0 left | not owner | wrong type
//! alice renews k, lease 20 ms[, watchdog][, ephemeral] -> holds 1 | not owner | wrong type
//! alice cancels k, id 1 -> undone | nothing undone
//! an operator breaks k -> 1 lost                number of owners that lost their holds
//! alice's grant is delivered | alice's client is gone
//! a foreign write deletes k | replaces k | sets the lease of k to 20 ms
//! external clients listen
//! an external client takes k[, lease 20 ms] -> taken | not free
//! clients are paused | the pause is over | the timer is late | the timer fires
//! the server is a replica for a moment | locks may be forgotten for 20 ms
//! alice is granted k, holds 1                   event: the reply to a waiter
//! alice's wait for k ends: timed out            event; also superseded, cancelled, demoted, lost, wrong type
//! k is announced free                           event, if external clients listen
//! nothing happens
//! queue of k: alice, bob | nobody
//! holders of k: alice 1 until 20 ms; bob 1 shared until 30 ms | nobody
//! at 50 ms: LINE                                advances the clock to 50 ms after the scenario's beginning
//! 16 times: LINE; LINE
//! ```
//!
//! Owners are alice, bob, carol and dave; `bob/2` is another connection of bob. Locks are k, m and n. The default
//! lease is 30 seconds and shortens nothing, as in the module. A call waits without a deadline unless `at most` is given.

use crate::core::model_tests::{Call, Op, LOCKS};
use crate::core::{Mode, ReleaseScope};

pub(super) const OWNERS: [&str; 4] = ["alice", "bob", "carol", "dave"];

const DEFAULT_LEASE_MS: i64 = 30_000;

/// A connection: the number of its owner, and its number among the owner's connections. The first is 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Client {
    pub(super) owner: usize,
    pub(super) number: u64,
}

impl Client {
    fn parse(text: &str) -> Option<Client> {
        let (name, number) = match text.split_once('/') {
            Some((name, number)) => (name, number.parse::<u64>().ok()?.checked_sub(1)?),
            None => (text, 0),
        };
        Some(Client { owner: OWNERS.iter().position(|owner| *owner == name)?, number })
    }

    pub(super) fn name(self) -> String {
        match self.number {
            0 => OWNERS[self.owner].into(),
            number => format!("{}/{}", OWNERS[self.owner], number + 1),
        }
    }

    /// The connection's id, unique among all clients.
    pub(super) fn connection(self) -> u64 {
        u64::try_from(self.owner).unwrap() * 100 + self.number
    }
}

/// The meaning of one line.
#[derive(Debug)]
pub(super) enum Line {
    /// Advances the clock to this time, in milliseconds since the start of the scenario, and then runs the
    /// line.
    At(i64, Box<Line>),
    Times(usize, Vec<Line>),
    /// A call of a client or an operator, and its expected reply.
    Call(Option<Client>, Op, String),
    /// A foreign write, or an event of the whole server.
    Happens(Op),
    Takes(usize, i64, String),
    Delivered(Client),
    Gone(Client),
    Listen,
    TimerIsLate,
    TimerFires,
    /// An expected decision or announcement.
    Seen(String),
    Nothing,
    Queue(usize, String),
    Holders(usize, String),
}

impl Line {
    /// Parses a line; `None` if it is not understood.
    pub(super) fn parse(text: &str) -> Option<Line> {
        let text = text.trim();
        if let Some((at, line)) = text.strip_prefix("at ").and_then(|rest| rest.split_once(" ms: ")) {
            return Some(Line::At(at.parse().ok()?, Box::new(Line::parse(line)?)));
        }
        if let Some((times, lines)) = text.split_once(" times: ") {
            let lines = lines.split(';').map(Line::parse).collect::<Option<_>>()?;
            return Some(Line::Times(times.parse().ok()?, lines));
        }
        if let Some((lock, queue)) = text.strip_prefix("queue of ").and_then(|rest| rest.split_once(": ")) {
            return Some(Line::Queue(lock_of(lock)?, queue.into()));
        }
        if let Some((lock, holders)) = text.strip_prefix("holders of ").and_then(|rest| rest.split_once(": "))
        {
            return Some(Line::Holders(lock_of(lock)?, holders.into()));
        }
        if let Some((call, reply)) = text.split_once(" -> ") {
            return parse_call(call, reply);
        }
        parse_event(text)
    }
}

fn lock_of(name: &str) -> Option<usize> {
    ["k", "m", "n"].iter().take(LOCKS.len()).position(|lock| *lock == name)
}

/// Parses a line without a reply.
fn parse_event(text: &str) -> Option<Line> {
    let event = match text {
        "external clients listen" => Line::Listen,
        "the timer is late" => Line::TimerIsLate,
        "the timer fires" => Line::TimerFires,
        "nothing happens" => Line::Nothing,
        "clients are paused" => Line::Happens(Op::Pause(true)),
        "the pause is over" => Line::Happens(Op::Pause(false)),
        "the server is a replica for a moment" => Line::Happens(Op::Away { foreign_write: None }),
        _ => return parse_named(text),
    };
    Some(event)
}

fn parse_named(text: &str) -> Option<Line> {
    if let Some(write) = text.strip_prefix("a foreign write ") {
        return parse_foreign_write(write).map(Line::Happens);
    }
    if let Some(time) = text.strip_prefix("locks may be forgotten for ") {
        return Some(Line::Happens(Op::Quarantine { ms: ms(time)? }));
    }
    if let Some(lock) = text.strip_suffix(" is announced free") {
        return lock_of(lock).map(|_| Line::Seen(text.into()));
    }
    if let Some((client, rest)) = text.split_once("'s ") {
        let client = Client::parse(client)?;
        return match rest {
            "grant is delivered" => Some(Line::Delivered(client)),
            "client is gone" => Some(Line::Gone(client)),
            _ => rest.starts_with("wait for ").then(|| Line::Seen(text.into())),
        };
    }
    let (client, rest) = text.split_once(' ')?;
    let client = Client::parse(client)?;
    if rest.starts_with("is granted ") {
        return Some(Line::Seen(text.into()));
    }
    let (lock, options) = split_options(rest.strip_prefix("waits for ")?)?;
    let (call, block) = acquire_options(client, &options)?;
    let op = Op::Acquire { lock, call, block: Some(block.unwrap_or(0)) };
    Some(Line::Call(Some(client), op, "waits".into()))
}

fn parse_foreign_write(text: &str) -> Option<Op> {
    if let Some((lock, lease)) =
        text.strip_prefix("sets the lease of ").and_then(|rest| rest.split_once(" to "))
    {
        return Some(Op::Expire { lock: lock_of(lock)?, lease: ms(lease)? });
    }
    match text.split_once(' ')? {
        ("deletes", lock) => Some(Op::Delete { lock: lock_of(lock)? }),
        ("replaces", lock) => Some(Op::Overwrite { lock: lock_of(lock)? }),
        _ => None,
    }
}

fn ms(text: &str) -> Option<i64> {
    text.strip_suffix(" ms")?.parse().ok()
}

/// Splits a lock from the comma-separated options after it.
fn split_options(text: &str) -> Option<(usize, Vec<&str>)> {
    let mut parts = text.split(", ");
    let lock = lock_of(parts.next()?)?;
    Some((lock, parts.collect()))
}

fn parse_call(call: &str, reply: &str) -> Option<Line> {
    if let Some(rest) = call.strip_prefix("an external client takes ") {
        let (lock, options) = split_options(rest)?;
        let lease = match options[..] {
            [] => DEFAULT_LEASE_MS,
            [lease] => ms(lease.strip_prefix("lease ")?)?,
            _ => return None,
        };
        return Some(Line::Takes(lock, lease, reply.into()));
    }
    if let Some(lock) = call.strip_prefix("an operator breaks ") {
        return Some(Line::Call(None, Op::Break { lock: lock_of(lock)? }, reply.into()));
    }
    let (client, rest) = call.split_once(' ')?;
    let client = Client::parse(client)?;
    let (verb, rest) = rest.split_once(' ')?;
    let (lock, options) = split_options(rest)?;
    let op = match verb {
        "acquires" => {
            let (call, block) = acquire_options(client, &options)?;
            Op::Acquire { lock, call, block }
        }
        "releases" => release(client.owner, lock, &options)?,
        "renews" => {
            let (call, _) = acquire_options(client, &options)?;
            Op::Renew { lock, owner: client.owner, lease: call.lease, bind: call.bind, max: call.max }
        }
        "cancels" => match options[..] {
            [id] => Op::Cancel { lock, owner: client.owner, id: id.strip_prefix("id ")?.parse().ok()? },
            _ => return None,
        },
        _ => return None,
    };
    Some(Line::Call(Some(client), op, reply.into()))
}

/// An acquire, and its time to wait if that is limited.
fn acquire_options(client: Client, options: &[&str]) -> Option<(Call, Option<u64>)> {
    let mut call = Call { owner: client.owner, lease: DEFAULT_LEASE_MS, keeps: true, ..Call::default() };
    let mut block = None;
    let (mut watchdog, mut ephemeral) = (false, false);
    for option in options {
        match *option {
            "shared" => call.shared = true,
            "once" => call.once = true,
            "fenced" => call.fence = true,
            "watchdog" => watchdog = true,
            "ephemeral" => ephemeral = true,
            "replicas" => call.awaits_replicas = true,
            _ if option.starts_with("watchdog at most ") => {
                watchdog = true;
                call.max = Some(ms(option.strip_prefix("watchdog at most ")?)?);
            }
            _ => match option.rsplit_once("id ") {
                Some(("", id)) => call.id = Some(id.parse().ok()?),
                _ => match option.strip_prefix("at most ") {
                    Some(time) => block = Some(ms(time)?.unsigned_abs()),
                    None => match option.strip_prefix("limit ") {
                        Some(limit) => call.limit = limit.parse().ok()?,
                        None => (call.lease, call.keeps) = (ms(option.strip_prefix("lease ")?)?, false),
                    },
                },
            },
        }
    }
    if watchdog || ephemeral {
        call.bind = Some((client.connection(), watchdog, ephemeral));
    }
    Some((call, block))
}

fn release(owner: usize, lock: usize, options: &[&str]) -> Option<Op> {
    let (mut scope, mut lease, mut id) = (ReleaseScope::One, None, None);
    for option in options {
        match *option {
            "all" => scope = ReleaseScope::All,
            "shared" => scope = ReleaseScope::OneOf(Mode::Shared),
            _ => match option.strip_prefix("id ") {
                Some(number) => id = Some(number.parse().ok()?),
                None => lease = Some(ms(option.strip_prefix("lease ")?)?),
            },
        }
    }
    Some(Op::Release { lock, owner, scope, lease, id })
}
