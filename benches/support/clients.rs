// SPDX-License-Identifier: MIT

//! Clients of a [`swarm`](super::swarm). Each one acquires and releases a lock in a closed loop.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use super::redisson::Scripts;
use super::ring::Calls;
use super::swarm::{Client, Io};
use super::{packed, Outcome};

/// Returns the calls that a client of a [`ring`](super::ring) makes, with the default lease of the server.
pub fn native_calls(key: &str, number: usize) -> Calls {
    ring_calls("LOCK", key, number)
}

/// Returns calls like [`native_calls`], for leases that the server renews.
pub fn renewed_calls(key: &str, number: usize) -> Calls {
    let acquire = packed(&format!("LOCK.ACQUIRE {key} {} WATCHDOG BLOCK 0", owner(number)));
    Calls { acquire, ..native_calls(key, number) }
}

/// Returns the calls that a client of a [`ring`](super::ring) makes to the floor module. The arguments are those of
/// [`native_calls`], so parsing them costs the same.
pub fn floor_calls(key: &str, number: usize) -> Calls {
    ring_calls("FLOOR", key, number)
}

fn ring_calls(module: &str, key: &str, number: usize) -> Calls {
    Calls {
        acquire: packed(&format!("{module}.ACQUIRE {key} {} BLOCK 0", owner(number))),
        release: packed(&format!("{module}.RELEASE {key} {}", owner(number))),
    }
}

/// The average time that a polling client sleeps before it tries again, in milliseconds.
const POLL_MS: f64 = 10.0;
const LEASE_MS: usize = 30_000;

/// Acquires a lock with one blocking call, and releases it with a second call.
pub struct Queued {
    acquire: Vec<u8>,
    release: Vec<u8>,
    holds: bool,
}

impl Queued {
    pub fn new(acquire: Vec<u8>, release: Vec<u8>) -> Queued {
        Queued { acquire, release, holds: false }
    }

    /// Creates a client that uses the module's commands.
    pub fn native(key: &str, number: usize) -> Queued {
        let acquire = packed(&format!("LOCK.ACQUIRE {key} {} PX {LEASE_MS} BLOCK 0", owner(number)));
        Queued::new(acquire, native_calls(key, number).release)
    }
}

impl Client for Queued {
    fn begin(&mut self, io: &mut Io<'_>) {
        io.asking();
        io.send(0, &self.acquire);
    }

    fn on_reply(&mut self, _: usize, _: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        self.holds = !self.holds;
        if self.holds {
            io.acquired();
            io.releasing();
            io.send(0, &self.release);
        } else {
            io.asking();
            io.send(0, &self.acquire);
        }
        Ok(())
    }
}

/// Tries `SET NX PX` until it succeeds, and sleeps for 5 to 15 ms before each retry. Releases the lock with a
/// compare-and-delete script.
pub struct Polling {
    set: Vec<u8>,
    delete: Vec<u8>,
    holds: bool,
    jitter: StdRng,
}

impl Polling {
    pub fn new(key: &str, number: usize, scripts: &Scripts) -> Polling {
        let (owner, sha) = (owner(number), scripts.sha("compare_and_delete"));
        Polling {
            set: packed(&format!("SET {key} {owner} NX PX {LEASE_MS}")),
            delete: packed(&format!("EVALSHA {sha} 1 {key} {owner}")),
            holds: false,
            jitter: StdRng::seed_from_u64(number as u64),
        }
    }
}

impl Client for Polling {
    fn begin(&mut self, io: &mut Io<'_>) {
        io.asking();
        io.send(0, &self.set);
    }

    fn on_reply(&mut self, _: usize, reply: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        if self.holds {
            self.holds = false;
            io.asking();
            io.send(0, &self.set);
        } else if reply.starts_with(b"+") {
            self.holds = true;
            io.acquired();
            io.releasing();
            io.send(0, &self.delete);
        } else {
            let ms = POLL_MS * self.jitter.random_range(0.5..1.5);
            io.wake_after(Duration::from_secs_f64(ms / 1000.0));
        }
        Ok(())
    }

    fn on_time(&mut self, io: &mut Io<'_>) {
        io.send(0, &self.set);
    }
}

/// Redisson's protocol: the client tries, and if another client holds the lock, it subscribes and tries again. Then it tries
/// after each message that the lock is free. When it has the lock, it unsubscribes. Connection 0 is for calls, connection 1 for
/// messages, as in a process with a single client.
pub struct Subscriber {
    acquire: Vec<u8>,
    release: String,
    latch: String,
    channel: String,
    state: State,
    /// Whether a message has arrived since the client last tried.
    message: bool,
    releases: usize,
}

#[derive(PartialEq, Eq)]
enum State {
    Trying {
        subscribed: bool,
    },
    Subscribing,
    Waiting,
    Releasing,
    /// Waits for the reply to the deletion of the latch.
    Trailing,
}

impl Subscriber {
    pub fn new(key: &str, number: usize, scripts: &Scripts) -> Subscriber {
        let (owner, channel) = (owner(number), format!("redisson_lock__channel:{{{key}}}"));
        let latch = latch(key, number);
        let (acquire, release) = (scripts.sha("acquire"), scripts.sha("release_latched"));
        Subscriber {
            acquire: packed(&format!("EVALSHA {acquire} 1 {key} {LEASE_MS} {owner}")),
            release: format!("EVALSHA {release} 3 {key} {channel} {latch} {LEASE_MS} {owner} 13500"),
            latch,
            channel,
            state: State::Trying { subscribed: false },
            message: false,
            releases: 0,
        }
    }

    fn try_now(&mut self, subscribed: bool, io: &mut Io<'_>) {
        self.message = false;
        self.state = State::Trying { subscribed };
        io.send(0, &self.acquire);
    }

    /// Handles a refusal: another client holds the lock.
    fn wait(&mut self, subscribed: bool, io: &mut Io<'_>) {
        if !subscribed {
            self.state = State::Subscribing;
            io.send(1, &packed(&format!("SUBSCRIBE {}", self.channel)));
        } else if self.message {
            self.try_now(true, io);
        } else {
            self.state = State::Waiting;
        }
    }

    fn hold(&mut self, subscribed: bool, io: &mut Io<'_>) {
        io.acquired();
        if subscribed {
            io.send(1, &packed(&format!("UNSUBSCRIBE {}", self.channel)));
        }
        io.releasing();
        self.state = State::Releasing;
        self.releases += 1;
        io.send(0, &packed(&self.release.replace('#', &self.releases.to_string())));
    }

    fn on_message(&mut self, message: &[u8], io: &mut Io<'_>) {
        let is = |kind: &[u8]| message.windows(kind.len()).any(|part| part == kind);
        if is(b"\r\nmessage\r\n") {
            self.message = true;
            if self.state == State::Waiting {
                self.try_now(true, io);
            }
        } else if is(b"\r\nsubscribe\r\n") && self.state == State::Subscribing {
            self.try_now(true, io);
        }
    }
}

impl Client for Subscriber {
    fn begin(&mut self, io: &mut Io<'_>) {
        self.try_now(false, io);
    }

    fn on_reply(&mut self, connection: usize, reply: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        if connection == 1 {
            self.on_message(reply, io);
            return Ok(());
        }
        match self.state {
            State::Trying { subscribed } if reply.starts_with(b"$-1") => self.hold(subscribed, io),
            State::Trying { subscribed } => self.wait(subscribed, io),
            State::Releasing => {
                // `unlock` returns before the latch is deleted.
                let latch = self.latch.replace('#', &self.releases.to_string());
                io.send(0, &packed(&format!("DEL {latch}")));
                self.state = State::Trailing;
                io.send(0, &self.acquire);
            }
            State::Trailing => self.state = State::Trying { subscribed: false },
            State::Subscribing | State::Waiting => return Err("an unexpected reply".into()),
        }
        Ok(())
    }
}

/// Acquires and releases a lock that no other client uses, with several calls in a pipeline.
pub struct Pairs {
    batches: Vec<Vec<u8>>,
    calls_in_batch: usize,
    replies: usize,
}

impl Pairs {
    pub fn new(acquire: &str, release: &str, pipeline: usize) -> Pairs {
        let pair = [packed(acquire), packed(release)];
        let batches = match pipeline {
            1 => pair.to_vec(),
            _ => vec![pair.concat().repeat(pipeline / 2)],
        };
        Pairs { batches, calls_in_batch: pipeline, replies: 0 }
    }
}

impl Client for Pairs {
    fn begin(&mut self, io: &mut Io<'_>) {
        io.send(0, &self.batches[0]);
    }

    fn on_reply(&mut self, _: usize, _: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        self.replies += 1;
        if self.replies.is_multiple_of(2) {
            io.acquired();
        }
        if self.replies.is_multiple_of(self.calls_in_batch) {
            let batch = self.replies / self.calls_in_batch % self.batches.len();
            io.send(0, &self.batches[batch]);
        }
        Ok(())
    }
}

/// Returns an owner name of the form and length that Redisson uses.
pub fn owner(number: usize) -> String {
    format!("8743c9c0-0719-4bdd-8b5d-6b1a1e5b1d3a:{number}")
}

/// Returns the name of a latch, with `#` for the number of the release.
fn latch(key: &str, number: usize) -> String {
    format!("redisson_unlock_latch:{{{key}}}:{number:016x}-#")
}
