//! Telling those who wait elsewhere that a lock is free: the message that Redisson's waiters listen for.

use crate::config::{self, Publish};
use crate::keyspace::names;
use crate::server::{Ctx, Str};

/// The message that wakes one waiter of each client.
const FREE: &[u8] = b"0";

/// The lock is free and nobody here takes it. Publishing is no change of the keyspace, and so is allowed
/// wherever a write is. Returns how many subscribers of this server heard it.
pub(crate) fn freed(ctx: Ctx, lock: &Str<'_>) -> usize {
    let kinds = Kinds::chosen(ctx);
    if !kinds.classic && !kinds.sharded {
        return 0;
    }
    let channel = channel(lock);
    let message = &Str::new(FREE);
    // In a cluster its bus takes the message to the replicas.
    let to_replicas = !ctx.is_cluster();
    let mut heard = 0;
    if kinds.classic {
        heard += ctx.publish(&channel, message);
        if to_replicas {
            ctx.replicate_publish(c"PUBLISH", &channel, message);
        }
    }
    if kinds.sharded {
        heard += ctx.publish_shard(&channel, message);
        if to_replicas {
            ctx.replicate_publish(c"SPUBLISH", &channel, message);
        }
    }
    heard
}

/// True if anybody has subscribed to this lock's messages at this server. Who listens to a pattern waits for no lock.
pub(crate) fn has_listeners(ctx: Ctx, lock: &Str<'_>) -> bool {
    let kinds = Kinds::chosen(ctx);
    let any = |kind| ctx.subscribers(kind, &channel(lock)) > 0;
    (kinds.classic && any(c"NUMSUB")) || (kinds.sharded && any(c"SHARDNUMSUB"))
}

fn channel(lock: &Str<'_>) -> Str<'static> {
    Str::new(&names::derived("redisson_lock__channel", lock.as_bytes()))
}

/// How messages are published.
struct Kinds {
    classic: bool,
    sharded: bool,
}

impl Kinds {
    fn chosen(ctx: Ctx) -> Kinds {
        let chosen = match config::publish() {
            Publish::Auto if ctx.is_cluster() => Publish::Both,
            Publish::Auto => Publish::Classic,
            chosen => chosen,
        };
        Kinds {
            classic: matches!(chosen, Publish::Classic | Publish::Both),
            sharded: matches!(chosen, Publish::Sharded | Publish::Both),
        }
    }
}
