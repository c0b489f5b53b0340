// SPDX-License-Identifier: MIT

//! Thousands of clients with a session on each node of a cluster, in one thread. They reconnect with the limits of
//! `examples/fleet/shard.rs`, and with given pauses. Included by `scale` only.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};

use crate::shard::{Pauses, CONNECT_LIMIT, LONGEST_PAUSE, REPLY_LIMIT};
use crate::support::server::Server;
use crate::support::session::session_id;
use crate::support::wire::Wire;
use crate::support::{packed, Outcome};

/// The longest time until all sessions of a node are resumed.
const PATIENCE: Duration = Duration::from_secs(60);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Idle,
    Connecting,
    Opening,
    /// The declaration and the first heartbeat are on their way.
    Confirming,
    Resumed,
}

struct Client {
    node: usize,
    /// The lock and the owner.
    hold: String,
    /// Whether the client has its lock already.
    is_holder: bool,
    /// Whether the present session has the hold.
    is_declared: bool,
    session: String,
    beat: u64,
    stream: Option<TcpStream>,
    input: Vec<u8>,
    phase: Phase,
    /// The number of replies until the next phase.
    missing: usize,
    pause: f64,
    jitter: f64,
    /// Increases with each phase. A timer of an earlier step means nothing.
    step: u32,
}

/// A node of the cluster, and a hash tag of a slot that it serves.
pub(crate) struct Node {
    pub(crate) address: SocketAddr,
    pub(crate) tag: String,
}

/// The result of a storm.
pub(crate) struct Resumed {
    /// Times in seconds from the begin of the storm until the confirming reply, in ascending order.
    pub(crate) times: Vec<f64>,
    /// The number of attempts that clients gave up.
    pub(crate) given_up: usize,
    /// The time in seconds until the server began to accept, see [`Begin::Stalled`].
    pub(crate) stall: f64,
}

/// The state of the server while the clients begin to connect.
pub(crate) enum Begin<'a> {
    Running,
    /// This server is stopped until all clients have sent their connection requests. So it gets all of them at once, although the
    /// clients share one core.
    Stalled(&'a Server),
}

pub(crate) struct Fleet {
    poll: Poll,
    nodes: Vec<Node>,
    clients: Vec<Client>,
    timers: BinaryHeap<Reverse<(Instant, usize, u32)>>,
    random: StdRng,
    grace_ms: u64,
    resumed: Vec<Instant>,
    /// The number of attempts to connect since the storm began.
    attempts: usize,
    given_up: usize,
}

impl Fleet {
    /// Creates clients with one session on each node. [`resume`](Fleet::resume) connects them.
    pub(crate) fn new(nodes: Vec<Node>, clients: usize, grace_ms: u64) -> Outcome<Fleet> {
        let client = |node: usize, number: usize| Client {
            node,
            hold: format!("{{{}}}:{number} client:{number}", nodes[node].tag),
            is_holder: false,
            is_declared: false,
            session: String::new(),
            beat: 0,
            stream: None,
            input: Vec::new(),
            phase: Phase::Idle,
            missing: 0,
            pause: 0.0,
            jitter: 0.0,
            step: 0,
        };
        let all = (0..nodes.len()).flat_map(|node| (0..clients).map(move |number| (node, number)));
        let clients = all.map(|(node, number)| client(node, number)).collect();
        let (timers, random) = (BinaryHeap::new(), StdRng::seed_from_u64(1));
        let (poll, resumed) = (Poll::new()?, Vec::new());
        Ok(Fleet { poll, nodes, clients, timers, random, grace_ms, resumed, attempts: 0, given_up: 0 })
    }

    /// Closes all connections to a node. If `forget` is set, the clients forget their sessions, as after a failover.
    pub(crate) fn disconnect(&mut self, node: usize, forget: bool) {
        for client in self.clients.iter_mut().filter(|client| client.node == node) {
            client.stream = None;
            client.phase = Phase::Idle;
            client.step += 1;
            if forget {
                client.session.clear();
                client.is_declared = false;
            }
        }
    }

    /// Lets all clients of a node connect and resume their sessions, as if they had just lost their connections.
    pub(crate) fn resume(&mut self, node: usize, pauses: Pauses, server: Begin<'_>) -> Outcome<Resumed> {
        (self.resumed, self.attempts, self.given_up) = (Vec::new(), 0, 0);
        let begin = Instant::now();
        let numbers: Vec<usize> =
            (0..self.clients.len()).filter(|&number| self.clients[number].node == node).collect();
        for &number in &numbers {
            let extra = pauses.extra * self.random.random::<f64>();
            (self.clients[number].pause, self.clients[number].jitter) = (pauses.first, pauses.jitter);
            self.pause(number, begin + Duration::from_secs_f64(extra));
        }
        let mut stall = 0.0;
        if let Begin::Stalled(server) = server {
            server.signal(libc::SIGSTOP);
            while self.attempts < numbers.len() && begin.elapsed() < PATIENCE {
                self.turn()?;
            }
            stall = begin.elapsed().as_secs_f64();
            server.signal(libc::SIGCONT);
        }
        while self.resumed.len() < numbers.len() {
            if begin.elapsed() > PATIENCE {
                return Err(format!("only {} of {} are resumed", self.resumed.len(), numbers.len()).into());
            }
            self.turn()?;
        }
        let times = self.resumed.iter().map(|at| (*at - begin).as_secs_f64()).collect();
        Ok(Resumed { times, given_up: self.given_up, stall })
    }

    /// Lets the clients send heartbeats for a while.
    pub(crate) fn run(&mut self, time: Duration) -> Outcome<()> {
        let end = Instant::now() + time;
        while Instant::now() < end {
            self.turn()?;
        }
        Ok(())
    }

    fn pause(&mut self, number: usize, from: Instant) {
        let client = &mut self.clients[number];
        let pause = client.pause * (1.0 - client.jitter * self.random.random::<f64>());
        client.pause = LONGEST_PAUSE.min(2.0 * client.pause);
        client.stream = None;
        client.phase = Phase::Idle;
        client.step += 1;
        self.timers.push(Reverse((from + Duration::from_secs_f64(pause), number, client.step)));
    }

    fn turn(&mut self) -> Outcome<()> {
        while let Some(&Reverse((due, number, step))) = self.timers.peek() {
            if due > Instant::now() {
                break;
            }
            self.timers.pop();
            let client = &self.clients[number];
            match client.phase {
                _ if client.step != step => {}
                Phase::Idle => self.connect(number)?,
                _ => {
                    self.given_up += 1;
                    self.pause(number, due);
                }
            }
        }
        let next = self.timers.peek().map(|timer| timer.0 .0.saturating_duration_since(Instant::now()));
        let longest = Duration::from_millis(20);
        let mut events = Events::with_capacity(1024);
        match self.poll.poll(&mut events, Some(next.map_or(longest, |next| next.min(longest)))) {
            Err(error) if error.kind() == ErrorKind::Interrupted => return Ok(()),
            polled => polled?,
        }
        for event in &events {
            let number = event.token().0;
            if event.is_writable() && self.clients[number].phase == Phase::Connecting {
                self.connected(number)?;
            }
            if event.is_readable() {
                self.read(number)?;
            }
        }
        Ok(())
    }

    fn connect(&mut self, number: usize) -> Outcome<()> {
        let address = self.nodes[self.clients[number].node].address;
        let mut stream = TcpStream::connect(address)?;
        self.poll.registry().register(&mut stream, Token(number), Interest::READABLE | Interest::WRITABLE)?;
        self.attempts += 1;
        let client = &mut self.clients[number];
        client.input.clear();
        client.stream = Some(stream);
        self.enter(number, Phase::Connecting, CONNECT_LIMIT);
        Ok(())
    }

    /// Enters a phase with a time limit in seconds.
    fn enter(&mut self, number: usize, phase: Phase, limit: f64) {
        let client = &mut self.clients[number];
        client.phase = phase;
        client.step += 1;
        self.timers.push(Reverse((Instant::now() + Duration::from_secs_f64(limit), number, client.step)));
    }

    fn connected(&mut self, number: usize) -> Outcome<()> {
        let client = &self.clients[number];
        let Some(stream) = &client.stream else { return Ok(()) };
        if let Some(error) = stream.take_error()? {
            return Err(error.into());
        }
        // The event may be one of the former connection.
        if stream.peer_addr().is_err() {
            return Ok(());
        }
        stream.set_nodelay(true)?;
        if !client.session.is_empty() {
            return self.confirm(number);
        }
        let grace = self.grace_ms;
        self.enter(number, Phase::Opening, REPLY_LIMIT);
        let client = &mut self.clients[number];
        client.beat = 1;
        client.missing = 1;
        client.send(&packed(&format!(
            "LOCK.SESSION OPEN NEW 1 TTL 30000 GRACE {grace} NAME client-{number:06}"
        )))
    }

    /// Acquires or declares the hold if the session does not have it yet, and sends the first heartbeat.
    fn confirm(&mut self, number: usize) -> Outcome<()> {
        self.enter(number, Phase::Confirming, REPLY_LIMIT);
        let client = &mut self.clients[number];
        let mut calls = Vec::new();
        if !client.is_declared {
            let verb = if client.is_holder { "RENEW" } else { "ACQUIRE" };
            calls = packed(&format!("LOCK.{verb} {} SESSION {} 1", client.hold, client.session));
        }
        calls.extend(client.heartbeat(0));
        client.missing = if client.is_declared { 1 } else { 2 };
        client.send(&calls)
    }

    fn read(&mut self, number: usize) -> Outcome<()> {
        let client = &mut self.clients[number];
        let Some(stream) = &mut client.stream else { return Ok(()) };
        let mut part = [0; 4096];
        loop {
            match stream.read(&mut part) {
                Ok(0) => return Err("the server has closed a connection".into()),
                Ok(read) => client.input.extend_from_slice(&part[..read]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == ErrorKind::NotConnected => break,
                Err(error) => return Err(error.into()),
            }
        }
        while let Some(length) = Wire::Redis.first_reply(&self.clients[number].input)? {
            let reply: Vec<u8> = self.clients[number].input.drain(..length).collect();
            self.on_reply(number, &reply)?;
        }
        Ok(())
    }

    fn on_reply(&mut self, number: usize, reply: &[u8]) -> Outcome<()> {
        let client = &mut self.clients[number];
        if client.phase == Phase::Opening {
            client.session = session_id(reply)?;
            return self.confirm(number);
        }
        client.missing -= 1;
        if client.missing > 0 {
            // The reply to the acquire or the declaration is the number of holds.
            return if reply == b":1\r\n" { Ok(()) } else { Err("no hold".into()) };
        }
        if client.phase == Phase::Confirming {
            (client.is_holder, client.is_declared) = (true, true);
            client.phase = Phase::Resumed;
            client.step += 1;
            self.resumed.push(Instant::now());
        }
        client.missing = 1;
        let heartbeat = client.heartbeat(1_000);
        client.send(&heartbeat)
    }
}

impl Client {
    fn heartbeat(&mut self, block_ms: u64) -> Vec<u8> {
        self.beat += 1;
        packed(&format!("LOCK.EVENTS {} {} 0 2 {block_ms}", self.session, self.beat))
    }

    /// Writes at once: a call is much shorter than the buffer of a new socket.
    fn send(&mut self, call: &[u8]) -> Outcome<()> {
        let stream = self.stream.as_mut().ok_or("no connection")?;
        Ok(stream.write_all(call)?)
    }
}
