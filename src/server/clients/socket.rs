// SPDX-License-Identifier: MIT

//! The socket of a client, as the operating system sees it.

use std::ffi::c_int;

use crate::server::clients::caller;
use crate::server::Ctx;

/// The socket of a blocked client. It is only polled; the server owns it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket(c_int);

impl Socket {
    /// The socket of a connected client, taken from `CLIENT LIST` because the API has no function for it.
    pub(crate) fn of_client(ctx: Ctx<'_>, id: u64) -> Option<Socket> {
        caller::client_list_line(ctx, id).and_then(|line| parse(&line))
    }

    /// True if the peer has closed the connection or its sending half, even if the server has not noticed. Must not be
    /// called for a client that the server has freed.
    pub(crate) fn is_hung_up(self) -> bool {
        self.poll_hangup() != 0
    }

    /// True if the peer has closed the connection or its sending half, and has not reset the connection. Closing
    /// it with unread data would reset it.
    pub(crate) fn is_closed_cleanly(self) -> bool {
        self.poll_hangup() == libc::POLLRDHUP
    }

    fn poll_hangup(self) -> libc::c_short {
        const GONE: libc::c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let mut poll = libc::pollfd { fd: self.0, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: the call gets one structure and the length 1. With a timeout of 0 it does not wait.
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
    fn client_list_contains_the_socket() {
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 laddr=1.2.3.4:6 fd=12 name=x age=1"), Some(Socket(12)));
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 fd=-1 name="), None);
        assert_eq!(parse(b"id=3 name=fd"), None);
        assert_eq!(parse(b""), None);
    }
}
