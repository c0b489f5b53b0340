// SPDX-License-Identifier: MIT

//! Line charts as SVG.

use std::fmt::Write;
use std::fs;

use super::{results, Outcome};

const WIDTH: f64 = 920.0;
const HEIGHT: f64 = 400.0;
/// The margins of the chart: left, right (with the names of some lines), above, below.
const MARGINS: [f64; 4] = [75.0, 260.0, 45.0, 55.0];
/// Colors of the lines. They can be distinguished with color blindness, too.
const COLOURS: [&str; 6] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9"];

/// The least number of points of a distribution, whose points are not marked.
const MIN_DISTRIBUTION: usize = 20;

/// An axis of the chart.
pub struct Axis {
    pub label: &'static str,
    pub is_logarithmic: bool,
}

pub struct Line {
    pub name: String,
    /// Whether it shows this module.
    pub is_ours: bool,
    pub points: Vec<(f64, f64)>,
}

/// Writes `target/bench/<name>.svg`.
pub fn draw(name: &str, title: &str, x: &Axis, y: &Axis, lines: &[Line]) -> Outcome<()> {
    let path = results::dir()?.join(format!("{name}.svg"));
    fs::write(&path, svg(title, x, y, lines)?)?;
    println!("picture: {}", path.display());
    Ok(())
}

/// Maps the values of an axis to positions in the picture.
struct Scale {
    is_logarithmic: bool,
    from: f64,
    to: f64,
    begin: f64,
    end: f64,
}

impl Scale {
    fn of(axis: &Axis, values: impl Iterator<Item = f64> + Clone, begin: f64, end: f64) -> Scale {
        let usable = values.filter(|value| value.is_finite() && (!axis.is_logarithmic || *value > 0.0));
        let (low, high) = (usable.clone().fold(f64::MAX, f64::min), usable.fold(f64::MIN, f64::max));
        let (from, to) = if axis.is_logarithmic {
            (low.log10().floor(), high.log10().ceil().max(low.log10().floor() + 1.0))
        } else {
            (0.0, high)
        };
        Scale { is_logarithmic: axis.is_logarithmic, from, to, begin, end }
    }

    fn place(&self, value: f64) -> f64 {
        let value = if self.is_logarithmic { value.log10() } else { value };
        self.begin + (value - self.from) / (self.to - self.from) * (self.end - self.begin)
    }

    fn ticks(&self) -> Vec<f64> {
        // The conversion is exact: an axis has about ten steps at most.
        #[allow(clippy::cast_possible_truncation)]
        let decades = || self.from as i32..=self.to as i32;
        if self.is_logarithmic {
            decades().map(|power| 10f64.powi(power)).collect()
        } else {
            (0..=4).map(|part| self.to * f64::from(part) / 4.0).collect()
        }
    }
}

fn svg(title: &str, x: &Axis, y: &Axis, lines: &[Line]) -> Outcome<String> {
    let [left, right, above, below] = MARGINS;
    let (bottom, far) = (HEIGHT - below, WIDTH - right);
    let points = || lines.iter().flat_map(|line| line.points.iter());
    let across = Scale::of(x, points().map(|point| point.0), left, far);
    let up = Scale::of(y, points().map(|point| point.1), bottom, above);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n\
         <text x=\"{left}\" y=\"24\" font-size=\"15\">{title}</text>\n"
    );
    for tick in across.ticks() {
        let at = across.place(tick);
        writeln!(svg, "<path d=\"M{at:.1} {above}V{bottom}\" stroke=\"#ddd\"/>")?;
        writeln!(svg, "<text x=\"{at:.1}\" y=\"{}\" text-anchor=\"middle\">{tick}</text>", bottom + 18.0)?;
    }
    for tick in up.ticks() {
        let at = up.place(tick);
        writeln!(svg, "<path d=\"M{left} {at:.1}H{far}\" stroke=\"#ddd\"/>")?;
        writeln!(svg, "<text x=\"{}\" y=\"{:.1}\" text-anchor=\"end\">{tick}</text>", left - 6.0, at + 4.0)?;
    }
    let (middle, foot) = (f64::midpoint(left, far), HEIGHT - 14.0);
    writeln!(svg, "<text x=\"{middle}\" y=\"{foot}\" text-anchor=\"middle\">{}</text>", x.label)?;
    writeln!(
        svg,
        "<text transform=\"translate(16 {}) rotate(-90)\" text-anchor=\"middle\">{}</text>",
        f64::midpoint(above, bottom),
        y.label
    )?;
    for (line, colour) in lines.iter().zip(COLOURS) {
        let mut path = String::new();
        for (at, (x, y)) in line.points.iter().enumerate() {
            let letter = if at == 0 { 'M' } else { 'L' };
            write!(path, "{letter}{:.1} {:.1}", across.place(*x), up.place(*y))?;
        }
        writeln!(
            svg,
            "<path d=\"{path}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"{}\"/>",
            if line.is_ours { 4 } else { 2 }
        )?;
        if line.points.len() < MIN_DISTRIBUTION {
            for (x, y) in &line.points {
                let (x, y) = (across.place(*x), up.place(*y));
                writeln!(svg, "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3.5\" fill=\"{colour}\"/>")?;
            }
        }
    }
    // Each line has its name at its end, in its color. Names at almost the same height are moved down. Distributions end at the
    // same height, so their names are beside the chart.
    let mut names: Vec<_> = lines
        .iter()
        .zip(COLOURS)
        .filter_map(|(line, colour)| {
            let (x, y) = line.points.last()?;
            let is_distribution = line.points.len() >= MIN_DISTRIBUTION;
            Some((up.place(*y), if is_distribution { far } else { across.place(*x) }, line, colour))
        })
        .collect();
    names.sort_by(|one, other| one.0.total_cmp(&other.0));
    let mut free = above;
    for (y, x, line, colour) in names {
        let y = f64::max(y, free);
        free = y + 16.0;
        let weight = if line.is_ours { " font-weight=\"bold\"" } else { "" };
        let (x, y) = (x + 10.0, y + 4.0);
        writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{colour}\"{weight}>{}</text>", line.name)?;
    }
    svg += "</svg>\n";
    Ok(svg)
}
