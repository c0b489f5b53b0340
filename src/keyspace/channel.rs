// SPDX-License-Identifier: MIT

//! Publishing: the message for waiting Redisson clients when a lock is free, and events that tell owners about
//! their holds.

use std::collections::HashSet;
use std::ffi::CStr;

use crate::config::{self, Publish};
use crate::core::Notice;
use crate::keyspace::names::{self, Name};
use crate::server::replication::propagation::Propagation;
use crate::server::{calls, Ctx, Str};

/// Prefix of the channel that announces a free lock.
const FREE_CHANNEL_PREFIX: &[u8; 24] = b"redisson_lock__channel:{";

/// Prefix of the channel for events of a lock's holds.
const EVENT_CHANNEL_PREFIX: &[u8; 12] = b"lock:event:{";

/// Prefix of the event channel of a key that contains a brace: that of `{k}` is `lock:event::{k}`. With the other
/// prefix, `k` and `{k}` would share a channel. An owner of one lock would then mistake the end of the other
/// hold for its own.
const BRACED_EVENT_CHANNEL_PREFIX: &[u8; 13] = b"lock:event::{";

/// The message that wakes up one waiter in each of Redisson's clients.
const FREE_MESSAGE: i64 = 0;

/// Announces a free lock that has no waiter here. Publishing does not change the keyspace, so it is allowed wherever a
/// write is. Returns the number of receivers at this server.
pub(crate) fn publish_free(ctx: Ctx<'_>, propagation: Propagation<'_>, lock: &Str<'_>) -> usize {
    let kinds = ChannelKinds::from_setting(|| propagation.is_cluster());
    if !kinds.classic && !kinds.sharded {
        return 0;
    }
    publish(ctx, propagation, &kinds, free_channel(lock.as_bytes()))
}

/// Announces all locks of a database after a flush, except those that have waiters here.
pub(crate) fn publish_all_free(ctx: Ctx<'_>, contended_locks: &[Vec<u8>]) {
    let propagation = Propagation::of(ctx);
    let kinds = ChannelKinds::from_setting(|| propagation.is_cluster());
    let pattern = c"redisson_lock__channel:*";
    let contended: HashSet<Name> =
        contended_locks.iter().map(|lock| names::derived_name(FREE_CHANNEL_PREFIX, lock)).collect();
    let subscribed = |kind: &CStr| {
        calls::channels(ctx, kind, pattern)
            .into_iter()
            .filter(|channel| !contended.contains(channel.as_slice()))
    };
    if kinds.classic {
        for channel in subscribed(c"CHANNELS") {
            publish(ctx, propagation, &ChannelKinds::CLASSIC, Str::new(&channel));
        }
    }
    if kinds.sharded {
        for channel in subscribed(c"SHARDCHANNELS") {
            publish(ctx, propagation, &ChannelKinds::SHARDED, Str::new(&channel));
        }
    }
}

/// Publishes that a lock is free. Returns the number of receivers at this server.
fn publish(ctx: Ctx<'_>, propagation: Propagation<'_>, kinds: &ChannelKinds, channel: Str<'static>) -> usize {
    let Some(message) = Str::cached_digit(ctx, FREE_MESSAGE) else { return 0 };
    let receivers = kinds.publish(ctx, &channel, message);
    if propagation.has_replica_subscribers() {
        if kinds.classic && kinds.sharded {
            propagation.publish_to_replicas(c"PUBLISH", Str::new(channel.as_bytes()), message);
        }
        let command = if kinds.sharded { c"SPUBLISH" } else { c"PUBLISH" };
        propagation.publish_to_replicas(command, channel, message);
    }
    receivers
}

/// Publishes an event of a hold to the subscribers of this server and, in a cluster, of all nodes.
pub(crate) fn publish_owner_event(ctx: Ctx<'_>, notice: &Notice) {
    let channel = Str::new(&event_channel(&notice.lock.key));
    let message = [notice.event.name().as_bytes(), b" ", notice.owner.as_bytes()].concat();
    let chosen = match config::publish() {
        // The setting applies only to announcements of free locks.
        Publish::Off => Publish::Auto,
        chosen => chosen,
    };
    ChannelKinds::of(chosen, || ctx.is_cluster()).publish(ctx, &channel, &Str::new(&message));
}

/// True if this lock's channel has subscribers at this server. Pattern subscribers do not count: they do not wait for a
/// lock.
pub(crate) fn has_subscribers(ctx: Ctx<'_>, lock: &Str<'_>) -> bool {
    let kinds = ChannelKinds::from_setting(|| ctx.is_cluster());
    let any = |kind| calls::subscribers(ctx, kind, &free_channel(lock.as_bytes())) > 0;
    (kinds.classic && any(c"NUMSUB")) || (kinds.sharded && any(c"SHARDNUMSUB"))
}

/// The channel for events of a lock's holds. No two locks share a channel.
fn event_channel(lock: &[u8]) -> Name {
    if lock.contains(&b'{') {
        names::derived_name(BRACED_EVENT_CHANNEL_PREFIX, lock)
    } else {
        names::derived_name(EVENT_CHANNEL_PREFIX, lock)
    }
}

fn free_channel(lock: &[u8]) -> Str<'static> {
    Str::new(&names::derived_name(FREE_CHANNEL_PREFIX, lock))
}

/// The types of channels that messages are published on.
struct ChannelKinds {
    classic: bool,
    sharded: bool,
}

impl ChannelKinds {
    const CLASSIC: ChannelKinds = ChannelKinds { classic: true, sharded: false };
    const SHARDED: ChannelKinds = ChannelKinds { classic: false, sharded: true };

    fn from_setting(is_cluster: impl FnOnce() -> bool) -> ChannelKinds {
        ChannelKinds::of(config::publish(), is_cluster)
    }

    /// Publishes on these types of channels, at this server and, in a cluster, at other nodes. Returns the number of
    /// receivers at this server.
    fn publish(&self, ctx: Ctx<'_>, channel: &Str<'_>, message: &Str<'_>) -> usize {
        let classic = if self.classic { calls::publish(ctx, channel, message) } else { 0 };
        let sharded = if self.sharded { calls::publish_shard(ctx, channel, message) } else { 0 };
        classic + sharded
    }

    fn of(chosen: Publish, is_cluster: impl FnOnce() -> bool) -> ChannelKinds {
        let chosen = match chosen {
            Publish::Auto if is_cluster() => Publish::Both,
            Publish::Auto => Publish::Classic,
            chosen => chosen,
        };
        ChannelKinds {
            classic: matches!(chosen, Publish::Classic | Publish::Both),
            sharded: matches!(chosen, Publish::Sharded | Publish::Both),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::event_channel;
    use crate::keyspace::names::share_slot;

    #[test]
    fn no_two_locks_share_an_event_channel() {
        let locks = ["k", "{k}", "{{k}}", ":{k}", "::{k}", "{k}:", "a{k}", ":k", "k}", "{", "}"];
        let channels: HashSet<_> = locks.iter().map(|lock| event_channel(lock.as_bytes())).collect();
        assert_eq!(channels.len(), locks.len());
        assert_eq!(event_channel(b"k").as_slice(), b"lock:event:{k}");
        assert_eq!(event_channel(b"{k}1").as_slice(), b"lock:event::{k}1");
    }

    /// With sharded channels, the subscribers are connected to the node of the lock.
    #[test]
    fn event_channels_share_the_slot_of_their_lock() {
        for lock in ["k", "{k}", "a{k}b", ":{k}"] {
            assert!(share_slot(lock.as_bytes(), &event_channel(lock.as_bytes())), "{lock}");
        }
    }
}
