// SPDX-License-Identifier: MIT

//! The hash of a lock, as it was read.

use crate::core::{Holders, Token};
use crate::keyspace::crowd::FoundCrowd;
use crate::keyspace::layout::{self, Field};
use crate::server::Str;

/// The sole owner, whose field is the only one.
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

/// The hash of a lock, as it was read.
pub(super) enum Stored<'a> {
    Nothing,
    /// The exclusive holds of this owner, and nothing else.
    Plain(PlainOwner<'a>, i64),
    /// The exclusive holds of the caller with a fencing token, and nothing else.
    Fenced(&'a Str<'a>, i64, Token),
    /// All fields, including those of expired leases, and their holders.
    Fields(Vec<Field>, Holders),
    /// A crowd of readers. [`Holders`] has the readers, with the changes of the current step.
    Crowd(FoundCrowd),
}

/// The fields of a hash with only this owner, and their holders.
pub(super) fn single_owner_fields(
    owner: &[u8],
    holds: i64,
    token: Option<Token>,
    expires_at: i64,
) -> (Vec<Field>, Holders) {
    let holders = layout::parse_single_owner(owner, holds, token, expires_at).unwrap_or(Holders::Free);
    let fields = layout::fields_for(&holders.iter().collect::<Vec<_>>());
    (fields.into_iter().map(|wanted| wanted.field).collect(), holders)
}
