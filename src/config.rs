// SPDX-License-Identifier: MIT

//! The settings of the module: names, defaults, bounds, and where each may come from.
//!
//! A setting is an argument of `loadmodule` (`lock.max-waiters 100`), and `CONFIG GET`, `CONFIG SET` and a line of
//! redis.conf know it by the same name: the server puts the module's name and a dot in front of a setting's.

use std::ffi::CStr;
use std::num::NonZeroU64;
use std::sync::atomic::{AtomicI64, Ordering};

use crate::decimal::MAX_SAFE_INTEGER;
use crate::error::printable;
use crate::server::config::{load, register_choice, register_number};
use crate::server::load::Args;
use crate::server::Ctx;

/// The largest number of milliseconds that is accepted anywhere. It can be added to the time of day without overflow.
pub(crate) const MAX_MS: i64 = MAX_SAFE_INTEGER;

/// What every setting's name begins with.
const PREFIX: &str = "lock.";

struct Number {
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
static PUBLISH: AtomicI64 = AtomicI64::new(0);
static PUBLISH_REPLICAS: AtomicI64 = AtomicI64::new(0);
static FENCE_RETENTION: AtomicI64 = AtomicI64::new(0);
static REQUEST_TTL: AtomicI64 = AtomicI64::new(0);
static DEADLOCK_DETECTION: AtomicI64 = AtomicI64::new(0);
static MAX_WATCHDOG: AtomicI64 = AtomicI64::new(0);
static MAX_NOTIFY: AtomicI64 = AtomicI64::new(0);
static QUARANTINE: AtomicI64 = AtomicI64::new(0);
static EVENTS: AtomicI64 = AtomicI64::new(0);
static ALLOW_UNLOAD: AtomicI64 = AtomicI64::new(0);

const NUMBERS: [Number; 8] = [
    Number { name: c"default-lease", default: 30_000, min: 1, max: MAX_MS, value: &DEFAULT_LEASE },
    Number { name: c"max-lease", default: 0, min: 0, max: MAX_MS, value: &MAX_LEASE },
    Number { name: c"max-waiters", default: 0, min: 0, max: 0xffff_ffff, value: &MAX_WAITERS },
    Number { name: c"fence-retention", default: 604_800_000, min: 0, max: MAX_MS, value: &FENCE_RETENTION },
    Number { name: c"request-ttl", default: 20_000, min: 1, max: MAX_MS, value: &REQUEST_TTL },
    Number { name: c"max-watchdog", default: 0, min: 0, max: MAX_MS, value: &MAX_WATCHDOG },
    Number { name: c"max-notify", default: 10_000, min: 0, max: 0xffff_ffff, value: &MAX_NOTIFY },
    Number { name: c"quarantine", default: 0, min: 0, max: MAX_MS, value: &QUARANTINE },
];

/// A setting that is one of some words. Its value is the place of the chosen one, 0 unless `default` says else.
struct Choice {
    /// Without the prefix.
    name: &'static CStr,
    default: i32,
    words: &'static [&'static CStr],
    value: &'static AtomicI64,
}

const CHOICES: [Choice; 5] = [
    Choice {
        name: c"publish",
        default: 0,
        words: &[c"auto", c"off", c"publish", c"spublish", c"both"],
        value: &PUBLISH,
    },
    Choice { name: c"publish-replicas", default: 1, words: &[c"no", c"yes"], value: &PUBLISH_REPLICAS },
    Choice { name: c"deadlock-detection", default: 1, words: &[c"no", c"yes"], value: &DEADLOCK_DETECTION },
    Choice { name: c"events", default: 0, words: &[c"no", c"yes"], value: &EVENTS },
    Choice { name: c"allow-unload", default: 0, words: &[c"no", c"yes"], value: &ALLOW_UNLOAD },
];

/// What the words of `lock.publish` mean.
const PUBLISH_CHOICES: [Publish; 5] =
    [Publish::Auto, Publish::Off, Publish::Classic, Publish::Sharded, Publish::Both];

/// How those who wait elsewhere hear that a lock is free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publish {
    /// Classic, and in a cluster both.
    Auto,
    Off,
    Classic,
    Sharded,
    Both,
}

/// Milliseconds of a lease that a call does not give. Never more than [`max_lease`] allows.
pub(crate) fn default_lease() -> i64 {
    let lease = DEFAULT_LEASE.load(Ordering::Relaxed);
    max_lease().map_or(lease, |max| lease.min(max))
}

/// The longest lease in milliseconds that a call may ask for, if there is a limit.
pub(crate) fn max_lease() -> Option<i64> {
    Some(MAX_LEASE.load(Ordering::Relaxed)).filter(|max| *max > 0)
}

/// How many may wait for one lock, if there is a limit.
pub(crate) fn max_waiters() -> Option<usize> {
    usize::try_from(MAX_WAITERS.load(Ordering::Relaxed)).ok().filter(|max| *max > 0)
}

/// How those who wait elsewhere hear that a lock is free.
pub(crate) fn publish() -> Publish {
    let chosen = usize::try_from(PUBLISH.load(Ordering::Relaxed)).unwrap_or(0);
    PUBLISH_CHOICES.get(chosen).copied().unwrap_or(Publish::Auto)
}

/// Whether those who wait at a replica hear it too.
pub(crate) fn publishes_to_replicas() -> bool {
    PUBLISH_REPLICAS.load(Ordering::Relaxed) != 0
}

/// How many milliseconds a fencing counter is kept after its last grant, if there is a limit.
pub(crate) fn fence_retention() -> Option<i64> {
    Some(FENCE_RETENTION.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
}

/// How many milliseconds the reply to a request with an id is remembered.
pub(crate) fn request_ttl() -> i64 {
    REQUEST_TTL.load(Ordering::Relaxed)
}

/// For how many milliseconds a watchdog renews if the call that asks for it does not say so, if there is a limit.
pub(crate) fn max_watchdog() -> Option<NonZeroU64> {
    NonZeroU64::new(MAX_WATCHDOG.load(Ordering::Relaxed).unsigned_abs())
}

/// How many waits that messages tell of may belong to one connection, if there is a limit.
pub(crate) fn max_notify() -> Option<usize> {
    usize::try_from(MAX_NOTIFY.load(Ordering::Relaxed)).ok().filter(|max| *max > 0)
}

/// How many milliseconds nothing is granted after locks may have been forgotten, if that is so.
pub(crate) fn quarantine() -> Option<u64> {
    Some(QUARANTINE.load(Ordering::Relaxed).unsigned_abs()).filter(|ms| *ms > 0)
}

/// Whether an owner that would wait for itself is told so.
pub(crate) fn deadlock_detection() -> bool {
    DEADLOCK_DETECTION.load(Ordering::Relaxed) != 0
}

/// Whether owners are told what happens to their holds.
pub(crate) fn events() -> bool {
    EVENTS.load(Ordering::Relaxed) != 0
}

/// Whether `MODULE UNLOAD` does what it says, though it can end the server.
pub(crate) fn allow_unload() -> bool {
    ALLOW_UNLOAD.load(Ordering::Relaxed) != 0
}

/// Registers all settings with the values of the module's arguments, or else their defaults, and takes over
/// what the configuration file says.
pub(crate) fn register(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), String> {
    let mut given = parse_args(args)?;
    for number in NUMBERS {
        let value = match take(&mut given, text(number.name)) {
            Some(text) => number.parse(&text)?,
            None => number.default,
        };
        let bounds = (number.min, number.max);
        if !register_number(ctx, number.name, value, bounds, number.value) {
            return Err(format!("the server refuses the setting {PREFIX}{}", text(number.name)));
        }
    }
    for choice in CHOICES {
        let chosen = match take(&mut given, text(choice.name)) {
            Some(text) => choice.parse(&text)?,
            None => choice.default,
        };
        if !register_choice(ctx, choice.name, chosen, choice.words, choice.value) {
            return Err(format!("the server refuses the setting {PREFIX}{}", text(choice.name)));
        }
    }
    if !load(ctx) {
        return Err("a setting of the configuration file is not valid, see above".to_owned());
    }
    Ok(())
}

impl Number {
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

impl Choice {
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
    format!("settings are given as 'name value' pairs: {}", names.join(", "))
}

fn take(given: &mut Vec<(String, Vec<u8>)>, name: &str) -> Option<Vec<u8>> {
    let place = given.iter().position(|(other, _)| other == name)?;
    Some(given.swap_remove(place).1)
}
