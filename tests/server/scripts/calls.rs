// SPDX-License-Identifier: MIT

//! One call in the words of the commands and in those of the scripts, and what the replies to them mean.

use super::OWNERS;
use crate::support::{lua, Client};

/// Which way a call goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Command,
    Script,
}

/// What Redisson's release was in the course of its versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// One that is sent again gets its first reply again. The command does that with an `ID`.
    Latched,
    Plain,
    /// A free lock can be released, and is published then.
    Oldest,
}

impl Variant {
    pub(super) const ALL: [Variant; 3] = [Variant::Latched, Variant::Plain, Variant::Oldest];

    fn source(self) -> &'static str {
        match self {
            Variant::Latched => lua::RELEASE_LATCHED,
            Variant::Plain => lua::RELEASE,
            Variant::Oldest => lua::RELEASE_OLDEST,
        }
    }
}

/// What somebody wants of a lock. Leases are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Acquire {
        owner: usize,
        lease: i64,
    },
    /// With a number that is the same only for the same release.
    Release {
        owner: usize,
        lease: i64,
        request: u64,
    },
    Renew {
        owner: usize,
        lease: i64,
    },
    Break,
}

/// What came of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    /// Acquired.
    Granted,
    /// Somebody else has it.
    Busy,
    /// Released, and there are holds left.
    Kept,
    /// Released or broken, and free.
    Freed,
    /// There was nothing to break.
    WasFree,
    Renewed,
    /// There was nothing to release or renew.
    NotOwner,
}

impl Outcome {
    pub(super) const ALL: [Outcome; 7] = [
        Outcome::Granted,
        Outcome::Busy,
        Outcome::Kept,
        Outcome::Freed,
        Outcome::WasFree,
        Outcome::Renewed,
        Outcome::NotOwner,
    ];
}

/// A reply, understood.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// How many holds the owner has now: only the commands tell.
    pub(super) holds: Option<i64>,
    /// How long the lock is held still: only the script tells.
    pub(super) ttl: Option<i64>,
}

impl Answer {
    fn only(outcome: Outcome) -> Answer {
        Answer { outcome, holds: None, ttl: None }
    }
}

/// The scripts as the server knows them, by their digests.
pub(super) struct Scripts {
    pub(super) variant: Variant,
    acquire: String,
    release: String,
    renew: String,
    force: String,
}

impl Scripts {
    pub(super) fn load(client: &mut Client, variant: Variant) -> Scripts {
        let mut load = |source: &str| client.call_args(&[b"SCRIPT", b"LOAD", source.as_bytes()]);
        Scripts {
            variant,
            acquire: load(lua::ACQUIRE),
            release: load(variant.source()),
            renew: load(lua::RENEW),
            force: load(lua::BREAK),
        }
    }
}

impl Call {
    /// The lease that it sets if it has an effect and a lock is left.
    pub(super) fn lease(self) -> Option<i64> {
        match self {
            Call::Acquire { lease, .. } | Call::Release { lease, .. } | Call::Renew { lease, .. } => {
                Some(lease)
            }
            Call::Break => None,
        }
    }

    pub(super) fn words(self, way: Way, key: &str, scripts: &Scripts) -> String {
        match way {
            Way::Command => self.as_command(key, scripts.variant),
            Way::Script => self.as_script(key, scripts),
        }
    }

    fn as_command(self, key: &str, variant: Variant) -> String {
        match self {
            // Without a lease a re-entry would shorten none, as a script's does.
            Call::Acquire { owner, lease } => format!("LOCK.ACQUIRE {key} {} PX {lease}", OWNERS[owner]),
            Call::Release { owner, lease, request } => {
                let id = if variant == Variant::Latched { format!(" ID {request}") } else { String::new() };
                format!("LOCK.RELEASE {key} {} PX {lease}{id}", OWNERS[owner])
            }
            Call::Renew { owner, lease } => format!("LOCK.RENEW {key} {}{}", OWNERS[owner], px(lease)),
            Call::Break => format!("LOCK.BREAK {key}"),
        }
    }

    fn as_script(self, key: &str, scripts: &Scripts) -> String {
        let Scripts { variant, acquire, release, renew, force } = scripts;
        let channel = channel(key);
        match self {
            Call::Acquire { owner, lease } => format!("EVALSHA {acquire} 1 {key} {lease} {}", OWNERS[owner]),
            Call::Release { owner, lease, request } if *variant == Variant::Latched => {
                let latch = format!("{}:{request:032x}", derived("redisson_unlock_latch", key));
                format!("EVALSHA {release} 3 {key} {channel} {latch} {lease} {} 20000", OWNERS[owner])
            }
            Call::Release { owner, lease, .. } => {
                format!("EVALSHA {release} 2 {key} {channel} {lease} {}", OWNERS[owner])
            }
            Call::Renew { owner, lease } => format!("EVALSHA {renew} 1 {key} {lease} {}", OWNERS[owner]),
            Call::Break => format!("EVALSHA {force} 2 {key} {channel}"),
        }
    }

    /// What a reply to it means.
    pub(super) fn answer(self, way: Way, reply: &str) -> Answer {
        let answer = match way {
            Way::Command => self.answer_of_command(reply),
            Way::Script => self.answer_of_script(reply),
        };
        answer.unwrap_or_else(|| panic!("{self:?} by {way:?} was answered {reply}"))
    }

    fn answer_of_command(self, reply: &str) -> Option<Answer> {
        use Outcome::{Busy, Freed, Granted, Kept, NotOwner, Renewed, WasFree};
        let number = reply.parse::<i64>().ok();
        let outcome = match (self, number) {
            (Call::Acquire { .. }, None) if reply == "nil" => Busy,
            (Call::Acquire { .. }, Some(1..)) => Granted,
            (Call::Release { .. } | Call::Renew { .. }, None) if reply.starts_with("NOTOWNER ") => NotOwner,
            (Call::Release { .. }, Some(0)) => Freed,
            (Call::Release { .. }, Some(1..)) => Kept,
            (Call::Renew { .. }, Some(1..)) => Renewed,
            (Call::Break, Some(0)) => WasFree,
            (Call::Break, Some(1)) => Freed,
            _ => return None,
        };
        let holds = if let Call::Break = self { Some(0) } else { number };
        Some(Answer { holds, ..Answer::only(outcome) })
    }

    fn answer_of_script(self, reply: &str) -> Option<Answer> {
        use Outcome::{Busy, Freed, Granted, Kept, NotOwner, Renewed, WasFree};
        Some(match (self, reply) {
            (Call::Acquire { .. }, "nil") => Answer::only(Granted),
            (Call::Acquire { .. }, ttl) => Answer { ttl: Some(ttl.parse().ok()?), ..Answer::only(Busy) },
            (Call::Release { .. }, "nil") | (Call::Renew { .. }, "0") => Answer::only(NotOwner),
            (Call::Release { .. }, "0") => Answer::only(Kept),
            (Call::Release { .. } | Call::Break, "1") => Answer::only(Freed),
            (Call::Renew { .. }, "1") => Answer::only(Renewed),
            (Call::Break, "0") => Answer::only(WasFree),
            _ => return None,
        })
    }
}

/// A lease as an option, but for the one that the server takes if none is given.
fn px(lease: i64) -> String {
    if lease == 30_000 {
        String::new()
    } else {
        format!(" PX {lease}")
    }
}

/// Where it is announced that the lock is free.
pub(super) fn channel(key: &str) -> String {
    derived("redisson_lock__channel", key)
}

fn derived(prefix: &str, key: &str) -> String {
    if key.contains('{') {
        format!("{prefix}:{key}")
    } else {
        format!("{prefix}:{{{key}}}")
    }
}
