// SPDX-License-Identifier: MIT

//! The names of the keys and channels of a lock, in the format of Redisson.

use smallvec::{smallvec, SmallVec};

/// The name of a key or a channel; on the stack unless it is long.
pub(crate) type Name = SmallVec<[u8; ON_STACK]>;

/// The longest name that is stored on the stack.
const ON_STACK: usize = 128;

/// Returns `prefix:{key}`, or `prefix:key` for a key that contains a brace, so that the key keeps its own
/// hash tag. The prefix is passed with its `:{`, so that it can be copied as a whole.
pub(crate) fn derived_name<const LEN: usize>(prefix: &[u8; LEN], key: &[u8]) -> Name {
    let has_tag = key.contains(&b'{');
    let start = if has_tag { LEN - 1 } else { LEN };
    let len = start + key.len() + usize::from(!has_tag);
    let mut name: Name = match len {
        ..=ON_STACK => SmallVec::from_buf_and_len([b'}'; ON_STACK], len),
        _ => smallvec![b'}'; len],
    };
    name[..LEN].copy_from_slice(prefix);
    name[start..start + key.len()].copy_from_slice(key);
    name
}

/// The name of the string with the last fencing token.
pub(crate) fn counter_key(key: &[u8]) -> Name {
    derived_name(b"redisson_lock_token:{", key)
}

/// The name of the string with the replies to a request.
pub(crate) fn request_key(key: &[u8], owner: &[u8], request: &[u8]) -> Name {
    const PREFIX: &[u8; 14] = b"lock_request:{";
    let (prefix, brace) =
        if key.contains(&b'{') { (&PREFIX[..13], &b""[..]) } else { (&PREFIX[..], &b"}"[..]) };
    let parts = [prefix, key, brace, b":", owner, b":", request];
    let mut name: Name = smallvec![0; parts.iter().map(|part| part.len()).sum()];
    let mut rest = &mut name[..];
    for part in parts {
        let (place, others) = rest.split_at_mut(part.len());
        place.copy_from_slice(part);
        rest = others;
    }
    name
}

/// Whether the keys of two locks are disjoint, including the keys that are stored with each lock.
pub(crate) fn are_disjoint(a: &[u8], b: &[u8]) -> bool {
    // The common case.
    let is_plain =
        |key: &[u8]| !key.starts_with(b"{") && !key.starts_with(b"redisson_") && !key.starts_with(b"lock_");
    if is_plain(a) && is_plain(b) {
        return true;
    }
    let is_beside = |name: &[u8], lock: &[u8]| {
        let requests = request_key(lock, b"", b"");
        name == &*counter_key(lock) || name.starts_with(requests.strip_suffix(b":").unwrap_or(&requests))
    };
    counter_key(a) != counter_key(b) && !is_beside(a, b) && !is_beside(b, a)
}

/// True if both keys are in one slot of a cluster because their hashed parts are equal.
pub(crate) fn share_slot(a: &[u8], b: &[u8]) -> bool {
    hash_tag(a) == hash_tag(b)
}

/// The part of a key that determines its slot: the text between the first `{` and the next `}`, if not empty.
fn hash_tag(key: &[u8]) -> &[u8] {
    let Some(open) = key.iter().position(|byte| *byte == b'{') else { return key };
    let rest = &key[open + 1..];
    match rest.iter().position(|byte| *byte == b'}') {
        Some(close) if close > 0 => &rest[..close],
        _ => key,
    }
}

#[cfg(test)]
mod tests {
    use super::{are_disjoint, counter_key, request_key, share_slot};

    #[test]
    fn locks_with_overlapping_keys_are_not_apart() {
        for (a, b) in [
            ("k", "{k}"),
            ("k", "redisson_lock_token:{k}"),
            ("{k}", "redisson_lock_token:{k}"),
            ("k", "lock_request:{k}:o:r"),
            ("a{b}", "redisson_lock_token:a{b}"),
            ("a{b}", "lock_request:a{b}:"),
        ] {
            assert!(
                !are_disjoint(a.as_bytes(), b.as_bytes()) && !are_disjoint(b.as_bytes(), a.as_bytes()),
                "{a} {b}"
            );
        }
        for (a, b) in [
            ("k", "l"),
            ("{k}", "l"),
            ("{k}1", "{k}2"),
            ("k", "lock_request:{kk}:o:r"),
            ("k", "redisson_lock_token:{l}"),
            ("lock_a", "lock_b"),
        ] {
            assert!(
                are_disjoint(a.as_bytes(), b.as_bytes()) && are_disjoint(b.as_bytes(), a.as_bytes()),
                "{a} {b}"
            );
        }
    }

    #[test]
    fn derived_keys_use_the_lock_as_hash_tag() {
        assert_eq!(*counter_key(b"k"), *b"redisson_lock_token:{k}");
        assert_eq!(counter_key(b"a{k}").as_slice(), b"redisson_lock_token:a{k}");
        assert_eq!(counter_key(b"a{").as_slice(), b"redisson_lock_token:a{");
        for len in 90..130 {
            let key = vec![b'k'; len];
            let name = [b"redisson_lock_token:{", &key[..], b"}"].concat();
            assert_eq!(counter_key(&key).as_slice(), name);
        }
        assert_eq!(counter_key(b"\xff\0").as_slice(), b"redisson_lock_token:{\xff\0}");
        assert_eq!(request_key(b"k", b"o:1", b"r").as_slice(), b"lock_request:{k}:o:1:r");
        assert_eq!(request_key(b"a{k}", b"o", b"r").as_slice(), b"lock_request:a{k}:o:r");
    }

    #[test]
    fn keys_that_leave_their_slot_are_detected() {
        for (key, stays) in [
            ("k", true),
            ("a{k}", true),
            ("{k}b{c}", true),
            ("a}b", false),
            ("{}x", false),
            ("a{", false),
            ("", false),
        ] {
            assert_eq!(share_slot(key.as_bytes(), &counter_key(key.as_bytes())), stays, "{key}");
        }
    }
}
