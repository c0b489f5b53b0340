//! Telling those who wait elsewhere that a lock is free: the message that Redisson's waiters listen for.

use std::collections::HashSet;

use crate::config::{self, Publish};
use crate::keyspace::names::{self, Name};
use crate::server::propagation::Propagation;
use crate::server::{Ctx, Str};

/// What the name of a lock's channel begins with.
const CHANNEL: &[u8; 24] = b"redisson_lock__channel:{";

/// The message that wakes one waiter of each client.
const FREE: i64 = 0;

/// The lock is free and nobody here takes it. Publishing is no change of the keyspace, and so is allowed
/// wherever a write is. Returns how many subscribers of this server heard it.
pub(crate) fn freed(ctx: Ctx<'_>, propagation: Propagation<'_>, lock: &Str<'_>) -> usize {
    let kinds = Kinds::chosen(|| propagation.is_cluster());
    if !kinds.classic && !kinds.sharded {
        return 0;
    }
    let channel = channel(lock.as_bytes());
    let classic = if kinds.classic { publish(ctx, propagation, &channel) } else { 0 };
    let sharded = if kinds.sharded { publish_shard(ctx, propagation, &channel) } else { 0 };
    classic + sharded
}

/// All keys of a database may be gone: everybody who waits elsewhere, for whatever lock, is told to look, but for
/// those whose lock somebody here waits for too.
pub(crate) fn all_freed(ctx: Ctx<'_>, wanted_here: &[Vec<u8>]) {
    let propagation = Propagation::of(ctx);
    let kinds = Kinds::chosen(|| propagation.is_cluster());
    let pattern = c"redisson_lock__channel:*";
    let wanted: HashSet<Name> = wanted_here.iter().map(|lock| names::derived(CHANNEL, lock)).collect();
    let heard =
        |kind| ctx.channels(kind, pattern).into_iter().filter(|channel| !wanted.contains(channel.as_slice()));
    if kinds.classic {
        for channel in heard(c"CHANNELS") {
            publish(ctx, propagation, &Str::new(&channel));
        }
    }
    if kinds.sharded {
        for channel in heard(c"SHARDCHANNELS") {
            publish_shard(ctx, propagation, &Str::new(&channel));
        }
    }
}

fn publish(ctx: Ctx<'_>, propagation: Propagation<'_>, channel: &Str<'_>) -> usize {
    let Some(message) = Str::of_small(ctx, FREE) else { return 0 };
    let heard = ctx.publish(channel, message);
    propagation.publish(c"PUBLISH", channel, message);
    heard
}

fn publish_shard(ctx: Ctx<'_>, propagation: Propagation<'_>, channel: &Str<'_>) -> usize {
    let Some(message) = Str::of_small(ctx, FREE) else { return 0 };
    let heard = ctx.publish_shard(channel, message);
    propagation.publish(c"SPUBLISH", channel, message);
    heard
}

/// True if anybody has subscribed to this lock's messages at this server. Who listens to a pattern waits for no lock.
pub(crate) fn has_listeners(ctx: Ctx<'_>, lock: &Str<'_>) -> bool {
    let kinds = Kinds::chosen(|| ctx.is_cluster());
    let any = |kind| ctx.subscribers(kind, &channel(lock.as_bytes())) > 0;
    (kinds.classic && any(c"NUMSUB")) || (kinds.sharded && any(c"SHARDNUMSUB"))
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
        let chosen = match config::publish() {
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
