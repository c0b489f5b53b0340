// SPDX-License-Identifier: MIT

//! Where calls are made and their effects are read: one client that calls, and one that gets the messages.

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
    /// What came of calls of each way, and whether they were sent again.
    pub(super) seen: BTreeSet<(Way, Outcome, bool)>,
    /// How many histories have begun: each has keys of its own.
    histories: u32,
    /// How many releases have been named.
    requests: u64,
}

impl Desk {
    pub(super) fn open(world: &World, variant: Variant) -> Desk {
        let (mut client, mut listener) = (world.client(), world.client());
        let scripts = Scripts::load(&mut client, variant);
        // For `settle`, and maybe there from an earlier desk.
        client.call("LOCK.ACQUIRE settling a PX 3600000");
        assert!(listener.call(&format!("PSUBSCRIBE {CHANNELS}")).starts_with("[psubscribe"));
        assert!(listener.call("SUBSCRIBE end").starts_with("[subscribe"));
        Desk { client, listener, scripts, seen: BTreeSet::new(), histories: 0, requests: 0 }
    }

    /// Begins a history: what an earlier one has left behind is none of it.
    pub(super) fn begin(&mut self) {
        self.histories += 1;
        self.settle();
        self.heard();
    }

    /// A key that no other history has: the star stands for what makes it so.
    pub(super) fn key(&self, name: &str) -> String {
        name.replace('*', &format!("{:?}-{}", self.scripts.variant, self.histories))
    }

    /// A name for a release that none has had.
    pub(super) fn request(&mut self) -> u64 {
        self.requests += 1;
        self.requests
    }

    /// Runs commands in one go, and says when.
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

    /// Waits until a lease of a millisecond has ended.
    pub(super) fn until_gone(&mut self, key: &str) -> TestCaseResult {
        // One that is longer would be waited for in vain, again and again.
        let ttl = self.client.number(&format!("PTTL {key}"));
        prop_assert!((-2..=1).contains(&ttl) && ttl != -1, "the TTL of {} is {}", key, ttl);
        until("its lease is over", || self.client.call(&format!("EXISTS {key}")) == "0");
        Ok(())
    }

    /// When this is over, what the module does a moment later than the server tells it is done too.
    pub(super) fn settle(&mut self) {
        assert_eq!(self.client.call("LOCK.ACQUIRE settling b BLOCK 1"), "nil");
    }

    /// How many messages each channel got since this was asked last.
    pub(super) fn heard(&mut self) -> BTreeMap<String, usize> {
        self.client.call("PUBLISH end now");
        let mut heard = BTreeMap::new();
        loop {
            let text = self.listener.recv();
            if text == "[message, end, now]" {
                return heard;
            }
            let channel = text
                .strip_prefix(&format!("[pmessage, {CHANNELS}, "))
                .and_then(|rest| rest.strip_suffix(", 0]"))
                .unwrap_or_else(|| panic!("the message {text}"));
            *heard.entry(channel.to_owned()).or_default() += 1;
        }
    }
}

/// When the server ran something: not before and not after, by its own clock in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) struct Span {
    from: i64,
    to: i64,
}

impl Span {
    /// When a lease ends that was set meanwhile. Mostly this is one millisecond.
    pub(super) fn ends(self, lease: i64) -> RangeInclusive<i64> {
        self.from + lease..=self.to + lease
    }

    /// What a TTL that is read meanwhile may be.
    pub(super) fn ttls(self, end: i64) -> RangeInclusive<i64> {
        end - self.to..=end - self.from
    }
}

fn milliseconds(time: &Value) -> i64 {
    let text = show(time);
    let (seconds, micros) = text.trim_matches(['[', ']']).split_once(", ").unwrap();
    seconds.parse::<i64>().unwrap() * 1000 + micros.parse::<i64>().unwrap() / 1000
}

/// What the server tells of a lock.
#[derive(Clone, Debug)]
pub(super) struct Stored {
    /// The owner and the count; nothing if there is no key.
    pub(super) holder: Option<(usize, i64)>,
    /// When the key expires, -2 if there is none.
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

    /// Nothing.
    pub(super) fn free() -> Stored {
        Stored { holder: None, end: -2, ttl: -2, info: "nil".to_owned() }
    }

    /// Fails unless TTL and `LOCK.INFO` tell the same as the hash and its end.
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
             since, nil, client, nil, watchdog, nil, ephemeral, nil]], waiters, 0]"
        );
        prop_assert_eq!(&self.info, &info);
        Ok(())
    }
}

/// The one field of a lock's hash, as `HGETALL` shows it.
fn holder(hash: &str) -> Option<(usize, i64)> {
    if hash == "[]" {
        return None;
    }
    let field = hash.strip_prefix('[').and_then(|hash| hash.strip_suffix(']')).and_then(|hash| {
        let (owner, holds) = hash.split_once(", ")?;
        Some((OWNERS.iter().position(|name| *name == owner)?, holds.parse().ok()?))
    });
    Some(field.unwrap_or_else(|| panic!("the hash {hash} is no lock of ours")))
}
