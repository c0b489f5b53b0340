// SPDX-License-Identifier: MIT

//! A connection that makes one call at a time. An error reply is returned as an error.

use std::io::{Read, Write};
use std::net::TcpStream;

use super::server::Server;
use super::wire::Wire;
use super::{packed, Outcome};

pub struct Caller {
    stream: TcpStream,
    /// Received bytes of replies that have not been returned yet.
    input: Vec<u8>,
}

impl Caller {
    pub fn connect(server: &Server) -> Outcome<Caller> {
        Ok(Caller { stream: server.connect()?, input: Vec::new() })
    }

    pub fn call(&mut self, command: &str) -> Outcome<Vec<u8>> {
        self.send(&packed(command))?;
        self.reply()
    }

    /// Sends many commands in as few packets as possible. Reads and discards their replies.
    pub fn pipeline(&mut self, commands: impl Iterator<Item = String>) -> Outcome<()> {
        let mut commands = commands.peekable();
        while commands.peek().is_some() {
            let mut bytes = Vec::new();
            let mut count = 0;
            // Each packet fits into the sockets' buffers. Otherwise both sides could block while they write.
            for command in commands.by_ref().take(500) {
                bytes.extend(packed(&command));
                count += 1;
            }
            self.send(&bytes)?;
            for _ in 0..count {
                self.reply()?;
            }
        }
        Ok(())
    }

    pub fn send(&mut self, bytes: &[u8]) -> Outcome<()> {
        Ok(self.stream.write_all(bytes)?)
    }

    pub fn reply(&mut self) -> Outcome<Vec<u8>> {
        let mut part = [0; 16 * 1024];
        loop {
            if let Some(end) = Wire::Redis.first_reply(&self.input)? {
                return Ok(self.input.drain(..end).collect());
            }
            match self.stream.read(&mut part)? {
                0 => return Err("the server has closed the connection".into()),
                read => self.input.extend_from_slice(&part[..read]),
            }
        }
    }
}
