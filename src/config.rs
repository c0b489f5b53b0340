//! The settings of the module: names, defaults, bounds, and where each may come from.
//!
//! A setting is an argument of `loadmodule` (`lock.max-waiters 100`), and `CONFIG GET` and `CONFIG SET` know
//! it by the same name. Servers before Redis 8 force the module's name in front of a setting's
//! (`redis-lock.max-waiters`), and there a command filter translates: see [`Alias`].

use std::ffi::{CStr, CString};
use std::sync::atomic::{AtomicI64, Ordering};

use crate::error::shown;
use crate::server::config::{load, register_choice, register_number, Naming};
use crate::server::filter::{self, CommandFilter, Filtered};
use crate::server::load::{Args, Version};
use crate::server::Ctx;

/// The largest number of milliseconds that is accepted anywhere: 2^53 − 1, which every client can represent,
/// and which can be added to the time of day without overflow.
pub(crate) const MAX_MS: i64 = (1 << 53) - 1;

/// What every setting's name begins with.
const PREFIX: &str = "lock.";

/// What a server that does not let modules choose puts in front of [`PREFIX`].
const SERVER_PREFIX: &[u8] = b"redis-";

/// The first version that lets a module name its settings freely.
const FREE_NAMES_SINCE: Version = Version::new(8, 0, 0);

struct Number {
    /// Without the prefix.
    name: &'static str,
    default: i64,
    min: i64,
    max: i64,
    value: &'static AtomicI64,
}

static DEFAULT_LEASE: AtomicI64 = AtomicI64::new(0);
static MAX_LEASE: AtomicI64 = AtomicI64::new(0);
static MAX_WAITERS: AtomicI64 = AtomicI64::new(0);
static PUBLISH: AtomicI64 = AtomicI64::new(0);
static FENCE_RETENTION: AtomicI64 = AtomicI64::new(0);
static REQUEST_TTL: AtomicI64 = AtomicI64::new(0);
static DEADLOCK_DETECTION: AtomicI64 = AtomicI64::new(0);

const NUMBERS: [Number; 5] = [
    Number { name: "default-lease", default: 30_000, min: 1, max: MAX_MS, value: &DEFAULT_LEASE },
    Number { name: "max-lease", default: 0, min: 0, max: MAX_MS, value: &MAX_LEASE },
    Number { name: "max-waiters", default: 0, min: 0, max: 0xffff_ffff, value: &MAX_WAITERS },
    Number { name: "fence-retention", default: 604_800_000, min: 0, max: MAX_MS, value: &FENCE_RETENTION },
    Number { name: "request-ttl", default: 20_000, min: 1, max: MAX_MS, value: &REQUEST_TTL },
];

/// A setting that is one of some words. Its value is the place of the chosen one, 0 unless `default` says else.
struct Choice {
    /// Without the prefix.
    name: &'static str,
    default: i32,
    words: &'static [&'static CStr],
    value: &'static AtomicI64,
}

const CHOICES: [Choice; 2] = [
    Choice {
        name: "publish",
        default: 0,
        words: &[c"auto", c"off", c"publish", c"spublish", c"both"],
        value: &PUBLISH,
    },
    Choice { name: "deadlock-detection", default: 1, words: &[c"no", c"yes"], value: &DEADLOCK_DETECTION },
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

/// How many milliseconds a fencing counter is kept after its last grant, if there is a limit.
pub(crate) fn fence_retention() -> Option<i64> {
    Some(FENCE_RETENTION.load(Ordering::Relaxed)).filter(|ms| *ms > 0)
}

/// How many milliseconds the reply to a request with an id is remembered.
pub(crate) fn request_ttl() -> i64 {
    REQUEST_TTL.load(Ordering::Relaxed)
}

/// Whether an owner that would wait for itself is told so.
pub(crate) fn deadlock_detection() -> bool {
    DEADLOCK_DETECTION.load(Ordering::Relaxed) != 0
}

/// Registers all settings with the values of the module's arguments, or else their defaults, and takes over
/// what the configuration file says.
pub(crate) fn register(ctx: Ctx, args: Args<'_>, server: Version) -> Result<(), String> {
    let mut given = parse_args(args)?;
    let naming = if server >= FREE_NAMES_SINCE && crate::server::info::is_redis() {
        Naming::Free
    } else {
        Naming::Prefixed
    };
    let server_name = |name: &str| match naming {
        Naming::Free => CString::new(format!("{PREFIX}{name}")).unwrap_or_default(),
        Naming::Prefixed => CString::new(name).unwrap_or_default(),
    };
    for number in NUMBERS {
        let value = match take(&mut given, number.name) {
            Some(text) => number.parse(&text)?,
            None => number.default,
        };
        let bounds = (number.min, number.max);
        if !register_number(ctx, &server_name(number.name), naming, value, bounds, number.value) {
            return Err(format!("the server refuses the setting {PREFIX}{}", number.name));
        }
    }
    for choice in CHOICES {
        let chosen = match take(&mut given, choice.name) {
            Some(text) => choice.parse(&text)?,
            None => choice.default,
        };
        if !register_choice(ctx, &server_name(choice.name), naming, chosen, choice.words, choice.value) {
            return Err(format!("the server refuses the setting {PREFIX}{}", choice.name));
        }
    }
    if !load(ctx) {
        return Err("a setting of the configuration file is not valid, see above".to_owned());
    }
    if naming == Naming::Prefixed && !filter::register::<Alias>(ctx) {
        return Err("the server refuses the command filter for the settings' names".to_owned());
    }
    Ok(())
}

impl Number {
    fn parse(&self, text: &[u8]) -> Result<i64, String> {
        std::str::from_utf8(text)
            .ok()
            .and_then(|text| text.parse().ok())
            .filter(|value| (self.min..=self.max).contains(value))
            .ok_or_else(|| {
                format!(
                    "{PREFIX}{} must be an integer from {} to {}, not '{}'",
                    self.name,
                    self.min,
                    self.max,
                    shown(text)
                )
            })
    }
}

impl Choice {
    fn parse(&self, text: &[u8]) -> Result<i32, String> {
        (0..)
            .zip(self.words)
            .find(|(_, word)| word.to_bytes().eq_ignore_ascii_case(text))
            .map(|(place, _)| place)
            .ok_or_else(|| {
                let words: Vec<_> = self.words.iter().map(|word| word.to_string_lossy()).collect();
                let (last, others) = words
                    .split_last()
                    .map_or(("", String::new()), |(last, others)| (&**last, others.join(", ")));
                format!("{PREFIX}{} must be {others} or {last}, not '{}'", self.name, shown(text))
            })
    }
}

/// The names of all settings, without the prefix.
fn names() -> impl Iterator<Item = &'static str> {
    NUMBERS.iter().map(|number| number.name).chain(CHOICES.iter().map(|choice| choice.name))
}

/// Pairs of a setting's name, without its prefix and in lower case, and a value.
fn parse_args(args: Args<'_>) -> Result<Vec<(String, Vec<u8>)>, String> {
    let all = (0..args.len()).filter_map(|at| args.bytes(at)).collect::<Vec<_>>();
    let mut given: Vec<(String, Vec<u8>)> = Vec::new();
    for pair in all.chunks(2) {
        let name = String::from_utf8_lossy(pair[0]).to_ascii_lowercase();
        let known = name.strip_prefix(PREFIX).filter(|name| names().any(|known| known == *name));
        let Some(known) = known else {
            return Err(format!("unknown module argument '{}'; {}", shown(pair[0]), usage()));
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

/// Lets `CONFIG` know the settings as `lock.…` where the server only knows them as `redis-lock.…`.
///
/// `CONFIG SET` and `CONFIG RESETSTAT`-like calls stay what they are but for the names. The answer of
/// `CONFIG GET` has names too, so that such a call becomes one of `LOCK.CONFIG`, which asks the server and
/// translates back.
struct Alias;

impl Alias {
    fn is_ours(name: &[u8]) -> bool {
        // "lock" and not "lock.", as CONFIG GET takes patterns; no setting of the server begins so.
        name.get(..4).is_some_and(|start| start.eq_ignore_ascii_case(b"lock"))
    }
}

impl CommandFilter for Alias {
    fn filter(command: &mut Filtered) {
        if command.len() < 3 || !command.bytes(0).eq_ignore_ascii_case(b"config") {
            return;
        }
        let get = command.bytes(1).eq_ignore_ascii_case(b"get");
        let set = command.bytes(1).eq_ignore_ascii_case(b"set");
        let places = (2..command.len()).step_by(if set { 2 } else { 1 });
        if !get && !set {
            return;
        }
        let ours: Vec<usize> = places.filter(|at| Alias::is_ours(command.bytes(*at))).collect();
        if ours.is_empty() {
            return;
        }
        for at in ours {
            let name = [SERVER_PREFIX, command.bytes(at)].concat();
            command.replace(at, &name);
        }
        if get {
            command.replace(0, b"lock.config");
        }
    }
}

/// The name by which a setting is shown: without what the server puts in front.
pub(crate) fn shown_name(name: &[u8]) -> &[u8] {
    match name.split_at_checked(SERVER_PREFIX.len()) {
        Some((start, rest)) if start == SERVER_PREFIX && Alias::is_ours(rest) => rest,
        _ => name,
    }
}
