// SPDX-License-Identifier: MIT

//! A lock that a majority of independent servers grants: the algorithm Redlock, with fencing tokens that grow.
//!
//! A hold is valid while a majority of the servers have it. Two majorities have a server in common, so two holds cannot be valid
//! at once. This requires that no server forgets its grants, and that all clocks run at about the same speed.
//!
//! Each server counts its tokens separately. The token of a hold is the greatest of a majority. If more servers granted the lock,
//! that is the majority with the smallest tokens. This alone does not make it greater than the token before, which may be from
//! a server outside the majority. So a hold counts only when a majority of the servers know a token at least that great. They
//! gave one themselves, or the client sends it to them. At least one of them is in the next majority, and gives a greater token.
//! This needs no clock.

use std::fmt;
use std::thread;
use std::time::{Duration, Instant};

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use redis::RedisResult;
use uuid::Uuid;

use super::server::{Claim, Server, Vote};

/// The servers of one client.
pub(crate) struct Redlock {
    servers: Vec<Server>,
    limit: Duration,
    random: StdRng,
}

/// A granted lock.
pub(crate) struct Hold {
    claim: Claim,
    lease: Duration,
    /// Greater than the token of every hold granted before this acquire was called.
    pub(crate) token: i64,
    /// End of the validity, unless the hold is renewed before.
    pub(crate) valid_until: Instant,
}

/// The error of an acquire without a majority.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NoMajority {
    /// Number of servers that granted the lock.
    pub(crate) granted: usize,
    /// Number of servers without a reply.
    pub(crate) silent: usize,
    /// Number of servers.
    pub(crate) of: usize,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} of {} servers granted it, {} did not answer", self.granted, self.of, self.silent)
    }
}

impl std::error::Error for NoMajority {}

impl Redlock {
    /// `limit` is the time limit of a call to one server: much less than a lease, much more than a round trip.
    pub(crate) fn new<'a>(urls: impl IntoIterator<Item = &'a str>, limit: Duration) -> RedisResult<Redlock> {
        let servers = urls.into_iter().map(|url| Server::new(url, limit)).collect::<RedisResult<_>>()?;
        let random = StdRng::seed_from_u64(Uuid::new_v4().as_u64_pair().0);
        Ok(Redlock { servers, limit, random })
    }

    /// Acquires the lock. Fails after `patience`.
    pub(crate) fn acquire(
        &mut self,
        key: &str,
        lease: Duration,
        patience: Duration,
    ) -> Result<Hold, NoMajority> {
        let deadline = Instant::now() + patience;
        loop {
            let refusal = match self.try_acquire(key, lease) {
                Ok(hold) => return Ok(hold),
                Err(refusal) => refusal,
            };
            // Clients that split the servers among themselves would do so again if they retried in step.
            let pause = self.random.random_range(Duration::ZERO..=self.limit);
            if Instant::now() + pause >= deadline {
                return Err(refusal);
            }
            thread::sleep(pause);
        }
    }

    /// Tries once to acquire the lock.
    pub(crate) fn try_acquire(&mut self, key: &str, lease: Duration) -> Result<Hold, NoMajority> {
        let [owner, request] = [(); 2].map(|()| Uuid::new_v4().to_string());
        let claim = Claim { key: key.to_owned(), owner, request };
        let sent = Instant::now();
        let votes = self.on_each(|server, _| server.acquire(&claim, millis(lease)));
        let tokens: Vec<Option<i64>> = votes.iter().map(Vote::token).collect();
        if let Some(token) = self.token_of_majority(&tokens) {
            let valid_until = end_of_validity(sent, lease);
            if self.make_known(&claim, token, &tokens) && Instant::now() < valid_until {
                return Ok(Hold { claim, lease, token, valid_until });
            }
        }
        // This includes silent servers: they may have granted the lock, or may do so later.
        self.on_each(|server, _| server.cancel(&claim));
        Err(NoMajority {
            granted: tokens.iter().flatten().count(),
            silent: votes.iter().filter(|vote| matches!(vote, Vote::Silent)).count(),
            of: votes.len(),
        })
    }

    /// Starts the lease again. A failure leaves the validity as it was.
    pub(crate) fn renew(&mut self, hold: &mut Hold) -> bool {
        let sent = Instant::now();
        // After the end of the validity, another owner may have been granted the lock.
        if sent >= hold.valid_until {
            return false;
        }
        let renewed = self.on_each(|server, _| server.renew(&hold.claim, millis(hold.lease)));
        let valid_until = end_of_validity(sent, hold.lease);
        let is_renewed = self.is_majority(renewed) && Instant::now() < hold.valid_until.min(valid_until);
        if is_renewed {
            hold.valid_until = valid_until;
        }
        is_renewed
    }

    /// Releases the lock at all servers.
    pub(crate) fn release(&mut self, hold: Hold) {
        self.on_each(|server, _| server.undo(&hold.claim));
    }

    /// Returns the greatest token of the majority with the smallest tokens, or `None` without a majority. So a server with a
    /// clock far ahead has no effect if it is not needed.
    fn token_of_majority(&self, tokens: &[Option<i64>]) -> Option<i64> {
        let mut given: Vec<i64> = tokens.iter().flatten().copied().collect();
        given.sort_unstable();
        given.get(self.servers.len() / 2).copied()
    }

    /// Sends the token to servers with a smaller one. Returns whether a majority knows a token at least that great.
    fn make_known(&mut self, claim: &Claim, token: i64, tokens: &[Option<i64>]) -> bool {
        let knows = |own: &Option<i64>| own.is_some_and(|own| own >= token);
        self.is_majority(tokens.iter().map(knows)) || {
            let known = self.on_each(|server, at| {
                knows(&tokens[at]) || tokens[at].is_some() && server.make_known(claim, token)
            });
            self.is_majority(known)
        }
    }

    fn is_majority(&self, votes: impl IntoIterator<Item = bool>) -> bool {
        votes.into_iter().filter(|vote| *vote).count() > self.servers.len() / 2
    }

    /// Calls all servers at the same time, so that a silent server does not delay the calls to the others.
    fn on_each<T: Send>(&mut self, call: impl Fn(&mut Server, usize) -> T + Sync) -> Vec<T> {
        let call = &call;
        thread::scope(|scope| {
            let servers = self.servers.iter_mut().enumerate();
            let calls: Vec<_> = servers.map(|(at, server)| scope.spawn(move || call(server, at))).collect();
            let join = |call: thread::ScopedJoinHandle<'_, T>| {
                call.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            calls.into_iter().map(join).collect()
        })
    }
}

/// Returns the end of the validity. A server counts the lease from the arrival of the call, after `sent`. Its clock may run
/// faster than the local one.
fn end_of_validity(sent: Instant, lease: Duration) -> Instant {
    let drift = lease / 100 + Duration::from_millis(2);
    sent + lease.saturating_sub(drift)
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
