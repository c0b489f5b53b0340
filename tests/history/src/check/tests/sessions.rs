// SPDX-License-Identifier: MIT

//! Histories with sessions.
//!
//! `OPEN BEAT = ID` opens a session with a GRACE of 300 ms and a TTL of 1,000 ms. `EVENTS ID BEAT = EVENT …` reads events, such
//! as `granted:NUMBER:HOLDS`, `granted:NUMBER:HOLDS:TOKEN` and `lost:NUMBER:REASON`, or `none`. `SESSION ID NUMBER` gives other
//! calls their number.

use serde_json::{json, Value};

use super::{accepts, refuses};
use crate::check::Rule;
use crate::record::{Command, Events, Number, OpenSession};

pub(super) fn number_of(words: &[&str]) -> Option<Number> {
    let at = words.iter().position(|word| *word == "SESSION")?;
    Some(Number { id: words[at + 1].to_owned(), n: words[at + 2].parse().unwrap() })
}

pub(super) fn command(name: &str, words: &[&str]) -> Option<Command> {
    let number = |at: usize| words[at].parse::<i64>().unwrap();
    Some(match name {
        "OPEN" => Command::OpenSession(OpenSession {
            session_id: words.get(1).map(|id| (*id).to_owned()),
            beat: number(0),
            ttl: 1_000,
            grace: 300,
        }),
        "EVENTS" => Command::Events(Events {
            session_id: words[0].to_owned(),
            beat: number(1),
            count: words.get(2).map_or(1_000, |count| count.parse().unwrap()),
            ..Events::default()
        }),
        "CLOSE" => Command::CloseSession { session_id: words[0].to_owned() },
        _ => return None,
    })
}

pub(super) fn value(command: &Command, text: &str) -> Value {
    if matches!(command, Command::OpenSession(_)) {
        return json!([text.trim(), 0]);
    }
    let event = |word: &str| {
        let number = |text: &str| text.parse::<i64>().map_or(Value::from(text), Value::from);
        let parts = word.split(':').map(number);
        std::iter::once(Value::from(1)).chain(parts).collect::<Value>()
    };
    text.split_whitespace().filter(|word| *word != "none").map(event).collect()
}

/// A hold of `a` from 20 ms, which is safe until 410 ms.
const SAFE: &str = "1 0..1 OPEN 1 = s\n2 10..11 ACQUIRE k a SESSION s 1 QUEUE 0 = 0\n\
                    1 12..20 EVENTS s 2 = granted:1:1\n1 110..111 EVENTS s 3 = none\n";

fn after(lines: &str) -> String {
    format!("{SAFE}{lines}")
}

#[test]
fn safe_holds_exclude_other_owners() {
    refuses(Rule::Exclusion, &after("3 400..405 ACQUIRE k b PX 50 = 1"));
    // The grant in flight is a hold, too, and so is one with a reply.
    refuses(Rule::Exclusion, &after("3 21..22 ACQUIRE k b PX 50 = 1"));
    refuses(
        Rule::Exclusion,
        "1 0..1 OPEN 1 = s\n1 2..3 EVENTS s 2 = none\n2 10..11 ACQUIRE k a SESSION s 1 = 1\n\
         3 290..300 ACQUIRE k b PX 50 = 1",
    );
    // Two sessions.
    refuses(
        Rule::Exclusion,
        &after(
            "3 0..1 OPEN 1 = t\n3 100..101 EVENTS t 2 = none\n4 200..201 ACQUIRE k b SESSION t 1 QUEUE 0 = 0\n\
             3 202..220 EVENTS t 3 = granted:1:1",
        ),
    );
    // A closed connection changes nothing.
    refuses(Rule::Exclusion, &after("close 1 112\nclose 2 112\n3 400..405 ACQUIRE k b PX 50 = 1"));
    // A renewal was refused before the grant.
    let waits = "1 0..1 OPEN 1 = s\n2 2..3 ACQUIRE k a SESSION s 1 QUEUE 0 = 0\n2 4..5 RENEW k a SESSION s 1 = !NOTOWNER\n";
    let grant =
        "1 6..20 EVENTS s 2 = granted:1:1\n1 110..111 EVENTS s 3 = none\n3 400..405 ACQUIRE k b PX 50 = 1";
    refuses(Rule::Exclusion, &format!("{waits}{grant}"));
    // Between two confirming calls: a lost hold stays lost.
    refuses(Rule::Exclusion, &after("3 450..455 ACQUIRE k b PX 5 = 1\n1 500..501 EVENTS s 4 = none"));
    // A hold that was declared in a new session.
    refuses(
        Rule::Exclusion,
        &after(
            "1 500..501 EVENTS s 4 = !NOSESSION\n1 502..503 OPEN 5 = t\n2 504..505 RENEW k a SESSION t 2 = 1\n\
             1 506..507 EVENTS t 6 = none\n3 700..705 ACQUIRE k b PX 50 = 1",
        ),
    );
    // With a lease of its own.
    refuses(
        Rule::Exclusion,
        "1 0..1 OPEN 1 = s\n1 2..3 EVENTS s 2 = none\n2 10..11 ACQUIRE k a PX 100 SESSION s 1 = 1\n\
         3 90..95 ACQUIRE k b PX 50 = 1",
    );
}

#[test]
fn holds_without_proof_exclude_nobody() {
    // After the safe time.
    accepts(&after("3 405..411 ACQUIRE k b PX 50 = 1"));
    // Calls that do not confirm: OPEN, an error, too many events, or no reply.
    accepts(&after("1 200..201 OPEN 4 s = s\n3 405..411 ACQUIRE k b PX 50 = 1"));
    accepts(&after(
        "fault full 190..210\n1 200..201 EVENTS s 4 = !MISCONF\n3 405..411 ACQUIRE k b PX 50 = 1",
    ));
    accepts(&after("1 200..201 EVENTS s 4 1 = granted:1:1\n3 405..411 ACQUIRE k b PX 50 = 1"));
    accepts(&after("1 200..201 EVENTS s 4 = ?\n3 405..411 ACQUIRE k b PX 50 = 1"));
    // A refused release takes the event with it, so later calls confirm nothing.
    accepts(&after(
        "3 450..455 ACQUIRE k b PX 5 = 1\n2 456..457 RELEASE k a SESSION s 1 = !NOTOWNER\n1 500..501 EVENTS s 4 = none",
    ));
    // A release or the end of the session was sent, or the client read of the loss.
    accepts(&after("2 120..200 RELEASE k a SESSION s 1 = 0\n3 130..131 ACQUIRE k b PX 50 = 1"));
    accepts(&after("2 120..121 RELEASE k a SESSION s 1 = ?\n3 130..131 ACQUIRE k b PX 50 = 1"));
    accepts(&after("2 120..200 CLOSE s = 1\n3 130..131 ACQUIRE k b PX 50 = 1"));
    accepts(&after(
        "3 120..121 BREAK k = 1\n3 122..123 ACQUIRE k b PX 50 = 1\n1 124..125 EVENTS s 4 = lost:1:broken",
    ));
    accepts(&after("2 120..121 CANCEL k a SESSION s 1 = 1\n3 122..123 ACQUIRE k b PX 50 = 1"));
    // The hold was declared in a new session, which was closed.
    let declared = after(
        "1 120..121 OPEN 5 = t\n2 122..123 RENEW k a EPHEMERAL SESSION t 2 = 1\n1 124..125 EVENTS t 6 = none\n",
    );
    accepts(&format!("{declared}2 130..131 CLOSE t = 1\n3 132..133 ACQUIRE k b PX 50 = 1"));
    refuses(Rule::Exclusion, &format!("{declared}3 132..133 ACQUIRE k b PX 50 = 1"));
    // A query saw a grant that the client never got, after an earlier hold of the same owner.
    let again =
        after("2 120..121 RELEASE k a SESSION s 1 = 0\n2 122..123 ACQUIRE k a SESSION s 2 QUEUE 100 = 0\n");
    accepts(&format!("{again}2 130..131 CHECK k OWNER a = 1\n3 132..133 ACQUIRE k b PX 50 = 1"));
    // The query saw a grant with a lease of its own, whose event arrived after the query.
    let leased = again.replace("a SESSION s 2", "a PX 20 SESSION s 2");
    let seen = "2 130..131 CHECK k OWNER a = 1\n1 125..132 EVENTS s 4 = granted:2:1\n";
    accepts(&format!("{leased}{seen}3 160..161 ACQUIRE k b PX 50 = 1"));
    // The lease is over, which the session does not renew.
    accepts(
        "1 0..1 OPEN 1 = s\n1 2..3 EVENTS s 2 = none\n2 10..11 ACQUIRE k a PX 100 SESSION s 1 = 1\n\
         3 120..121 ACQUIRE k b PX 50 = 1",
    );
    // A restart without its data, or a clock that is set forward.
    accepts(&after("fault loss 112..120\n3 121..122 ACQUIRE k b PX 50 = 1"));
    accepts(&after("fault forward 112..120\n3 121..122 ACQUIRE k b PX 50 = 1"));
}

#[test]
fn safe_holds_are_not_lost() {
    refuses(Rule::Count, &after("2 120..121 RELEASE k a SESSION s 1 = !NOTOWNER"));
    refuses(Rule::Count, &after("2 120..121 CHECK k OWNER a = !NOTOWNER"));
    refuses(Rule::Count, &after("1 120..121 EVENTS s 4 = lost:1:expired"));
    refuses(Rule::Count, &after("1 120..121 EVENTS s 4 = lost:1:overdue"));
    accepts(&after("2 405..411 RELEASE k a SESSION s 1 = !NOTOWNER"));
    accepts(&after("1 405..411 EVENTS s 4 = lost:1:expired"));
}

#[test]
fn late_release_spares_a_later_hold() {
    let again = "2 120..121 RELEASE k a SESSION s 1 = 0\n2 130..131 ACQUIRE k a SESSION s 2 = 1\n";
    accepts(&after(&format!(
        "{again}4 140..141 RELEASE k a SESSION s 1 = 0\n2 150..151 CHECK k OWNER a = 1"
    )));
    let late = after(&format!("{again}4 140..141 RELEASE k a SESSION s 1 = 0\n"));
    refuses(Rule::Exclusion, &format!("{late}3 142..143 ACQUIRE k b PX 50 = 1"));
    refuses(Rule::Count, &format!("{late}2 150..151 RELEASE k a SESSION s 2 = !NOTOWNER"));
}

#[test]
fn numbers_keep_their_outcome() {
    // Granted, and seen so twice.
    accepts(&after("2 120..121 ACQUIRE k a SESSION s 1 QUEUE 0 = 1"));
    refuses(Rule::Retry, &after("2 120..121 ACQUIRE k a SESSION s 1 QUEUE 0 = 2"));
    refuses(Rule::Retry, &after("2 120..121 ACQUIRE k a SESSION s 1 QUEUE 0 = 0"));
    refuses(Rule::Retry, &after("2 120..121 ACQUIRE k a SESSION s 1 QUEUE 0 = nil"));
    // Released.
    let released = after("2 120..121 RELEASE k a SESSION s 1 = 0\n");
    accepts(&format!("{released}2 122..123 ACQUIRE k a SESSION s 1 QUEUE 0 = !NOTOWNER"));
    accepts(&format!("{released}2 122..123 RELEASE k a SESSION s 1 = 0"));
    refuses(Rule::Retry, &format!("{released}2 122..123 ACQUIRE k a SESSION s 1 QUEUE 0 = 1"));
    refuses(Rule::Retry, &format!("{released}2 122..123 ACQUIRE k a SESSION s 1 QUEUE 0 = 0"));
    refuses(Rule::Retry, &format!("{released}2 122..123 RENEW k a SESSION s 1 = 1"));
    // Lost, nil, or cancelled before it was seen.
    refuses(
        Rule::Retry,
        &after("1 420..421 EVENTS s 4 = lost:1:expired\n2 422..423 ACQUIRE k a SESSION s 1 QUEUE 0 = 1"),
    );
    refuses(
        Rule::Retry,
        "1 0..1 OPEN 1 = s\n3 2..3 ACQUIRE k b PX 50 = 1\n2 10..11 ACQUIRE k a SESSION s 1 = nil\n\
         2 100..101 ACQUIRE k a SESSION s 1 = 1",
    );
    refuses(
        Rule::Cancel,
        "1 0..1 OPEN 1 = s\n2 2..3 CANCEL k a SESSION s 1 = 0\n2 10..11 ACQUIRE k a SESSION s 1 = 1",
    );
    accepts(
        "1 0..1 OPEN 1 = s\n2 2..3 CANCEL k a SESSION s 1 = 0\n2 10..11 ACQUIRE k a SESSION s 1 = !CANCELLED",
    );
}

#[test]
fn tokens_of_events_must_grow() {
    let waits = "1 0..1 OPEN 1 = s\n3 2..3 ACQUIRE k b PX 50 FENCE = 1/7\n\
                 2 10..11 ACQUIRE k a FENCE SESSION s 1 QUEUE 0 = 0\n";
    accepts(&format!("{waits}1 60..61 EVENTS s 2 = granted:1:1:8"));
    refuses(Rule::Token, &format!("{waits}1 60..61 EVENTS s 2 = granted:1:1:7"));
    refuses(Rule::Token, &format!("{waits}1 60..61 EVENTS s 2 = granted:1:1:6"));
}

#[test]
fn late_beats_have_no_effect() {
    accepts(&after("3 120..121 EVENTS s 2 = !LATE\n1 130..131 EVENTS s 4 = none"));
    // A newer call ends a blocked one.
    accepts(&after("1 120..131 EVENTS s 4 = !LATE\n3 130..132 EVENTS s 5 = none"));
    refuses(Rule::Error, &after("3 120..121 EVENTS s 2 = none"));
    refuses(Rule::Error, &after("3 120..121 EVENTS s 3 = none"));
    refuses(Rule::Error, &after("3 120..121 EVENTS s 4 = !LATE"));
}

#[test]
fn waits_of_sessions_end_in_time() {
    let waits =
        "1 0..1 OPEN 1 = s\n3 2..3 ACQUIRE k b PX 500 = 1\n2 10..11 ACQUIRE k a SESSION s 1 QUEUE 100 = 0\n";
    accepts(&format!("{waits}1 60..111 EVENTS s 2 = lost:1:timeout"));
    refuses(Rule::Time, &format!("{waits}1 60..70 EVENTS s 2 = lost:1:timeout"));
    // The reply of the first call was lost.
    let waits =
        "1 0..1 OPEN 1 = s\n3 2..3 ACQUIRE k b PX 500 = 1\n2 10..11 ACQUIRE k a SESSION s 1 QUEUE 100 = ?\n";
    let repeated = "2 120..121 ACQUIRE k a SESSION s 1 QUEUE 100 = !NOSESSION";
    accepts(&format!("{waits}1 60..112 EVENTS s 2 = lost:1:timeout\n{repeated}"));
    refuses(Rule::Time, &format!("{waits}1 60..70 EVENTS s 2 = lost:1:timeout\n{repeated}"));
}

#[test]
fn errors_of_sessions_are_checked() {
    accepts("2 10..11 ACQUIRE k a SESSION s 1 = !NOSESSION");
    refuses(Rule::Error, "2 10..11 ACQUIRE k a SESSION s 1 = !UNBLOCKED");
    refuses(Rule::Error, "2 10..11 RELEASE k a SESSION s 1 = !LATE");
    refuses(Rule::Error, "2 10..11 ACQUIRE k a SESSION s 1 = !DEADLOCK");
    refuses(Rule::Error, "2 10..11 ACQUIRE k a = !NOSESSION");
}
