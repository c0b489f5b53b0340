// SPDX-License-Identifier: MIT

//! Why a command was refused.

use std::fmt;

use crate::core::Refusal;

/// Every error that a client can get from the module; the text tells what to do. The prefixes are part of the
/// wire contract.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Error {
    /// The server's own, word for word.
    Other(String),
    /// The key holds another type, or a hash that is no lock of this kind.
    WrongType,
    /// Clients of another kind wait for the key: it is a fair lock of Redisson.
    FairLock,
    /// The owner holds nothing here.
    NotOwner,
    /// A newer token than this one was granted, or it is not known whether one was.
    OldToken,
    /// A command that is to be guarded is not carried out.
    NotGuarded(NotGuarded),
    /// Locks may have been forgotten whose leases still run, and nothing is granted.
    Quarantine {
        /// For how long, in milliseconds.
        ms: u64,
    },
    /// Too few replicas are online, for what a call asks for. Nothing has happened.
    TooFewReplicas {
        /// How many are.
        online: usize,
        /// How many there are to be.
        of: usize,
    },
    /// Too few replicas have acknowledged in time what a call has done.
    NotAcknowledged {
        /// How many have.
        got: usize,
        /// How many there are to be.
        of: usize,
        /// It was a grant, which is revoked.
        revoked: bool,
    },
    /// A waiter whose slot is served by another node now.
    Moved,
    /// A waiter that closed its side of the connection before it was answered.
    HungUp,
    /// The slot of the lock is on its way to another node, and not all that belongs to the lock is here.
    TryAgain,
    /// The keys are not in one slot.
    CrossSlot,
    /// A waiter on a server that became a replica.
    Demoted,
    /// Nobody's hold stands in the way, but something else does.
    Refused(Refusal),
    /// The same request was sent again on another connection, and waits there.
    Superseded,
    /// The request was cancelled, before it was made or while it waited.
    Cancelled,
    /// A call for several locks has the ID of one for others.
    OtherKeys,
    /// Waiting could never end; the text is the cycle.
    Deadlock(String),
    /// An argument is wrong; the text names it, and says what is right.
    Argument {
        /// The command, as the server calls it.
        command: &'static str,
        /// What is wrong, with the name of the argument.
        problem: String,
    },
    /// The server refused to block the client.
    CannotBlock,
    /// The user may not subscribe to the channel of an inbox.
    NoChannel,
}

/// Why a command is not carried out on behalf of somebody. Nothing has happened then.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum NotGuarded {
    /// Not one that can be carried out on behalf of somebody.
    NotAllowed,
    /// A script that no client calls itself. It can look at the lock itself.
    Script,
    /// The caller may not call it, or not with these keys or channels.
    NoPermission,
    /// It has keys of another slot.
    CrossSlot,
    /// It has keys that are not here while the slot is on its way to another node, or from it.
    TryAgain,
}

const CANCELLED: &str =
    "UNBLOCKED this request was cancelled by LOCK.CANCEL and holds nothing; to acquire again, use a new ID";

/// As the server words it for commands with several keys.
const CROSS_SLOT: &str = "CROSSSLOT Keys in request don't hash to the same slot";

/// The same.
const TRY_AGAIN: &str = "TRYAGAIN Multiple keys request during rehashing of slot";

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Error::Other(text) => f.write_str(text),
            Error::WrongType => {
                f.write_str("WRONGTYPE the key holds something that is no lock of this kind; choose another key")
            }
            Error::FairLock => f.write_str(
                "WRONGTYPE the key is a fair lock of Redisson, and somebody waits for it; choose another key",
            ),
            Error::NotOwner => f.write_str(
                "NOTOWNER this owner holds nothing on the lock: it was released, broken, or its lease is over; \
                 stop, and acquire anew",
            ),
            Error::OldToken => f.write_str(
                "NOTOWNER this token is out of date: a newer one was granted since, or its counter is gone; stop, and acquire anew",
            ),
            Error::Quarantine { ms } => write!(
                f,
                "QUARANTINE locks may be forgotten here, so none is granted for {ms} ms more; try again then, or wait with BLOCK"
            ),
            Error::TooFewReplicas { online, of } => {
                write!(f, "NOREPLICAS {online} replicas are online, not {of}; this call has done nothing, try again later")
            }
            Error::NotAcknowledged { got, of, revoked: true } => write!(
                f,
                "NOREPLICAS {got} of {of} replicas acknowledged the grant in time; it is undone, though the lock may still be \
                 held for a moment, so try again"
            ),
            Error::NotAcknowledged { got, of, revoked: false } => write!(
                f,
                "NOREPLICAS {got} of {of} replicas acknowledged the lease in time; the hold stands here, but a failover may \
                 lose it"
            ),
            Error::NotGuarded(refused) => f.write_str(match refused {
                NotGuarded::NotAllowed => {
                    "ERR this command cannot be guarded, only one that a script may call, in 'lock.guard' command"
                }
                NotGuarded::Script => {
                    "ERR a script can be guarded by a client only; let it call LOCK.CHECK before it writes, in 'lock.guard' command"
                }
                // As the server words these two.
                NotGuarded::NoPermission => {
                    "NOPERM this user has no permissions to run the guarded command or to access one of the keys or \
                     channels used as arguments"
                }
                NotGuarded::CrossSlot => CROSS_SLOT,
                NotGuarded::TryAgain => TRY_AGAIN,
            }),
            Error::Moved => f.write_str(
                "UNBLOCKED the slot of the lock is not served by this node any more; send the command again",
            ),
            Error::HungUp => f.write_str(
                "UNBLOCKED the connection was closed on the client's side, and the lock went to the next in line; \
                 connect and acquire again",
            ),
            Error::TryAgain => f.write_str(TRY_AGAIN),
            Error::CrossSlot => f.write_str(CROSS_SLOT),
            Error::Demoted => f.write_str(
                "UNBLOCKED this server is not the primary any more; send the command to the one that is",
            ),
            Error::Refused(refusal) => f.write_str(match refusal {
                Refusal::TooManyWaiters => {
                    "ERR too many waiters for this lock, see the setting lock.max-waiters; try again later"
                }
                Refusal::TooManyNotified => {
                    "ERR too many waits of this connection, see the setting lock.max-notify; try again later"
                }
                // As the server words it.
                Refusal::Replica => "READONLY You can't write against a read only replica.",
                Refusal::Overflow => {
                    "ERR this owner's hold count is at its maximum; release before acquiring again"
                }
                Refusal::NoCounter => {
                    "WRONGTYPE the key of the lock's fencing counter holds something that is no integer; \
                     delete it, or choose another key"
                }
                Refusal::CounterFull => {
                    "ERR the lock's fencing counter is at its maximum; choose another key"
                }
                Refusal::CounterMoved => TRY_AGAIN,
                Refusal::NoRecord => {
                    "WRONGTYPE the key in which the reply to this request is kept holds something else; \
                     choose another ID"
                }
                Refusal::Cancelled => CANCELLED,
                // As the server words it.
                Refusal::NoMemory => "OOM command not allowed when used memory > 'maxmemory'.",
                Refusal::OthersRecord => {
                    "ERR another owner's request has the same name as this one; choose another ID"
                }
            }),
            Error::Superseded => f.write_str(
                "UNBLOCKED the same request was sent again on another connection, and waits there; wait for that reply",
            ),
            Error::Cancelled => f.write_str(CANCELLED),
            Error::OtherKeys => f.write_str(
                "ERR a call with this ID was made before, for other keys or for some of these only; choose another ID",
            ),
            Error::Deadlock(cycle) => write!(f, "DEADLOCK waiting could never end: {cycle}"),
            Error::Argument { command, problem } => write!(f, "ERR {problem} in '{command}' command"),
            // As the server words it.
            Error::NoChannel => f.write_str(
                "NOPERM this user has no permissions to access one of the channels used as arguments",
            ),
            Error::CannotBlock => f.write_str("ERR this client cannot wait for a lock; call without BLOCK"),
        }
    }
}

/// Bytes of a client, fit for an error text: printable, on one line, and not too long.
pub(crate) fn printable(bytes: &[u8]) -> String {
    printable_up_to(bytes, 64)
}

/// The same with another length.
pub(crate) fn printable_up_to(bytes: &[u8], longest: usize) -> String {
    let mut text =
        bytes.iter().take(longest).copied().flat_map(std::ascii::escape_default).collect::<Vec<u8>>();
    if bytes.len() > longest {
        text.extend_from_slice(b"...");
    }
    String::from_utf8_lossy(&text).into_owned()
}
