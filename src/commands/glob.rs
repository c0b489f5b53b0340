// SPDX-License-Identifier: MIT

//! Patterns as `KEYS` and `SCAN` take them, which the module API does not offer.

/// True if the whole of `text` matches: `*` any bytes, `?` one byte, `[abc]`, `[^abc]`, `[a-z]` one of these, and
/// a backslash takes the next byte as it is. Takes time in proportion to the product of both lengths at most.
pub(super) fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut p, mut t) = (0, 0);
    // Where to go on if what follows the latest star does not match: one byte further.
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
                let (hit, next) = one(pattern, p, *byte);
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

/// Whether the element of the pattern at `p` takes this byte, and where the next element begins.
fn one(pattern: &[u8], p: usize, byte: u8) -> (bool, usize) {
    match pattern[p] {
        b'?' => (true, p + 1),
        b'[' => class(pattern, p + 1, byte),
        b'\\' if p + 1 < pattern.len() => (pattern[p + 1] == byte, p + 2),
        plain => (plain == byte, p + 1),
    }
}

/// Whether a byte matches what follows a bracket, and where the pattern goes on. The bracket may be left
/// open, as the server has it.
fn class(pattern: &[u8], mut p: usize, byte: u8) -> (bool, usize) {
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
    use super::matches;

    #[test]
    fn patterns_are_those_of_the_server() {
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
        assert!(!matches(&b"*a".repeat(50), &[b'a'; 49]), "too many stars");
        assert!(!matches(&[&b"*a".repeat(200)[..], b"b"].concat(), &[b'a'; 5000]), "and it ends soon");
    }
}
