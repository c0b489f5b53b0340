// SPDX-License-Identifier: MIT

//! The page of `locktop --serve`.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

/// A running `locktop --serve`. Dropping this value ends it.
pub struct Site {
    child: Child,
    stdout: BufReader<ChildStdout>,
    /// The host and the port.
    pub address: String,
}

/// A response.
#[derive(Debug)]
pub struct Reply {
    pub status: u16,
    /// The status line and the headers, in lower case.
    pub head: String,
    pub body: String,
}

impl Site {
    /// Adds `--serve` with a free port to the command, and waits until the page is served.
    pub fn start(mut command: Command) -> Site {
        command.args(["--serve", "127.0.0.1:0"]).stdin(Stdio::null());
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        let address = line.trim_end().strip_prefix("locktop: serving http://");
        let address = address.and_then(|rest| rest.strip_suffix('/')).map(str::to_owned);
        let site = Site { child, stdout, address: address.unwrap_or_default() };
        match site.address.as_str() {
            "" => panic!("{line}{}", site.end()),
            _ => site,
        }
    }

    pub fn get(&self, path: &str) -> Reply {
        self.request(&format!("GET {path}"), &[("Host", &self.address)], "")
    }

    /// Sends a request. `what` is the method and the path.
    pub fn request(&self, what: &str, headers: &[(&str, &str)], body: &str) -> Reply {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut request =
            format!("{what} HTTP/1.1\r\nConnection: close\r\nContent-Length: {}\r\n", body.len());
        for (name, value) in headers {
            request += &format!("{name}: {value}\r\n");
        }
        stream.write_all(format!("{request}\r\n{body}").as_bytes()).unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        let (head, body) = reply.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{what}: {reply}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Reply { status, head: head.to_lowercase(), body: body.to_owned() }
    }

    /// Ends the program, and returns everything that it printed after its first line.
    pub fn end(mut self) -> String {
        let _ = self.child.kill();
        let mut printed = String::new();
        self.stdout.read_to_string(&mut printed).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut printed).unwrap();
        printed
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
