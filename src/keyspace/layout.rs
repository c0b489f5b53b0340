// SPDX-License-Identifier: MIT

//! The representation of a lock's holders in its hash.
//!
//! | field | value | |
//! |---|---|---|
//! | *owner* | *holds* | the exclusive holds of the only owner; the key's TTL is its lease |
//! | `#fence` | *token* | the fencing token of that owner, if requested |
//! | `#shared:`*owner* | *holds*`:`*end*, or *holds*`:`*end*`:`*token* | shared holds, end of the lease, token |
//!
//! The end of a lease is in milliseconds since the epoch. The TTL of the key is the longest lease. To a
//! Redisson client without a field in such a hash, the hash is a lock of another owner.

use smallvec::SmallVec;

use crate::core::{Hold, Holders, Owner, Token};
use crate::decimal::{decimal, Digits, MAX_SAFE_INTEGER};

pub(super) const FENCE_FIELD: &[u8] = b"#fence";
const SHARED_PREFIX: &[u8] = b"#shared:";

/// Maximum number of digits of an integer. Any number with this many digits fits into an unsigned 64-bit
/// integer.
const MAX_DIGITS: usize = 19;

/// The name or the value of a field; on the stack unless an owner is long.
pub(super) type Text = SmallVec<[u8; 64]>;

/// A field and its value.
pub(super) type Field = (Text, Text);

/// The holders that these fields represent, in a hash that expires at `expires_at`; `None` if the hash is not
/// a lock.
pub(super) fn parse(fields: &[Field], expires_at: i64) -> Option<Holders> {
    let (mut holds, mut exclusive, mut fence): (Vec<Hold>, Option<Hold>, _) = (Vec::new(), None, None);
    for (name, value) in fields {
        if **name == *FENCE_FIELD {
            fence = Some(positive(value).filter(|token| *token <= MAX_SAFE_INTEGER)?);
        } else if let Some(owner) = name.strip_prefix(SHARED_PREFIX).filter(|owner| is_owner(owner)) {
            holds.push(parse_shared(owner, value, expires_at)?);
        } else if is_owner(name) && exclusive.is_none() {
            exclusive = Some(exclusive_hold(name, positive(value)?, expires_at));
        } else {
            return None;
        }
    }
    match exclusive {
        Some(mut exclusive) => {
            exclusive.token = fence;
            if let Some(at) = holds.iter().position(|hold| hold.owner == exclusive.owner) {
                exclusive.shared = holds.swap_remove(at).shared;
            }
            // Next to an exclusive hold, fields of other owners are remnants of expired leases.
            holds.retain(|hold| hold.expires_at >= expires_at);
            holds.push(exclusive);
        }
        // A token without its owner is a remnant of a foreign delete: the lock is free.
        None if holds.is_empty() && !fields.is_empty() && fence.is_none() => return None,
        None => {}
    }
    Holders::from_holds(holds)
}

/// The holders of a hash with only this field and possibly a token; `None` if all fields have to be read.
pub(super) fn parse_single_owner(
    name: &[u8],
    holds: i64,
    token: Option<Token>,
    expires_at: i64,
) -> Option<Holders> {
    is_single_owner(name, holds, token)
        .then(|| Holders::Exclusive(Hold { token, ..exclusive_hold(name, holds, expires_at) }))
}

/// True if a hash with only this field and possibly a token is a lock with this owner.
pub(super) fn is_single_owner(name: &[u8], holds: i64, token: Option<Token>) -> bool {
    is_owner(name) && holds > 0 && token.is_none_or(|token| (1..=MAX_SAFE_INTEGER).contains(&token))
}

fn exclusive_hold(owner: &[u8], exclusive: i64, expires_at: i64) -> Hold {
    Hold { owner: Owner::new(owner), exclusive, shared: 0, expires_at, token: None, renewed: false }
}

/// The hold of a reader's field, in a hash that expires at `expires_at`; `None` if the field is not a reader's.
pub(super) fn parse_reader(name: &[u8], value: &[u8], expires_at: i64) -> Option<Hold> {
    let owner = name.strip_prefix(SHARED_PREFIX).filter(|owner| is_owner(owner))?;
    parse_shared(owner, value, expires_at)
}

/// The name of the field for this owner's shared holds.
pub(super) fn reader_field(owner: &[u8]) -> Text {
    let mut name = SmallVec::from_slice(SHARED_PREFIX);
    name.extend_from_slice(owner);
    name
}

/// Encodes shared holds as the value of their field.
pub(super) fn reader_value(hold: &Hold) -> Text {
    let mut value = text(hold.shared);
    for number in [Some(hold.expires_at), hold.token].into_iter().flatten() {
        value.push(b':');
        value.extend_from_slice(Digits::of(number).as_bytes());
    }
    value
}

/// Whether the value of a reader's field represents exactly this hold.
pub(super) fn is_value_of(value: &[u8], hold: &Hold) -> bool {
    let expected = (hold.shared, hold.expires_at, hold.token);
    hold.exclusive == 0 && shared_value(value) == Some(expected)
}

/// Parses a reader's value: number of holds, end of the lease, token.
fn shared_value(value: &[u8]) -> Option<(i64, i64, Option<i64>)> {
    let mut parts = value.split(|byte| *byte == b':');
    let shared = positive(parts.next()?)?;
    let end = positive(parts.next()?)?;
    let token = match parts.next() {
        Some(token) => Some(positive(token).filter(|token| *token <= MAX_SAFE_INTEGER)?),
        None => None,
    };
    parts.next().is_none().then_some((shared, end, token))
}

fn parse_shared(owner: &[u8], value: &[u8], key_expires_at: i64) -> Option<Hold> {
    let (shared, end, token) = shared_value(value)?;
    // If the key's TTL has shortened the lease, the new end is written to make it permanent.
    let (expires_at, renewed) = (end.min(key_expires_at), end > key_expires_at);
    Some(Hold { owner: Owner::new(owner), exclusive: 0, shared, expires_at, token, renewed })
}

/// A field to be stored. With `renewed`, it is written even if its value is unchanged.
pub(super) struct WantedField {
    pub(super) field: Field,
    pub(super) renewed: bool,
}

/// The fields for these holds.
pub(super) fn fields_for(holds: &[&Hold]) -> Vec<WantedField> {
    let mut wanted = Vec::with_capacity(holds.len());
    for hold in holds {
        let owner = hold.owner.as_bytes();
        if hold.exclusive > 0 {
            wanted
                .push(WantedField { field: (Text::from_slice(owner), text(hold.exclusive)), renewed: false });
            if let Some(token) = hold.token {
                wanted.push(WantedField {
                    field: (Text::from_slice(FENCE_FIELD), text(token)),
                    renewed: false,
                });
            }
        }
        if hold.shared > 0 {
            // If an owner has exclusive and shared holds, its token is stored in a separate field.
            let value = match hold.exclusive {
                0 => reader_value(hold),
                _ => reader_value(&Hold { token: None, ..(*hold).clone() }),
            };
            let field = (reader_field(owner), value);
            wanted.push(WantedField { field, renewed: hold.renewed });
        }
    }
    wanted
}

/// True if these holders have a field of this name.
pub(super) fn has_field(holders: &Holders, name: &[u8]) -> bool {
    if name == FENCE_FIELD {
        return matches!(holders, Holders::Exclusive(hold) if hold.token.is_some());
    }
    match name.strip_prefix(SHARED_PREFIX) {
        Some(owner) => holders.get(owner).is_some_and(|hold| hold.shared > 0),
        None => holders.get(name).is_some_and(|hold| hold.exclusive > 0),
    }
}

fn text(number: i64) -> Text {
    Text::from_slice(Digits::of(number).as_bytes())
}

/// True if the field can be an owner: names that begin with `#` are reserved for other data of a lock.
fn is_owner(field: &[u8]) -> bool {
    !field.is_empty() && field[0] != b'#'
}

/// Parses a positive number in the format of `HINCRBY`.
fn positive(value: &[u8]) -> Option<i64> {
    if !matches!(value, [b'1'..=b'9', ..]) || value.len() > MAX_DIGITS {
        return None;
    }
    decimal(value)?.try_into().ok()
}

#[cfg(test)]
mod tests {
    use super::{fields_for, has_field, parse, parse_single_owner, positive, Field, Hold, Holders};

    fn hash(fields: &[(&str, &str)]) -> Vec<Field> {
        fields.iter().map(|(name, value)| (name.as_bytes().into(), value.as_bytes().into())).collect()
    }

    #[test]
    fn written_fields_are_read_back() {
        assert_eq!(parse_single_owner(b"a", 3, None, 500), parse(&hash(&[("a", "3")]), 500));
        assert_eq!(
            parse_single_owner(b"a", 3, Some(77), 500),
            parse(&hash(&[("a", "3"), ("#fence", "77")]), 500)
        );
        for stored in [
            hash(&[("a", "3")]),
            hash(&[("a", "3"), ("#fence", "77")]),
            hash(&[("a", "3"), ("#fence", "77"), ("#shared:a", "2:500")]),
            hash(&[("#shared:a", "2:500")]),
            hash(&[("#shared:a", "2:500:9"), ("#shared:a:b", "1:400"), ("#shared:c", "1:300:12")]),
        ] {
            let holders = parse(&stored, 500).unwrap_or_else(|| panic!("{stored:?} is a lock"));
            let holds: Vec<&Hold> = holders.iter().collect();
            let mut written: Vec<Field> = fields_for(&holds).into_iter().map(|wanted| wanted.field).collect();
            assert!(written.iter().all(|(name, _)| has_field(&holders, name)), "{written:?}");
            assert!(!has_field(&holders, b"b") && !has_field(&holders, b"#shared:b"), "{written:?}");
            written.sort_by_key(|field| stored.iter().position(|other| other == field));
            assert_eq!(written, stored);
            assert_eq!(holders.expires_at(), Some(500));
        }
    }

    #[test]
    fn invalid_fields_are_refused() {
        for stored in [
            hash(&[("#fence", "0")]),
            hash(&[("a", "1"), ("b", "1")]),
            hash(&[("a", "1"), ("#fence", "x")]),
            hash(&[("a", "1"), ("#fence", "9007199254740992")]),
            hash(&[("a", "1"), ("#other", "1")]),
            hash(&[("a", "1"), ("#shared:b", "1:500")]),
            hash(&[("#shared:", "1:500")]),
            hash(&[("#shared:#b", "1:500")]),
            hash(&[("#shared:b", "1")]),
            hash(&[("#shared:b", "0:500")]),
            hash(&[("#shared:b", "1:500:")]),
            hash(&[("#shared:b", "1:500:7:8")]),
            hash(&[("", "1")]),
        ] {
            assert_eq!(parse(&stored, 500), None, "{stored:?}");
        }
    }

    #[test]
    fn positive_numbers_of_64_bits_are_parsed() {
        for number in [1, 10, i64::MAX - 1, i64::MAX] {
            assert_eq!(positive(number.to_string().as_bytes()), Some(number));
        }
        for text in
            ["", "0", "01", "-1", "+1", " 1", "1 ", "1a", "9223372036854775808", "99999999999999999999"]
        {
            assert_eq!(positive(text.as_bytes()), None, "{text}");
        }
    }

    #[test]
    fn a_token_without_owner_means_free() {
        assert_eq!(parse(&hash(&[("#fence", "7")]), 500), Some(Holders::Free));
        let readers = parse(&hash(&[("#fence", "7"), ("#shared:a", "1:500")]), 500);
        assert_eq!(readers, parse(&hash(&[("#shared:a", "1:500")]), 500));
    }

    #[test]
    fn a_lease_never_outlives_the_key() {
        let holders = parse(&hash(&[("#shared:a", "1:900"), ("#shared:b", "1:300")]), 500);
        let ends: Vec<i64> = holders.iter().flat_map(|h| h.iter().map(|hold| hold.expires_at)).collect();
        assert_eq!(ends, [500, 300]);
    }
}
