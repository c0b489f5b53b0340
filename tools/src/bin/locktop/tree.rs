// SPDX-License-Identifier: MIT

//! The tree of blockers.

use std::collections::{HashMap, HashSet};

use crate::state::Lock;

/// The maximum depth. The server refuses deadlocks, but data from several calls may look like a cycle.
const MAX_DEPTH: usize = 16;

/// A line of the tree.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    /// The branches drawn before the node.
    pub branches: String,
    pub node: Node,
}

/// The content of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Node {
    Owner(String),
    Lock(String),
    /// The number of waiters that are not shown.
    More(i64),
}

/// The lines of all trees. The roots are owners that hold locks with waiters and wait for no lock themselves.
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
    // A cycle has no root, so it begins with its first owner that is not shown yet.
    for owner in owners().filter(|owner| !waiting.contains(owner)).chain(owners()) {
        if shown.insert(owner) {
            lines.push(Line { branches: String::new(), node: Node::Owner(owner.to_owned()) });
            add_held_locks(owner, "", &held, &mut shown, &mut lines);
        }
    }
    lines
}

/// Adds the locks that an owner holds, and below each lock its waiters.
fn add_held_locks<'a>(
    owner: &'a str,
    branches: &str,
    held: &HashMap<&'a str, Vec<&'a Lock>>,
    shown: &mut HashSet<&'a str>,
    lines: &mut Vec<Line>,
) {
    let Some(locks) = held.get(owner) else { return };
    if branches.chars().count() >= 3 * MAX_DEPTH {
        return;
    }
    for (nth, lock) in locks.iter().enumerate() {
        let (branch, inner) = branch(branches, nth + 1 == locks.len());
        lines.push(Line { branches: branch, node: Node::Lock(lock.key.clone()) });
        let more = lock.waiting - i64::try_from(lock.waiters.len()).unwrap_or(i64::MAX);
        for (nth, waiter) in lock.waiters.iter().enumerate() {
            let (branch, inner) = self::branch(&inner, nth + 1 == lock.waiters.len() && more <= 0);
            lines.push(Line { branches: branch, node: Node::Owner(waiter.owner.clone()) });
            // The locks of an owner that waits for several locks are shown only once, below the first.
            if shown.insert(&waiter.owner) {
                add_held_locks(&waiter.owner, &inner, held, shown, lines);
            }
        }
        if more > 0 {
            lines.push(Line { branches: self::branch(&inner, true).0, node: Node::More(more) });
        }
    }
}

/// The branches before a line, and before the lines below it.
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
    fn root_waits_for_no_lock() {
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
    fn locks_of_a_waiter_are_shown_once() {
        let drawn = drawn(&[
            lock("a", &["ann"], &["bob"]),
            lock("b", &["ann"], &["bob"]),
            lock("c", &["bob"], &["cleo"]),
        ]);
        assert_eq!(drawn.matches("cleo").count(), 1, "{drawn}");
        assert_eq!(drawn.matches("bob").count(), 2, "{drawn}");
    }

    #[test]
    fn apparent_cycle_ends() {
        let drawn = drawn(&[lock("a", &["ann"], &["bob"]), lock("b", &["bob"], &["ann"])]);
        assert_eq!(drawn, "ann\n└─ [a]\n   └─ bob\n      └─ [b]\n         └─ ann\n");
    }

    #[test]
    fn shared_holders_are_separate_roots() {
        let drawn = drawn(&[lock("a", &["ann", "bob"], &["cleo"])]);
        assert_eq!(drawn, "ann\n└─ [a]\n   └─ cleo\nbob\n└─ [a]\n   └─ cleo\n");
    }

    #[test]
    fn long_chain_is_cut() {
        let name = |n: i32| format!("o{n}");
        let locks: Vec<_> = (0..1000).map(|n| lock(&n.to_string(), &[&name(n)], &[&name(n + 1)])).collect();
        assert!(lines(&locks).iter().all(|line| line.branches.chars().count() < 200));
    }
}
