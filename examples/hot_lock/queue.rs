// SPDX-License-Identifier: MIT

//! The queue of one lock that many want: who waits for how long, calculated without a server.
//!
//! A lock that is handed over first come, first served is a queue with a single counter. What a request occupies it for is
//! not only the time for which the lock is held: while the grant is on its way to the client, and while its release is on its
//! way back, nobody else has the lock either. So each hold costs one round trip more.

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

/// What is asked of the lock. All times are in seconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Load {
    /// How many requests come in a second: independent of each other, so as a Poisson process.
    pub(crate) per_second: f64,
    /// How long the lock is held, on average.
    pub(crate) hold: f64,
    pub(crate) spread: Spread,
    /// From a call to its reply, if nobody has to wait.
    pub(crate) round_trip: f64,
}

/// How much the holds differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Spread {
    /// All take as long.
    None,
    /// Many short ones, few long ones: exponentially distributed.
    Exponential,
}

/// One client wants the lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Request {
    /// When its call is sent.
    pub(crate) at: f64,
    /// For how long it will hold the lock.
    pub(crate) hold: f64,
}

impl Load {
    /// The share of the time in which the lock is not free for others. From 1 on, the queue grows without end.
    pub(crate) fn utilisation(&self) -> f64 {
        self.per_second * (self.hold + self.round_trip)
    }

    /// So many requests as they could come; the same ones for the same seed.
    pub(crate) fn requests(&self, count: usize, seed: u64) -> Vec<Request> {
        let mut random = StdRng::seed_from_u64(seed);
        let mut exponential = |mean: f64| -mean * (1.0 - random.random::<f64>()).ln();
        let mut at = 0.0;
        let request = |_| {
            at += exponential(1.0 / self.per_second);
            let hold = match self.spread {
                Spread::None => self.hold,
                Spread::Exponential => exponential(self.hold),
            };
            Request { at, hold }
        };
        (0..count).map(request).collect()
    }
}

/// From each call to its grant.
pub(crate) fn waits(requests: &[Request], round_trip: f64) -> Vec<f64> {
    let way = round_trip / 2.0;
    let mut free_at = 0.0;
    let wait = |request: &Request| {
        let granted = (request.at + way).max(free_at);
        let told = granted + way;
        free_at = told + request.hold + way;
        told - request.at
    };
    requests.iter().map(wait).collect()
}
