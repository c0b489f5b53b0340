// SPDX-License-Identifier: MIT

//! What a caller claims of a lock, and whether that is true: `OWNER owner | TOKEN token`.

use super::args::Cursor;
use super::options::OWNER;
use crate::core::Token;
use crate::error::Error;
use crate::keyspace;
use crate::server::registration::arguments::{Argument, ArgumentKind};
use crate::server::{Ctx, Str};

/// What a caller claims.
pub(super) enum Claim<'a> {
    /// That this owner holds the lock.
    Owner(Str<'a>),
    /// That nobody was granted the lock with a newer token than this one.
    Token(Token),
}

/// The words that a claim is made of.
pub(super) const CLAIM: Argument = {
    const HOLDS: Argument = OWNER.after(c"OWNER");
    const TOKEN: Argument =
        Argument::new(c"token", ArgumentKind::Integer, c"is not older than the newest that was granted")
            .after(c"TOKEN");
    let says = c"is what has to be true: that this owner holds the lock, or that no newer token than this one was granted";
    Argument::new(c"claim", ArgumentKind::OneOf(&[HOLDS, TOKEN]), says)
};

/// What is so, as a claim that is true.
pub(super) struct Proof {
    /// How many holds the owner has; 1 for a token.
    pub(super) holds: i64,
    /// The token, if it is newer than the newest that this server knows: the last writes of another primary were lost.
    pub(super) ahead: Option<Token>,
}

impl<'a> Claim<'a> {
    pub(super) fn parse(args: &mut Cursor<'a>, ctx: Ctx<'_>, key: &Str<'_>) -> Result<Claim<'a>, Error> {
        match args.next().unwrap_or_default() {
            word if word.eq_ignore_ascii_case(b"OWNER") => Ok(Claim::Owner(args.owner()?)),
            word if word.eq_ignore_ascii_case(b"TOKEN") => {
                let token = args.token()?;
                args.has_counter_here(ctx, "TOKEN", key)?;
                Ok(Claim::Token(token))
            }
            word => Err(args.neither(word, "OWNER", "TOKEN")),
        }
    }

    /// Looks whether it is true, without touching anything; works on a replica.
    pub(super) fn prove(&self, ctx: Ctx<'_>, key: &Str<'_>) -> Result<Proof, Error> {
        match self {
            Claim::Owner(owner) => match keyspace::count_holds(ctx, key, owner)? {
                0 => Err(Error::NotOwner),
                holds => Ok(Proof { holds, ahead: None }),
            },
            Claim::Token(token) => match keyspace::newest_token(ctx, key).map_err(Error::Refused)? {
                Some(newest) if newest == *token => Ok(Proof { holds: 1, ahead: None }),
                Some(newest) if newest < *token && *token <= latest(ctx, newest) => {
                    Ok(Proof { holds: 1, ahead: Some(*token) })
                }
                _ => Err(Error::OldToken),
            },
        }
    }
}

/// No token is later that can have been granted although the counter is at `newest`, as the last writes of another primary were
/// lost: that primary's clock may be an hour ahead, and its counter may have been ahead of its clock.
fn latest(ctx: Ctx<'_>, newest: Token) -> Token {
    const HOUR_US: Token = 3_600_000_000;
    const GRANTS: Token = 1_000_000;
    ctx.time_us().saturating_add(HOUR_US).max(newest.saturating_add(GRANTS))
}
