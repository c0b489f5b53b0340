// SPDX-License-Identifier: MIT

//! The order of the locks in the table.

use std::cmp::Ordering;

use crate::state::{Holder, Lock};

/// A column that sorts the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Column {
    Name,
    Held,
    Lease,
    Waiters,
    Longest,
}

impl Column {
    /// The column that a key of the keyboard sorts by.
    pub(crate) fn of_key(key: char) -> Option<Column> {
        Some(match key {
            'n' => Column::Name,
            'h' => Column::Held,
            'e' => Column::Lease,
            'w' => Column::Waiters,
            'l' => Column::Longest,
            _ => return None,
        })
    }
}

/// The order of the table: the longest wait first, unless the user chooses another.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sort {
    pub column: Column,
    pub is_descending: bool,
}

impl Default for Sort {
    fn default() -> Sort {
        Sort::by(Column::Longest)
    }
}

impl Sort {
    /// Sorts by a column: names ascending, numbers descending.
    pub(crate) fn by(column: Column) -> Sort {
        Sort { column, is_descending: column != Column::Name }
    }

    pub(crate) fn reverse(&mut self) {
        self.is_descending = !self.is_descending;
    }

    /// Sorts locks. Equal locks keep their order.
    pub(crate) fn apply(self, locks: &mut [&Lock]) {
        locks.sort_by(|a, b| {
            let ordering = self.compare(a, b);
            if self.is_descending {
                ordering.reverse()
            } else {
                ordering
            }
        });
    }

    fn compare(self, a: &Lock, b: &Lock) -> Ordering {
        let by = |number: fn(&Lock) -> i64| number(a).cmp(&number(b));
        match self.column {
            Column::Name => a.key.cmp(&b.key),
            Column::Held => by(|lock| lock.holders.first().and_then(|holder| holder.since_ms).unwrap_or(-1)),
            Column::Lease => by(|lock| lock.holders.first().map_or(-1, |holder: &Holder| holder.ttl_ms)),
            Column::Waiters => by(|lock| lock.waiting),
            Column::Longest => by(|lock| lock.longest_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sorted(sort: Sort) -> String {
        let lock = |key: &str, waiting, longest_ms, ttl_ms| Lock {
            key: key.to_owned(),
            waiting,
            longest_ms,
            holders: vec![Holder { ttl_ms, ..Holder::default() }],
            ..Lock::default()
        };
        let locks = [lock("b", 1, 30, 5), lock("a", 2, 10, 9), lock("c", 3, 20, 7)];
        let mut shown: Vec<&Lock> = locks.iter().collect();
        sort.apply(&mut shown);
        shown.iter().map(|lock| lock.key.as_str()).collect()
    }

    #[test]
    fn each_key_sorts_by_its_column() {
        for (key, expected) in [('n', "abc"), ('w', "cab"), ('l', "bca"), ('e', "acb"), ('h', "bac")] {
            assert_eq!(sorted(Sort::by(Column::of_key(key).unwrap())), expected, "{key}");
        }
        let mut sort = Sort::default();
        sort.reverse();
        assert_eq!(sorted(sort), "acb");
    }
}
