// SPDX-License-Identifier: MIT

//! Many clients in one thread. An event loop, like that of the server, keeps the cost of the clients low. It passes each reply to
//! its [`Client`], which sends the next calls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use mio::net::TcpStream;
use mio::{Events, Interest, Poll, Token};

use super::samples::Samples;
use super::wire::Wire;
use super::Outcome;

/// The behavior of one client, which has one or more numbered connections.
pub trait Client {
    /// Called when all clients are connected.
    fn begin(&mut self, io: &mut Io<'_>);
    fn on_reply(&mut self, connection: usize, reply: &[u8], io: &mut Io<'_>) -> Outcome<()>;
    /// Called when the time of [`Io::wake_after`] has passed.
    fn on_time(&mut self, _io: &mut Io<'_>) {}
}

/// Events since the last run began.
#[derive(Default)]
pub struct Log {
    /// The number of grants.
    pub grants: usize,
    /// The times from just before a client writes its release until another client has read its grant.
    pub hand_overs: Samples,
    /// The times from [`Io::asking`] until the grant. A wait that has not ended when the run ends counts with its length so far.
    pub waits: Samples,
    released: Option<(usize, Instant)>,
}

/// The actions of a client.
pub struct Io<'a> {
    client: usize,
    links: &'a mut [Link],
    timers: &'a mut BinaryHeap<Reverse<(Instant, usize)>>,
    log: &'a mut Log,
    /// The time since which this client has been waiting.
    asked: &'a mut Option<Instant>,
}

impl Io<'_> {
    /// Queues bytes, which are written when the client returns.
    pub fn send(&mut self, connection: usize, bytes: &[u8]) {
        self.links[connection].output.extend_from_slice(bytes);
    }

    pub fn wake_after(&mut self, time: Duration) {
        self.timers.push(Reverse((Instant::now() + time, self.client)));
    }

    /// Records that the client begins to acquire the lock.
    pub fn asking(&mut self) {
        *self.asked = Some(Instant::now());
    }

    /// Records that the client has the lock.
    pub fn acquired(&mut self) {
        self.log.grants += 1;
        if let Some(asked) = self.asked.take() {
            self.log.waits.0.push(asked.elapsed().as_secs_f64() * 1e6);
        }
        if let Some((client, at)) = self.log.released.take() {
            if client != self.client {
                self.log.hand_overs.0.push(at.elapsed().as_secs_f64() * 1e6);
            }
        }
    }

    /// Records that the client sends its release now.
    pub fn releasing(&mut self) {
        self.log.released = Some((self.client, Instant::now()));
    }
}

/// A connection.
pub(super) struct Link {
    pub(super) stream: TcpStream,
    /// Received bytes that have not been processed yet.
    pub(super) input: Vec<u8>,
    output: Vec<u8>,
}

impl Link {
    /// Connects, and sends the greetings. Blocks until the server has replied to all of them, and so has accepted the connection.
    pub(super) fn open(address: SocketAddr, wire: Wire, greetings: &[Vec<u8>]) -> Outcome<Link> {
        let mut stream = std::net::TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(Duration::from_secs(30)))?;
        let mut part = [0; 4096];
        for greeting in greetings {
            stream.write_all(greeting)?;
            let mut input = Vec::new();
            while wire.first_reply(&input)?.is_none() {
                match stream.read(&mut part)? {
                    0 => return Err("the server closes a new connection".into()),
                    read => input.extend_from_slice(&part[..read]),
                }
            }
        }
        stream.set_nonblocking(true)?;
        Ok(Link { stream: TcpStream::from_std(stream), input: Vec::new(), output: Vec::new() })
    }

    pub(super) fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        self.output.extend_from_slice(bytes);
        self.write()
    }

    fn write(&mut self) -> Outcome<()> {
        while !self.output.is_empty() {
            match self.stream.write(&self.output) {
                Ok(written) => drop(self.output.drain(..written)),
                // An event will arrive when the socket is writable again.
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Reads all available bytes. If bytes stayed unread, later bytes would cause no event.
    pub(super) fn read(&mut self, part: &mut [u8]) -> Outcome<()> {
        loop {
            match self.stream.read(part) {
                Ok(0) => return Err("the server has closed a connection".into()),
                Ok(read) => {
                    self.input.extend_from_slice(&part[..read]);
                    if read < part.len() {
                        return Ok(());
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The address of a server, and the way in which clients connect to it.
pub struct Endpoint<'a> {
    pub address: SocketAddr,
    pub wire: Wire,
    pub greetings: &'a [Vec<u8>],
    /// The number of connections of each client.
    pub connections: usize,
}

pub struct Swarm<C> {
    poll: Poll,
    wire: Wire,
    /// Connections of the first client, then of the second one, and so on.
    links: Vec<Link>,
    connections: usize,
    clients: Vec<C>,
    timers: BinaryHeap<Reverse<(Instant, usize)>>,
    log: Log,
    /// The time since which each client has been waiting.
    asked: Vec<Option<Instant>>,
}

impl<C: Client> Swarm<C> {
    /// Connects all clients, and lets them begin.
    pub fn start(endpoint: &Endpoint<'_>, clients: Vec<C>) -> Outcome<Swarm<C>> {
        let poll = Poll::new()?;
        let mut links = Vec::new();
        for number in 0..clients.len() * endpoint.connections {
            let mut link = Link::open(endpoint.address, endpoint.wire, endpoint.greetings)?;
            let interest = Interest::READABLE | Interest::WRITABLE;
            poll.registry().register(&mut link.stream, Token(number), interest)?;
            links.push(link);
        }
        let (wire, connections) = (endpoint.wire, endpoint.connections);
        let (timers, log) = (BinaryHeap::new(), Log::default());
        let asked = vec![None; clients.len()];
        let mut swarm = Swarm { poll, wire, links, connections, clients, timers, log, asked };
        for client in 0..swarm.clients.len() {
            swarm.call_client(client, |client, io| {
                client.begin(io);
                Ok(())
            })?;
        }
        Ok(swarm)
    }

    /// Runs the clients for this time, and returns the events that happened meanwhile.
    pub fn run(&mut self, time: Duration) -> Outcome<Log> {
        self.log = Log::default();
        let end = Instant::now() + time;
        let mut events = Events::with_capacity(1024);
        let mut part = vec![0; 64 * 1024];
        loop {
            let now = Instant::now();
            if now >= end {
                let unfinished = self.asked.iter().flatten().map(|asked| (now - *asked).as_secs_f64() * 1e6);
                self.log.waits.0.extend(unfinished);
                return Ok(std::mem::take(&mut self.log));
            }
            while let Some(&Reverse((due, client))) = self.timers.peek().filter(|timer| timer.0 .0 <= now) {
                debug_assert!(due <= now);
                self.timers.pop();
                self.call_client(client, |client, io| {
                    client.on_time(io);
                    Ok(())
                })?;
            }
            let next = self.timers.peek().map_or(end, |timer| timer.0 .0.min(end));
            match self.poll.poll(&mut events, Some(next.saturating_duration_since(Instant::now()))) {
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                polled => polled?,
            }
            for event in &events {
                let number = event.token().0;
                if event.is_writable() {
                    self.links[number].write()?;
                }
                if event.is_readable() {
                    self.links[number].read(&mut part)?;
                    self.replies(number)?;
                }
            }
        }
    }

    /// Passes all replies of a connection to its client.
    fn replies(&mut self, number: usize) -> Outcome<()> {
        let input = std::mem::take(&mut self.links[number].input);
        let (wire, connection) = (self.wire, number % self.connections);
        let mut read = 0;
        self.call_client(number / self.connections, |client, io| {
            while let Some(length) = wire.first_reply(&input[read..])? {
                client.on_reply(connection, &input[read..read + length], io)?;
                read += length;
            }
            Ok(())
        })?;
        let mut input = input;
        input.drain(..read);
        self.links[number].input = input;
        Ok(())
    }

    fn call_client(
        &mut self,
        client: usize,
        what: impl FnOnce(&mut C, &mut Io<'_>) -> Outcome<()>,
    ) -> Outcome<()> {
        let links = &mut self.links[client * self.connections..(client + 1) * self.connections];
        let (timers, log, asked) = (&mut self.timers, &mut self.log, &mut self.asked[client]);
        let mut io = Io { client, links, timers, log, asked };
        what(&mut self.clients[client], &mut io)?;
        links.iter_mut().try_for_each(Link::write)
    }
}
