// SPDX-License-Identifier: MIT

//! Telling those who wait elsewhere that a lock is free: the message that Redisson's waiters listen for.

use std::collections::HashSet;
use std::ffi::CStr;

use crate::config::{self, Publish};
use crate::core::Notice;
use crate::keyspace::names::{self, Name};
use crate::server::propagation::Propagation;
use crate::server::{ask, Ctx, Str};

/// What the name of a lock's channel begins with.
const CHANNEL: &[u8; 24] = b"redisson_lock__channel:{";

/// Prefix of the channels on which owners are told what happens to their holds.
const EVENTS: &[u8; 12] = b"lock:event:{";

/// That prefix for a key with a brace: `lock:event::key`. With the prefix above, `k` and `{k}` would share a channel, and an owner
/// of one lock would take the end of the other for its own.
const EVENTS_OF_BRACED_KEYS: &[u8; 13] = b"lock:event::{";

/// The message that wakes one waiter of each client.
const FREE: i64 = 0;

/// The lock is free and nobody here takes it. Publishing is no change of the keyspace, and so is allowed
/// wherever a write is. Returns how many subscribers of this server heard it.
pub(crate) fn freed(ctx: Ctx<'_>, propagation: Propagation<'_>, lock: &Str<'_>) -> usize {
    let kinds = Kinds::chosen(|| propagation.is_cluster());
    if !kinds.classic && !kinds.sharded {
        return 0;
    }
    publish(ctx, propagation, &kinds, channel(lock.as_bytes()))
}

/// All keys of a database may be gone: everybody who waits elsewhere, for whatever lock, is told to look, but for
/// those whose lock somebody here waits for too.
pub(crate) fn all_freed(ctx: Ctx<'_>, wanted_here: &[Vec<u8>]) {
    let propagation = Propagation::of(ctx);
    let kinds = Kinds::chosen(|| propagation.is_cluster());
    let pattern = c"redisson_lock__channel:*";
    let wanted: HashSet<Name> = wanted_here.iter().map(|lock| names::derived(CHANNEL, lock)).collect();
    let heard = |kind: &CStr| {
        ask::channels(ctx, kind, pattern).into_iter().filter(|channel| !wanted.contains(channel.as_slice()))
    };
    let one_kind = |sharded: bool| Kinds { classic: !sharded, sharded };
    if kinds.classic {
        for channel in heard(c"CHANNELS") {
            publish(ctx, propagation, &one_kind(false), Str::new(&channel));
        }
    }
    if kinds.sharded {
        for channel in heard(c"SHARDCHANNELS") {
            publish(ctx, propagation, &one_kind(true), Str::new(&channel));
        }
    }
}

/// Returns how many subscribers of this server heard it.
fn publish(ctx: Ctx<'_>, propagation: Propagation<'_>, kinds: &Kinds, channel: Str<'static>) -> usize {
    let Some(message) = Str::of_small(ctx, FREE) else { return 0 };
    let heard = kinds.publish(ctx, &channel, message);
    if propagation.has_distant_subscribers() {
        if kinds.classic && kinds.sharded {
            propagation.publish(c"PUBLISH", Str::new(channel.as_bytes()), message);
        }
        let command = if kinds.sharded { c"SPUBLISH" } else { c"PUBLISH" };
        propagation.publish(command, channel, message);
    }
    heard
}

/// Tells an owner what has happened to its hold: those who have subscribed to that at this server, and in a cluster at any.
pub(crate) fn tell_owner(ctx: Ctx<'_>, notice: &Notice) {
    let channel = Str::new(&events(&notice.lock.key));
    let message = [notice.event.name().as_bytes(), b" ", notice.owner.as_bytes()].concat();
    let chosen = match config::publish() {
        // That is about those who wait elsewhere.
        Publish::Off => Publish::Auto,
        chosen => chosen,
    };
    Kinds::of(chosen, || ctx.is_cluster()).publish(ctx, &channel, &Str::new(&message));
}

/// True if anybody has subscribed to this lock's messages at this server. Who listens to a pattern waits for no lock.
pub(crate) fn has_listeners(ctx: Ctx<'_>, lock: &Str<'_>) -> bool {
    let kinds = Kinds::chosen(|| ctx.is_cluster());
    let any = |kind| ask::subscribers(ctx, kind, &channel(lock.as_bytes())) > 0;
    (kinds.classic && any(c"NUMSUB")) || (kinds.sharded && any(c"SHARDNUMSUB"))
}

/// The channel of the messages to a lock's owners. No two locks share one.
fn events(lock: &[u8]) -> Name {
    if lock.contains(&b'{') {
        names::derived(EVENTS_OF_BRACED_KEYS, lock)
    } else {
        names::derived(EVENTS, lock)
    }
}

fn channel(lock: &[u8]) -> Str<'static> {
    Str::new(&names::derived(CHANNEL, lock))
}

/// How messages are published.
struct Kinds {
    classic: bool,
    sharded: bool,
}

impl Kinds {
    fn chosen(is_cluster: impl FnOnce() -> bool) -> Kinds {
        Kinds::of(config::publish(), is_cluster)
    }

    /// Publishes so, at this server and in a cluster at others. Returns how many subscribers of this server heard it.
    fn publish(&self, ctx: Ctx<'_>, channel: &Str<'_>, message: &Str<'_>) -> usize {
        let classic = if self.classic { ask::publish(ctx, channel, message) } else { 0 };
        let sharded = if self.sharded { ask::publish_shard(ctx, channel, message) } else { 0 };
        classic + sharded
    }

    fn of(chosen: Publish, is_cluster: impl FnOnce() -> bool) -> Kinds {
        let chosen = match chosen {
            Publish::Auto if is_cluster() => Publish::Both,
            Publish::Auto => Publish::Classic,
            chosen => chosen,
        };
        Kinds {
            classic: matches!(chosen, Publish::Classic | Publish::Both),
            sharded: matches!(chosen, Publish::Sharded | Publish::Both),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::events;
    use crate::keyspace::names::share_slot;

    #[test]
    fn no_two_locks_share_an_event_channel() {
        let locks = ["k", "{k}", "{{k}}", ":{k}", "::{k}", "{k}:", "a{k}", ":k", "k}", "{", "}"];
        let channels: HashSet<_> = locks.iter().map(|lock| events(lock.as_bytes())).collect();
        assert_eq!(channels.len(), locks.len());
        assert_eq!(events(b"k").as_slice(), b"lock:event:{k}");
        assert_eq!(events(b"{k}1").as_slice(), b"lock:event::{k}1");
    }

    /// Where messages are published to shards, the lock's node has their subscribers.
    #[test]
    fn an_event_channel_is_in_the_slot_of_its_lock() {
        for lock in ["k", "{k}", "a{k}b", ":{k}"] {
            assert!(share_slot(lock.as_bytes(), &events(lock.as_bytes())), "{lock}");
        }
    }
}
