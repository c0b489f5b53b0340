//! Telling those who wait elsewhere that a lock is free: the message that Redisson's waiters listen for.

use crate::config::{self, Publish};
use crate::keyspace::names;
use crate::server::{Ctx, Str};

/// The message that wakes one waiter of each client.
const FREE: &[u8] = b"0";

/// The lock is free and nobody here takes it. Publishing is no change of the keyspace, and so is allowed
/// wherever a write is.
pub(crate) fn freed(ctx: Ctx, lock: &Str<'_>) {
    let chosen = match config::publish() {
        Publish::Auto if ctx.is_cluster() => Publish::Both,
        Publish::Auto => Publish::Classic,
        chosen => chosen,
    };
    if chosen == Publish::Off {
        return;
    }
    let channel = Str::new(&names::derived("redisson_lock__channel", lock.as_bytes()));
    let message = &Str::new(FREE);
    // In a cluster its bus takes the message to the replicas.
    let to_replicas = !ctx.is_cluster();
    if matches!(chosen, Publish::Classic | Publish::Both) {
        ctx.publish(&channel, message);
        if to_replicas {
            ctx.replicate_publish(c"PUBLISH", &channel, message);
        }
    }
    if matches!(chosen, Publish::Sharded | Publish::Both) {
        ctx.publish_shard(&channel, message);
        if to_replicas {
            ctx.replicate_publish(c"SPUBLISH", &channel, message);
        }
    }
}
