//! Clients that wait, from the call that has to until they are answered.

use super::{with, Driver};
use crate::core::{Decision, Reply, WaiterId};
use crate::error::Error;
use crate::server::blocked::{BlockedClient, Handle};
use crate::server::socket::Socket;
use crate::server::{events, Ctx};

/// A blocked client, from the call that has to wait until the server has taken its handle back.
pub(super) struct Wait {
    pub(super) handle: Handle,
    pub(super) client: u64,
    socket: Option<Socket>,
    /// The client had hung up before it could be answered.
    hung_up: bool,
    /// `None` as long as it waits. The handle has been given back as soon as there is one.
    pub(super) ended: Option<Ended>,
}

/// How a wait ended.
#[derive(Clone)]
pub(super) enum Ended {
    By(Decision),
    /// The client left, or the server has answered it.
    Left,
}

impl Wait {
    /// The wait of the calling client, which has just been blocked.
    pub(super) fn of_caller(ctx: Ctx<'_>, handle: Handle) -> Wait {
        let client = ctx.client_id();
        let socket = with(ctx, |driver| driver.sockets.get(client)).or_else(|| {
            let socket = Socket::of_client(ctx, client);
            with(ctx, |driver| driver.sockets.put(client, socket));
            socket
        });
        Wait { handle, client, socket, hung_up: false, ended: None }
    }

    /// True if the client has closed its side of the connection. Not to be asked when it has been answered.
    pub(super) fn is_hung_up(&self) -> bool {
        self.socket.is_some_and(Socket::is_hung_up)
    }
}

/// What happens to blocked clients.
pub(super) struct Waits;

impl BlockedClient for Waits {
    fn reply(ctx: Ctx<'_>, token: u64) {
        let found = with(ctx, |driver| {
            let wait = driver.waits.get_mut(&WaiterId(token))?;
            wait.hung_up = wait.is_hung_up();
            Some((wait.ended.clone(), wait.hung_up))
        });
        let Some((Some(Ended::By(decision)), hung_up)) = found else { return };
        let error = match decision {
            // It may have closed its half only, and still read: what is revoked must not be told as a grant.
            Decision::Granted(_) if hung_up => Error::HungUp,
            Decision::Granted(reply) => return reply_grant(ctx, &reply),
            Decision::TimedOut => return ctx.reply_null(),
            Decision::WrongType => Error::WrongType,
            Decision::Moved => Error::Moved,
            Decision::Superseded => Error::Superseded,
            Decision::Cancelled => Error::Cancelled,
            Decision::Demoted => Error::Demoted,
            Decision::Refused(refusal) => Error::Refused(refusal),
        };
        ctx.reply_error(&error.to_string());
    }

    fn timed_out(ctx: Ctx<'_>, handle: Handle) {
        ctx.reply_null();
        with(ctx, |driver| driver.leave(ctx, handle));
    }

    fn disconnected(ctx: Ctx<'_>, handle: Handle) {
        with(ctx, |driver| driver.leave(ctx, handle));
    }

    fn done(ctx: Ctx<'_>, token: u64, gone: bool) {
        let id = WaiterId(token);
        with(ctx, |driver| {
            let Some(wait) = driver.waits.remove(&id) else { return };
            driver.by_handle.remove(&wait.handle);
            if driver.waits.is_empty() {
                driver.give_memory_back();
            }
            if !matches!(wait.ended, Some(Ended::By(Decision::Granted(_)))) {
                return;
            }
            if gone || wait.hung_up {
                driver.revoke(id);
                events::wake_up(ctx);
            } else {
                driver.answered.push((id, wait.client));
                driver.listen_to_wakeups(ctx);
            }
            driver.set_timer(ctx, None);
        });
    }
}

impl Driver {
    fn revoke(&mut self, id: WaiterId) {
        self.stats.revoked += 1;
        self.locks.undelivered(id);
    }
}

/// The event loop has sent what it had to send and freed what it had to free, and has read nothing since.
pub(super) fn turn_is_over(ctx: Ctx<'_>, (): ()) {
    with(ctx, |driver| {
        driver.plan_look_at_fragile(ctx);
        if driver.answered.is_empty() {
            return;
        }
        for (id, client) in std::mem::take(&mut driver.answered) {
            if ctx.client_exists(client) {
                driver.locks.delivered(id, ctx.now());
            } else {
                driver.revoke(id);
            }
        }
        driver.listen_to_clients(ctx);
        driver.set_timer(ctx, None);
    });
}

/// Answers a grant.
pub(crate) fn reply_grant(ctx: Ctx<'_>, reply: &Reply) {
    let Some(owner) = &reply.owner else { return ctx.reply_integer(reply.holds) };
    ctx.reply_map(if reply.token.is_some() { 3 } else { 2 });
    ctx.reply_bulk(b"owner");
    ctx.reply_bulk(owner.as_bytes());
    ctx.reply_bulk(b"holds");
    ctx.reply_integer(reply.holds);
    if let Some(token) = reply.token {
        ctx.reply_bulk(b"token");
        ctx.reply_integer(token);
    }
}
