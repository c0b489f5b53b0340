// SPDX-License-Identifier: MIT

//! The connection of a client, as the operating system sees it.

use std::ffi::c_int;

use crate::server::clients::caller;
use crate::server::Ctx;

/// The socket of a client that is blocked. Only looked at: it stays the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket(c_int);

impl Socket {
    /// The socket of a connected client. The API has no function for it, but `CLIENT LIST` shows it.
    pub(crate) fn of_client(ctx: Ctx<'_>, id: u64) -> Option<Socket> {
        caller::client_list_line(ctx, id).and_then(|line| parse(&line))
    }

    /// True if the other side has closed the connection, or its half of it, even where the server has not
    /// read so yet. Must not be asked for a client that the server has freed.
    pub(crate) fn is_hung_up(self) -> bool {
        self.poll_hangup() != 0
    }

    /// True if the other side has closed the connection, or its half of it, and has read all that was sent before.
    pub(crate) fn is_closed_cleanly(self) -> bool {
        self.poll_hangup() == libc::POLLRDHUP
    }

    fn poll_hangup(self) -> libc::c_short {
        const GONE: libc::c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let mut poll = libc::pollfd { fd: self.0, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one structure is passed and said to be one; with a time of 0 the call does not wait.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        if ready > 0 {
            poll.revents & GONE
        } else {
            0
        }
    }
}

fn parse(line: &[u8]) -> Option<Socket> {
    let number = caller::line_field(line, "fd=")?;
    std::str::from_utf8(number).ok()?.parse().ok().filter(|fd| *fd >= 0).map(Socket)
}

#[cfg(test)]
mod tests {
    use super::{parse, Socket};

    #[test]
    fn a_line_of_client_list_has_the_socket() {
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 laddr=1.2.3.4:6 fd=12 name=x age=1"), Some(Socket(12)));
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 fd=-1 name="), None);
        assert_eq!(parse(b"id=3 name=fd"), None);
        assert_eq!(parse(b""), None);
    }
}
