// SPDX-License-Identifier: MIT

//! A connection on which a test controls every byte.

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::net::{Ipv4Addr, Shutdown, TcpStream};
use std::time::Duration;

use redis::{Parser, Value};

/// Maximum time until a reply. A test fails if it takes longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub struct Client {
    stream: TcpStream,
    parser: RefCell<Parser>,
    /// Replies that [`has_nothing`](Client::has_nothing) has read.
    found: RefCell<VecDeque<Value>>,
    /// The id of the connection in `CLIENT LIST`.
    pub id: i64,
}

impl Client {
    pub fn connect(port: u16) -> Client {
        Client::connect_to(Ipv4Addr::LOCALHOST, port)
    }

    pub fn connect_to(host: Ipv4Addr, port: u16) -> Client {
        Client::try_connect_to(host, port)
            .unwrap_or_else(|error| panic!("no connection to {host}:{port}: {error}"))
    }

    pub fn try_connect(port: u16) -> Result<Client, String> {
        Client::try_connect_to(Ipv4Addr::LOCALHOST, port)
    }

    pub fn try_connect_to(host: Ipv4Addr, port: u16) -> Result<Client, String> {
        let stream = TcpStream::connect((host, port)).map_err(|error| error.to_string())?;
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let (parser, found) = (RefCell::new(Parser::new()), RefCell::default());
        let mut client = Client { stream, parser, found, id: 0 };
        client.try_send("CLIENT ID")?;
        match client.try_recv()? {
            Value::Int(id) => client.id = id,
            other => return Err(show(&other)),
        }
        Ok(client)
    }

    /// Sends a command whose words are separated by spaces.
    pub fn send(&mut self, command: &str) {
        self.try_send(command).unwrap();
    }

    pub fn try_send(&mut self, command: &str) -> Result<(), String> {
        self.stream.write_all(&packed(command)).map_err(|error| error.to_string())
    }

    /// Sends several commands in one write, so that the server reads them in one iteration of its event loop.
    pub fn send_at_once(&mut self, commands: &[&str]) {
        let bytes: Vec<u8> = commands.iter().flat_map(|command| packed(command)).collect();
        self.stream.write_all(&bytes).unwrap();
    }

    /// Returns the next reply as text, see [`show`].
    pub fn recv(&mut self) -> String {
        show(&self.recv_value())
    }

    pub fn recv_value(&mut self) -> Value {
        self.try_recv().unwrap_or_else(|error| panic!("client {} got no reply: {error}", self.id))
    }

    pub fn try_recv(&mut self) -> Result<Value, String> {
        if let Some(found) = self.found.get_mut().pop_front() {
            return Ok(found);
        }
        self.parser.get_mut().parse_value(&mut self.stream).map_err(|error| error.to_string())
    }

    pub fn call(&mut self, command: &str) -> String {
        self.send(command);
        self.recv()
    }

    pub fn send_args(&mut self, args: &[&[u8]]) {
        self.stream.write_all(&packed_args(args)).unwrap();
    }

    pub fn call_args(&mut self, args: &[&[u8]]) -> String {
        self.send_args(args);
        self.recv()
    }

    pub fn call_args_value(&mut self, args: &[&[u8]]) -> Value {
        self.send_args(args);
        self.recv_value()
    }

    pub fn call_value(&mut self, command: &str) -> Value {
        self.send(command);
        self.recv_value()
    }

    /// Calls a command, and returns its reply as a number.
    pub fn number(&mut self, command: &str) -> i64 {
        let reply = self.call(command);
        reply.parse().unwrap_or_else(|_| panic!("{command} answered {reply}"))
    }

    /// Returns a field of a section of `INFO`.
    pub fn info(&mut self, section: &str, field: &str) -> String {
        let text = self.call(&format!("INFO {section}"));
        text.lines()
            .find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))
            .unwrap_or_else(|| panic!("no {field} in INFO {section}: {text}"))
            .trim()
            .to_owned()
    }

    /// Returns the number of calls that wait for locks, as `INFO lock` counts them.
    pub fn number_of_waiters(&mut self) -> i64 {
        self.info("lock", "lock_waiters").parse().unwrap()
    }

    /// Returns true if no unread reply has arrived. Replies in the buffer of the parser count as unread.
    pub fn has_nothing(&self) -> bool {
        let mut found = self.found.borrow_mut();
        if found.is_empty() {
            self.stream.set_nonblocking(true).unwrap();
            let parsed = self.parser.borrow_mut().parse_value(&mut &self.stream);
            self.stream.set_nonblocking(false).unwrap();
            match parsed {
                Ok(value) => found.push_back(value),
                Err(error) => return error.is_timeout(),
            }
        }
        found.is_empty()
    }

    /// Closes the sending half of the connection. Replies can still be read.
    pub fn close_half(&self) {
        self.stream.shutdown(Shutdown::Write).unwrap();
    }

    /// Closes the connection in both directions.
    pub fn close(self) {
        self.stream.shutdown(Shutdown::Both).unwrap();
    }

    /// Returns true once the server has closed the connection.
    pub fn is_closed(&mut self) -> bool {
        self.try_recv().is_err()
    }
}

/// Encodes a command, whose words are separated by spaces, for the wire.
pub fn packed(command: &str) -> Vec<u8> {
    packed_args(&command.split_whitespace().map(str::as_bytes).collect::<Vec<_>>())
}

fn packed_args(words: &[&[u8]]) -> Vec<u8> {
    let mut command = redis::Cmd::new();
    for word in words {
        command.arg(*word);
    }
    command.get_packed_command()
}

/// Returns the first word of an error.
pub fn prefix(reply: &str) -> &str {
    reply.split(' ').next().unwrap()
}

/// Formats a reply: numbers, strings and errors as they are, `nil`, `[a, b]`, `{k: v}`.
pub fn show(value: &Value) -> String {
    let list = |values: &[Value]| values.iter().map(show).collect::<Vec<_>>().join(", ");
    match value {
        Value::Nil => "nil".to_owned(),
        Value::Int(number) => number.to_string(),
        Value::BulkString(bytes) => match std::str::from_utf8(bytes) {
            Ok(text) => text.to_owned(),
            Err(_) => bytes.escape_ascii().to_string(),
        },
        Value::SimpleString(text) => text.clone(),
        Value::Okay => "OK".to_owned(),
        Value::Array(values) | Value::Set(values) => format!("[{}]", list(values)),
        Value::Map(pairs) => {
            let pairs: Vec<_> =
                pairs.iter().map(|(key, value)| format!("{}: {}", show(key), show(value))).collect();
            format!("{{{}}}", pairs.join(", "))
        }
        Value::Push { data, .. } => format!("push[{}]", list(data)),
        Value::ServerError(error) => {
            let code = error.code();
            format!("{code} {}", error.details().unwrap_or_default())
        }
        other => format!("{other:?}"),
    }
}

/// Returns the fields of a map that was sent in RESP2, as a flat array.
pub fn fields(value: &Value) -> BTreeMap<String, &Value> {
    let Value::Array(flat) = value else { panic!("no map: {value:?}") };
    flat.chunks(2).map(|pair| (show(&pair[0]), &pair[1])).collect()
}
