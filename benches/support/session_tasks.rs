// SPDX-License-Identifier: MIT

//! A process with many tasks that share one session: one connection reads events, and a few others carry all calls.

use std::collections::{BTreeMap, VecDeque};

use super::clients::owner;
use super::session::{array_len, session_id};
use super::swarm::{Client, Io};
use super::{packed, Outcome};

/// The number of connections for calls of each process.
pub const POOL: usize = 4;

/// The time for which `LOCK.EVENTS` blocks, in milliseconds.
const BLOCK_MS: u64 = 1_000;

/// A call whose reply has not arrived yet.
enum Pending {
    /// The acquire with this number.
    Acquire(u64),
    /// The release of this task.
    Release(usize),
}

/// A process. Each task acquires and releases its lock in a closed loop. Connection 0 is the reader.
pub struct Process {
    /// The lock and the owner of each task.
    tasks: Vec<(String, String)>,
    session: String,
    beat: u64,
    seq: u64,
    last_n: u64,
    /// The tasks whose acquire has not been granted yet, by number.
    asking: BTreeMap<u64, usize>,
    /// The calls on each connection of the pool, oldest first.
    pending: [VecDeque<Pending>; POOL],
    next_connection: usize,
}

impl Process {
    /// Creates a process whose tasks have numbers from `first` on. `locks` is the number of locks.
    pub fn new(first: usize, tasks: usize, locks: usize) -> Process {
        let task = |number: usize| (format!("race:{}", number % locks), owner(number));
        Process {
            tasks: (first..first + tasks).map(task).collect(),
            session: String::new(),
            beat: 1,
            seq: 0,
            last_n: 0,
            asking: BTreeMap::new(),
            pending: [const { VecDeque::new() }; POOL],
            next_connection: 0,
        }
    }

    fn call(&mut self, call: &str, pending: Pending, io: &mut Io<'_>) {
        self.next_connection = (self.next_connection + 1) % POOL;
        self.pending[self.next_connection].push_back(pending);
        io.send(1 + self.next_connection, &packed(call));
    }

    fn acquire(&mut self, task: usize, io: &mut Io<'_>) {
        self.last_n += 1;
        let n = self.last_n;
        self.asking.insert(n, task);
        let (lock, owner) = &self.tasks[task];
        let call = format!("LOCK.ACQUIRE {lock} {owner} SESSION {} {n} QUEUE 0", self.session);
        self.call(&call, Pending::Acquire(n), io);
    }

    /// Releases the lock that acquire `n` got.
    fn granted(&mut self, n: u64, io: &mut Io<'_>) -> Outcome<()> {
        let task = self.asking.remove(&n).ok_or("an acquire is granted twice")?;
        io.acquired();
        io.releasing();
        let (lock, owner) = &self.tasks[task];
        let call = format!("LOCK.RELEASE {lock} {owner} SESSION {} {n}", self.session);
        self.call(&call, Pending::Release(task), io);
        Ok(())
    }

    fn send_events(&mut self, io: &mut Io<'_>) {
        self.beat += 1;
        let done = self.asking.keys().next().copied().unwrap_or(self.last_n + 1);
        let Process { session, beat, seq, .. } = self;
        io.send(0, &packed(&format!("LOCK.EVENTS {session} {beat} {seq} {done} {BLOCK_MS}")));
    }

    fn on_events(&mut self, reply: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        let granted = grants(reply)?;
        self.seq += granted.len() as u64;
        // A client acknowledges its grants before it uses the locks.
        self.send_events(io);
        granted.into_iter().try_for_each(|n| self.granted(n, io))
    }
}

/// Returns the numbers in a reply to `LOCK.EVENTS`, whose events must all be grants.
fn grants(reply: &[u8]) -> Outcome<Vec<u64>> {
    let count = array_len(reply)?;
    let text = std::str::from_utf8(reply)?;
    let mut lines = text.split("\r\n").skip(1);
    // Each event is `*4`, `:seq`, `$7`, `granted`, `:n`, `:holds`.
    let mut next = || -> Outcome<u64> {
        let event: Vec<&str> = lines.by_ref().take(6).collect();
        match event[..] {
            ["*4", _, _, "granted", n, _] => Ok(n[1..].parse()?),
            _ => Err(format!("unexpected event {event:?}").into()),
        }
    };
    (0..count).map(|_| next()).collect()
}

impl Client for Process {
    fn begin(&mut self, io: &mut Io<'_>) {
        io.send(0, &packed("LOCK.SESSION OPEN NEW 1 TTL 30000 GRACE 3000 NAME bench"));
    }

    fn on_reply(&mut self, connection: usize, reply: &[u8], io: &mut Io<'_>) -> Outcome<()> {
        let Some(connection) = connection.checked_sub(1) else {
            if !self.session.is_empty() {
                return self.on_events(reply, io);
            }
            self.session = session_id(reply)?;
            (0..self.tasks.len()).for_each(|task| self.acquire(task, io));
            self.send_events(io);
            return Ok(());
        };
        match self.pending[connection].pop_front().ok_or("an unexpected reply")? {
            Pending::Release(task) => self.acquire(task, io),
            // The event may have come before this reply.
            Pending::Acquire(n) if reply == b":1\r\n" && self.asking.contains_key(&n) => {
                self.granted(n, io)?;
            }
            Pending::Acquire(_) => {}
        }
        Ok(())
    }
}
