// SPDX-License-Identifier: MIT

//! Makes calls and reads their effects, with one client for calls and one for messages.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use proptest::prop_assert;
use proptest::prop_assert_eq;
use proptest::test_runner::TestCaseResult;
use redis::Value;

use super::calls::{Outcome, Scripts, Variant, Way};
use super::OWNERS;
use crate::support::{show, until, Client, World};

const CHANNELS: &str = "redisson_lock__channel:*";

pub(super) struct Desk {
    client: Client,
    listener: Client,
    pub(super) scripts: Scripts,
    /// The outcomes of calls, and whether the calls were sent again.
    pub(super) seen: BTreeSet<(Way, Outcome, bool)>,
    /// Number of histories so far: each one uses its own keys.
    histories: u32,
    /// Number of releases so far.
    requests: u64,
}

impl Desk {
    pub(super) fn open(world: &World, variant: Variant) -> Desk {
        let (mut client, mut listener) = (world.client(), world.client());
        let scripts = Scripts::load(&mut client, variant);
        // `settle` needs this lock. An earlier desk may already hold it.
        client.call("LOCK.ACQUIRE settling a PX 3600000");
        assert!(listener.call(&format!("PSUBSCRIBE {CHANNELS}")).starts_with("[psubscribe"));
        assert!(listener.call("SUBSCRIBE end").starts_with("[subscribe"));
        Desk { client, listener, scripts, seen: BTreeSet::new(), histories: 0, requests: 0 }
    }

    /// Begins a history, and drops messages of an earlier one.
    pub(super) fn begin(&mut self) {
        self.histories += 1;
        self.settle();
        self.messages();
    }

    /// A key for this history only: replaces the star with a unique text.
    pub(super) fn key(&self, name: &str) -> String {
        name.replace('*', &format!("{:?}-{}", self.scripts.variant, self.histories))
    }

    /// A new number for a release.
    pub(super) fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Runs commands without a pause, and returns the time span.
    pub(super) fn run(&mut self, commands: &[String]) -> (Span, Vec<Value>) {
        let mut all = vec!["TIME"];
        all.extend(commands.iter().map(String::as_str));
        all.push("TIME");
        self.client.send_at_once(&all);
        let mut replies: Vec<Value> = all.iter().map(|_| self.client.recv_value()).collect();
        let to = milliseconds(&replies.pop().unwrap());
        let from = milliseconds(&replies.remove(0));
        (Span { from, to }, replies)
    }

    /// Waits until a lease of one millisecond has expired.
    pub(super) fn until_gone(&mut self, key: &str) -> TestCaseResult {
        // Waiting for a longer lease would time out at each step of the shrinking.
        let ttl = self.client.number(&format!("PTTL {key}"));
        prop_assert!((-2..=1).contains(&ttl) && ttl != -1, "the TTL of {} is {}", key, ttl);
        until("the lease has expired", || self.client.call(&format!("EXISTS {key}")) == "0");
        Ok(())
    }

    /// Waits for the module's work that follows a server event with a short delay.
    pub(super) fn settle(&mut self) {
        assert_eq!(self.client.call("LOCK.ACQUIRE settling b BLOCK 1"), "nil");
    }

    /// Number of messages in each channel since the last call.
    pub(super) fn messages(&mut self) -> BTreeMap<String, usize> {
        self.client.call("PUBLISH end now");
        let mut messages = BTreeMap::new();
        loop {
            let text = self.listener.recv();
            if text == "[message, end, now]" {
                return messages;
            }
            let channel = text
                .strip_prefix(&format!("[pmessage, {CHANNELS}, "))
                .and_then(|rest| rest.strip_suffix(", 0]"))
                .unwrap_or_else(|| panic!("unexpected message {text}"));
            *messages.entry(channel.to_owned()).or_default() += 1;
        }
    }
}

/// The time span of a run, in milliseconds of the server's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: i64,
    to: i64,
}

impl Span {
    /// The possible ends of a lease that was set in this span. Mostly this is one millisecond.
    pub(super) fn ends(self, lease: i64) -> RangeInclusive<i64> {
        self.from + lease..=self.to + lease
    }

    /// The possible TTLs of a lease that is read in this span.
    pub(super) fn ttls(self, end: i64) -> RangeInclusive<i64> {
        end - self.to..=end - self.from
    }
}

fn milliseconds(time: &Value) -> i64 {
    let text = show(time);
    let (seconds, micros) = text.trim_matches(['[', ']']).split_once(", ").unwrap();
    seconds.parse::<i64>().unwrap() * 1000 + micros.parse::<i64>().unwrap() / 1000
}

/// The stored state of a lock.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// The owner and the count, or nothing without a key.
    pub(super) holder: Option<(usize, i64)>,
    /// The key's expiry, or -2 without a key.
    pub(super) end: i64,
    ttl: i64,
    info: String,
}

impl Stored {
    /// The commands whose replies [`Stored::read`] reads.
    pub(super) fn commands(key: &str) -> [String; 4] {
        ["HGETALL", "PEXPIRETIME", "PTTL", "LOCK.INFO"].map(|command| format!("{command} {key}"))
    }

    pub(super) fn read(replies: &[Value]) -> Stored {
        let [hash, end, ttl, info] = replies else { panic!("not four replies: {replies:?}") };
        let number = |value: &Value| show(value).parse().unwrap();
        Stored { holder: holder(&show(hash)), end: number(end), ttl: number(ttl), info: show(info) }
    }

    /// A free lock.
    pub(super) fn free() -> Stored {
        Stored { holder: None, end: -2, ttl: -2, info: "nil".to_owned() }
    }

    /// Asserts that TTL and `LOCK.INFO` agree with the hash and its expiry.
    pub(super) fn assert_consistent(&self, span: Span) -> TestCaseResult {
        let Some((owner, holds)) = self.holder else {
            prop_assert_eq!((self.end, self.ttl, self.info.as_str()), (-2, -2, "nil"));
            return Ok(());
        };
        prop_assert!(span.ttls(self.end).contains(&self.ttl), "{:?} in {:?}", self, span);
        let ttl: Option<i64> =
            self.info.split(", ").nth(3).and_then(|text| text.parse().ok()).filter(|_| self.info != "nil");
        prop_assert!(ttl.is_some_and(|ttl| span.ttls(self.end).contains(&ttl)), "{:?} in {:?}", self, span);
        let ttl = ttl.unwrap_or_default();
        let owner = OWNERS[owner];
        let info = format!(
            "[mode, exclusive, ttl, {ttl}, token, nil, holders, \
             [[owner, {owner}, mode, exclusive, holds, {holds}, ttl, {ttl}, \
             since, nil, client, nil, address, nil, name, nil, watchdog, nil, ephemeral, nil, session, nil]], waiters, 0]"
        );
        prop_assert_eq!(&self.info, &info);
        Ok(())
    }
}

/// The single field of a lock's hash, from the reply to `HGETALL`.
fn holder(hash: &str) -> Option<(usize, i64)> {
    if hash == "[]" {
        return None;
    }
    let field = hash.strip_prefix('[').and_then(|hash| hash.strip_suffix(']')).and_then(|hash| {
        let (owner, holds) = hash.split_once(", ")?;
        Some((OWNERS.iter().position(|name| *name == owner)?, holds.parse().ok()?))
    });
    Some(field.unwrap_or_else(|| panic!("the hash {hash} is not a lock of this test")))
}
