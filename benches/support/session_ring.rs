// SPDX-License-Identifier: MIT

//! Clients with sessions that hand locks to each other, and sleep until they get a reply. A client with the locks releases them,
//! and queues up again once the next client has acknowledged its grants. If there are several locks, one reply to `LOCK.EVENTS`
//! contains all grants.
//!
//! Each call is sent while the server sleeps, as with [`Pace::WhenServerSleeps`](super::ring::Pace).

use super::callgrind::least_part;
use super::clients::owner;
use super::machine;
use super::server::{Server, Setup};
use super::session::{SessionClient, LONG_GRACE_MS};
use super::sleeping::{Contender, HandOver};
use super::{packed, unless_quick, Outcome};

/// Clients with one session each.
pub struct SessionRing {
    members: Vec<SessionClient>,
    /// The number of locks that are handed over together.
    locks: u64,
    /// The number of the client that holds the locks.
    holder: usize,
    /// The process id of the server.
    server: u32,
}

impl SessionRing {
    /// Opens the sessions. The first client acquires the locks, and the others queue up.
    pub fn start(server: &Server, clients: usize, locks: u64) -> Outcome<SessionRing> {
        let mut ring = SessionRing { members: Vec::new(), locks, holder: 0, server: server.id() };
        for number in 0..clients {
            ring.members.push(SessionClient::open(server)?);
            ring.acquire(number)?;
            ring.send_events(number)?;
        }
        Ok(ring)
    }

    /// Hands all locks to the next client, this number of times.
    pub fn hand_over(&mut self, times: u32) -> Outcome<()> {
        (0..times).try_for_each(|_| self.hand_over_once())
    }

    fn hand_over_once(&mut self) -> Outcome<()> {
        let (from, to) = (self.holder, (self.holder + 1) % self.members.len());
        self.wait();
        self.call(from, |owner, session, lock, n| {
            format!("LOCK.RELEASE ring{lock} {owner} SESSION {session} {n}")
        })?;
        let mut granted = 0;
        while granted < self.locks {
            let events = self.members[to].read_events()?;
            if events == 0 {
                return Err("LOCK.EVENTS has blocked for too long".into());
            }
            granted += events as u64;
            self.wait();
            self.send_events(to)?;
        }
        self.wait();
        self.holder = to;
        self.acquire(from)
    }

    fn acquire(&mut self, number: usize) -> Outcome<()> {
        self.members[number].n += self.locks;
        self.call(number, |owner, session, lock, n| {
            format!("LOCK.ACQUIRE ring{lock} {owner} SESSION {session} {n} QUEUE 0")
        })
    }

    /// Acknowledges all events, and waits for new ones. The waits of the client have no answer yet.
    fn send_events(&mut self, number: usize) -> Outcome<()> {
        let client = &mut self.members[number];
        client.send_events(client.n - self.locks, LONG_GRACE_MS)
    }

    /// Makes one call for each lock, all in one write, and reads the replies.
    fn call(&mut self, number: usize, call: impl Fn(&str, &str, u64, u64) -> String) -> Outcome<()> {
        let client = &mut self.members[number];
        let first = client.n + 1 - self.locks;
        // Each wait has its own owner, as in a client. Otherwise the server would search for deadlocks.
        let owner = |lock: u64| format!("{}:{lock}", owner(number));
        let calls = (0..self.locks).map(|lock| packed(&call(&owner(lock), &client.id, lock, first + lock)));
        let calls: Vec<u8> = calls.flatten().collect();
        client.calls.send(&calls)?;
        (0..self.locks).try_for_each(|_| client.calls.reply().map(drop))
    }

    fn wait(&self) {
        while !machine::is_asleep(self.server) {
            std::thread::sleep(std::time::Duration::from_micros(20));
        }
    }
}

/// Counts the hand-over of one lock among this number of clients. Each reply contains the grants of this number of locks.
pub fn count(clients: usize, locks: u64) -> Outcome<HandOver> {
    let mut server = Contender::Module.start(Setup::new().under_callgrind())?;
    let mut ring = SessionRing::start(&server, clients, locks)?;
    let times = u32::try_from(clients)?.max(unless_quick(2000, 400));
    let (part, times) = least_part(&mut server, times, |times| ring.hand_over(times))?;
    let each = |total: u64| total as f64 / (f64::from(times) * locks as f64);
    Ok(HandOver { instructions: each(part.instructions), cycles: each(part.calls_of("epoll_wait")) })
}
