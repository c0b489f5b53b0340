// SPDX-License-Identifier: MIT

//! `LOCK.BLOCKERS`

use super::args::Cursor;
use super::options::OWNER;
use crate::core::waits_for::Edge;
use crate::core::{ConnectionId, Owner, WaitView};
use crate::driver;
use crate::error::Error;
use crate::server::registration::arguments::Arguments;
use crate::server::registration::command::{Args, Command, Spec};
use crate::server::Ctx;

pub(crate) struct Blockers;

impl Command for Blockers {
    const SPEC: Spec = Spec {
        name: c"lock.blockers",
        flags: c"readonly",
        categories: c"read slow dangerous",
        key: None,
        arguments: Arguments { positional: &[OWNER], options: &[] },
        summary: c"Lists the owners that block an owner, directly or indirectly, nearest first.",
        reply: "An array of maps.",
        complexity: c"O(N*log(N)) where N owners are found",
    };

    fn run(ctx: Ctx<'_>, args: Args<'_>) -> Result<(), Error> {
        let mut args = Cursor::new("lock.blockers", args);
        let owner = Owner::new(args.owner()?.as_bytes());
        args.end()?;
        let edges = driver::blockers_of(ctx, &owner);
        ctx.reply_array(edges.len());
        for edge in edges {
            ctx.reply_map(5);
            ctx.reply_bulk(b"owner");
            ctx.reply_bulk(edge.owner.as_bytes());
            ctx.reply_bulk(b"key");
            ctx.reply_bulk(&edge.lock.key);
            super::reply_client(ctx, client_of_blocker(ctx, &edge, &owner));
        }
        Ok(())
    }
}

/// The connection of a blocker's hold, or else a connection on which the blocker waits. For the calling
/// owner, only the connection of its hold is used, because the waits may belong to another thread.
fn client_of_blocker(ctx: Ctx<'_>, edge: &Edge, caller: &Owner) -> Option<ConnectionId> {
    let (hold, waits) = driver::with(ctx, |driver| {
        let hold = driver.locks.hold(edge.lock.as_ref(), &edge.owner, ctx.now());
        let waits = || driver.locks.waits_of(&edge.owner).find_map(|id| driver.client_of(id));
        let waits = if edge.owner == *caller { None } else { waits() };
        (hold, waits)
    });
    let holder = hold.and_then(|hold| hold.client).filter(|ConnectionId(id)| ctx.client_exists(*id));
    holder.or(waits)
}
