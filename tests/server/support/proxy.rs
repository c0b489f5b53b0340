// SPDX-License-Identifier: MIT

//! A connection that breaks, or falls silent, when it hurts most.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Passes on what a program and a server say to each other, but for what it is there for: it loses one reply, keeps
/// one back, breaks all connections, or freezes everything.
pub struct Proxy {
    pub port: u16,
    shared: Arc<Shared>,
}

struct Shared {
    server: AtomicU16,
    trap: Mutex<Option<Trap>>,
    has_sprung: AtomicBool,
    /// Both ends of each connection.
    streams: Mutex<Vec<TcpStream>>,
    is_over: AtomicBool,
    /// A connection ends by a call of ours.
    is_sick: AtomicBool,
    /// How many connections have been made.
    made: AtomicU64,
    /// Nothing is passed on of connections with smaller numbers.
    frozen: Mutex<u64>,
    thawed: Condvar,
}

/// What becomes of the reply to the first call of a command, when the server has carried it out and before the program
/// hears of that. Other connections are not concerned.
struct Trap {
    command: String,
    breaks: bool,
    /// The command was called, and was the first.
    called: bool,
}

impl Proxy {
    /// The connection of that call breaks.
    pub fn loses_the_reply_to(server: u16, command: &str) -> Proxy {
        let proxy = Proxy::freezable(server);
        proxy.lose_the_reply_to(command);
        proxy
    }

    /// The connection of that call stays open, and nothing more arrives on it.
    pub fn keeps_back_the_reply_to(server: u16, command: &str) -> Proxy {
        let proxy = Proxy::freezable(server);
        proxy.set_trap(command, false);
        proxy
    }

    /// Passes everything on until it is told something else.
    pub fn freezable(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            trap: Mutex::default(),
            has_sprung: AtomicBool::new(false),
            streams: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_sick: AtomicBool::new(false),
            made: AtomicU64::new(0),
            frozen: Mutex::new(0),
            thawed: Condvar::new(),
        });
        let proxy = Proxy { port, shared: shared.clone() };
        thread::spawn(move || {
            for program in listener.incoming().map_while(Result::ok) {
                let number = shared.made.fetch_add(1, Ordering::SeqCst);
                shared.wait_while_frozen(number);
                if shared.is_over.load(Ordering::SeqCst) {
                    return;
                }
                // A server that does not run now is back later. Dropped, the connection is closed.
                let server = shared.server.load(Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    pass_on(number, program, server, shared.clone());
                }
            }
        });
        proxy
    }

    /// From now on nothing is passed on, not even that a connection is closed. All stay open, and new ones can be
    /// made: as if a cable had been pulled.
    pub fn freeze(&self) {
        *self.shared.frozen.lock().unwrap() = u64::MAX;
    }

    /// The same of the connections that there are. New ones work.
    pub fn freeze_old(&self) {
        *self.shared.frozen.lock().unwrap() = self.shared.made.load(Ordering::SeqCst);
    }

    /// What was kept back arrives, late.
    pub fn thaw(&self) {
        *self.shared.frozen.lock().unwrap() = 0;
        self.shared.thawed.notify_all();
    }

    /// The next call of this command is carried out, and its connection breaks before the program hears of that.
    pub fn lose_the_reply_to(&self, command: &str) {
        self.set_trap(command, true);
    }

    fn set_trap(&self, command: &str, breaks: bool) {
        self.shared.has_sprung.store(false, Ordering::SeqCst);
        *self.shared.trap.lock().unwrap() = Some(Trap { command: command.to_owned(), breaks, called: false });
    }

    /// Closes all connections. New ones can be made.
    pub fn break_all(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Connections can be made, and each ends by the first call of ours: with `false` they are of use again.
    pub fn be_sick(&self, yes: bool) {
        self.shared.is_sick.store(yes, Ordering::SeqCst);
    }

    /// New connections are made to another server.
    pub fn lead_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
    }

    /// How many connections programs have made.
    pub fn made(&self) -> u64 {
        self.shared.made.load(Ordering::SeqCst)
    }

    pub fn has_lost_a_reply(&self) -> bool {
        self.shared.has_sprung.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::SeqCst);
        self.thaw();
        // The listener waits for a connection, and sees then that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

impl Shared {
    fn wait_while_frozen(&self, number: u64) {
        let frozen = self.frozen.lock().unwrap();
        drop(self.thawed.wait_while(frozen, |frozen| number < *frozen).unwrap());
    }
}

fn pass_on(number: u64, program: TcpStream, server: TcpStream, shared: Arc<Shared>) {
    // Commands are small and each is waited for: without this some would wait for an acknowledgement, too.
    for stream in [&program, &server] {
        let _ = stream.set_nodelay(true);
    }
    shared.streams.lock().unwrap().extend([program.try_clone().unwrap(), server.try_clone().unwrap()]);
    // Whether this is the connection of the trap.
    let trapped = Arc::new(AtomicBool::new(false));
    let (from_program, to_program) = (program.try_clone().unwrap(), program);
    let (from_server, to_server) = (server.try_clone().unwrap(), server);
    let (will_be_trapped, to_shared) = (trapped.clone(), shared.clone());
    thread::spawn(move || {
        copy(from_program, to_server, (&to_shared, number), |bytes| {
            if to_shared.is_sick.load(Ordering::SeqCst) && bytes.windows(5).any(|part| part == b"LOCK.") {
                return None;
            }
            if let Some(trap) = to_shared.trap.lock().unwrap().as_mut().filter(|trap| !trap.called) {
                trap.called = bytes.windows(trap.command.len()).any(|part| part == trap.command.as_bytes());
                will_be_trapped.fetch_or(trap.called, Ordering::SeqCst);
            }
            Some(bytes)
        });
    });
    thread::spawn(move || {
        copy(from_server, to_program, (&shared, number), |bytes| {
            if !trapped.load(Ordering::SeqCst) {
                return Some(bytes);
            }
            shared.has_sprung.store(true, Ordering::SeqCst);
            let breaks = shared.trap.lock().unwrap().as_ref().is_some_and(|trap| trap.breaks);
            (!breaks).then_some(&[])
        });
    });
}

/// Copies what `passes` makes of it, for as long as both ends are open and it says something; then closes both, in both
/// directions.
fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    (shared, number): (&Shared, u64),
    passes: impl for<'a> Fn(&'a [u8]) -> Option<&'a [u8]>,
) {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes);
        shared.wait_while_frozen(number);
        let Ok(len @ 1..) = read else { break };
        match passes(&bytes[..len]) {
            Some(passed) if to.write_all(passed).is_ok() => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
