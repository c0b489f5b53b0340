// SPDX-License-Identifier: MIT

//! A connection that can be broken at any byte.

use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use redis::Parser;
use serde_json::Value;
use socket2::SockRef;

/// A reply of the server.
pub type Answer = Result<Value, String>;

/// The reason why a reply is missing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The connection has ended.
    Closed,
    /// No reply arrived in time. The connection is unchanged.
    Late,
}

/// The way a connection is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// With `FIN`: the server still reads all data that was sent.
    Close,
    /// With `RST`: data that the server has not read yet is lost.
    Reset,
    /// The client's sending side only: a reply can still be read.
    Half,
}

/// A connection to a server, in RESP2.
pub struct Wire {
    stream: TcpStream,
    parser: Parser,
}

impl Wire {
    /// Connects to a server.
    pub fn connect(to: SocketAddr) -> std::io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&to, Duration::from_secs(2))?;
        stream.set_nodelay(true)?;
        Ok(Wire { stream, parser: Parser::new() })
    }

    /// Sends a command. With `at_most`, sends only this number of bytes, and never the last one.
    pub fn send(&mut self, words: &[String], at_most: Option<usize>) -> std::io::Result<()> {
        let mut command = redis::Cmd::new();
        for word in words {
            command.arg(word);
        }
        let bytes = command.get_packed_command();
        let part = at_most.map_or(bytes.len(), |at_most| at_most.min(bytes.len() - 1));
        self.stream.write_all(&bytes[..part])
    }

    /// Sends a command of plain words and reads the reply. Returns `None` for an error, or if no reply arrives.
    pub fn ask(&mut self, command: &str) -> Option<Value> {
        let words: Vec<String> = command.split(' ').map(str::to_owned).collect();
        self.send(&words, None).ok()?;
        self.receive(Duration::from_secs(20)).ok()?.ok()
    }

    /// Reads the next reply.
    pub fn receive(&mut self, within: Duration) -> Result<Answer, Silence> {
        let deadline = Instant::now() + within;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
            if self.stream.set_read_timeout(Some(left)).is_err() {
                return Err(Silence::Closed);
            }
            match self.parser.parse_value(&mut self.stream) {
                Ok(redis::Value::ServerError(error)) => {
                    let text = format!("{} {}", error.code(), error.details().unwrap_or_default());
                    return Ok(Err(text.trim_end().to_owned()));
                }
                Ok(value) => return Ok(Ok(json(&value))),
                Err(error) if !error.is_timeout() => return Err(Silence::Closed),
                Err(_) if Instant::now() >= deadline => return Err(Silence::Late),
                Err(_) => {}
            }
        }
    }

    /// Closes the connection. After [`End::Half`] a reply may be read.
    pub fn end(&mut self, how: End) {
        // The connection may already be closed.
        let _ = match how {
            End::Close => self.stream.shutdown(Shutdown::Both),
            End::Reset => SockRef::from(&self.stream).set_linger(Some(Duration::ZERO)),
            End::Half => self.stream.shutdown(Shutdown::Write),
        };
    }
}

fn json(value: &redis::Value) -> Value {
    match value {
        redis::Value::Int(number) => Value::from(*number),
        redis::Value::BulkString(bytes) => Value::from(String::from_utf8_lossy(bytes)),
        redis::Value::SimpleString(text) => Value::from(text.as_str()),
        redis::Value::Okay => Value::from("OK"),
        redis::Value::Array(values) => values.iter().map(json).collect(),
        _ => Value::Null,
    }
}
