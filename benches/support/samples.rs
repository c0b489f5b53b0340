// SPDX-License-Identifier: MIT

//! Samples of a repeated measurement.

/// Measured values, in microseconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Samples(pub Vec<f64>);

impl Samples {
    /// Returns the quantile at this number of thousandths: 500 is the median.
    pub fn per_mille(&self, per_mille: usize) -> f64 {
        let mut values = self.0.clone();
        if values.is_empty() {
            return f64::NAN;
        }
        let at = (values.len() * per_mille / 1000).min(values.len() - 1);
        *values.select_nth_unstable_by(at, f64::total_cmp).1
    }

    pub fn median(&self) -> f64 {
        self.per_mille(500)
    }

    pub fn mean(&self) -> f64 {
        self.0.iter().sum::<f64>() / self.0.len() as f64
    }

    pub fn p99(&self) -> f64 {
        self.per_mille(990)
    }

    pub fn max(&self) -> f64 {
        self.per_mille(1000)
    }

    /// Returns points of the distribution for a chart. Each is a value, and the share of samples up to that value.
    pub fn distribution(&self) -> Vec<(f64, f64)> {
        let mut values = self.0.clone();
        values.sort_unstable_by(f64::total_cmp);
        let share = |at: usize| (at + 1) as f64 / values.len() as f64;
        let step = (values.len() / 400).max(1);
        let mut points: Vec<_> =
            values.iter().enumerate().step_by(step).map(|(at, value)| (*value, share(at))).collect();
        points.extend(
            values.last().filter(|_| points.last().is_some_and(|last| last.1 < 1.0)).map(|max| (*max, 1.0)),
        );
        points
    }
}

/// Formats a time as `850 µs`, `1.25 ms` or `2.50 s`.
pub fn time(micros: f64) -> String {
    match micros.abs() {
        // No samples.
        nothing if nothing.is_nan() => "-".to_owned(),
        under if under < 10.0 => format!("{micros:.1} µs"),
        under if under < 1000.0 => format!("{micros:.0} µs"),
        under if under < 1e6 => format!("{:.2} ms", micros / 1000.0),
        _ => format!("{:.2} s", micros / 1e6),
    }
}
