// SPDX-License-Identifier: MIT

//! Clients that hand one lock to each other, and sleep until they get a reply. A client with a grant releases the lock, reads the
//! reply, and queues up again with a separate call. So each hand-over is a release with waiters, a grant to the first waiter, and
//! an acquire that waits.
//!
//! A step begins when all replies of the previous step have been read. With [`Pace::WhenServerSleeps`], it also waits until the
//! server sleeps. Then the server never reads two calls in one iteration of its event loop.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use mio::{Events, Interest, Poll, Token};

use super::machine;
use super::swarm::{Endpoint, Link};
use super::wire::Wire;
use super::Outcome;

/// The maximum time until a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// The moment at which the next call is sent.
#[derive(Clone, Copy)]
pub enum Pace {
    /// The call is sent without a pause.
    Immediate,
    /// The call is sent as soon as the server with this process id sleeps.
    WhenServerSleeps(u32),
}

impl Pace {
    fn wait(self) {
        if let Pace::WhenServerSleeps(process) = self {
            while !machine::is_asleep(process) {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
}

/// The two calls of a client, encoded.
pub struct Calls {
    pub acquire: Vec<u8>,
    pub release: Vec<u8>,
}

struct Member {
    link: Link,
    calls: Calls,
}

/// Clients in a ring.
pub struct Ring {
    poll: Poll,
    events: Events,
    wire: Wire,
    members: Vec<Member>,
    /// The number of the client that holds the lock.
    holder: usize,
}

impl Ring {
    /// Connects the clients. The first client acquires the lock, and the others queue up.
    pub fn start(endpoint: &Endpoint<'_>, calls: Vec<Calls>) -> Outcome<Ring> {
        let poll = Poll::new()?;
        let mut members = Vec::new();
        for (number, calls) in calls.into_iter().enumerate() {
            let mut link = Link::open(endpoint.address, endpoint.wire, endpoint.greetings)?;
            poll.registry().register(&mut link.stream, Token(number), Interest::READABLE)?;
            members.push(Member { link, calls });
        }
        let events = Events::with_capacity(64);
        let mut ring = Ring { poll, events, wire: endpoint.wire, members, holder: 0 };
        ring.acquire(0)?;
        ring.replies(|replies| !replies.is_empty())?;
        (1..ring.members.len()).try_for_each(|number| ring.acquire(number))?;
        Ok(ring)
    }

    /// Makes this number of hand-overs, at a pace.
    pub fn hand_over(&mut self, times: u32, pace: Pace) -> Outcome<()> {
        (0..times).try_for_each(|_| self.hand_over_once(pace))
    }

    /// Makes hand-overs for this time. Returns the average time of a hand-over.
    pub fn hand_over_for(&mut self, time: Duration) -> Outcome<Duration> {
        let begin = Instant::now();
        let mut times = 0;
        while begin.elapsed() < time {
            self.hand_over(100, Pace::Immediate)?;
            times += 100;
        }
        Ok(begin.elapsed() / times)
    }

    fn hand_over_once(&mut self, pace: Pace) -> Outcome<()> {
        let from = self.holder;
        pace.wait();
        let Member { link, calls } = &mut self.members[from];
        link.send(&calls.release)?;
        // The two replies arrive in any order.
        let replies = self.replies(|replies| replies.contains(&from) && replies.len() == 2)?;
        let to = replies.into_iter().find(|number| *number != from);
        self.holder = to.ok_or("the lock was not handed over")?;
        pace.wait();
        self.acquire(from)
    }

    fn acquire(&mut self, number: usize) -> Outcome<()> {
        let Member { link, calls } = &mut self.members[number];
        link.send(&calls.acquire)
    }

    /// Reads replies until `are_all` accepts the numbers of their clients. Returns these numbers.
    fn replies(&mut self, are_all: impl Fn(&[usize]) -> bool) -> Outcome<Vec<usize>> {
        let mut replies = Vec::new();
        let mut part = [0; 4096];
        while !are_all(&replies) {
            match self.poll.poll(&mut self.events, Some(PATIENCE)) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            if self.events.is_empty() {
                return Err("the server does not answer".into());
            }
            for event in &self.events {
                let number = event.token().0;
                let link = &mut self.members[number].link;
                link.read(&mut part)?;
                while let Some(length) = self.wire.first_reply(&link.input)? {
                    link.input.drain(..length);
                    replies.push(number);
                }
            }
        }
        Ok(replies)
    }
}
