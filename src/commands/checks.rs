// SPDX-License-Identifier: MIT

//! Checks of a parsed call that need the server: its connection, its replicas, its permissions and the slots
//! of a cluster.
//!
//! Each command runs these checks in a fixed order after it has read its arguments. So a call with two
//! mistakes always gets the same error. In a cluster, the slot of several keys is checked before the owner
//! and the options are read, as in the server.

use std::hash::{BuildHasher, Hash, Hasher};

use foldhash::fast::FixedState;

use super::args::CommandName;
use super::options::{Binding, Ephemeral, Lease, Watchdog};
use crate::config;
use crate::core::{Bind, CallNumber, ConnectionId, Now, NumberedCall, Refusal, RequestId, Session, Target};
use crate::driver::{self, ReplicaRequirement};
use crate::error::{printable, Error};
use crate::keyspace::names;
use crate::server::clients::caller;
use crate::server::replication::replicas;
use crate::server::{calls, Ctx, Str};

/// The request with this ID. Fails in a cluster if the record of the request would not be in the slot of the lock.
pub(super) fn request(
    ctx: Ctx<'_>,
    command: CommandName,
    key: &Str<'_>,
    owner: &Str<'_>,
    id: &[u8],
) -> Result<RequestId, Error> {
    let owner = owner.as_bytes();
    shares_slot(ctx, command, "ID", key, || names::request_key(key.as_bytes(), owner, id))?;
    Ok(RequestId::new(owner, id, config::request_ttl()))
}

/// Fails in a cluster if the fencing counter, which `option` needs, would not be in the slot of the lock.
pub(super) fn counter_slot(
    ctx: Ctx<'_>,
    command: CommandName,
    option: &str,
    key: &Str<'_>,
) -> Result<(), Error> {
    shares_slot(ctx, command, option, key, || names::counter_key(key.as_bytes()))
}

fn shares_slot(
    ctx: Ctx<'_>,
    command: CommandName,
    option: &str,
    key: &Str<'_>,
    derived: impl FnOnce() -> names::Name,
) -> Result<(), Error> {
    if !ctx.is_cluster() {
        return Ok(());
    }
    let derived = derived();
    if !names::share_slot(key.as_bytes(), &derived) {
        return Err(command.problem_with_advice(
            format_args!("{option} cannot be used with key '{}'", printable(key.as_bytes())),
            format_args!("its braces put '{}' in another slot; use another key", printable(&derived)),
        ));
    }
    // While the slot migrates, the derived key may be on either node. A repeated call must find it.
    if !calls::serves_slot_of(ctx, &[key, &Str::new(&derived)]) {
        return Err(Error::TryAgain);
    }
    Ok(())
}

/// Fails in a cluster if the keys are in different slots, or if their slot is migrating and a key is not on
/// this node. The server itself checks only the first key.
pub(super) fn one_slot(ctx: Ctx<'_>, keys: &[Str<'_>]) -> Result<(), Error> {
    let [first, others @ ..] = keys else { return Ok(()) };
    if others.is_empty() || !ctx.is_cluster() {
        return Ok(());
    }
    let is_elsewhere = |key: &Str<'_>| {
        !names::share_slot(first.as_bytes(), key.as_bytes())
            && calls::slot_of(ctx, first) != calls::slot_of(ctx, key)
    };
    if others.iter().any(is_elsewhere) {
        return Err(Error::CrossSlot);
    }
    if !calls::serves_slot_of(ctx, &keys.iter().collect::<Vec<_>>()) {
        return Err(Error::TryAgain);
    }
    Ok(())
}

/// Binds a hold to the calling connection. Fails in a script, which has no connection.
#[inline(always)]
pub(super) fn bind(
    ctx: Ctx<'_>,
    command: CommandName,
    binding: Option<Binding>,
) -> Result<Option<Bind>, Error> {
    let Some(Binding { watchdog, max_ms, ephemeral }) = binding else { return Ok(None) };
    let Some(client) = caller::connection_id(ctx) else {
        return Err(no_connection(command, if watchdog { "WATCHDOG" } else { "EPHEMERAL" }));
    };
    let max_ms = max_ms.or_else(config::max_watchdog);
    Ok(Some(Bind { connection: ConnectionId(client), watchdog, max_ms, ephemeral }))
}

pub(super) fn no_connection(command: CommandName, option: &str) -> Error {
    command.problem_with_advice(format_args!("{option} needs a connection"), "call it outside of scripts")
}

/// Fails if the replicas that a call requires cannot acknowledge it.
#[inline]
pub(super) fn replicas(
    ctx: Ctx<'_>,
    command: CommandName,
    requested: Option<ReplicaRequirement>,
) -> Result<Option<ReplicaRequirement>, Error> {
    if let Some(requested) = &requested {
        enough_replicas(ctx, command, requested)?;
    }
    Ok(requested)
}

fn enough_replicas(ctx: Ctx<'_>, command: CommandName, requested: &ReplicaRequirement) -> Result<(), Error> {
    let flags = ctx.flags();
    if flags.denies_blocking() {
        return Err(command.problem_with_advice(
            "REPLICAS is not possible here",
            "call it outside of MULTI, scripts and functions",
        ));
    }
    if !replicas::can_ask(ctx) {
        return Err(command.problem_with_advice(
            "REPLICAS is not available",
            "restore the renamed server commands ROLE and REPLCONF",
        ));
    }
    if !flags.is_primary() {
        // This is a writable replica: a failover would lose its grants.
        return Err(Error::Refused(Refusal::Replica));
    }
    let online = replicas::online(ctx);
    let needed = usize::try_from(requested.replicas.get()).unwrap_or(usize::MAX);
    if online < needed {
        driver::with(ctx, |driver| driver.stats.replicas_missed += 1);
        return Err(Error::TooFewReplicas { online, needed });
    }
    Ok(())
}

/// The acquire with this number of a session. Fails if the session is over or belongs to another user, or if a
/// script makes the call.
pub(super) fn number(
    ctx: Ctx<'_>,
    command: CommandName,
    (id, n): (&[u8], u64),
    keys: &[Str<'_>],
    owner: &Str<'_>,
    now: Now,
) -> Result<CallNumber, Error> {
    if owner.as_bytes() == b"*" {
        return Err(command.problem("SESSION needs an owner other than *"));
    }
    let session = driver::session(ctx, command_needs_connection(ctx, command)?, id, now)?;
    Ok(CallNumber { session, n, target: target_of(ctx.db(), keys, owner) })
}

fn command_needs_connection(ctx: Ctx<'_>, command: CommandName) -> Result<u64, Error> {
    caller::connection_id(ctx).ok_or_else(|| no_connection(command, "SESSION"))
}

/// The locks and the owner that a number stands for.
fn target_of(db: i32, keys: &[Str<'_>], owner: &Str<'_>) -> Target {
    let mut hasher = FixedState::default().build_hasher();
    db.hash(&mut hasher);
    keys.iter().for_each(|key| key.as_bytes().hash(&mut hasher));
    owner.as_bytes().hash(&mut hasher);
    Target::new(hasher.finish(), keys.len() > 1)
}

/// The options of a call about a hold, to be checked.
pub(super) struct HoldOptions<'o> {
    pub(super) session: Option<(&'o [u8], u64)>,
    pub(super) lease: &'o Lease,
    pub(super) watchdog: &'o Watchdog,
    pub(super) ephemeral: &'o Ephemeral,
}

/// The number or binding, and the lease, of a hold.
pub(super) struct HoldOfCall {
    /// The number of the hold in its session, if the call has one.
    pub(super) number: Option<NumberedCall>,
    /// The binding to the caller's connection. A hold of a session has none.
    pub(super) bind: Option<Bind>,
    /// Length of the lease, in milliseconds.
    pub(super) lease_ms: i64,
}

/// Checks what the hold of a call depends on: a session, a connection or neither.
#[inline(always)]
pub(super) fn hold(
    ctx: Ctx<'_>,
    command: CommandName,
    keys: &[Str<'_>],
    owner: &Str<'_>,
    options: &HoldOptions<'_>,
    now: Now,
) -> Result<HoldOfCall, Error> {
    let Some(session) = options.session else {
        let binding = options.watchdog.binding(options.ephemeral, command)?;
        let lease_ms = options.lease.ms().unwrap_or_else(config::default_lease);
        return Ok(HoldOfCall { number: None, bind: bind(ctx, command, binding)?, lease_ms });
    };
    let number = number(ctx, command, session, keys, owner, now)?;
    let (call, lease_ms) = session_hold(ctx, command, number, options)?;
    Ok(HoldOfCall { number: Some(call), bind: None, lease_ms })
}

/// The hold that a call binds to a session, and the length of its lease in milliseconds. Without a lease of its
/// own, the hold is renewed as long as the session lives.
fn session_hold(
    ctx: Ctx<'_>,
    command: CommandName,
    number: CallNumber,
    HoldOptions { lease, watchdog, ephemeral, .. }: &HoldOptions<'_>,
) -> Result<(NumberedCall, i64), Error> {
    let max_ms = watchdog.binding(ephemeral, command)?.and_then(|binding| binding.max_ms);
    let max_ms = max_ms.or_else(config::max_watchdog);
    let renewed = watchdog.is_given() || lease.ms().is_none();
    let grace_us = driver::with(ctx, |driver| driver.locks.session(number.session).map(Session::grace_us));
    let shortest = i64::try_from(grace_us.unwrap_or(0) / 1000).unwrap_or(0).saturating_mul(3);
    let lease_ms = match lease.ms() {
        None => config::default_lease().max(shortest),
        // The time between two renewals must leave slack for the lag of a replica and for differing clocks.
        Some(ms) if renewed && ms < shortest => {
            return Err(command.problem_with_advice(
                "lease is shorter than 3 times the GRACE of the session",
                format_args!("use at least {shortest} ms"),
            ));
        }
        Some(ms) => ms,
    };
    Ok((NumberedCall { number, renewed, ephemeral: ephemeral.is_given(), max_ms }, lease_ms))
}
