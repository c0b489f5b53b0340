// SPDX-License-Identifier: MIT

//! The output of redis-cli.

/// Replaces each number that differs between runs by `N`, each session id by `ID`, and each address by `ADDRESS`.
pub fn timeless(text: &str) -> String {
    const VARY: [&str; 10] =
        ["ttl", "since", "client", "waited", "remaining", "longest", "token", "age", "left", "time"];
    let mut varies = false;
    let lines = text.lines().map(|line| {
        let line = line.trim_end();
        let (before, number) = line.rsplit_once("(integer) ").unwrap_or((line, ""));
        let hidden = varies && !number.is_empty();
        varies = VARY.iter().any(|name| line.ends_with(&format!("\"{name}\"")));
        if hidden {
            format!("{before}(integer) N")
        } else if let Some(before) = before_address(line) {
            format!("{before}\"ADDRESS\"")
        } else if let Some(before) = before_session_id(line) {
            format!("{before}\"ID\"")
        } else {
            line.to_owned()
        }
    });
    lines.collect::<Vec<_>>().join("\n")
}

/// The text of a line before an address with a port, in quotes.
fn before_address(line: &str) -> Option<&str> {
    let (before, address) = line.strip_suffix('"')?.rsplit_once('"')?;
    address.parse::<std::net::SocketAddr>().ok().map(|_| before)
}

/// The text of a line before the id of a session, which is 32 hexadecimal digits in quotes.
fn before_session_id(line: &str) -> Option<&str> {
    let (before, id) = line.strip_suffix('"')?.rsplit_once('"')?;
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then_some(before)
}
