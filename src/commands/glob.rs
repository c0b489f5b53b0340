// SPDX-License-Identifier: MIT

//! Glob patterns of `KEYS` and `SCAN`. The module API does not offer them.

/// Whether all of `text` matches the pattern: `*` matches any bytes, `?` one byte, `[abc]`, `[^abc]` and `[a-z]` one byte of a
/// class. A backslash escapes the next byte. The time is at most proportional to the product of both lengths.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Backtracks: after a mismatch, the latest star matches one more byte.
    let mut star = None;
    loop {
        if let Some(b'*') = pattern.get(p) {
            p += 1;
            star = Some((p, t));
            continue;
        }
        match (pattern.get(p), text.get(t)) {
            (None, None) => return true,
            (Some(_), Some(byte)) => {
                let (hit, next) = match_element(pattern, p, *byte);
                if hit {
                    (p, t) = (next, t + 1);
                    continue;
                }
            }
            _ => {}
        }
        match star {
            Some((after, from)) if from < text.len() => {
                star = Some((after, from + 1));
                (p, t) = (after, from + 1);
            }
            _ => return false,
        }
    }
}

/// The only text that the pattern matches, if it has no wildcard.
pub(super) fn literal(pattern: &[u8]) -> Option<Vec<u8>> {
    let mut text = Vec::with_capacity(pattern.len());
    let mut rest = pattern;
    loop {
        rest = match rest {
            [] => return Some(text),
            [b'*' | b'?' | b'[', ..] => return None,
            [b'\\', byte, rest @ ..] | [byte, rest @ ..] => {
                text.push(*byte);
                rest
            }
        }
    }
}

/// Whether the element of the pattern at `p` matches this byte, and the position of the next element.
fn match_element(pattern: &[u8], p: usize, byte: u8) -> (bool, usize) {
    match pattern[p] {
        b'?' => (true, p + 1),
        b'[' => match_class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        plain => (plain == byte, p + 1),
    }
}

/// Whether a byte matches the class after a bracket, and the position of the next element. The closing bracket may be missing, as
/// in the server.
fn match_class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
    let not = pattern.get(p) == Some(&b'^');
    p += usize::from(not);
    let mut hit = false;
    loop {
        match pattern[p.min(pattern.len())..] {
            [b'\\', escaped, ..] => {
                hit |= escaped == byte;
                p += 2;
            }
            [b']', ..] => return (hit != not, p + 1),
            [] => return (hit != not, p),
            [from, b'-', to, ..] => {
                hit |= (from.min(to)..=from.max(to)).contains(&byte);
                p += 3;
            }
            [plain, ..] => {
                hit |= plain == byte;
                p += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{literal, matches};

    #[test]
    fn patterns_match_like_the_server() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("", "a", false),
            ("*", "", true),
            ("*", "abc", true),
            ("a*c", "abbc", true),
            ("a*c", "abbd", false),
            ("a**b*", "axb", true),
            ("?", "a", true),
            ("?", "", false),
            ("h[ae]llo", "hello", true),
            ("h[^ae]llo", "hello", false),
            ("h[^ae]llo", "hillo", true),
            ("h[a-c]llo", "hbllo", true),
            ("h[c-a]llo", "hbllo", true),
            ("h[a-c]llo", "hdllo", false),
            ("\\*", "*", true),
            ("\\*", "a", false),
            ("[\\]]", "]", true),
            ("a[bc", "ab", true),
            ("order:*:lock", "order:7:lock", true),
            ("order:*:lock", "order:7:locks", false),
        ] {
            assert_eq!(matches(pattern.as_bytes(), text.as_bytes()), expected, "{pattern} {text}");
        }
        assert!(!matches(&b"*a".repeat(50), &[b'a'; 49]), "many stars do not match");
        assert!(
            !matches(&[&b"*a".repeat(200)[..], b"b"].concat(), &[b'a'; 5000]),
            "a mismatch is found quickly"
        );
    }

    #[test]
    fn patterns_without_wildcard_match_one_text() {
        for (pattern, text) in [
            ("", Some("")),
            ("order:7", Some("order:7")),
            ("a]", Some("a]")),
            ("\\*\\[\\?\\\\", Some("*[?\\")),
            ("a\\", Some("a\\")),
            ("a*", None),
            ("?", None),
            ("[a]", None),
            ("\\\\*", None),
        ] {
            assert_eq!(literal(pattern.as_bytes()).as_deref(), text.map(str::as_bytes), "{pattern}");
            if let Some(text) = text {
                assert!(matches(pattern.as_bytes(), text.as_bytes()), "{pattern}");
            }
        }
    }
}
