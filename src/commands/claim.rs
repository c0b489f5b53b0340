// SPDX-License-Identifier: MIT

//! The claim of a call, `OWNER owner | TOKEN token`, and its verification.

use super::args::{CommandName, Cursor};
use super::checks;
use super::options::OWNER;
use crate::core::Token;
use crate::error::Error;
use crate::keyspace;
use crate::server::registration::arguments::{Argument, ArgumentKind};
use crate::server::{Ctx, Str};

/// A claim about a lock.
pub(super) enum Claim<'a> {
    /// This owner holds the lock.
    Owner(Str<'a>),
    /// No newer token than this one was granted.
    Token(Token),
}

/// The arguments of a claim.
pub(super) const CLAIM: Argument = {
    const HOLDER: Argument = OWNER.after(c"OWNER");
    const TOKEN: Argument =
        Argument::new(c"token", ArgumentKind::Integer, c"the token of the caller").after(c"TOKEN");
    let summary = c"the claim: this owner holds the lock, or no newer token was granted";
    Argument::new(c"claim", ArgumentKind::OneOf(&[HOLDER, TOKEN]), summary)
};

/// The facts that confirm a true claim.
pub(super) struct Proof {
    /// The hold count of the owner; 1 for a token.
    pub(super) holds: i64,
    /// The token, if it is newer than every token that this server knows. That happens if the last writes of
    /// an earlier primary were lost.
    pub(super) token_ahead: Option<Token>,
}

impl<'a> Claim<'a> {
    pub(super) fn parse(args: &mut Cursor<'a>) -> Result<Claim<'a>, Error> {
        match args.next().unwrap_or_default() {
            word if word.eq_ignore_ascii_case(b"OWNER") => Ok(Claim::Owner(args.owner()?)),
            word if word.eq_ignore_ascii_case(b"TOKEN") => Ok(Claim::Token(args.token()?)),
            word => Err(args.neither(word, "OWNER", "TOKEN")),
        }
    }

    /// Fails in a cluster if the fencing counter, which `TOKEN` needs, would not be in the slot of the lock.
    pub(super) fn check_slot(&self, ctx: Ctx<'_>, command: CommandName, key: &Str<'_>) -> Result<(), Error> {
        match self {
            Claim::Owner(_) => Ok(()),
            Claim::Token(_) => checks::counter_slot(ctx, command, "TOKEN", key),
        }
    }

    /// Verifies the claim. Changes nothing, and works on a replica.
    pub(super) fn verify(&self, ctx: Ctx<'_>, key: &Str<'_>) -> Result<Proof, Error> {
        match self {
            Claim::Owner(owner) => match keyspace::count_holds(ctx, key, owner)? {
                0 => Err(Error::NotOwner),
                holds => Ok(Proof { holds, token_ahead: None }),
            },
            Claim::Token(token) => match keyspace::newest_token(ctx, key).map_err(Error::Refused)? {
                Some(newest) if newest == *token => Ok(Proof { holds: 1, token_ahead: None }),
                Some(newest) if newest < *token && *token <= latest_lost_token(ctx, newest) => {
                    Ok(Proof { holds: 1, token_ahead: Some(*token) })
                }
                _ => Err(Error::OldToken),
            },
        }
    }
}

/// The greatest token that an earlier primary may have granted without this server's knowledge, given the
/// counter at `newest`. The clock of that primary may have been up to an hour ahead of this server's clock,
/// and its counter ahead of its clock.
fn latest_lost_token(ctx: Ctx<'_>, newest: Token) -> Token {
    const HOUR_US: Token = 3_600_000_000;
    const GRANTS: Token = 1_000_000;
    ctx.time_us().saturating_add(HOUR_US).max(newest.saturating_add(GRANTS))
}
