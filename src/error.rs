// SPDX-License-Identifier: MIT

//! The errors that a client can get, and their texts.

use std::fmt;

use crate::core::Refusal;

/// An error reply. Its text says what is wrong and then what to do. The prefixes are part of the wire contract, and clients match
/// these phrases of the texts: "too many", "send the command" and "the same request was sent again".
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// An error of the server itself, word for word.
    FromServer(String),
    /// The key holds another type, or a hash that is not a lock of this module.
    WrongType,
    /// The key is a Redisson fair lock with waiters, which have their own queue.
    FairLock,
    /// The owner does not hold the lock.
    NotOwner,
    /// A newer token than this one was granted, or the counter is gone.
    OldToken,
    /// The guarded command was not run.
    NotGuarded(NotGuarded),
    /// Locks whose leases still run may have been lost, so nothing is granted.
    Quarantine {
        /// The remaining time of the quarantine, in milliseconds.
        ms: u64,
    },
    /// Fewer replicas are online than the call needs. Nothing was changed.
    TooFewReplicas {
        /// The number of replicas that are online.
        online: usize,
        /// The number of replicas that the call needs.
        needed: usize,
    },
    /// Too few replicas acknowledged the call in time.
    NotAcknowledged {
        /// The number of replicas that acknowledged.
        got: usize,
        /// The number of replicas that the call needs.
        of: usize,
        /// Whether the call was a grant, which is revoked. Otherwise the new lease stays.
        revoked: bool,
    },
    /// The slot of a waiter's lock has moved to another node.
    Moved,
    /// A waiter closed its side of the connection before it got a reply.
    HungUp,
    /// The slot of the lock is migrating, and some keys of the lock are not on this node.
    TryAgain,
    /// The keys are in different slots.
    CrossSlot,
    /// The server of a waiter has become a replica.
    Demoted,
    /// The core refused the request for a reason other than a holder.
    Refused(Refusal),
    /// A newer connection has sent the same request again, and waits for it.
    Superseded,
    /// The request was cancelled before it arrived or while it waited.
    Cancelled,
    /// A call for several locks has an ID that was used with other keys.
    OtherKeys,
    /// Only some of the locks have a grant of this request: it had other keys, or a connection has ended its other holds.
    GrantedInPart,
    /// Waiting would never end; the text is the cycle.
    Deadlock(String),
    /// An argument is wrong; the text is the whole error without its prefix.
    Argument(String),
    /// The server does not know the session, or it belongs to another user.
    NoSession,
    /// A later call of the same client came first.
    Late,
    /// A number was used before with other keys or another owner.
    OtherTarget,
    /// An acquire of a session was cancelled before it arrived or while it waited.
    NumberCancelled,
    /// The lock of an acquire of a session has the maximum number of waiters.
    QueueIsFull,
    /// The server has as many waiting clients as it may have.
    ServerIsFull,
    /// The server has as many sessions as it may have.
    TooManySessions,
    /// The server refuses all writes, so leases are not renewed.
    CannotRenew,
    /// Leases are due for renewal, and the call cannot wait for it.
    RenewalsDue,
    /// `CLIENT UNBLOCK` has ended the wait for a due renewal.
    Unblocked,
    /// The server refused to block the client.
    CannotBlock,
}

/// The reason why a guarded command was not run. It changed nothing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGuarded {
    /// The command cannot be run on behalf of a client.
    NotAllowed,
    /// A script was called by a script, which can use `LOCK.CHECK` itself.
    Script,
    /// The caller may not run the command, or may not access these keys or channels.
    NoPermission,
    /// The command has keys in another slot.
    CrossSlot,
    /// The slot is migrating, and some keys of the command are not on this node.
    TryAgain,
}

const CANCELLED: &str =
    "UNBLOCKED request was cancelled by LOCK.CANCEL and holds nothing; use a new ID to acquire again";

/// The server's own text for commands with several keys.
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// The server's own text for commands with several keys.
const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::FromServer(text) => f.write_str(text),
            Error::WrongType => f.write_str("WRONGTYPE key does not hold a lock; use another key"),
            Error::FairLock => {
                f.write_str("WRONGTYPE key is a Redisson fair lock with waiters; use another key")
            }
            Error::NotOwner => {
                f.write_str("NOTOWNER lock was released, broken or expired; stop and acquire it again")
            }
            Error::OldToken => f.write_str(
                "NOTOWNER token is out of date, or the fencing counter is gone; stop and acquire the lock again",
            ),
            Error::Quarantine { ms } => write!(
                f,
                "QUARANTINE locks may have been lost; no grants for {ms} ms, try again then or wait with BLOCK"
            ),
            Error::TooFewReplicas { online, needed } => write!(
                f,
                "NOREPLICAS {online} of {needed} replicas are online; nothing was changed, try again later"
            ),
            Error::NotAcknowledged { got, of, revoked: true } => write!(
                f,
                "NOREPLICAS {got} of {of} replicas acknowledged the grant in time; it was revoked, try again in a moment"
            ),
            Error::NotAcknowledged { got, of, revoked: false } => write!(
                f,
                "NOREPLICAS {got} of {of} replicas acknowledged the lease in time; a failover may lose the hold, try again"
            ),
            Error::NotGuarded(reason) => f.write_str(match reason {
                NotGuarded::NotAllowed => {
                    "ERR command cannot be guarded in 'lock.guard' command; use one that scripts may call"
                }
                NotGuarded::Script => {
                    "ERR only a client can guard a script in 'lock.guard' command; call LOCK.CHECK in the script"
                }
                // Follows the server's own NOPERM messages, but does not name the command.
                NotGuarded::NoPermission => concat!(
                    "NOPERM this user has no permissions to run the guarded command ",
                    "or to access one of the keys or channels used as arguments"
                ),
                NotGuarded::CrossSlot => CROSS_SLOT,
                NotGuarded::TryAgain => TRY_AGAIN,
            }),
            Error::Moved => f.write_str("UNBLOCKED slot of the lock has moved to another node; send the command again"),
            Error::HungUp => f.write_str(
                "UNBLOCKED client closed the connection, so the grant was revoked; connect and acquire again",
            ),
            Error::TryAgain => f.write_str(TRY_AGAIN),
            Error::CrossSlot => f.write_str(CROSS_SLOT),
            Error::Demoted => {
                f.write_str("UNBLOCKED server is no longer the primary; send the command to the new primary")
            }
            Error::Refused(refusal) => f.write_str(match refusal {
                Refusal::TooManyWaiters => {
                    "ERR too many waiters for this lock; try again later, or raise lock.max-waiters"
                }
                // The server's own text.
                Refusal::Replica => "READONLY You can't write against a read only replica.",
                Refusal::Overflow => "ERR hold count of the owner is at its maximum; release a hold first",
                Refusal::NoCounter => {
                    "WRONGTYPE fencing counter of the lock is not an integer; delete its key, or use another lock"
                }
                Refusal::CounterFull => "ERR fencing counter of the lock is at its maximum; use another lock",
                Refusal::CounterMoved => TRY_AGAIN,
                Refusal::NoRecord => "WRONGTYPE key for the record of this request holds other data; use another ID",
                Refusal::Cancelled => CANCELLED,
                // The server's own text.
                Refusal::NoMemory => "OOM command not allowed when used memory > 'maxmemory'.",
                Refusal::OthersRecord => "ERR request of another owner has the same record key; use another ID",
            }),
            Error::Superseded => f.write_str(
                "UNBLOCKED the same request was sent again on another connection; wait for the reply there",
            ),
            Error::Cancelled => f.write_str(CANCELLED),
            Error::GrantedInPart => f.write_str(
                "ERR ID was used before with other keys, or lacks some of its holds; cancel it with each key, and use another ID",
            ),
            Error::OtherKeys => f.write_str("ERR ID was used before with other keys; use another ID"),
            Error::Deadlock(cycle) => write!(f, "DEADLOCK waiting could never end: {cycle}"),
            Error::Argument(text) => write!(f, "ERR {text}"),
            Error::NoSession => {
                f.write_str("NOSESSION session is over or belongs to another user; open a new one")
            }
            Error::Late => {
                f.write_str("LATE a later call of this session came first; nothing was changed, use the later reply")
            }
            Error::OtherTarget => {
                f.write_str("ERR number was used before with another key or owner; use a new number")
            }
            Error::NumberCancelled => f.write_str(
                "CANCELLED acquire was cancelled by LOCK.CANCEL and holds nothing; use a new number to acquire again",
            ),
            Error::QueueIsFull => f.write_str(
                "LIMIT too many waiters for this lock; try again later, or raise lock.max-waiters",
            ),
            Error::ServerIsFull => f.write_str(
                "ERR too many waiters on this server; try again later, or raise lock.max-waiters-total or maxclients",
            ),
            Error::TooManySessions => {
                f.write_str("LIMIT too many sessions; close some, or raise lock.max-sessions")
            }
            Error::CannotRenew => {
                f.write_str("MISCONF server refuses writes, so leases are not renewed; see its log, try again later")
            }
            Error::Unblocked => {
                f.write_str("UNBLOCKED client was unblocked while leases are due for renewal; call LOCK.EVENTS again")
            }
            Error::RenewalsDue => f.write_str("ERR leases are due for renewal; call LOCK.EVENTS outside of MULTI"),
            Error::CannotBlock => f.write_str("ERR client cannot be blocked; call without BLOCK"),
        }
    }
}

/// A client's bytes for an error or log text: printable, on one line, at most 64 bytes before escaping.
pub(crate) fn printable(bytes: &[u8]) -> String {
    printable_up_to(bytes, 64)
}

/// A client's bytes for an error or log text: printable, on one line, at most `max` bytes before escaping.
pub(crate) fn printable_up_to(bytes: &[u8], max: usize) -> String {
    let mut text = bytes.iter().take(max).copied().flat_map(std::ascii::escape_default).collect::<Vec<u8>>();
    if bytes.len() > max {
        text.extend_from_slice(b"...");
    }
    String::from_utf8_lossy(&text).into_owned()
}
