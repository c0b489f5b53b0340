// SPDX-License-Identifier: MIT

//! Connections that break or freeze at the worst moment.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread;

/// Forwards connections of programs to a server. Can lose one reply, with or without breaking its
/// connection, and can break or freeze all connections.
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
    /// Whether a call of the module's commands ends its connection.
    is_failing: AtomicBool,
    /// Whether error replies keep only their codes.
    hides_prose: AtomicBool,
    /// The number of connections that programs have made.
    made: AtomicU64,
    /// Connections with smaller numbers than this are frozen.
    frozen: Mutex<u64>,
    thawed: Condvar,
}

/// Loses the reply to the first call of a command, after the server has executed the call. Other connections are not affected.
struct Trap {
    command: String,
    /// Whether the connection breaks. Otherwise it stays open and silent.
    breaks: bool,
    called: bool,
}

impl Proxy {
    /// Breaks the connection of the first call of a command before the reply arrives.
    pub fn loses_the_reply_to(server: u16, command: &str) -> Proxy {
        let proxy = Proxy::freezable(server);
        proxy.lose_the_reply_to(command);
        proxy
    }

    /// Holds back the reply to the first call of a command. Its connection stays open, and nothing more arrives on it.
    pub fn withholds_the_reply_to(server: u16, command: &str) -> Proxy {
        let proxy = Proxy::freezable(server);
        proxy.set_trap(command, false);
        proxy
    }

    /// Forwards everything until a method of the proxy changes that.
    pub fn freezable(server: u16) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared {
            server: AtomicU16::new(server),
            trap: Mutex::default(),
            has_sprung: AtomicBool::new(false),
            streams: Mutex::default(),
            is_over: AtomicBool::new(false),
            is_failing: AtomicBool::new(false),
            hides_prose: AtomicBool::new(false),
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
                // While the server is down, the connection is dropped, which closes it.
                let server = shared.server.load(Ordering::SeqCst);
                if let Ok(server) = TcpStream::connect(("127.0.0.1", server)) {
                    pass_on(number, program, server, shared.clone());
                }
            }
        });
        proxy
    }

    /// Freezes all connections, as if a cable was pulled: not even the end of a connection is forwarded. New connections can be
    /// made, and are frozen too.
    pub fn freeze(&self) {
        *self.shared.frozen.lock().unwrap() = u64::MAX;
    }

    /// Freezes all open connections. New connections work.
    pub fn freeze_old(&self) {
        *self.shared.frozen.lock().unwrap() = self.shared.made.load(Ordering::SeqCst);
    }

    /// Ends the freeze. Data that was held back arrives now.
    pub fn thaw(&self) {
        *self.shared.frozen.lock().unwrap() = 0;
        self.shared.thawed.notify_all();
    }

    /// Breaks the connection of the next call of this command after the server has executed it and before the reply arrives.
    pub fn lose_the_reply_to(&self, command: &str) {
        self.set_trap(command, true);
    }

    fn set_trap(&self, command: &str, breaks: bool) {
        self.shared.has_sprung.store(false, Ordering::SeqCst);
        *self.shared.trap.lock().unwrap() = Some(Trap { command: command.to_owned(), breaks, called: false });
    }

    /// Closes all connections. New connections can be made.
    pub fn break_all(&self) {
        for stream in self.shared.streams.lock().unwrap().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// With true, the proxy accepts connections, and ends each of them at its first command of the module. With false,
    /// connections work again.
    pub fn set_failing(&self, is_failing: bool) {
        self.shared.is_failing.store(is_failing, Ordering::SeqCst);
    }

    /// Replaces the text of each error reply after its code, so that a client can only read the code.
    pub fn hide_prose(&self) {
        self.shared.hides_prose.store(true, Ordering::SeqCst);
    }

    /// Forwards new connections to another server.
    pub fn redirect_to(&self, server: u16) {
        self.shared.server.store(server, Ordering::SeqCst);
    }

    /// Returns the number of connections that programs have made.
    pub fn connections_made(&self) -> u64 {
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
        // Connects once to wake the listener, which waits for a connection.
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
    // With Nagle's algorithm, a small command would wait until the previous packet is acknowledged.
    for stream in [&program, &server] {
        let _ = stream.set_nodelay(true);
    }
    shared.streams.lock().unwrap().extend([program.try_clone().unwrap(), server.try_clone().unwrap()]);
    // Whether this connection made the call that the trap waits for.
    let trapped = Arc::new(AtomicBool::new(false));
    let (from_program, to_program) = (program.try_clone().unwrap(), program);
    let (from_server, to_server) = (server.try_clone().unwrap(), server);
    let (will_be_trapped, to_shared) = (trapped.clone(), shared.clone());
    thread::spawn(move || {
        copy(from_program, to_server, (&to_shared, number), |bytes| {
            if to_shared.is_failing.load(Ordering::SeqCst) && bytes.windows(5).any(|part| part == b"LOCK.") {
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
                if shared.hides_prose.load(Ordering::SeqCst) {
                    hide_prose(bytes);
                }
                return Some(bytes);
            }
            shared.has_sprung.store(true, Ordering::SeqCst);
            let breaks = shared.trap.lock().unwrap().as_ref().is_some_and(|trap| trap.breaks);
            (!breaks).then_some(&[])
        });
    });
}

/// Replaces what follows the code of each error in these replies by as many letters. An error is a line that begins with `-`.
fn hide_prose(replies: &mut [u8]) {
    for line in replies.split_mut(|byte| *byte == b'\n') {
        if line.starts_with(b"-") && !line.starts_with(b"-MOVED") && !line.starts_with(b"-ASK") {
            let prose = line.iter_mut().skip_while(|byte| **byte != b' ').skip(1);
            prose.filter(|byte| **byte != b'\r').for_each(|byte| *byte = b'x');
        }
    }
}

/// Copies bytes through `passes` until an end closes or `passes` returns `None`. Then closes both ends, in both directions.
fn copy(
    mut from: TcpStream,
    mut to: TcpStream,
    (shared, number): (&Shared, u64),
    passes: impl for<'a> Fn(&'a mut [u8]) -> Option<&'a [u8]>,
) {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes);
        shared.wait_while_frozen(number);
        let Ok(len @ 1..) = read else { break };
        match passes(&mut bytes[..len]) {
            Some(passed) if to.write_all(passed).is_ok() => {}
            _ => break,
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
