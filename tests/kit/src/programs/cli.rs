// SPDX-License-Identifier: MIT

//! The output of redis-cli.

/// Replaces each number that differs between runs by `N`.
pub fn timeless(text: &str) -> String {
    const VARY: [&str; 7] = ["ttl", "since", "client", "waited", "remaining", "longest", "token"];
    let mut varies = false;
    let lines = text.lines().map(|line| {
        let line = line.trim_end();
        let (before, number) = line.rsplit_once("(integer) ").unwrap_or((line, ""));
        let hidden = varies && !number.is_empty();
        varies = VARY.iter().any(|name| line.ends_with(&format!("\"{name}\"")));
        if hidden {
            format!("{before}(integer) N")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}
