// SPDX-License-Identifier: MIT

//! The replies to one request, which may come again, as they are stored beside the lock.

use smallvec::SmallVec;

use crate::core::{Mode, Owner, Reply, RequestId, WallMs};
use crate::decimal::{Digits, GREATEST};
use crate::keyspace::names::{self, Name};

/// The replies to one request of one owner; an acquire and a release may have the same id. Each is remembered for a
/// time of its own, and the key as long as the longer.
pub(super) struct Record {
    pub(super) id: RequestId,
    /// The lock's key has a brace. Another lock's key may be the same without them, and has records of the same names.
    braced: bool,
    pub(super) stored: bool,
    pub(super) granted: Option<Granted>,
    pub(super) released: Option<(i64, WallMs)>,
    /// The acquire was cancelled: whether there was anything to undo.
    pub(super) cancelled: Option<(bool, WallMs)>,
}

/// What an acquire got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Granted {
    pub(super) reply: Reply,
    /// Until when that is remembered.
    pub(super) end: WallMs,
    /// Its client was told so by a message, and has not confirmed it.
    pub(super) unconfirmed: bool,
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

    /// The name of its key.
    pub(super) fn name(&self, lock: &[u8]) -> Name {
        names::request(lock, self.id.owner_argument(), self.id.id())
    }

    /// When the last reply in it is forgotten; `None` if there is none.
    pub(super) fn end(&self) -> Option<WallMs> {
        let granted = self.granted.as_ref().map(|granted| granted.end);
        granted.max(self.released.map(|(_, end)| end)).max(self.cancelled.map(|(_, end)| end))
    }

    /// The length of the owner's name, which tells where it ends in the key's; `b` if the lock's key has a brace; and the replies: `r` is how much
    /// a release left, `c` whether a cancel had anything to undo, `a` how many holds an acquire got, or `s` a shared
    /// one, each with the time at which it is forgotten, and in capitals if it is not confirmed; `t` the acquire's token, `o` its
    /// owner, up to the end.
    pub(super) fn encode(&self) -> Text {
        let mut text = Text::new();
        put(&mut text, b"", self.id.owner_argument().len().try_into().unwrap_or(i64::MAX));
        if self.braced {
            text.extend_from_slice(b" b");
        }
        let mut put_timed = |word: &[u8; 2], number, end| {
            put(&mut text, word, number);
            put(&mut text, b"@", end);
        };
        if let Some((left, end)) = self.released {
            put_timed(b" r", left, end);
        }
        if let Some((undone, end)) = self.cancelled {
            put_timed(b" c", i64::from(undone), end);
        }
        let Some(Granted { reply, end, unconfirmed }) = &self.granted else { return text };
        let Reply { mode, holds, token, owner } = reply;
        let kind = match (mode, unconfirmed) {
            (Mode::Exclusive, false) => b" a",
            (Mode::Exclusive, true) => b" A",
            (Mode::Shared, false) => b" s",
            (Mode::Shared, true) => b" S",
        };
        put_timed(kind, *holds, *end);
        if let Some(token) = token {
            put(&mut text, b" t", *token);
        }
        if let Some(owner) = owner {
            text.extend_from_slice(b" o");
            text.extend_from_slice(owner.as_bytes());
        }
        text
    }

    /// This one as it is stored. `None` if that is no record, `Some(None)` if it is one of another owner or lock.
    pub(super) fn decode(self, text: &[u8]) -> Option<Option<Record>> {
        let (len, rest) = number(text)?;
        let braced = rest.strip_prefix(b" b");
        if usize::try_from(len).ok()? != self.id.owner_argument().len() || braced.is_some() != self.braced {
            return Some(None);
        }
        let mut rest = braced.unwrap_or(rest);
        let mut record = Record { stored: true, ..self };
        if let Some(value) = rest.strip_prefix(b" r") {
            let (left, after) = timed(value).filter(|((left, _), _)| *left >= 0)?;
            (record.released, rest) = (Some(left), after);
        }
        if let Some(value) = rest.strip_prefix(b" c") {
            let ((undone, end), after) = timed(value)?;
            (record.cancelled, rest) = (Some((undone != 0, end)), after);
        }
        let granted = match rest {
            [b' ', b'a', value @ ..] => Some((Mode::Exclusive, false, value)),
            [b' ', b'A', value @ ..] => Some((Mode::Exclusive, true, value)),
            [b' ', b's', value @ ..] => Some((Mode::Shared, false, value)),
            [b' ', b'S', value @ ..] => Some((Mode::Shared, true, value)),
            _ => None,
        };
        if let Some((mode, unconfirmed, value)) = granted {
            let ((holds, end), after) = timed(value).filter(|((holds, _), _)| *holds > 0)?;
            rest = after;
            let (mut token, mut owner) = (None, None);
            if let Some(value) = rest.strip_prefix(b" t") {
                let (value, after) = number(value).filter(|(token, _)| (1..=GREATEST).contains(token))?;
                (token, rest) = (Some(value), after);
            }
            let is_owner = |name: &&[u8]| !matches!(name, [] | [b'#', ..]);
            if let Some(name) = rest.strip_prefix(b" o").filter(is_owner) {
                (owner, rest) = (Some(Box::new(Owner::new(name))), &[]);
            }
            let reply = Reply { mode, holds, token, owner };
            record.granted = Some(Granted { reply, end, unconfirmed });
        }
        (rest.is_empty() && record.end().is_some()).then_some(Some(record))
    }
}

/// A number up to the next space or the end, and what follows.
fn number(text: &[u8]) -> Option<(i64, &[u8])> {
    let end = text.iter().position(|byte| *byte == b' ').unwrap_or(text.len());
    Some((integer(&text[..end])?, &text[end..]))
}

/// Two numbers with an `@` between them, up to the next space or the end, and what follows.
fn timed(text: &[u8]) -> Option<((i64, WallMs), &[u8])> {
    let at = text.iter().position(|byte| *byte == b'@')?;
    let (end, rest) = number(&text[at + 1..])?;
    Some(((integer(&text[..at])?, end), rest))
}

pub(super) fn integer(text: &[u8]) -> Option<i64> {
    std::str::from_utf8(text).ok()?.parse().ok()
}

/// What stands in a record; on the stack, unless an owner is long.
type Text = SmallVec<[u8; 96]>;

/// A word that ends with a number.
fn put(text: &mut Text, word: &[u8], number: i64) {
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
    fn a_record_is_read_as_it_was_written() {
        let owner = Some(Box::new(Owner::new(b"o w\0n:er")));
        let reply = |mode, holds, token| Reply { mode, holds, token, owner: None };
        let (exclusive, shared) = (Mode::Exclusive, Mode::Shared);
        let granted = |reply, end| Some(Granted { reply, end, unconfirmed: false });
        let unconfirmed = |reply, end| Some(Granted { reply, end, unconfirmed: true });
        for (granted, released, cancelled) in [
            (granted(reply(exclusive, 3, None), 7), None, None),
            (
                granted(Reply { owner: owner.clone(), ..reply(shared, 1, Some(9_007_199_254_740_991)) }, 8),
                Some((0, 9)),
                None,
            ),
            (granted(Reply { owner, ..reply(exclusive, 1, None) }, 1), Some((7, 2)), Some((true, 3))),
            (granted(reply(shared, 2, None), 7), None, Some((false, 8))),
            (unconfirmed(reply(shared, 2, None), 7), None, None),
            (unconfirmed(reply(exclusive, 1, Some(5)), 7), Some((2, 3)), None),
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
    fn what_is_no_record_is_refused() {
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
