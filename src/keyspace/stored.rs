// SPDX-License-Identifier: MIT

//! The hash of a lock as a step finds it.

use crate::core::{Holders, Token};
use crate::keyspace::crowd::FoundCrowd;
use crate::keyspace::layout::Field;
use crate::server::Str;

/// The owner whose field is the only one.
pub(super) enum PlainOwner<'a> {
    Caller(&'a Str<'a>),
    Other(Str<'static>),
}

impl PlainOwner<'_> {
    pub(super) fn name(&self) -> &Str<'_> {
        match self {
            PlainOwner::Caller(name) => name,
            PlainOwner::Other(name) => name,
        }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        self.name().as_bytes()
    }
}

/// The hash of a lock as it was found.
pub(super) enum Stored<'a> {
    Nothing,
    /// The exclusive holds of this owner, and nothing else.
    Plain(PlainOwner<'a>, i64),
    /// The exclusive holds of the caller with a fencing token, and nothing else.
    Fenced(&'a Str<'a>, i64, Token),
    /// All fields, with what leases that are over have left behind, and who holds the lock by them.
    Fields(Vec<Field>, Holders),
    /// A crowd of readers, who are the holders, with what the step at hand changes of them.
    Crowd(FoundCrowd),
}
