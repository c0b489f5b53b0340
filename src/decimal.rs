// SPDX-License-Identifier: MIT

//! Conversion between numbers and decimal text.

/// The greatest integer that every client can represent, even one with floating point only: 2^53 − 1.
pub(crate) const MAX_SAFE_INTEGER: i64 = (1 << 53) - 1;

/// The decimal form of a number, on the stack.
pub(crate) struct Digits {
    /// Room for a sign and the 19 digits of the longest number.
    buffer: [u8; 20],
    start: usize,
}

impl Digits {
    #[allow(clippy::cast_possible_truncation)] // Only numbers below 100 are cast.
    pub(crate) fn of(number: i64) -> Digits {
        let mut digits = Digits { buffer: [b'0'; 20], start: 20 };
        let mut rest = number.unsigned_abs();
        // Handles two digits at a time, because the divisions dominate the cost.
        while rest >= 10 {
            let two = (rest % 100) as u8;
            rest /= 100;
            digits.start -= 2;
            digits.buffer[digits.start] += two / 10;
            digits.buffer[digits.start + 1] += two % 10;
        }
        if rest > 0 || digits.start == 20 {
            digits.start -= 1;
            digits.buffer[digits.start] += rest as u8;
        }
        if number < 0 {
            digits.start -= 1;
            digits.buffer[digits.start] = b'-';
        }
        digits
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.buffer[self.start..]
    }
}

/// Parses decimal digits. `None` if the text contains any other byte. A number with more than 19 digits
/// wraps.
pub(crate) fn decimal(digits: &[u8]) -> Option<u64> {
    let (mut number, mut all_digits) = (0_u64, true);
    for byte in digits {
        let digit = byte.wrapping_sub(b'0');
        all_digits &= digit < 10;
        number = number.wrapping_mul(10).wrapping_add(u64::from(digit));
    }
    all_digits.then_some(number)
}

#[cfg(test)]
mod tests {
    use super::Digits;

    #[test]
    fn digits_match_the_number() {
        for number in [0, 7, 10, 99, 100, 101, -1, -10, 1_700_000_000_000, i64::MAX, i64::MIN] {
            assert_eq!(Digits::of(number).as_bytes(), number.to_string().as_bytes());
        }
    }
}
