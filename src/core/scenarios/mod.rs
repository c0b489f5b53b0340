// SPDX-License-Identifier: MIT

//! Named interleavings as text. Each text file in this folder has the scenarios of one subject. They drive
//! the lock manager with a clock, a timer and a keyspace.
//!
//! Each line is an input or an expected event. The events that an input causes (a grant, the end of a wait,
//! an announcement) must follow in order and at the right millisecond. A scenario fails on any event that it
//! does not name. [`line`] defines the grammar, and [`stage`] runs the lines.
//!
//! A line that begins with `#` is a comment. `# (4) …` quotes an invariant of `docs/design.md` word for word.

mod line;
mod stage;

use line::Line;
use stage::Stage;

const DESIGN: &str = include_str!("../../../docs/design.md");

/// A line that is not a comment: its number and its text.
type Numbered<'a> = (usize, &'a str);

/// The scenarios of a file, each with its heading.
fn scenarios(text: &str) -> Vec<(&str, Vec<Numbered<'_>>)> {
    let mut scenarios: Vec<(&str, Vec<Numbered<'_>>)> = Vec::new();
    let lines = text.lines().enumerate().map(|(at, line)| (at + 1, line.trim()));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        match (line.strip_prefix("Scenario: "), scenarios.last_mut()) {
            (Some(heading), _) => scenarios.push((heading, Vec::new())),
            (None, Some((_, lines))) => lines.push((number, line)),
            (None, None) => panic!("line {number} stands before the first scenario"),
        }
    }
    scenarios
}

/// Plays all scenarios of a file.
fn play(file: &str, text: &str) {
    assert_quotes(file, text);
    for (heading, lines) in scenarios(text) {
        let mut stage = Stage::new();
        let mut last = 0;
        for (number, text) in lines {
            let fail = |why: String| -> ! {
                panic!("src/core/scenarios/{file}:{number}, in \"{heading}\": {text}\n  {why}")
            };
            let line = Line::parse(text).unwrap_or_else(|| fail("This line is not understood.".into()));
            stage.play(&line).unwrap_or_else(|why| fail(why));
            last = number;
        }
        let end = stage.end();
        end.unwrap_or_else(|why| {
            panic!("src/core/scenarios/{file}:{last}, after \"{heading}\"\n  {why}");
        });
    }
}

/// Fails unless the file quotes an invariant, and every quote matches `docs/design.md`.
fn assert_quotes(file: &str, text: &str) {
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    let invariants = words(DESIGN.rsplit("## What are the invariants?").next().unwrap());
    let quotes: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("# (")).collect();
    assert!(!quotes.is_empty(), "{file} quotes no invariant");
    for quote in quotes {
        let numbered = words(&quote.replacen(')', ".", 1));
        assert!(
            invariants.contains(&numbered),
            "{file} quotes an invariant that docs/design.md does not have: {quote}"
        );
    }
}

/// Defines a test per file.
macro_rules! subjects {
    ($($subject:ident),*) => {
        $(
            #[test]
            fn $subject() {
                let file = concat!(stringify!($subject), ".txt");
                play(file, include_str!(concat!(stringify!($subject), ".txt")));
            }
        )*
    };
}

subjects!(queue, once, limit, watchdog, upgrade, downgrade, retry, revocation, fairness, quarantine);

/// A missing, wrong or misspelled line fails.
#[test]
fn a_wrong_scenario_fails() {
    let begin = "alice acquires k -> holds 1\nbob waits for k\n";
    for (wrong, why) in [
        ("alice acquires k -> holds 1", "-> holds 2"),
        ("alice aquires k -> holds 1", "not understood"),
        ("alice acquires k, forever -> holds 1", "not understood"),
        ("alice releases k -> 0 left\nqueue of k: nobody", "bob is granted k, holds 1"),
        ("alice releases k -> 0 left", "bob is granted k, holds 1"),
        ("alice releases k -> 0 left\nbob is granted k, holds 2", "bob is granted k, holds 1"),
        ("bob is granted k, holds 1", "Nothing"),
        ("carol waits for k, at most 5 ms\nat 6 ms: carol's wait for k ends: timed out", "at 5 ms"),
        ("queue of k: carol", "queue of k: bob"),
    ] {
        let mut stage = Stage::new();
        let text = format!("{begin}{wrong}");
        let played = text.lines().try_for_each(|line| {
            let line = Line::parse(line).ok_or("This line is not understood.")?;
            stage.play(&line)
        });
        let message = played.and_then(|()| stage.end()).expect_err(wrong);
        assert!(message.contains(why), "{wrong:?} fails with {message:?}");
    }
}
