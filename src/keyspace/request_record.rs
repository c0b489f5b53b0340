// SPDX-License-Identifier: MIT

//! The stored replies to one request that may be repeated.

use smallvec::SmallVec;

use crate::core::{Mode, Owner, Reply, RequestId, WallMs};
use crate::decimal::{Digits, MAX_SAFE_INTEGER};
use crate::keyspace::names::{self, Name};

/// The replies to one request of one owner. An acquire and a release may have the same id. Each reply has its
/// own retention time, and the key has the longest of them.
pub(super) struct Record {
    pub(super) id: RequestId,
    /// Whether the lock's key contains a brace. Another lock whose key differs only in the braces has records
    /// of the same names.
    braced: bool,
    pub(super) stored: bool,
    pub(super) granted: Option<Granted>,
    pub(super) released: Option<(i64, WallMs)>,
    /// If the acquire was cancelled: whether the cancel had an effect, and the end of the cancel's retention.
    pub(super) cancelled: Option<(bool, WallMs)>,
}

/// The reply to an acquire.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) reply: Reply,
    /// End of the retention.
    pub(super) end: WallMs,
}

impl Record {
    pub(super) fn empty(id: &RequestId, lock: &[u8]) -> Record {
        Record {
            id: id.clone(),
            braced: lock.contains(&b'{'),
            stored: false,
            granted: None,
            released: None,
            cancelled: None,
        }
    }

    /// The name of the record's key.
    pub(super) fn name(&self, lock: &[u8]) -> Name {
        names::request_key(lock, self.id.owner_argument(), self.id.id())
    }

    /// End of the longest retention; `None` without any reply.
    pub(super) fn end(&self) -> Option<WallMs> {
        let granted = self.granted.as_ref().map(|granted| granted.end);
        granted.max(self.released.map(|(_, end)| end)).max(self.cancelled.map(|(_, end)| end))
    }

    /// Encodes the record as words:
    ///
    /// * the length of the owner's name, which shows where it ends in the name of the key;
    /// * `b` if the lock's key contains a brace;
    /// * `r` and the number of holds that a release left;
    /// * `c` and whether a cancel had an effect;
    /// * `a` and the number of holds that an acquire got, or `s` for a shared one;
    /// * `t` and the token of the acquire;
    /// * `o` and its owner, up to the end of the record.
    ///
    /// The words `r`, `c`, `a` and `s` also have an `@` and the end of the retention.
    pub(super) fn encode(&self) -> RecordText {
        let mut text = RecordText::new();
        put_number(&mut text, b"", self.id.owner_argument().len().try_into().unwrap_or(i64::MAX));
        if self.braced {
            text.extend_from_slice(b" b");
        }
        let mut put_with_end = |word: &[u8; 2], number, end| {
            put_number(&mut text, word, number);
            put_number(&mut text, b"@", end);
        };
        if let Some((left, end)) = self.released {
            put_with_end(b" r", left, end);
        }
        if let Some((undone, end)) = self.cancelled {
            put_with_end(b" c", i64::from(undone), end);
        }
        let Some(Granted { reply, end }) = &self.granted else { return text };
        let Reply { mode, holds, token, owner } = reply;
        let kind = match mode {
            Mode::Exclusive => b" a",
            Mode::Shared => b" s",
        };
        put_with_end(kind, *holds, *end);
        if let Some(token) = token {
            put_number(&mut text, b" t", *token);
        }
        if let Some(owner) = owner {
            text.extend_from_slice(b" o");
            text.extend_from_slice(owner.as_bytes());
        }
        text
    }

    /// Decodes a stored record. Returns `None` for invalid text, and `Some(None)` for a record of another owner or
    /// lock.
    pub(super) fn decode(self, text: &[u8]) -> Option<Option<Record>> {
        let (len, rest) = number(text)?;
        let braced = rest.strip_prefix(b" b");
        if usize::try_from(len).ok()? != self.id.owner_argument().len() || braced.is_some() != self.braced {
            return Some(None);
        }
        let mut rest = braced.unwrap_or(rest);
        let mut record = Record { stored: true, ..self };
        if let Some(value) = rest.strip_prefix(b" r") {
            let (left, after) = number_with_end(value).filter(|((left, _), _)| *left >= 0)?;
            (record.released, rest) = (Some(left), after);
        }
        if let Some(value) = rest.strip_prefix(b" c") {
            let ((undone, end), after) = number_with_end(value)?;
            (record.cancelled, rest) = (Some((undone != 0, end)), after);
        }
        let granted = match rest {
            [b' ', b'a', value @ ..] => Some((Mode::Exclusive, value)),
            [b' ', b's', value @ ..] => Some((Mode::Shared, value)),
            _ => None,
        };
        if let Some((mode, value)) = granted {
            let ((holds, end), after) = number_with_end(value).filter(|((holds, _), _)| *holds > 0)?;
            rest = after;
            let (mut token, mut owner) = (None, None);
            if let Some(value) = rest.strip_prefix(b" t") {
                let (value, after) =
                    number(value).filter(|(token, _)| (1..=MAX_SAFE_INTEGER).contains(token))?;
                (token, rest) = (Some(value), after);
            }
            let is_owner = |name: &&[u8]| !matches!(name, [] | [b'#', ..]);
            if let Some(name) = rest.strip_prefix(b" o").filter(is_owner) {
                (owner, rest) = (Some(Box::new(Owner::new(name))), &[]);
            }
            let reply = Reply { mode, holds, token, owner };
            record.granted = Some(Granted { reply, end });
        }
        (rest.is_empty() && record.end().is_some()).then_some(Some(record))
    }
}

/// Parses a number up to the next space or the end. Also returns the remaining text.
fn number(text: &[u8]) -> Option<(i64, &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    Some((integer(&text[..end])?, &text[end..]))
}

/// Parses two numbers with an `@` between them, up to the next space or the end. Also returns the remaining
/// text.
fn number_with_end(text: &[u8]) -> Option<((i64, WallMs), &[u8])> {
    let at = text.iter().position(|byte| *byte == b'@')?;
    let (end, rest) = number(&text[at + 1..])?;
    Some(((integer(&text[..at])?, end), rest))
}

pub(super) fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// The text of a record; on the stack unless an owner is long.
type RecordText = SmallVec<[u8; 96]>;

/// Appends a word that ends with a number.
fn put_number(text: &mut RecordText, word: &[u8], number: i64) {
    text.extend_from_slice(word);
    text.extend_from_slice(Digits::of(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::{Granted, Mode, Owner, Record, Reply, RequestId};

    fn id(asked: &[u8]) -> RequestId {
        RequestId::new(asked, b"r", 1)
    }

    #[test]
    fn written_records_are_read_back() {
        let owner = Some(Box::new(Owner::new(b"o w\0n:er")));
        let reply = |mode, holds, token| Reply { mode, holds, token, owner: None };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let granted = |reply, end| Some(Granted { reply, end });
        for (granted, released, cancelled) in [
            (granted(reply(exclusive, 3, None), 7), None, None),
            (
                granted(Reply { owner: owner.clone(), ..reply(shared, 1, Some(9_007_199_254_740_991)) }, 8),
                Some((0, 9)),
                None,
            ),
            (granted(Reply { owner, ..reply(exclusive, 1, None) }, 1), Some((7, 2)), Some((true, 3))),
            (granted(reply(shared, 2, None), 7), None, Some((false, 8))),
            (None, Some((2, 3)), None),
            (None, None, Some((false, 4))),
            (None, Some((2, 3)), Some((true, 4))),
        ] {
            for (lock, other) in [(b"k".as_slice(), b"{k}".as_slice()), (b"{k}", b"k")] {
                let granted = granted.clone();
                let record = Record { granted, released, cancelled, ..Record::empty(&id(b"*"), lock) };
                let text = record.encode();
                let decoded = |asked, lock| Record::empty(&id(asked), lock).decode(&text);
                let Some(Some(read)) = decoded(b"*", lock) else { panic!("{text:?} is refused") };
                assert_eq!(
                    (read.granted, read.released, read.cancelled),
                    (record.granted, released, cancelled)
                );
                assert!(matches!(decoded(b"**", lock), Some(None)), "taken for another owner's");
                assert!(matches!(decoded(b"*", other), Some(None)), "taken for another lock's");
            }
        }
    }

    #[test]
    fn invalid_records_are_refused() {
        for text in [
            "",
            "x",
            "1",
            "1 ",
            "1 a",
            "1 a1",
            "1 a1@",
            "1 r0@5 x",
            "1 a1@5 o",
            "1 a1@5 t",
            "1 c",
            "1 a0@5",
            "1 a-3@5",
            "1 s0@5",
            "1 r-1@5",
            "1 a1@5 t0",
            "1 a1@5 t9007199254740992",
            "1 a1@5 o#x",
            "hello world",
        ] {
            assert!(Record::empty(&id(b"*"), b"k").decode(text.as_bytes()).is_none(), "{text}");
        }
    }
}
