// SPDX-License-Identifier: MIT

//! Durations on the command line.

use std::ops::RangeInclusive;
use std::time::Duration;

/// Parses a duration in seconds, such as `2` or `0.5`.
///
/// # Errors
///
/// If the text is not a number, or out of bounds.
pub fn seconds(text: &str, bounds: RangeInclusive<f64>) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !bounds.contains(&seconds) {
        return Err(format!("must be from {} to {}", bounds.start(), bounds.end()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
