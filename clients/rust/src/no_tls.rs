// SPDX-License-Identifier: MIT

//! In place of TLS, where the feature `tls` is off.

use std::io::{Error, ErrorKind, Result};

use redis::io::tcp::socket2::Socket;

pub(crate) type Config = ();

/// There is none.
#[derive(Clone)]
pub(crate) enum Tls {}

impl Tls {
    pub(crate) fn begin(_: &str, (): &Config, _: &mut Socket) -> Result<Tls> {
        Err(Error::new(ErrorKind::Unsupported, "TLS needs the feature `tls`"))
    }

    pub(crate) fn seal(&self, _: &[u8], _: &mut Vec<u8>) -> Result<()> {
        match *self {}
    }

    pub(crate) fn read(&self, _: &mut Socket, _: &mut [u8]) -> Result<usize> {
        match *self {}
    }
}
