// SPDX-License-Identifier: MIT

//! Finds the end of a reply in the protocols of Redis (RESP2) and PostgreSQL.

use super::Outcome;

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Wire {
    Redis,
    Postgres,
}

impl Wire {
    /// Returns the length of the first reply in these bytes, or `None` if the reply is incomplete. An error reply is returned
    /// as an error, as no measurement expects one.
    pub fn first_reply(self, bytes: &[u8]) -> Outcome<Option<usize>> {
        match self {
            Wire::Redis => redis_reply(bytes, 0),
            Wire::Postgres => postgres_reply(bytes),
        }
    }
}

/// Returns the end of the reply that begins at `begin`.
fn redis_reply(bytes: &[u8], begin: usize) -> Outcome<Option<usize>> {
    let rest = bytes.get(begin..).unwrap_or_default();
    let Some(line) = rest.windows(2).position(|pair| pair == b"\r\n") else { return Ok(None) };
    let mut end = begin + line + 2;
    let number = || -> Outcome<i64> { Ok(std::str::from_utf8(&rest[1..line])?.parse()?) };
    match rest[0] {
        b'+' | b':' => {}
        b'$' => {
            if let Ok(length) = usize::try_from(number()?) {
                end += length + 2;
            }
        }
        b'*' => {
            for _ in 0..number()? {
                match redis_reply(bytes, end)? {
                    Some(after) => end = after,
                    None => return Ok(None),
                }
            }
        }
        _ => return Err(format!("the server says {}", rest[..line].escape_ascii()).into()),
    }
    Ok((end <= bytes.len()).then_some(end))
}

/// Returns the end of a reply. A reply ends with the message `ReadyForQuery`.
fn postgres_reply(bytes: &[u8]) -> Outcome<Option<usize>> {
    let mut end = 0;
    // A message has one byte for its kind, then four bytes for its length. The length includes these four bytes and the body.
    while let Some(&[kind, a, b, c, d]) = bytes.get(end..end + 5) {
        let after = end + 1 + u32::from_be_bytes([a, b, c, d]) as usize;
        if after > bytes.len() {
            break;
        }
        match kind {
            b'E' => return Err(format!("PostgreSQL says {}", bytes[end + 5..after].escape_ascii()).into()),
            b'Z' => return Ok(Some(after)),
            _ => end = after,
        }
    }
    Ok(None)
}
