//! The connection of a client, as the operating system sees it.

use std::ffi::c_int;

use crate::server::{caller, Ctx};

/// The socket of a client that is blocked. Only looked at: it stays the server's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Socket(c_int);

impl Socket {
    /// The socket of a connected client. The API has no function for it, but `CLIENT LIST` tells.
    pub(crate) fn of_client(ctx: Ctx<'_>, id: u64) -> Option<Socket> {
        caller::line_of(ctx, id).and_then(|line| parse(&line))
    }

    /// True if the other side has closed the connection, or its half of it, even where the server has not
    /// read so yet. Must not be asked for a client that the server has freed.
    pub(crate) fn is_hung_up(self) -> bool {
        const GONE: libc::c_short = libc::POLLRDHUP | libc::POLLHUP | libc::POLLERR;
        let mut poll = libc::pollfd { fd: self.0, events: libc::POLLRDHUP, revents: 0 };
        // SAFETY: one structure is passed and said to be one; with a time of 0 the call does not wait.
        let ready = unsafe { libc::poll(&mut poll, 1, 0) };
        ready > 0 && poll.revents & GONE != 0
    }
}

/// How many sockets are remembered.
const REMEMBERED: usize = 1024;

/// The sockets of clients that have been blocked before: to ask costs more than all else that a wait does. A client
/// keeps its socket as long as it lives, and its id is never another's.
#[derive(Default)]
pub(crate) struct Sockets(Vec<Option<(u64, Socket)>>);

impl Sockets {
    pub(crate) fn get(&self, client: u64) -> Option<Socket> {
        let known = self.0.get(place(client))?.as_ref()?;
        (known.0 == client).then_some(known.1)
    }

    /// How many are remembered.
    pub(crate) fn len(&self) -> usize {
        self.0.iter().flatten().count()
    }

    pub(crate) fn put(&mut self, client: u64, socket: Option<Socket>) {
        if self.0.is_empty() {
            self.0.resize(REMEMBERED, None);
        }
        if let Some(at) = self.0.get_mut(place(client)) {
            *at = socket.map(|socket| (client, socket));
        }
    }
}

fn place(client: u64) -> usize {
    usize::try_from(client).unwrap_or(0) % REMEMBERED
}

fn parse(line: &[u8]) -> Option<Socket> {
    let number = caller::field(line, "fd=")?;
    std::str::from_utf8(number).ok()?.parse().ok().filter(|fd| *fd >= 0).map(Socket)
}

#[cfg(test)]
mod tests {
    use super::{parse, Socket, Sockets, REMEMBERED};

    #[test]
    fn a_socket_is_that_of_its_client() {
        let mut sockets = Sockets::default();
        assert_eq!(sockets.get(7), None);
        sockets.put(7, Some(Socket(12)));
        let same_place = 7 + REMEMBERED as u64;
        assert_eq!((sockets.get(7), sockets.get(same_place)), (Some(Socket(12)), None));
        sockets.put(same_place, Some(Socket(13)));
        assert_eq!((sockets.get(7), sockets.get(same_place)), (None, Some(Socket(13))));
        sockets.put(same_place, None);
        assert_eq!(sockets.get(same_place), None);
    }

    #[test]
    fn a_line_of_client_list_has_the_socket() {
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 laddr=1.2.3.4:6 fd=12 name=x age=1"), Some(Socket(12)));
        assert_eq!(parse(b"id=3 addr=1.2.3.4:5 fd=-1 name="), None);
        assert_eq!(parse(b"id=3 name=fd"), None);
        assert_eq!(parse(b""), None);
    }
}
