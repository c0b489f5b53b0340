// SPDX-License-Identifier: MIT

//! `NOTIFY`: what a call has to bring along that is told by a message.

use std::rc::Rc;

use super::args::Cursor;
use crate::config;
use crate::core::{ConnectionId, Notify};
use crate::driver;
use crate::error::Error;
use crate::server::clients::caller;
use crate::server::Ctx;

/// What the rest of the call says.
pub(super) struct Rest<'a> {
    /// The owner as it was given.
    pub(super) asked: &'a [u8],
    pub(super) id: Option<&'a [u8]>,
    pub(super) lease_ms: i64,
    /// Replicas have to acknowledge the grant.
    pub(super) acknowledged: bool,
}

/// How the caller is told that it is its turn: by a message in `inbox`.
pub(super) fn notify(
    ctx: Ctx<'_>,
    args: &Cursor<'_>,
    (inbox, grace_ms): (&[u8], i64),
    rest: &Rest<'_>,
) -> Result<Rc<Notify>, Error> {
    let refuse = |problem: &str| Err(args.problem(problem.to_owned()));
    let Some(id) = rest.id else { return refuse("NOTIFY needs ID") };
    if id.contains(&b' ') {
        // A key may have one: it is what comes last.
        return refuse("with NOTIFY, ID must not have a space, which ends it in the message,");
    }
    if rest.asked == b"*" {
        return refuse("NOTIFY needs an owner other than *,");
    }
    if rest.acknowledged {
        return Err(args.excluded("NOTIFY", "REPLICAS"));
    }
    let Some(client) = caller::connection_id(ctx) else {
        return refuse("NOTIFY needs a connection, which a script does not have,");
    };
    Ok(Rc::new(Notify {
        inbox: driver::inbox(ctx, inbox)?,
        connection: ConnectionId(client),
        grace_ms: grace_ms.min(rest.lease_ms),
        at_most: config::max_notify(),
    }))
}
