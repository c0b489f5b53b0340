// SPDX-License-Identifier: MIT

//! A call as a command and as a script, and the meaning of the replies.

use super::OWNERS;
use crate::support::{lua, Client};

/// How a call is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Way {
    Command,
    Script,
}

/// Redisson's release in different versions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Variant {
    /// A release that is sent again gets its first reply again. The command does so with an `ID`.
    Latched,
    Plain,
    /// The release of a free lock succeeds and publishes a message.
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

/// A call on a lock. Leases are in milliseconds.
#[derive(Clone, Copy, Debug)]
pub(super) enum Call {
    Acquire {
        owner: usize,
        lease: i64,
    },
    /// Two releases have the same request number only if one repeats the other.
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

/// The result of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Outcome {
    Granted,
    /// Another owner holds the lock.
    Busy,
    /// Released, but holds are left.
    Kept,
    /// Released or broken, and the lock is free.
    Freed,
    /// A break of a free lock.
    WasFree,
    Renewed,
    /// A release or renewal without a hold.
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

/// A parsed reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) outcome: Outcome,
    /// The owner's number of holds; only commands report it.
    pub(super) holds: Option<i64>,
    /// The remaining lease; only the script reports it.
    pub(super) ttl: Option<i64>,
}

impl Answer {
    fn only(outcome: Outcome) -> Answer {
        Answer { outcome, holds: None, ttl: None }
    }
}

/// The digests of the loaded scripts.
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
    /// The lease that the call sets if it has an effect and a hold is left.
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
            // With PX, a re-entry shortens the lease as the script does; without PX, it never does.
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

    /// Parses the reply to a call.
    pub(super) fn answer(self, way: Way, reply: &str) -> Answer {
        let answer = match way {
            Way::Command => self.answer_of_command(reply),
            Way::Script => self.answer_of_script(reply),
        };
        answer.unwrap_or_else(|| panic!("{self:?} by {way:?} had the reply {reply}"))
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

/// A lease as an option; empty if the lease is the server's default.
fn px(lease: i64) -> String {
    if lease == 30_000 {
        String::new()
    } else {
        format!(" PX {lease}")
    }
}

/// The channel for messages that the lock is free.
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
