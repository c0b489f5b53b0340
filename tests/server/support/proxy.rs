//! A connection that breaks when it hurts most.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::thread;

/// Passes on what a program and a server say to each other, and breaks one of their connections: the one with the
/// first call of a command, when the server has carried it out and before the program hears of that.
pub struct Proxy {
    pub port: u16,
    has_lost: Arc<AtomicBool>,
    is_over: Arc<AtomicBool>,
}

impl Proxy {
    pub fn loses_the_reply_to(server: u16, command: &'static str) -> Proxy {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let (has_lost, is_over) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
        let proxy = Proxy { port, has_lost: has_lost.clone(), is_over: is_over.clone() };
        let called = Arc::new(AtomicBool::new(false));
        thread::spawn(move || {
            for program in listener.incoming().map_while(Result::ok) {
                if is_over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(server) = TcpStream::connect(("127.0.0.1", server)) else { return };
                pass_on(program, server, command, called.clone(), has_lost.clone());
            }
        });
        proxy
    }

    pub fn has_lost_a_reply(&self) -> bool {
        self.has_lost.load(Ordering::SeqCst)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        // The listener waits for a connection, and sees then that it is over.
        let _ = TcpStream::connect(("127.0.0.1", self.port));
    }
}

fn pass_on(
    program: TcpStream,
    server: TcpStream,
    command: &'static str,
    called: Arc<AtomicBool>,
    has_lost: Arc<AtomicBool>,
) {
    // Whether this is the connection that breaks.
    let breaks = Arc::new(AtomicBool::new(false));
    let (from_program, to_program) = (program.try_clone().unwrap(), program);
    let (from_server, to_server) = (server.try_clone().unwrap(), server);
    let will_break = breaks.clone();
    thread::spawn(move || {
        copy(from_program, to_server, |bytes| {
            let calls = bytes.windows(command.len()).any(|part| part == command.as_bytes());
            if calls && !called.swap(true, Ordering::SeqCst) {
                will_break.store(true, Ordering::SeqCst);
            }
            true
        });
    });
    thread::spawn(move || {
        copy(from_server, to_program, |_| {
            let passes = !breaks.load(Ordering::SeqCst);
            has_lost.fetch_or(!passes, Ordering::SeqCst);
            passes
        });
    });
}

/// Copies for as long as both ends are open and `passes` says so; then closes both, in both directions.
fn copy(mut from: TcpStream, mut to: TcpStream, mut passes: impl FnMut(&[u8]) -> bool) {
    let mut bytes = [0; 4096];
    while let Ok(len @ 1..) = from.read(&mut bytes) {
        if !passes(&bytes[..len]) || to.write_all(&bytes[..len]).is_err() {
            break;
        }
    }
    let _ = from.shutdown(Shutdown::Both);
    let _ = to.shutdown(Shutdown::Both);
}
