// SPDX-License-Identifier: MIT

//! Times at a command line.

use std::ops::RangeInclusive;
use std::time::Duration;

/// A time in seconds, with a fraction if you like.
///
/// # Errors
///
/// If it is no number, or out of bounds.
pub fn seconds(text: &str, bounds: RangeInclusive<f64>) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "not a number of seconds")?;
    if !bounds.contains(&seconds) {
        return Err(format!("must be from {} to {}", bounds.start(), bounds.end()));
    }
    Ok(Duration::from_secs_f64(seconds))
}
