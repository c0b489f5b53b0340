// SPDX-License-Identifier: MIT

//! Checks that the stored formats survive writing and reading.

#[path = "../../../../src/keyspace/layout.rs"]
mod layout;
#[path = "../../../../src/keyspace/names.rs"]
mod names;
#[path = "../../../../src/keyspace/request_record.rs"]
mod record;

use layout::{fields_for, has_field, parse, Field};
use record::Record;

use crate::core::{Hold, RequestId};

/// Expiry of the hash.
const EXPIRES_AT: i64 = 500;

/// Reads the fields of a hash. A length byte precedes each name and each value. A lock must be the same after writing and
/// reading.
pub fn read(mut bytes: &[u8]) {
    let mut stored: Vec<Field> = Vec::new();
    let part = |len: &mut &[u8]| -> Option<Vec<u8>> {
        let (len_of_part, rest) = len.split_first()?;
        let (part, rest) = rest.split_at(usize::from(*len_of_part).min(rest.len()));
        *len = rest;
        Some(part.to_vec())
    };
    while let (Some(name), Some(value)) = (part(&mut bytes), part(&mut bytes)) {
        // The names in a hash are unique.
        if !stored.iter().any(|(other, _)| **other == *name) {
            stored.push((name.as_slice().into(), value.as_slice().into()));
        }
    }
    let Some(holders) = parse(&stored, EXPIRES_AT) else { return };
    let holds: Vec<&Hold> = holders.iter().collect();
    assert!(holds.iter().all(|hold| hold.exclusive > 0 || hold.shared > 0), "a hold without a count: {stored:?}");
    assert!(holds.iter().all(|hold| hold.expires_at <= EXPIRES_AT), "a lease outlives its key: {stored:?}");
    let exclusive = holds.iter().filter(|hold| hold.exclusive > 0).count();
    assert!(exclusive == 0 || (exclusive == 1 && holds.len() == 1), "an exclusive hold beside another: {stored:?}");
    let written: Vec<Field> = fields_for(&holds).into_iter().map(|wanted| wanted.field).collect();
    assert!(written.iter().all(|(name, _)| has_field(&holders, name)), "{stored:?} {written:?}");
    // A lease that ends with the key does so after writing, too.
    let again = parse(&written, EXPIRES_AT);
    let again = again.unwrap_or_else(|| panic!("the written fields are no lock: {stored:?} {written:?}"));
    let content = |hold: &Hold| (hold.owner.clone(), hold.exclusive, hold.shared, hold.expires_at, hold.token);
    let mut both = [&holders, &again].map(|holders| holders.iter().map(content).collect::<Vec<_>>());
    both.iter_mut().for_each(|holds| holds.sort());
    assert_eq!(both[0], both[1], "{stored:?}");
}

/// Reads the request record of an owner for a key with or without braces. A record must be the same after writing and reading,
/// and must be unreadable for another owner or lock.
pub fn read_record(bytes: &[u8]) {
    let Some((first, text)) = bytes.split_first() else { return };
    let keys: [&[u8]; 2] = [b"key", b"{key}"];
    let (key, other) = if first % 2 == 0 { (keys[0], keys[1]) } else { (keys[1], keys[0]) };
    let decode = |owner: &[u8], key, text: &[u8]| Record::empty(&RequestId::new(owner, b"id", 1), key).decode(text);
    let Some(Some(record)) = decode(b"own", key, text) else { return };
    let written = record.encode();
    let Some(Some(again)) = decode(b"own", key, &written) else { panic!("the written text is no record: {text:?} {written:?}") };
    let content = |record: &Record| (record.granted.clone(), record.released, record.cancelled);
    assert_eq!(content(&record), content(&again), "{text:?} {written:?}");
    assert!(record.end().is_some() && record.end() == again.end(), "{text:?}");
    for (owner, key) in [(&b"another"[..], key), (b"own", other)] {
        assert!(matches!(decode(owner, key, &written), Some(None)), "another owner or lock can read the record: {text:?}");
    }
}
