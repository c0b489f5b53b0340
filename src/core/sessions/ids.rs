// SPDX-License-Identifier: MIT

//! The identities of sessions and their acquires, and the refusals of calls that name them.

use std::hash::{Hash, Hasher};

/// The secret id of a session: 128 random bits as 32 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SessionId(pub(crate) [u8; 32]);

impl Hash for SessionId {
    /// Hashes a part of the id. All its digits are random, and clients cannot choose them.
    fn hash<H: Hasher>(&self, state: &mut H) {
        if let Some(digits) = self.0.first_chunk() {
            state.write_u64(u64::from_ne_bytes(*digits));
        }
    }
}

/// The core's handle of a session. Handles are never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct SessionKey(pub(crate) u64);

/// The number of an acquire within its session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CallNumber {
    pub(crate) session: SessionKey,
    pub(crate) n: u64,
    /// A number stands for one acquire, so another target is a client error.
    pub(crate) target: Target,
}

/// Hash of the keys and the owner of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target(u64);

impl Target {
    /// Returns the target with this hash, of a call for one key or for several.
    pub(crate) fn new(hash: u64, is_several: bool) -> Target {
        Target(hash & !1 | u64::from(is_several))
    }

    /// Whether the call is for several keys.
    pub(in crate::core) fn is_several(self) -> bool {
        self.0 & 1 == 1
    }
}

/// The beat of a call is not greater than the session's last one (R16).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Late;

/// The number of a call was already used with other keys or another owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OtherTarget;
