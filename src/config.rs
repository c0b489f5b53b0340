// SPDX-License-Identifier: MIT

//! The settings of the module: names, defaults and bounds.
//!
//! A setting has the same name as an argument of `loadmodule` (`lock.max-waiters 100`), in `CONFIG GET` and `CONFIG SET`, and in
//! redis.conf. The server adds the prefix, which is the module's name and a dot.

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::decimal::MAX_SAFE_INTEGER;
use crate::error::printable;
use crate::server::registration::command::Args;
use crate::server::registration::config::{load, register_choice, register_number};
use crate::server::Ctx;

/// The maximum of every number of milliseconds. Adding it to the time of day does not overflow.
pub(crate) const MAX_MS: i64 = MAX_SAFE_INTEGER;

/// The prefix of every setting.
const PREFIX: &str = "lock.";

/// A setting that is a number.
struct NumberSetting {
    /// Without the prefix.
    name: &'static CStr,
    default: i64,
    min: i64,
    max: i64,
    value: &'static AtomicI64,
}

static DEFAULT_LEASE: AtomicI64 = AtomicI64::new(0);
static MAX_LEASE: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS_TOTAL: AtomicI64 = AtomicI64::new(0);
static PUBLISH: AtomicI64 = AtomicI64::new(0);
static PUBLISH_REPLICAS: AtomicI64 = AtomicI64::new(0);
static FENCE_RETENTION: AtomicI64 = AtomicI64::new(0);
static REQUEST_TTL: AtomicI64 = AtomicI64::new(0);
static DEADLOCK_DETECTION: AtomicI64 = AtomicI64::new(0);
static MAX_WATCHDOG: AtomicI64 = AtomicI64::new(0);
static MAX_SESSIONS: AtomicI64 = AtomicI64::new(0);
static MAX_SESSION_TTL: AtomicI64 = AtomicI64::new(0);
static LOG_MAX_LEN: AtomicI64 = AtomicI64::new(0);
static LOG_WAITS_OVER: AtomicI64 = AtomicI64::new(0);
static QUARANTINE: AtomicI64 = AtomicI64::new(0);
static EVENTS: AtomicI64 = AtomicI64::new(0);
static ALLOW_UNLOAD: AtomicI64 = AtomicI64::new(0);

const NUMBERS: [NumberSetting; 12] = [
    NumberSetting { name: c"default-lease", default: 30_000, min: 1, max: MAX_MS, value: &DEFAULT_LEASE },
    NumberSetting { name: c"max-lease", default: 0, min: 0, max: MAX_MS, value: &MAX_LEASE },
    NumberSetting { name: c"max-waiters", default: 0, min: 0, max: 0xffff_ffff, value: &MAX_WAITERS },
    NumberSetting {
        name: c"max-waiters-total",
        default: 0,
        min: 0,
        max: 0xffff_ffff,
        value: &MAX_WAITERS_TOTAL,
    },
    NumberSetting {
        name: c"fence-retention",
        default: 604_800_000,
        min: 0,
        max: MAX_MS,
        value: &FENCE_RETENTION,
    },
    NumberSetting { name: c"request-ttl", default: 20_000, min: 1, max: MAX_MS, value: &REQUEST_TTL },
    NumberSetting { name: c"max-watchdog", default: 0, min: 0, max: MAX_MS, value: &MAX_WATCHDOG },
    NumberSetting { name: c"max-sessions", default: 0, min: 0, max: 0xffff_ffff, value: &MAX_SESSIONS },
    NumberSetting {
        name: c"max-session-ttl",
        default: 3_600_000,
        min: 0,
        max: MAX_MS,
        value: &MAX_SESSION_TTL,
    },
    NumberSetting { name: c"log-max-len", default: 128, min: 0, max: 1_000, value: &LOG_MAX_LEN },
    NumberSetting { name: c"log-waits-over", default: 10_000, min: 0, max: MAX_MS, value: &LOG_WAITS_OVER },
    NumberSetting { name: c"quarantine", default: 0, min: 0, max: MAX_MS, value: &QUARANTINE },
];

/// A setting that is one of several words. Its value is the index of the chosen word.
struct ChoiceSetting {
    /// Without the prefix.
    name: &'static CStr,
    default: i32,
    words: &'static [&'static CStr],
    value: &'static AtomicI64,
}

const CHOICES: [ChoiceSetting; 5] = [
    ChoiceSetting {
        name: c"publish",
        default: 0,
        words: &[c"auto", c"off", c"publish", c"spublish", c"both"],
        value: &PUBLISH,
    },
    ChoiceSetting {
        name: c"publish-replicas",
        default: 1,
        words: &[c"no", c"yes"],
        value: &PUBLISH_REPLICAS,
    },
    ChoiceSetting {
        name: c"deadlock-detection",
        default: 1,
        words: &[c"no", c"yes"],
        value: &DEADLOCK_DETECTION,
    },
    ChoiceSetting { name: c"events", default: 0, words: &[c"no", c"yes"], value: &EVENTS },
    ChoiceSetting { name: c"allow-unload", default: 0, words: &[c"no", c"yes"], value: &ALLOW_UNLOAD },
];

/// The meanings of the words of `lock.publish`, in the same order.
const PUBLISH_CHOICES: [Publish; 5] =
    [Publish::Auto, Publish::Off, Publish::Classic, Publish::Sharded, Publish::Both];

/// The kind of message that notifies external clients of a free lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Classic messages; in a cluster, classic and sharded ones.
    Auto,
    Off,
    Classic,
    Sharded,
    Both,
}

/// The lease of a call that does not set one, in milliseconds. At most [`max_lease`].
pub(crate) fn default_lease() -> i64 {
    let lease = DEFAULT_LEASE.load(Ordering::Relaxed);
    max_lease().map_or(lease, |max| lease.min(max))
}

/// The maximum lease of a call in milliseconds, if there is a limit.
pub(crate) fn max_lease() -> Option<i64> {
    Some(MAX_LEASE.load(Ordering::Relaxed)).filter(|max| *max > 0)
}

/// The maximum number of waiters for one lock, if there is a limit.
pub(crate) fn max_waiters() -> Option<usize> {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).ok().filter(|max| *max > 0)
}

/// The maximum number of clients that wait with `BLOCK`, for a server that accepts this many connections. Without a setting,
/// a fifth of the connections remains for holders and operators.
pub(crate) fn max_waiters_total(max_clients: Option<usize>) -> Option<usize> {
    match usize::try_from(MAX_WAITERS_TOTAL.load(Ordering::Relaxed)) {
        Ok(0) | Err(_) => max_clients.map(|most| (most - most / 5).max(1)),
        Ok(most) => Some(most),
    }
}

/// The kind of message that notifies external clients of a free lock.
pub(crate) fn publish() -> Publish {
    let chosen = usize::try_from(PUBLISH.load(Ordering::Relaxed)).unwrap_or(0);
    PUBLISH_CHOICES.get(chosen).copied().unwrap_or(Publish::Auto)
}

/// Whether subscribers at replicas also get these messages.
pub(crate) fn publishes_to_replicas() -> bool {
    PUBLISH_REPLICAS.load(Ordering::Relaxed) != 0
}

/// The time in milliseconds for which a fencing counter outlives its last grant, if there is a limit.
pub(crate) fn fence_retention() -> Option<i64> {
    Some(FENCE_RETENTION.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
}

/// The time in milliseconds for which the reply to a request with an ID is remembered.
pub(crate) fn request_ttl() -> i64 {
    REQUEST_TTL.load(Ordering::Relaxed)
}

/// The default of `WATCHDOG MAX` in milliseconds, if there is a limit.
pub(crate) fn max_watchdog() -> Option<NonZeroU64> {
    NonZeroU64::new(MAX_WATCHDOG.load(Ordering::Relaxed).unsigned_abs())
}

/// The maximum number of sessions, if there is a limit.
pub(crate) fn max_sessions() -> Option<usize> {
    usize::try_from(MAX_SESSIONS.load(Ordering::Relaxed)).ok().filter(|max| *max > 0)
}

/// The maximum time to live of a session in milliseconds, if there is a limit.
pub(crate) fn max_session_ttl() -> Option<i64> {
    Some(MAX_SESSION_TTL.load(Ordering::Relaxed)).filter(|max| *max > 0)
}

/// The number of incidents that the log keeps.
pub(crate) fn log_max_len() -> usize {
    usize::try_from(LOG_MAX_LEN.load(Ordering::Relaxed)).unwrap_or(0)
}

/// The time in milliseconds from which a wait is logged; 0 if none is.
pub(crate) fn log_waits_over() -> u64 {
    LOG_WAITS_OVER.load(Ordering::Relaxed).unsigned_abs()
}

/// The length of the quarantine in milliseconds, if it is on: the time without grants after locks may have
/// been lost.
pub(crate) fn quarantine() -> Option<u64> {
    Some(QUARANTINE.load(Ordering::Relaxed).unsigned_abs()).filter(|ms| *ms > 0)
}

/// Whether a wait that could never end gets an error.
pub(crate) fn deadlock_detection() -> bool {
    DEADLOCK_DETECTION.load(Ordering::Relaxed) != 0
}

/// Whether the module publishes events about holds to their owners.
pub(crate) fn events() -> bool {
    EVENTS.load(Ordering::Relaxed) != 0
}

/// Whether `MODULE UNLOAD` is allowed even if it can crash the server.
pub(crate) fn allow_unload() -> bool {
    ALLOW_UNLOAD.load(Ordering::Relaxed) != 0
}

/// Registers all settings with the values of the module's arguments or their defaults, and then applies the configuration file.
pub(crate) fn register(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), String> {
    let mut given = parse_args(args)?;
    for number in NUMBERS {
        let value = match take_value(&mut given, text(number.name)) {
            Some(text) => number.parse(&text)?,
            None => number.default,
        };
        let range = number.min..=number.max;
        if !register_number(ctx, number.name, value, range, number.value) {
            return Err(format!("the server rejected the setting {PREFIX}{}", text(number.name)));
        }
    }
    for choice in CHOICES {
        let chosen = match take_value(&mut given, text(choice.name)) {
            Some(text) => choice.parse(&text)?,
            None => choice.default,
        };
        if !register_choice(ctx, choice.name, chosen, choice.words, choice.value) {
            return Err(format!("the server rejected the setting {PREFIX}{}", text(choice.name)));
        }
    }
    if !load(ctx) {
        return Err("a setting in the configuration file is invalid; see the log line above".to_owned());
    }
    Ok(())
}

impl NumberSetting {
    fn parse(&self, given: &[u8]) -> Result<i64, String> {
        std::str::from_utf8(given)
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|value| (self.min..=self.max).contains(value))
            .ok_or_else(|| {
                format!(
                    "{PREFIX}{} must be an integer from {} to {}, not '{}'",
                    text(self.name),
                    self.min,
                    self.max,
                    printable(given)
                )
            })
    }
}

impl ChoiceSetting {
    fn parse(&self, given: &[u8]) -> Result<i32, String> {
        (0..)
            .zip(self.words)
            .find(|(_, word)| word.to_bytes().eq_ignore_ascii_case(given))
            .map(|(place, _)| place)
            .ok_or_else(|| {
                let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
                let (last, others) = words
                    .split_last()
                    .map_or(("", String::new()), |(last, others)| (&**last, others.join(", ")));
                format!("{PREFIX}{} must be {others} or {last}, not '{}'", text(self.name), printable(given))
            })
    }
}

/// The settings that differ from their defaults, each with its value.
pub(crate) fn changed() -> Vec<String> {
    let numbers = NUMBERS.iter().filter_map(|number| {
        let value = number.value.load(Ordering::Relaxed);
        (value != number.default).then(|| format!("{PREFIX}{} {value}", text(number.name)))
    });
    let choices = CHOICES.iter().filter_map(|choice| {
        let value = choice.value.load(Ordering::Relaxed);
        let word = choice.words.get(usize::try_from(value).ok()?)?;
        (value != i64::from(choice.default))
            .then(|| format!("{PREFIX}{} {}", text(choice.name), word.to_string_lossy()))
    });
    numbers.chain(choices).collect()
}

/// The names of all settings, without the prefix.
fn names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|number| number.name).chain(CHOICES.iter().map(|choice| choice.name)).map(text)
}

fn text(name: &'static CStr) -> &'static str {
    name.to_str().unwrap_or_default()
}

/// Pairs of a setting's name, without its prefix and in lower case, and a value.
fn parse_args(args: Args<'_>) -> Result<Vec<(String, Vec<u8>)>, String> {
    let all = (0..args.len()).filter_map(|at| args.bytes(at)).collect::<Vec<_>>();
    let mut given: Vec<(String, Vec<u8>)> = Vec::new();
    for pair in all.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
        let known = name.strip_prefix(PREFIX).filter(|name| names().any(|known| known == *name));
        let Some(known) = known else {
            return Err(format!("unknown module argument '{}'; {}", printable(pair[0]), usage()));
        };
        let Some(value) = pair.get(1) else {
            return Err(format!("module argument {PREFIX}{known} has no value; {}", usage()));
        };
        if given.iter().any(|(other, _)| other == known) {
            return Err(format!("module argument {PREFIX}{known} is given twice"));
        }
        given.push((known.to_owned(), value.to_vec()));
    }
    Ok(given)
}

fn usage() -> String {
    let names: Vec<String> = names().map(|name| format!("{PREFIX}{name}")).collect();
    format!("pass settings as 'name value' pairs: {}", names.join(", "))
}

/// Removes this setting from the given pairs and returns its value.
fn take_value(given: &mut Vec<(String, Vec<u8>)>, name: &str) -> Option<Vec<u8>> {
    let place = given.iter().position(|(other, _)| other == name)?;
    Some(given.swap_remove(place).1)
}
