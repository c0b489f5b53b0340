// SPDX-License-Identifier: MIT

//! The owner of a hold or of a wait.

use std::borrow::Borrow;
use std::cmp::Ordering;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::rc::Rc;

/// Maximum length of a name that is stored inline. Redisson's names, a UUID and a thread number, are shorter.
const MAX_INLINE: usize = 54;

/// The identity that holds a lock: an opaque byte string chosen by the client. Cheap to clone.
#[derive(Clone)]
pub(crate) struct Owner(Name);

#[derive(Clone)]
enum Name {
    Short { len: u8, bytes: [u8; MAX_INLINE] },
    Long(Rc<[u8]>),
}

impl Owner {
    #[inline]
    pub(crate) fn new(name: &[u8]) -> Owner {
        match u8::try_from(name.len()) {
            Ok(len) if name.len() <= MAX_INLINE => {
                let mut bytes = [0; MAX_INLINE];
                bytes[..name.len()].copy_from_slice(name);
                Owner(Name::Short { len, bytes })
            }
            _ => Owner(Name::Long(Rc::from(name))),
        }
    }

    #[inline]
    pub(crate) fn as_bytes(&self) -> &[u8] {
        match &self.0 {
            Name::Short { len, bytes } => &bytes[..usize::from(*len)],
            Name::Long(bytes) => bytes,
        }
    }
}

/// The owners whose holds a step may have ended.
#[derive(Clone, Copy)]
pub(super) enum AffectedOwners<'a> {
    /// The calling owner only.
    Only(&'a Owner),
    Any,
}

/// Owners are compared, hashed and looked up by their bytes.
impl Borrow<[u8]> for Owner {
    fn borrow(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl PartialEq for Owner {
    fn eq(&self, other: &Owner) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl Eq for Owner {}

impl PartialOrd for Owner {
    fn partial_cmp(&self, other: &Owner) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Owner {
    fn cmp(&self, other: &Owner) -> Ordering {
        self.as_bytes().cmp(other.as_bytes())
    }
}

impl Hash for Owner {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_bytes().hash(state);
    }
}

impl fmt::Debug for Owner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Owner({})", self.as_bytes().escape_ascii())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use super::{Owner, MAX_INLINE};

    #[test]
    fn owners_compare_as_their_bytes() {
        let names: Vec<Vec<u8>> = [0, 1, MAX_INLINE - 1, MAX_INLINE, MAX_INLINE + 1, 255, 256, 1024]
            .into_iter()
            .map(|len| (0..len).map(|at| u8::try_from(at % 251).unwrap()).collect())
            .collect();
        let by_owner: HashMap<Owner, usize> =
            names.iter().map(|name| (Owner::new(name), name.len())).collect();
        for name in &names {
            let owner = Owner::new(name);
            assert_eq!(owner.as_bytes(), &name[..]);
            assert_eq!(owner.clone(), owner);
            assert_eq!(by_owner.get(&name[..]), Some(&name.len()));
        }
        let mut owners: Vec<Owner> = names.iter().rev().map(|name| Owner::new(name)).collect();
        owners.sort();
        assert!(owners.iter().map(Owner::as_bytes).eq(names.iter().map(|name| &name[..])));
        // Padding after the end of a short name does not count.
        assert_ne!(Owner::new(b"a"), Owner::new(b"a\0"));
        assert_eq!(size_of::<Owner>(), 56);
    }
}
