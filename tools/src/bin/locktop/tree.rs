// SPDX-License-Identifier: MIT

//! Who blocks whom, as a tree.

use std::collections::{HashMap, HashSet};

use crate::state::Lock;

/// As deep as it is shown. A cycle cannot be, but what is read in several steps may look like one.
const DEEPEST: usize = 16;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The branches before it.
    pub branches: String,
    pub node: Node,
}

/// What a line is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Owner(String),
    Lock(String),
    /// So many waiters more.
    More(i64),
}

/// The lines of all trees. At the roots are owners that hold what others wait for and wait for nothing themselves.
pub(crate) fn lines(locks: &[Lock]) -> Vec<Line> {
    let mut held: HashMap<&str, Vec<&Lock>> = HashMap::new();
    let mut waiting = HashSet::new();
    for lock in locks {
        for holder in &lock.holders {
            held.entry(&holder.owner).or_default().push(lock);
        }
        waiting.extend(lock.waiters.iter().map(|waiter| waiter.owner.as_str()));
    }
    let mut lines = Vec::new();
    let mut shown = HashSet::new();
    let owners = || locks.iter().flat_map(|lock| &lock.holders).map(|holder| holder.owner.as_str());
    // Owners of a cycle have no root among them; each such cycle begins with the first that is not shown yet.
    for owner in owners().filter(|owner| !waiting.contains(owner)).chain(owners()) {
        if shown.insert(owner) {
            lines.push(Line { branches: String::new(), node: Node::Owner(owner.to_owned()) });
            below(owner, "", &held, &mut shown, &mut lines);
        }
    }
    lines
}

/// The locks that an owner holds, and below each those who wait for it.
fn below<'a>(
    owner: &'a str,
    branches: &str,
    held: &HashMap<&'a str, Vec<&'a Lock>>,
    shown: &mut HashSet<&'a str>,
    lines: &mut Vec<Line>,
) {
    let Some(locks) = held.get(owner) else { return };
    if branches.chars().count() >= 3 * DEEPEST {
        return;
    }
    for (nth, lock) in locks.iter().enumerate() {
        let (branch, inner) = branch(branches, nth + 1 == locks.len());
        lines.push(Line { branches: branch, node: Node::Lock(lock.key.clone()) });
        let more = lock.waiting - i64::try_from(lock.waiters.len()).unwrap_or(i64::MAX);
        for (nth, waiter) in lock.waiters.iter().enumerate() {
            let (branch, inner) = self::branch(&inner, nth + 1 == lock.waiters.len() && more <= 0);
            lines.push(Line { branches: branch, node: Node::Owner(waiter.owner.clone()) });
            // Who waits for several locks has its own locks below the first of them.
            if shown.insert(&waiter.owner) {
                below(&waiter.owner, &inner, held, shown, lines);
            }
        }
        if more > 0 {
            lines.push(Line { branches: self::branch(&inner, true).0, node: Node::More(more) });
        }
    }
}

/// What stands before a line, and before those below it.
fn branch(branches: &str, last: bool) -> (String, String) {
    let (own, below) = if last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
    (format!("{branches}{own}"), format!("{branches}{below}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{Holder, Waiter};

    fn lock(key: &str, holders: &[&str], waiters: &[&str]) -> Lock {
        let holder = |owner: &&str| Holder { owner: (*owner).to_owned(), ..Holder::default() };
        let waiter = |owner: &&str| Waiter { owner: (*owner).to_owned(), ..Waiter::default() };
        Lock {
            key: key.to_owned(),
            holders: holders.iter().map(holder).collect(),
            waiters: waiters.iter().map(waiter).collect(),
            waiting: i64::try_from(waiters.len()).unwrap(),
            ..Lock::default()
        }
    }

    fn drawn(locks: &[Lock]) -> String {
        let line = |line: Line| match line.node {
            Node::Owner(name) => format!("{}{name}\n", line.branches),
            Node::Lock(key) => format!("{}[{key}]\n", line.branches),
            Node::More(count) => format!("{}and {count} more\n", line.branches),
        };
        lines(locks).into_iter().map(line).collect()
    }

    #[test]
    fn the_root_is_who_waits_for_nobody() {
        let mut stock = lock("stock", &["ann"], &["bob", "cleo"]);
        stock.waiting = 5;
        let drawn = drawn(&[lock("orders", &["bob"], &["dan"]), stock, lock("mail", &["bob"], &["eve"])]);
        assert_eq!(
            drawn,
            "ann\n\
             └─ [stock]\n   \
                ├─ bob\n   \
                │  ├─ [orders]\n   \
                │  │  └─ dan\n   \
                │  └─ [mail]\n   \
                │     └─ eve\n   \
                ├─ cleo\n   \
                └─ and 3 more\n"
        );
    }

    #[test]
    fn who_waits_for_several_locks_is_shown_with_its_own_once() {
        let drawn = drawn(&[
            lock("a", &["ann"], &["bob"]),
            lock("b", &["ann"], &["bob"]),
            lock("c", &["bob"], &["cleo"]),
        ]);
        assert_eq!(drawn.matches("cleo").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("bob").count(), 2, "{drawn}");
    }

    #[test]
    fn what_looks_like_a_cycle_ends() {
        let drawn = drawn(&[lock("a", &["ann"], &["bob"]), lock("b", &["bob"], &["ann"])]);
        assert_eq!(drawn, "ann\n└─ [a]\n   └─ bob\n      └─ [b]\n         └─ ann\n");
    }

    #[test]
    fn readers_stand_beside_each_other() {
        let drawn = drawn(&[lock("a", &["ann", "bob"], &["cleo"])]);
        assert_eq!(drawn, "ann\n└─ [a]\n   └─ cleo\nbob\n└─ [a]\n   └─ cleo\n");
    }

    #[test]
    fn a_long_chain_is_cut() {
        let name = |n: i32| format!("o{n}");
        let locks: Vec<_> = (0..1000).map(|n| lock(&n.to_string(), &[&name(n)], &[&name(n + 1)])).collect();
        assert!(lines(&locks).iter().all(|line| line.branches.chars().count() < 200));
    }
}
