// SPDX-License-Identifier: MIT

//! Each rule has histories that it refuses, and unusual histories that it accepts.
//!
//! Each line of a history is `CONNECTION SENT..ANSWERED COMMAND = REPLY`, with times in milliseconds. A reply is a number,
//! `nil`, `HOLDS/TOKEN`, several of these for several locks, or `!` and an error. `?` means that no reply was read, and `-`
//! that the call was not sent completely. `close CONNECTION AT` closes a connection, and `fault KIND [CONNECTION]
//! FROM..UNTIL` is a disturbance.

mod sessions;

use serde_json::{json, Value};

use super::{check, Limits, Report, Rule};
use crate::record::{
    log_of, Acquire, Call, Claim, Closed, Command, Disturbance, Fault, Micros, Opened, Outcome, Record,
    Release, Renew, Run, MS,
};

fn times(text: &str) -> (Micros, Option<Micros>) {
    let (from, until) = text.split_once("..").unwrap();
    (from.parse::<Micros>().unwrap() * MS, until.parse::<Micros>().ok().map(|until| until * MS))
}

fn number(words: &[&str], name: &str) -> Option<i64> {
    let at = words.iter().position(|word| *word == name)?;
    Some(words[at + 1].parse().unwrap())
}

fn text(words: &[&str], name: &str) -> Option<String> {
    Some(words[words.iter().position(|word| *word == name)? + 1].to_owned())
}

fn command(line: &str) -> Command {
    let mut words: Vec<&str> = line.split_whitespace().collect();
    let name = words.remove(0);
    if let Some(command) = sessions::command(name, &words) {
        return command;
    }
    let several = name.starts_with('M');
    let count = if several { words.remove(0).parse().unwrap() } else { 1 };
    let keys: Vec<String> = words.drain(..count).map(str::to_owned).collect();
    let key = keys[0].clone();
    let owner = words.first().map(|word| (*word).to_owned()).unwrap_or_default();
    let has = |name: &str| words.contains(&name);
    let (lease, id) = (number(&words, "PX"), text(&words, "ID"));
    let session = sessions::number_of(&words);
    let replicas = number(&words, "REPLICAS").map(|replicas| u32::try_from(replicas).unwrap());
    let claim = || match text(&words, "OWNER") {
        Some(owner) => Claim::Owner(owner),
        None => Claim::Token(number(&words, "TOKEN").unwrap()),
    };
    match name.trim_start_matches('M') {
        "ACQUIRE" => Command::Acquire(Acquire {
            keys,
            several,
            owner,
            lease,
            block: number(&words, "BLOCK"),
            shared: has("SHARED"),
            limit: number(&words, "LIMIT"),
            once: has("ONCE"),
            fence: has("FENCE"),
            watchdog: has("WATCHDOG"),
            watchdog_max: number(&words, "MAX"),
            ephemeral: has("EPHEMERAL"),
            id,
            replicas,
            session,
            queue: number(&words, "QUEUE"),
            ..Acquire::default()
        }),
        "RELEASE" => Command::Release(Release {
            keys,
            several,
            owner,
            lease,
            shared: has("SHARED"),
            all: has("ALL"),
            id,
            session,
        }),
        "RENEW" => {
            let (watchdog, ephemeral) = (has("WATCHDOG"), has("EPHEMERAL"));
            Command::Renew(Renew {
                keys,
                several,
                owner,
                lease,
                watchdog,
                ephemeral,
                replicas,
                session,
                ..Renew::default()
            })
        }
        "BREAK" => Command::Break { key },
        "CANCEL" => Command::Cancel { key, owner, id: id.unwrap_or_default(), session },
        "CHECK" => Command::Check { key, claim: claim() },
        "GUARD" => Command::Guard { key, claim: claim(), entry: (*words.last().unwrap()).to_owned() },
        "INFO" => Command::Info { key },
        "WAITERS" => Command::Waiters { key },
        "LOG" => Command::Log { key },
        other => panic!("{other}?"),
    }
}

fn value(command: &Command, text: &str) -> Value {
    let one = |word: &str| match word.split_once('/') {
        Some((holds, token)) => {
            json!([
                "owner",
                "o",
                "holds",
                holds.parse::<i64>().unwrap(),
                "token",
                token.parse::<i64>().unwrap()
            ])
        }
        None if word == "nil" => Value::Null,
        None => word.parse::<i64>().unwrap().into(),
    };
    let words = || text.split_whitespace();
    match command {
        Command::OpenSession(_) | Command::Events(_) => sessions::value(command, text),
        Command::Log { .. } => words().filter(|word| *word != "none").collect(),
        // The mode and the owners.
        Command::Info { .. } if text != "nil" => {
            let mode = words().next().unwrap();
            let holders: Vec<Value> =
                words().skip(1).map(|owner| json!(["owner", owner, "mode", mode])).collect();
            json!(["mode", mode, "holders", holders])
        }
        // The owners, each with its connection.
        Command::Waiters { .. } => {
            let waiter = |word: &str| {
                let (owner, client) = word.split_once('@').unwrap();
                json!(["owner", owner, "client", client.parse::<i64>().unwrap()])
            };
            words().map(waiter).collect()
        }
        Command::Acquire(Acquire { several: true, .. }) | Command::Release(Release { several: true, .. })
            if text != "nil" =>
        {
            words().map(one).collect()
        }
        _ => one(text),
    }
}

fn history(lines: &str) -> Vec<Record> {
    let mut records =
        vec![Record::Run(Run { default_lease: 1_000, request_ttl: 20_000, replicas: 2, seed: 0 })];
    records.extend((1..10).map(|connection| {
        let server_id = i64::try_from(connection).unwrap();
        Record::Opened(Opened { connection, client: 0, at: 0, server_id })
    }));
    for (number, line) in (0..).zip(lines.lines().map(str::trim).filter(|line| !line.is_empty())) {
        let words: Vec<&str> = line.split_whitespace().collect();
        records.push(match words[0] {
            "close" => {
                let at = words[2].parse::<Micros>().unwrap() * MS;
                let connection = words[1].parse().unwrap();
                Record::Closed(Closed { connection, at, by_peer: words.len() > 3 })
            }
            "fault" => {
                let (from, until) = times(words.last().unwrap());
                let server_id = words[2].parse().unwrap_or(0);
                let what = match words[1] {
                    "kill" => Disturbance::Kill { server_id },
                    "unblock" => Disturbance::Unblock { server_id },
                    "pause" => Disturbance::Pause,
                    "paused" => Disturbance::Paused,
                    "stop" => Disturbance::Stop,
                    "restart" => Disturbance::Restart { durable: true },
                    "loss" => Disturbance::Restart { durable: false },
                    "failover" => Disturbance::Failover,
                    "move" => Disturbance::Move,
                    "full" => Disturbance::MemoryFull,
                    "forward" => Disturbance::Clock { by: 500 },
                    "back" => Disturbance::Clock { by: -500 },
                    other => panic!("{other}?"),
                };
                Record::Fault(Fault { what, from, until: until.unwrap() })
            }
            connection => {
                let (sent, answered) = times(words[1]);
                let (before, reply) = line.split_once(" = ").unwrap();
                let command = command(before.splitn(3, ' ').nth(2).unwrap());
                let outcome = match reply.trim() {
                    "?" => Outcome::Unknown,
                    "-" => Outcome::Unsent,
                    reply => match reply.strip_prefix('!') {
                        Some(error) => Outcome::Error(error.to_owned()),
                        None => Outcome::Reply(value(&command, reply)),
                    },
                };
                let answered = answered.filter(|_| !matches!(outcome, Outcome::Unknown | Outcome::Unsent));
                let connection = connection.parse().unwrap();
                Record::Call(Call { number, client: 0, connection, sent, answered, command, outcome })
            }
        });
    }
    records
}

fn report(lines: &str) -> Report {
    // Writing and reading must not change the history.
    let records = history(lines);
    let mut file = Vec::new();
    crate::record::write(&records, &mut file).unwrap();
    check(&crate::record::read(file.as_slice()).unwrap(), &Limits::default())
}

#[track_caller]
fn accepts(lines: &str) {
    let report = report(lines);
    assert!(report.violations.is_empty(), "{report}");
}

#[track_caller]
fn refuses(rule: Rule, lines: &str) {
    let report = report(lines);
    assert!(report.violations.iter().any(|violation| violation.rule == rule), "not {rule:?}: {report}");
}

#[test]
fn overlapping_owners_are_refused() {
    refuses(Rule::Exclusion, "1 0..1 ACQUIRE k a PX 500 = 1\n2 10..11 ACQUIRE k b PX 500 = 1");
    // Refused even if the second owner released at once, or if only a check shows its hold.
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 = 1\n2 10..11 ACQUIRE k b PX 5 = 1\n2 12..13 RELEASE k b = 0",
    );
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 = 1\n2 9..10 ACQUIRE k b = ?\n2 11..12 CHECK k OWNER b = 1",
    );
    refuses(Rule::Exclusion, "1 0..1 MACQUIRE 2 j k a PX 500 = 1 1\n2 10..11 ACQUIRE k b PX 500 = 1");
    refuses(Rule::Exclusion, "1 0..1 ACQUIRE k a PX 500 SHARED = 1\n2 10..11 ACQUIRE k b PX 500 = 1");
    refuses(Rule::Exclusion, "1 0..1 ACQUIRE k a PX 500 = 1\n2 10..11 ACQUIRE k b PX 500 SHARED = 1");
    // A re-entry without a lease shortens nothing, and one of two holds is left.
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a = 2\n1 4..5 RELEASE k a = 1\n2 10..11 ACQUIRE k b = 1",
    );
    // A renewal prolongs the hold.
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 50 = 1\n1 20..21 RENEW k a PX 500 = 1\n2 200..201 ACQUIRE k b PX 100 = 1",
    );
    // A durable restart keeps the hold.
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 = 1\nfault restart 2..9\n2 10..11 ACQUIRE k b PX 500 = 1",
    );
}

#[test]
fn possible_successions_are_accepted() {
    accepts("1 0..1 ACQUIRE k a PX 500 SHARED = 1\n2 10..11 ACQUIRE k b PX 500 SHARED = 1");
    // The release was sent by the time of the second grant.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 9..20 RELEASE k a = 0\n2 10..11 ACQUIRE k b PX 500 = 1");
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 5..5 RELEASE k a = ?\n2 10..11 ACQUIRE k b PX 500 = 1");
    // The lease runs from the sending at the earliest, and the server counts whole milliseconds.
    accepts("1 0..90 ACQUIRE k a PX 100 = 1\n2 97..98 ACQUIRE k b PX 500 = 1");
    // A break without a reply may have arrived at any time.
    accepts("3 5..5 BREAK k = ?\n1 0..1 ACQUIRE k a PX 500 = 1\n2 10..11 ACQUIRE k b PX 500 = 1");
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n3 9..11 BREAK k = 1\n2 10..11 ACQUIRE k b PX 500 = 1");
    // A call of the owner without a reply may have shortened the lease.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 RENEW k a PX 5 = ?\n2 20..21 ACQUIRE k b PX 500 = 1");
    // The grant follows the close of the owner's connection.
    accepts("1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\nclose 1 8\n2 10..11 ACQUIRE k b PX 500 = 1");
    accepts("1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\nclose 1 90 peer\n2 10..11 ACQUIRE k b PX 500 = 1");
    // A close does not end an unbound hold, but a cancel does.
    accepts(
        "1 0..1 ACQUIRE k a PX 500 ID x = 1\n3 4..5 CANCEL k a ID x = 1\n2 10..11 ACQUIRE k b PX 500 = 1",
    );
    // The server has lost its data in between.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\nfault loss 2..9\n2 10..11 ACQUIRE k b PX 500 = 1");
    // An earlier release that arrived late.
    accepts(
        "1 0..1 ACQUIRE k a PX 50 = 1\n1 2..2 RELEASE k a = ?\n3 3..4 ACQUIRE k a PX 500 = 1
         2 10..11 ACQUIRE k b PX 500 = 1",
    );
    // The client was being killed already, so its grant may have been revoked.
    accepts("1 0..2 ACQUIRE k a PX 500 = 1\nfault kill 1 1..2\n2 10..11 ACQUIRE k b PX 500 = 1");
    // A retry reports a grant that is as old as the first call.
    accepts("1 0..0 ACQUIRE k a PX 100 ID x = ?\n3 90..91 ACQUIRE k a PX 100 ID x = 1\n2 105..106 ACQUIRE k b = 1");
}

#[test]
fn ephemeral_holds_end_with_their_connection() {
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\n2 10..11 ACQUIRE k b PX 500 = 1\nclose 1 300",
    );
    // A re-entry whose first call made the hold ephemeral; the hold ended with that connection.
    accepts(
        "1 0..1 ACQUIRE k a PX 500 = 1\n2 2..2 ACQUIRE k a PX 500 EPHEMERAL ID x = ?\nclose 2 3
         3 10..11 ACQUIRE k a PX 500 EPHEMERAL ID x = 1",
    );
    // The later reply arrived before the connection ended and was read afterwards, or was never read.
    accepts("1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\n1 2..9 ACQUIRE j a = 1\n9 5..6 INFO k = nil\nclose 1 10 peer");
    accepts("1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\nfault kill 1 3..4\n9 5..6 INFO k = nil\nclose 1 10");
    // An earlier hold ended with its connection.
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a PX 500 EPHEMERAL = 1\nclose 1 5\n3 10..11 ACQUIRE k a PX 500 = 1
         2 20..21 ACQUIRE k b PX 500 = 1",
    );
}

#[test]
fn retries_after_a_closed_connection_may_be_new() {
    // The connection ended a later hold, and so the records of all acquires of this owner.
    accepts(
        "1 0..1 ACQUIRE k a PX 100 ID x = 1\n2 120..121 ACQUIRE k a PX 20 EPHEMERAL = 1\nclose 2 130
         3 150..151 ACQUIRE k a PX 100 ID x = 1\n3 152..153 RELEASE k a = 0",
    );
    refuses(
        Rule::Count,
        "1 0..1 ACQUIRE k a PX 100 ID x = 1\n2 120..121 ACQUIRE k a PX 20 = 1
         3 150..151 ACQUIRE k a PX 100 ID x = 1\n3 152..153 RELEASE k a = 0",
    );
}

#[test]
fn limits_are_checked() {
    refuses(
        Rule::Exclusion,
        "1 0..1 ACQUIRE k a SHARED LIMIT 2 = 1\n2 2..3 ACQUIRE k b SHARED LIMIT 2 = 1
         3 4..5 ACQUIRE k c SHARED LIMIT 2 = 1",
    );
    // Each call has its own limit, and a holder may re-enter.
    accepts(
        "1 0..1 ACQUIRE k a SHARED LIMIT 2 = 1\n2 2..3 ACQUIRE k b SHARED LIMIT 2 = 1
         3 4..5 ACQUIRE k c SHARED LIMIT 3 = 1\n1 6..7 ACQUIRE k a SHARED LIMIT 1 = 2",
    );
}

#[test]
fn counts_are_checked() {
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 2");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a PX 500 = 1");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a PX 500 = 3");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 RELEASE k a = 1");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 RENEW k a = 2");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 RELEASE k a = !NOTOWNER");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a = nil");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a ONCE = 2");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 50 = 1\n1 90..91 RELEASE k a = 0");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 50 = 1\n1 90..91 GUARD k OWNER a w1 = 1");
    refuses(Rule::Count, "1 0..1 RELEASE k a = 0");
    refuses(Rule::Count, "1 0..1 ACQUIRE k a PX 500 = 1\n2 2..3 BREAK k = 0");
    // A retry counts once, whichever call took effect.
    refuses(
        Rule::Count,
        "1 0..0 ACQUIRE k a PX 500 ID x = ?\n2 1..2 ACQUIRE k a PX 500 ID x = 1\n2 3..4 ACQUIRE k a PX 500 = 3",
    );
    refuses(
        Rule::Count,
        "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a PX 500 = 2\n1 4..4 RELEASE k a ID x = ?
         2 5..6 RELEASE k a ID x = 0",
    );
    accepts(
        "1 0..0 ACQUIRE k a PX 500 ID x = ?\n2 1..2 ACQUIRE k a PX 500 ID x = 1\n2 3..4 ACQUIRE k a PX 500 = 2
         2 5..5 RELEASE k a ID y = ?\n3 6..7 RELEASE k a ID y = 1\n3 8..9 RELEASE k a = 0",
    );
    // A call without a reply may have taken effect or not.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 ACQUIRE k a = ?\n2 3..4 ACQUIRE k a PX 500 = 2");
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 ACQUIRE k a = ?\n2 3..4 ACQUIRE k a PX 500 = 3");
    refuses(
        Rule::Count,
        "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 ACQUIRE k a = -\n2 3..4 ACQUIRE k a PX 500 = 3",
    );
    // One owner uses two connections.
    accepts("1 0..5 ACQUIRE k a PX 500 = 2\n2 1..4 ACQUIRE k a PX 500 = 1\n2 6..9 RELEASE k a = 0\n1 6..9 RELEASE k a = 1");
    // The lease has expired, may have expired, or was renewed by the server.
    accepts("1 0..1 ACQUIRE k a PX 50 = 1\n1 90..91 RELEASE k a = !NOTOWNER");
    accepts("1 0..1 ACQUIRE k a PX 50 = 1\n1 51..52 RELEASE k a = 0");
    accepts("1 0..1 ACQUIRE k a PX 50 WATCHDOG = 1\n1 90..91 RELEASE k a = 0");
    accepts("1 0..1 ACQUIRE k a PX 50 = 1\n1 90..91 ACQUIRE k a = 1");
    // The error is caused by one of two locks, and the history does not show which.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 MRELEASE 2 j k a = !NOTOWNER\n1 4..5 RELEASE k a = 0");
    // ALL ends both holds.
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 ACQUIRE k a = 2\n1 4..5 RELEASE k a ALL = 0\n1 6..7 ACQUIRE k a = 1");
}

#[test]
fn tokens_must_grow() {
    let first = "1 0..1 ACQUIRE k a FENCE = 1/10\n1 2..3 RELEASE k a = 0\n";
    refuses(Rule::Token, &format!("{first}2 4..5 ACQUIRE k b FENCE = 1/10"));
    refuses(Rule::Token, &format!("{first}2 4..5 ACQUIRE k b FENCE = 1/9"));
    refuses(Rule::Token, &format!("{first}1 4..5 ACQUIRE k a FENCE = 1/10"));
    refuses(Rule::Token, &format!("{first}fault restart 4..5\n2 6..7 ACQUIRE k b FENCE = 1/10"));
    refuses(Rule::Token, "1 0..1 ACQUIRE k a FENCE = 1/10\n1 2..3 ACQUIRE k a FENCE = 2/11");
    refuses(Rule::Token, "1 0..1 ACQUIRE k a SHARED FENCE = 1/10\n2 0..1 ACQUIRE k b SHARED FENCE = 1/10");
    refuses(Rule::Token, "1 0..1 ACQUIRE k a FENCE = 1/9007199254740992");
    accepts(&format!("{first}2 4..5 ACQUIRE k b FENCE = 1/11"));
    accepts("1 0..1 ACQUIRE k a FENCE = 1/10\n1 2..3 ACQUIRE k a FENCE = 2/10");
    // A reader that upgrades needs a new token if other owners got one since.
    let reads = "1 0..1 ACQUIRE k a SHARED FENCE = 1/10\n2 2..3 ACQUIRE k b SHARED FENCE = 1/11\n2 4..5 RELEASE k b = 0\n";
    refuses(Rule::Token, &format!("{reads}1 6..7 ACQUIRE k a FENCE = 2/10"));
    accepts(&format!("{reads}1 6..7 ACQUIRE k a FENCE = 2/12\n1 8..9 ACQUIRE k a FENCE = 3/12"));
    // Two acquires at the same time, in either order, and a re-entry older than another reader.
    accepts("1 0..3 ACQUIRE k a SHARED FENCE = 1/11\n2 1..2 ACQUIRE k b SHARED FENCE = 1/10");
    accepts(
        "1 0..1 ACQUIRE k a SHARED FENCE = 1/10\n2 2..3 ACQUIRE k b SHARED FENCE = 1/11
         1 4..5 ACQUIRE k a SHARED FENCE = 2/10",
    );
    // The lease expired in between.
    accepts("1 0..1 ACQUIRE k a FENCE PX 5 = 1/10\n1 20..21 ACQUIRE k a FENCE = 1/11");
}

#[test]
fn retries_must_get_the_first_reply() {
    refuses(Rule::Retry, "1 0..1 ACQUIRE k a ID x = 1\n1 2..3 ACQUIRE k a ID x = 2");
    refuses(
        Rule::Retry,
        "1 0..1 ACQUIRE k a = 1\n1 2..3 ACQUIRE k a = 2\n1 4..5 RELEASE k a ID x = 1\n1 6..7 RELEASE k a ID x = 0",
    );
    accepts("1 0..1 ACQUIRE k a ID x = 1\n1 2..3 RELEASE k a = 0\n1 4..5 ACQUIRE k a ID x = 1");
    // A nil is not recorded, nor is a hold that ended with its connection.
    accepts("2 0..1 ACQUIRE k b PX 5 = 1\n1 2..3 ACQUIRE k a ID x = nil\n1 30..31 ACQUIRE k a ID x = 1");
    accepts(
        "1 0..1 ACQUIRE k a FENCE EPHEMERAL ID x = 1/5\nclose 1 2\n2 9..10 ACQUIRE k a FENCE EPHEMERAL ID x = 1/6",
    );
    accepts(
        "1 0..1 ACQUIRE k a EPHEMERAL ID x = 1\nclose 1 2\n2 5..6 CHECK k OWNER a = !NOTOWNER
         2 9..10 ACQUIRE k a EPHEMERAL ID x = 1\n2 11..12 RELEASE k a = 0",
    );
    // A renewal bound the hold to the connection.
    let renewed = "1 0..1 ACQUIRE k a FENCE ID x = 1/5\n1 2..3 RENEW k a PX 5000 EPHEMERAL = 1\nclose 1 4";
    accepts(&format!("{renewed}\n2 9..10 ACQUIRE k a FENCE ID x = 1/6"));
    refuses(
        Rule::Retry,
        "1 0..1 ACQUIRE k a FENCE PX 5 ID x = 1/5\nclose 1 2\n2 29..30 ACQUIRE k a FENCE PX 5 ID x = 1/6",
    );
    // The second call is late enough for the first call's record to expire.
    accepts("1 0..1 ACQUIRE k a PX 50 ID x = 1\n1 90000..90001 ACQUIRE k a PX 50 ID x = 1");
    accepts("1 0..1 ACQUIRE k a PX 99999 ID x = 1\n1 90000..90001 ACQUIRE k a PX 50 ID x = 2");
    // A late grant is recorded late.
    let late = "2 0..1 ACQUIRE k b PX 24990 = 1\n1 2..25000 ACQUIRE k a PX 50 BLOCK 0 FENCE ID x = 1/5";
    accepts(&format!("{late}\n1 30000..30001 ACQUIRE k a PX 50 BLOCK 0 FENCE ID x = 1/5"));
    accepts(&format!("{late}\n3 30000..30001 ACQUIRE k c PX 5 = 1\n1 30000..30002 ACQUIRE k a PX 50 BLOCK 0 FENCE ID x = 1/5"));
    refuses(Rule::Token, &format!("{late}\n1 90000..90001 ACQUIRE k a PX 50 BLOCK 0 FENCE ID x = 1/5"));
}

#[test]
fn cancels_are_checked() {
    refuses(Rule::Cancel, "1 0..1 CANCEL k a ID x = 0\n1 2..3 ACQUIRE k a ID x = 1");
    accepts("1 0..1 CANCEL k a ID x = 0\n1 2..3 ACQUIRE k a ID x = !UNBLOCKED");
    accepts("1 0..3 CANCEL k a ID x = 1\n2 1..2 ACQUIRE k a ID x = 1\n2 5..6 ACQUIRE k a = 1");
    // The hold had ended, and its owner has a later hold.
    let past = "1 0..1 ACQUIRE k a EPHEMERAL ID x = 1\n1 2..3 RELEASE k a = 0\n1 4..5 ACQUIRE k a ID y = 1\n";
    refuses(Rule::Cancel, &format!("{past}1 6..7 CANCEL k a ID x = 1"));
    accepts(&format!("{}1 6..7 CANCEL k a ID x = 1", past.replace("EPHEMERAL", "")));
    accepts(&format!("{past}1 6..7 CANCEL k a ID x = 0\n1 8..9 CANCEL k a ID y = 1"));
    // The cancel undid the call without a reply.
    accepts("1 0..0 ACQUIRE k a ID x = ?\n2 1..2 CANCEL k a ID x = 1\n2 3..4 ACQUIRE k a = 1");
    let undone = "1 0..0 ACQUIRE k a ID x = ?\n2 1..2 CANCEL k a ID x = 1\n2 3..4 RELEASE k a = !NOTOWNER";
    refuses(Rule::Count, &format!("{undone}\n2 5..6 ACQUIRE k a = 2"));
}

#[test]
fn waiting_times_are_checked() {
    let held = "1 0..1 ACQUIRE k a PX 9000 = 1\n";
    refuses(Rule::Time, &format!("{held}2 2..20 ACQUIRE k b BLOCK 50 = nil"));
    refuses(Rule::Time, &format!("{held}2 2..20 ACQUIRE k b BLOCK 0 = nil"));
    refuses(Rule::Time, &format!("{held}2 2..4000 ACQUIRE k b BLOCK 50 = nil"));
    accepts(&format!("{held}2 2..60 ACQUIRE k b BLOCK 50 = nil"));
    accepts(&format!("{held}fault unblock 2 10..12\n2 2..20 ACQUIRE k b BLOCK 50 = nil"));
    // Nothing is granted in a pause. The reply to an earlier grant may be read in the pause.
    let waits = "1 0..1 ACQUIRE k a PX 20 = 1\n2 2..30 ACQUIRE k b BLOCK 0 = 1\n9 10..11 WAITERS k = b@2\n";
    refuses(Rule::Time, &format!("{waits}fault paused 9..50"));
    accepts(&format!("{waits}fault paused 11..50"));
    accepts(&format!("{waits}fault paused 9..29"));
    accepts(&format!("{held}fault stop 10..3990\n2 2..4000 ACQUIRE k b BLOCK 50 = nil"));
}

#[test]
fn queue_order_is_checked() {
    let waiting = "1 0..1 ACQUIRE k a PX 900 = 1\n2 2..900 ACQUIRE k b BLOCK 0 = 1\n9 5..6 WAITERS k = b@2\n";
    let passed = format!("{waiting}1 20..21 RELEASE k a = 0\n3 10..25 ACQUIRE k c BLOCK 0 PX 5 = 1\n");
    refuses(Rule::Order, &format!("{passed}9 30..31 WAITERS k = b@2"));
    // Later it was not seen waiting: it may have been granted and broken in between.
    accepts(&passed);
    // The other call came before this one was seen waiting, or its owner holds the lock.
    accepts(&format!(
        "{waiting}1 20..21 RELEASE k a = 0\n3 4..25 ACQUIRE k c BLOCK 0 PX 5 = 1\n9 30..31 WAITERS k = b@2"
    ));
    accepts(&format!("{waiting}3 10..11 ACQUIRE k a = 2\n9 30..31 WAITERS k = b@2"));
    // The observation belongs to another owner's wait on that connection.
    accepts(&format!("{passed}2 26..40 ACQUIRE k d BLOCK 14 = nil\n9 30..31 WAITERS k = d@2"));
    // The retry on another connection has the first call's position.
    let again = |first: &str, at: u64| {
        format!(
            "1 0..1 ACQUIRE k a PX 900 = 1\n2 2..12 ACQUIRE k b BLOCK 0 ID x = {first}\n9 5..6 WAITERS k = b@2
             3 7..25 ACQUIRE k c BLOCK 0 PX 5 = 1\n4 {at}..900 ACQUIRE k b BLOCK 0 ID x = 1\n1 20..21 RELEASE k a = 0
             9 30..31 WAITERS k = b@4"
        )
    };
    let taken_over = "!UNBLOCKED the same request was sent again";
    refuses(Rule::Order, &again(taken_over, 10));
    accepts(&format!("{}\nclose 2 8", again("?", 10)));
    accepts(&format!("{}\nfault unblock 2 11..12", again("!UNBLOCKED by k", 13)));
    // The lock has been at another node.
    accepts(&format!("{passed}9 30..31 WAITERS k = b@2\nfault move 10..20"));
}

#[test]
fn ended_waits_must_leave_the_queue() {
    let held = "1 0..1 ACQUIRE k a PX 900 = 1\n";
    let refused = format!("{held}fault unblock 2 8..9\n2 2..9 ACQUIRE k b BLOCK 0 = !UNBLOCKED by k\n");
    refuses(Rule::Report, &format!("{refused}9 10..11 WAITERS k = b@2"));
    accepts(&format!("{refused}9 8..11 WAITERS k = b@2"));
    accepts(&format!("{refused}2 10..12 ACQUIRE k b BLOCK 1 = nil\n9 10..11 WAITERS k = b@2"));
    refuses(Rule::Report, &format!("{held}9 10..11 WAITERS k = b@2"));
    // The server may notice the end of a connection later.
    let gone = format!("{held}2 2..2 ACQUIRE k b BLOCK 0 = ?\nclose 2 9\n");
    accepts(&format!("{gone}9 1800..1801 WAITERS k = b@2"));
    refuses(Rule::Report, &format!("{gone}9 2800..2801 WAITERS k = b@2"));
}

#[test]
fn free_locks_must_be_granted() {
    // The lock was released long before, and no other call uses it.
    let free = "1 0..1 ACQUIRE k a PX 500 = 1\n1 9..10 RELEASE k a = 0\n";
    refuses(Rule::Free, &format!("{free}2 5..9000 ACQUIRE k b BLOCK 0 = 1"));
    refuses(Rule::Free, &format!("{free}2 5..9000 ACQUIRE k b BLOCK 0 = ?\nclose 2 9000"));
    refuses(Rule::Free, &format!("{free}2 20..21 ACQUIRE k b = nil"));
    // A cancel leaves its lease to the owner's other holds.
    let cancelled =
        "1 2..2 ACQUIRE k a PX 500 ID x = ?\n3 4..5 CANCEL k a ID x = 1\n2 100..101 ACQUIRE k b = nil";
    refuses(Rule::Free, cancelled);
    accepts(&format!("1 0..1 ACQUIRE k a PX 50 = 1\n{cancelled}"));
    // A hold that had to end with its connection, and readers that wait only for themselves.
    let bound = "1 0..1 ACQUIRE k a PX 20000 EPHEMERAL = 1\n2 5..9000 ACQUIRE k b BLOCK 0 = 1\n";
    accepts(&format!("{bound}close 1 8000"));
    refuses(Rule::Free, &format!("{bound}close 1 100"));
    let reads = "1 0..1 ACQUIRE k a PX 20000 SHARED = 1\n1 5..9000 ACQUIRE k a BLOCK 0 = 2\n";
    refuses(Rule::Free, reads);
    accepts(&format!("2 0..1 ACQUIRE k b PX 20000 SHARED = 1\n2 8980..8990 RELEASE k b = 0\n{reads}"));
    accepts("1 0..1 ACQUIRE k a PX 20000 SHARED = 1\n1 5..9000 ACQUIRE k a BLOCK 0 ONCE = nil\nfault unblock 1 8999..9000");
    accepts(&format!("{free}2 5..900 ACQUIRE k b BLOCK 0 = 1"));
    accepts(&format!("{free}2 5..9000 ACQUIRE k b BLOCK 0 = 1\nfault stop 100..8000"));
    // Readers wait only for writers, and for other readers up to a limit.
    let reader = "2 0..1 ACQUIRE k b PX 20000 SHARED = 1\n";
    let writer = "3 2..3000 ACQUIRE k c BLOCK 2990 = nil\n";
    refuses(Rule::Free, &format!("{reader}{writer}4 4..9000 ACQUIRE k d SHARED BLOCK 0 = 1"));
    accepts(&format!("{reader}{writer}4 4..3001 ACQUIRE k d SHARED BLOCK 0 = 1"));
    refuses(Rule::Free, &format!("{reader}4 4..9000 ACQUIRE k d SHARED LIMIT 2 BLOCK 0 = 1"));
    accepts(&format!(
        "{reader}4 4..9000 ACQUIRE k d SHARED LIMIT 1 BLOCK 0 = nil\nfault unblock 4 8999..9000"
    ));
    accepts(&format!(
        "{reader}2 4..9000 ACQUIRE k b SHARED LIMIT 2 ONCE BLOCK 0 = nil\nfault unblock 2 8999..9000"
    ));
    let short = "3 0..1 ACQUIRE k c PX 100 SHARED = 1\n";
    refuses(Rule::Free, &format!("{reader}{short}4 4..9000 ACQUIRE k d SHARED LIMIT 2 BLOCK 0 = 1"));
    accepts(&format!("{reader}{short}4 4..1900 ACQUIRE k d SHARED LIMIT 2 BLOCK 0 = 1"));
    // Several locks are free once all of them are.
    let one = "1 0..1 ACQUIRE j a PX 100 = 1\n3 0..1 ACQUIRE k c PX 6500 = 1\n";
    accepts(&format!("{one}4 2..8000 MACQUIRE 2 j k d BLOCK 0 = 1 1"));
    refuses(Rule::Free, &format!("{one}4 2..9000 MACQUIRE 2 j k d BLOCK 0 = 1 1"));
    // An owner may overtake a call for several locks that waits for it.
    let several = "1 0..1 ACQUIRE j a PX 20000 = 1\n2 2..9000 MACQUIRE 2 j k b BLOCK 8998 = nil\n";
    refuses(Rule::Free, &format!("{several}1 4..8000 ACQUIRE k a BLOCK 7990 = nil"));
    accepts(&format!("{several}3 4..8000 ACQUIRE k c BLOCK 7990 = nil"));
    // A watchdog ends with its connection, and at its limit.
    let watched = "1 0..1 ACQUIRE k a PX 100 WATCHDOG MAX 3000 = 1\n";
    accepts(&format!("{watched}2 5..7000 ACQUIRE k b BLOCK 0 = 1"));
    refuses(Rule::Free, &format!("{watched}2 5..9000 ACQUIRE k b BLOCK 0 = 1"));
    accepts(&format!("{watched}1 3000..3001 RENEW k a PX 100 = 1\n2 5..9000 ACQUIRE k b BLOCK 0 = 1"));
    refuses(Rule::Free, &format!("{watched}close 1 50\n2 51..6000 ACQUIRE k b BLOCK 0 = 1"));
    // Another owner may hold the lock, or be ahead with a call for two locks.
    accepts(&format!("{free}3 4..5 ACQUIRE k c PX 9000 = ?\n2 5..9000 ACQUIRE k b BLOCK 0 = 1"));
    accepts(&format!("{free}3 4..8000 MACQUIRE 2 j k c BLOCK 0 = 1 1\n2 5..9000 ACQUIRE k b BLOCK 0 = 1"));
    accepts(&format!("{free}3 4..25 ACQUIRE k c BLOCK 0 PX 5 = 1\n2 20..21 ACQUIRE k b = nil"));
    accepts(&format!(
        "{free}3 11..12 ACQUIRE k c PX 500 WATCHDOG = 1\n2 5..9000 ACQUIRE k b BLOCK 0 = 1\nclose 3 8000"
    ));
}

#[test]
fn deadlocks_must_be_reported() {
    let two = "1 0..1 ACQUIRE j a PX 20000 = 1\n2 0..1 ACQUIRE k b PX 20000 = 1\n";
    let waits = format!("{two}1 2..5000 ACQUIRE k a BLOCK 4990 = nil\n");
    refuses(Rule::Deadlock, &format!("{waits}2 3..5000 ACQUIRE j b BLOCK 4990 = nil"));
    accepts(&format!("{waits}2 3..1500 ACQUIRE j b BLOCK 1490 = nil"));
    accepts(&format!("{waits}2 3..4 ACQUIRE j b BLOCK 4990 = !DEADLOCK by j"));
    let reads = "1 0..1 ACQUIRE k a SHARED PX 20000 = 1\n2 0..1 ACQUIRE k b SHARED PX 20000 = 1\n";
    let waits = format!("{reads}1 2..5000 ACQUIRE k a BLOCK 4990 = nil\n");
    refuses(Rule::Deadlock, &format!("{waits}2 3..5000 ACQUIRE k b BLOCK 4990 = nil"));
    accepts(&format!("{waits}2 3..4 ACQUIRE k b BLOCK 4990 = !DEADLOCK by k"));
    // A cycle of three, one of them a reader behind a writer.
    let third = "3 0..1 ACQUIRE i c PX 20000 = 1\n\
                 2 3..90 ACQUIRE i b BLOCK 87 = nil\n\
                 3 3..4 ACQUIRE j c BLOCK 0 = !DEADLOCK by j\n";
    accepts(&format!("{two}{third}1 2..40 ACQUIRE k a SHARED BLOCK 38 = nil"));
    // No cycle: an owner that waits for no other, or that no other waits for.
    refuses(Rule::Deadlock, "3 0..1 ACQUIRE k b PX 500 = 1\n1 2..3 ACQUIRE k a BLOCK 0 = !DEADLOCK by k");
    refuses(Rule::Deadlock, &format!("{two}{third}1 20..40 ACQUIRE k a BLOCK 20 = nil"));
    // A reader that upgrades comes before the writer that waits for it.
    let reads = "1 0..1 ACQUIRE k a SHARED PX 20000 = 1\n2 2..20 ACQUIRE k b BLOCK 18 = nil\n";
    refuses(Rule::Deadlock, &format!("{reads}1 4..5 ACQUIRE k a BLOCK 0 = !DEADLOCK by k"));
    // Waiting behind a call for several locks is not a cycle.
    let several = "1 0..1 ACQUIRE j a PX 20000 = 1\n2 2..50 MACQUIRE 2 j k b BLOCK 48 = nil\n";
    refuses(Rule::Deadlock, &format!("{several}1 4..5 ACQUIRE k a BLOCK 0 = !DEADLOCK by k"));
    accepts(&format!("3 0..1 ACQUIRE k b PX 500 = 1\n{several}1 4..5 ACQUIRE k a BLOCK 0 = !DEADLOCK by k"));
}

#[test]
fn guarded_writes_are_checked() {
    let two = "1 0..1 ACQUIRE k a FENCE PX 50 = 1/10\n2 60..61 ACQUIRE k b FENCE PX 50 = 1/11\n";
    refuses(Rule::Guard, &format!("{two}1 70..71 GUARD k TOKEN 10 w1 = 1"));
    refuses(Rule::Guard, &format!("{two}2 70..71 GUARD k TOKEN 11 w1 = !NOTOWNER"));
    // A grant that was revoked for a disconnected client has drawn a token, unless it was sent later.
    let gone = |from| {
        let (cancel, until) = (from + 1, from + 3);
        format!("3 {from}..{until} ACQUIRE k c FENCE ID x = !UNBLOCKED\n4 {cancel}..{until} CANCEL k c ID x = 1\n")
    };
    let refused = "2 70..71 GUARD k TOKEN 11 w1 = !NOTOWNER\n";
    accepts(&format!("{two}{}{refused}", gone(62)));
    refuses(Rule::Guard, &format!("{two}{refused}{}", gone(72)));
    refuses(
        Rule::Guard,
        "1 0..1 ACQUIRE k a FENCE = 1/10\n1 2..3 GUARD k TOKEN 10 w1 = 1\n9 9..10 LOG k = none",
    );
    refuses(Rule::Guard, "1 0..1 GUARD k OWNER a w1 = !NOTOWNER\n9 9..10 LOG k = w1");
    refuses(Rule::Guard, "9 9..10 LOG k = w1");
    // The writes are out of order by position, and by token.
    refuses(
        Rule::Guard,
        "1 0..1 ACQUIRE k a PX 500 = 1\n1 2..3 GUARD k OWNER a w1 = 2\n1 4..5 GUARD k OWNER a w2 = 1",
    );
    refuses(Rule::Guard, &format!("{two}2 62..80 GUARD k TOKEN 11 w1 = 1\n1 58..81 GUARD k TOKEN 10 w2 = 2"));
    accepts(&format!("{two}2 70..71 GUARD k TOKEN 11 w1 = 1\n1 72..73 GUARD k TOKEN 10 w2 = !NOTOWNER\n9 90..91 LOG k = w1"));
    // A token passes after its lease until a newer one exists. A lost reply proves nothing.
    accepts("1 0..1 ACQUIRE k a FENCE PX 5 = 1/10\n1 60..61 GUARD k TOKEN 10 w1 = 1\n9 90..91 LOG k = w1");
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 GUARD k OWNER a w1 = ?\n9 90..91 LOG k = w1");
    accepts("1 0..1 ACQUIRE k a PX 500 = 1\n1 2..2 GUARD k OWNER a w1 = ?\n9 90..91 LOG k = none");
    assert_eq!(log_of("k"), "log:{k}");
}

#[test]
fn server_reports_are_checked() {
    let held = "1 0..1 ACQUIRE k a PX 500 = 1\n";
    refuses(Rule::Report, &format!("{held}9 5..6 INFO k = nil"));
    refuses(Rule::Report, &format!("{held}9 5..6 INFO k = exclusive b"));
    refuses(Rule::Exclusion, &format!("{held}2 2..7 ACQUIRE k b BLOCK 0 = ?\n9 5..6 INFO k = exclusive a b"));
    accepts(&format!("{held}9 5..6 INFO k = exclusive a\n1 7..8 RELEASE k a = 0\n9 9..10 INFO k = nil"));
    let moved = format!("{held}fault move 5..9\n");
    accepts(&format!("{moved}9 6..7 INFO k = nil"));
    refuses(Rule::Report, &format!("{moved}9 10..11 INFO k = nil"));
    // A wait is granted, revoked, and reported as not granted.
    let told = "3 0..1 ACQUIRE k b PX 5 = 1\nclose 1 8\n1 2..9 ACQUIRE k a BLOCK 0 = !UNBLOCKED\n";
    accepts(&format!("{told}9 10..11 INFO k = exclusive a"));
    refuses(Rule::Report, &format!("{told}9 3000..3001 INFO k = exclusive a"));
    // The owner has called and waits for its reply.
    accepts("1 0..9 ACQUIRE k a PX 500 = 1\n9 5..6 INFO k = exclusive a");
    accepts("1 0..9 ACQUIRE k a PX 500 = 1\n9 5..6 INFO k = nil");
}

#[test]
fn impossible_errors_are_refused() {
    refuses(Rule::Error, "1 0..1 ACQUIRE k a = !ERR syntax error");
    // One of its locks has no record, because an ephemeral hold of the owner has ended there.
    let in_part = "MACQUIRE 2 j k a ID x = !ERR ID was used before with other keys";
    refuses(Rule::Error, &format!("1 2..3 {in_part}"));
    refuses(Rule::Error, &format!("1 0..1 ACQUIRE k a EPHEMERAL PX 500 = 1\n2 2..3 {in_part}"));
    refuses(Rule::Error, &format!("1 0..1 ACQUIRE k b EPHEMERAL PX 500 = 1\nclose 1 2\n2 3..4 {in_part}"));
    accepts(&format!("1 0..1 ACQUIRE k a EPHEMERAL PX 500 = 1\nclose 1 2\n2 3..4 {in_part}"));
    refuses(Rule::Error, "1 0..1 RELEASE k a = !ERR syntax error");
    refuses(Rule::Error, "1 0..1 ACQUIRE k a = !DEADLOCK you");
    refuses(Rule::Error, "1 0..1 RELEASE k a = !UNBLOCKED");
    refuses(Rule::Error, "1 0..9 ACQUIRE k a BLOCK 0 = !UNBLOCKED");
    refuses(Rule::Error, "1 0..1 ACQUIRE k a = !MOVED 1 127.0.0.1:1");
    accepts(
        "fault move 4..5\n1 0..1 ACQUIRE k a = !MOVED 1 127.0.0.1:1\n1 2..6 ACQUIRE k a BLOCK 0 = !UNBLOCKED",
    );
    let cluster_is_down = |at| {
        let ended = "1 10..20 ACQUIRE k a BLOCK 0 = !UNBLOCKED slot of the lock has moved";
        format!(
            "fault failover 90..91\n{ended}\n2 {at}..{} ACQUIRE k b = !CLUSTERDOWN The cluster is down",
            at + 2
        )
    };
    accepts(&cluster_is_down(19));
    refuses(Rule::Error, &cluster_is_down(21));
    accepts("fault unblock 1 4..5\n2 0..0 ACQUIRE k b = ?\n1 0..9 ACQUIRE k a BLOCK 0 = !UNBLOCKED");
    accepts("3 0..1 ACQUIRE k b PX 500 = 1\nclose 1 8\n1 2..9 ACQUIRE k a BLOCK 0 = !UNBLOCKED");
    accepts(
        "3 0..1 ACQUIRE k b PX 500 = 1\n1 2..3 ACQUIRE k a BLOCK 0 = !UNBLOCKED by k\nfault unblock 1 2..3",
    );
}

#[test]
fn failovers_may_lose_unacknowledged_writes() {
    let held = "1 0..1 ACQUIRE k a FENCE PX 500 = 1/10\nfault failover 2..3\n";
    refuses(Rule::Exclusion, &format!("{held}2 10..11 ACQUIRE k b PX 500 = 1"));
    refuses(Rule::Token, &format!("{held}2 600..601 ACQUIRE k b FENCE PX 500 = 1/10"));
    assert_eq!(report(&format!("{held}2 10..11 ACQUIRE k b = 1\n2 12..13 ACQUIRE k b = 2")).doubled, 1);
    accepts(&format!("{held}2 600..601 ACQUIRE k b FENCE PX 500 = 1/11"));
    // Whether replicas have the grant is unknown, or its lease ended meanwhile.
    accepts("1 0..1 ACQUIRE k a REPLICAS 2 = !NOTOWNER\n1 2..3 RENEW k a REPLICAS 2 = !UNBLOCKED");
    refuses(Rule::Error, "1 2..3 RENEW k a = !UNBLOCKED");
    accepts("1 0..1 ACQUIRE k a REPLICAS 2 = !NOREPLICAS\n2 10..11 ACQUIRE k b REPLICAS 2 = 1");
    accepts(&format!("{held}2 10..11 ACQUIRE k b = !READONLY"));
    refuses(Rule::Error, "2 10..11 ACQUIRE k b = !READONLY");
    // The lease of a renewal ended before the reply.
    let renewed = |replicas: &str| {
        format!(
            "1 0..1 ACQUIRE k a PX 600 = 1\n1 2..50 RENEW k a PX 5 {replicas} = !NOTOWNER
             2 60..61 ACQUIRE k b PX 5 = 1"
        )
    };
    accepts(&renewed("REPLICAS 2"));
    refuses(Rule::Exclusion, &renewed(""));
    // The new primary lacks a release, or the hold.
    let released = "1 0..1 ACQUIRE k a = 1\n1 2..3 RELEASE k a = 0\nfault failover 4..5\n";
    accepts(&format!("{released}1 20..21 ACQUIRE k a = 2"));
    accepts(&format!("{held}1 20..21 RENEW k a = !NOTOWNER"));
    // The new primary may also lack a newer token, unless replicas acknowledged it. The remaining writes are in order.
    let written = "1 0..1 ACQUIRE k a FENCE PX 5 = 1/10\n2 10..11 ACQUIRE k b FENCE REPLICAS = 1/11\nfault failover 12..13
        2 11..12 GUARD k TOKEN 11 w1 = 1\n1 14..15 GUARD k TOKEN 10 w2 = 1\n9 90..91 LOG k = LEFT";
    let with = |replicas: &str, left: &str| written.replace("REPLICAS", replicas).replace("LEFT", left);
    accepts(&with("", "w2"));
    accepts(&with("REPLICAS 1", "w2"));
    refuses(Rule::Guard, &with("REPLICAS 2", "w2"));
    refuses(Rule::Guard, &with("", "w1 w2"));
    refuses(Rule::Guard, &with("", "w2 w2"));
    refuses(Rule::Guard, &with("", "w2 w3"));
}

#[test]
fn memory_and_clock_faults_are_considered() {
    refuses(Rule::Error, "1 0..1 ACQUIRE k a = !OOM");
    refuses(Rule::Error, "fault full 0..1\n1 2..3 ACQUIRE k a = !OOM");
    refuses(Rule::Error, "fault full 0..9\n1 2..3 RELEASE k a = !OOM");
    accepts("fault full 0..9\n1 2..3 ACQUIRE k a = !OOM");
    let held = "1 0..1 ACQUIRE k a PX 600 = 1\nfault SET 2..3\n";
    let second = |how: &str, at: &str| format!("{}2 {at} ACQUIRE k b PX 600 = 1", held.replace("SET", how));
    accepts(&second("forward", "10..11"));
    refuses(Rule::Exclusion, &second("back", "10..11"));
    accepts(&second("back", "1200..1201"));
    let later = |how: &str| format!("{}1 900..901 RENEW k a = 1", held.replace("SET", how));
    accepts(&later("back"));
    refuses(Rule::Count, &later("forward"));
}
