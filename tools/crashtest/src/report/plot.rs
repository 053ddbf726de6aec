//! The drawings: recovery time by number of locks, and recovered transactions by log truncation.
//!
//! They are inline SVG. The colours are those of the light scheme and distinguishable for
//! colour-blind readers; the style sheet of the page replaces them in the dark scheme. Legends and
//! titles are HTML beside the drawing; only the axes have text of their own.

use std::collections::{BTreeMap, BTreeSet};

use plotters::prelude::*;

use crate::layer_result::LayerResult;

use super::format;

/// A metric of `kill`: the locks left when the store was opened.
pub const RECOVERY_LOCKS: &str = "recovery: locks";
/// A metric of `kill`: the time to open the store, in seconds, beside each value of
/// [`RECOVERY_LOCKS`].
pub const RECOVERY_SECONDS: &str = "recovery: seconds";
/// A metric of `log-damage`: the offset of the truncation, in bytes.
pub const LOG_OFFSET: &str = "offset";
/// A metric of `log-damage`: the commits acknowledged below the offset of the truncation.
pub const LOG_ACKNOWLEDGED: &str = "acknowledged";
/// A metric of `log-damage`: the transactions recovered after the truncation.
pub const LOG_RECOVERED: &str = "recovered";

const SIZE: (u32, u32) = (600, 350);
/// plotters divides a font size by 1.24 to get pixels.
const FONT: (&str, f64) = ("sans-serif", 13.0 * 1.24);
// `style.css` has the same colours.
const INK: RGBColor = RGBColor(0x40, 0x40, 0x40);
const GRID: RGBColor = RGBColor(0xD8, 0xD8, 0xD8);
const BLUE: RGBColor = RGBColor(0x00, 0x72, 0xB2);
const RED: RGBColor = RGBColor(0xD5, 0x5E, 0x00);
/// The maximum number of dots in a row or a column.
const DOTS: f64 = 200.0;
/// The first coordinate is divided into about this many ranges; the line of medians has a point for
/// each.
const RANGES: f64 = 12.0;

type Points = Vec<(f64, f64)>;

/// A drawing with a description.
pub struct Plot {
    /// The drawing, as SVG.
    pub svg: String,
    /// A description for those who cannot see it.
    pub text: String,
}

struct Axis<'a> {
    name: &'a str,
    top: f64,
}

struct Series {
    colour: RGBColor,
    points: Points,
    mark: Mark,
}

enum Mark {
    Dots,
    Line(u32),
}

/// Recovery time by number of locks, if there are values.
pub fn recovery(layer: Option<&LayerResult>) -> anyhow::Result<Option<Plot>> {
    let Some([locks, seconds]) = metrics(layer, [RECOVERY_LOCKS, RECOVERY_SECONDS]) else { return Ok(None) };
    let slowest = top(&seconds);
    let (unit, name) = if slowest < 1.0 { (1000.0, "recovery time (ms)") } else { (1.0, "recovery time (s)") };
    let points: Points = locks.iter().zip(&seconds).map(|(&locks, &seconds)| (locks, seconds * unit)).collect();
    let (x, y) = (Axis { name: "locks outstanding", top: top(&locks) }, Axis { name, top: slowest * unit });
    let median = median_line(&points, x.top);
    let dots = thin(points, x.top, y.top);
    let svg = draw(
        &x,
        &y,
        &[
            Series { colour: BLUE, points: dots, mark: Mark::Dots },
            Series { colour: RED, points: median, mark: Mark::Line(2) },
        ],
    )?;
    let text = format!(
        "{} with up to {} locks; the slowest took {}.",
        format::plural(locks.len(), "case"),
        format::number(x.top),
        format::time(slowest)
    );
    Ok(Some(Plot { svg, text }))
}

/// The drawing of the log with the most truncations, if there is one.
pub fn staircase(layer: Option<&LayerResult>) -> anyhow::Result<Option<Plot>> {
    let names = [LOG_OFFSET, LOG_ACKNOWLEDGED, LOG_RECOVERED];
    let Some([offsets, acknowledged, recovered]) = metrics(layer, names) else { return Ok(None) };
    let steps: Vec<_> = (offsets.iter().zip(&acknowledged)).zip(&recovered).map(|((&x, &a), &r)| (x, a, r)).collect();
    let fewer = steps.iter().filter(|(_, acknowledged, recovered)| recovered < acknowledged).count();
    // Each log is truncated at rising offsets, so a smaller offset begins the next log.
    let logs: Vec<_> = steps.chunk_by(|one, next| one.0 <= next.0).collect();
    let Some(longest) = logs.iter().max_by_key(|log| log.len()) else { return Ok(None) };
    let top_of = |value: fn(&(f64, f64, f64)) -> f64| longest.iter().map(value).fold(0.0, f64::max);
    let x = Axis { name: "the log ends at (bytes)", top: top_of(|step| step.0) };
    let y = Axis { name: "transactions", top: top_of(|step| step.1.max(step.2)) };
    let series = [
        Series { colour: BLUE, points: stairs(longest.iter().map(|step| (step.0, step.2))), mark: Mark::Line(5) },
        Series { colour: RED, points: stairs(longest.iter().map(|step| (step.0, step.1))), mark: Mark::Line(2) },
    ];
    let svg = draw(&x, &y, &series)?;
    let shown = if logs.len() > 1 { "; the one with the most cuts is drawn" } else { "" };
    let text = format!(
        "{} in {}{shown}. Fewer recovered than acknowledged: {}.",
        format::plural(steps.len(), "cut"),
        format::plural(logs.len(), "log"),
        format::plural(fewer, "cut")
    );
    Ok(Some(Plot { svg, text }))
}

/// Metrics of the same length, without values that cannot be drawn; `None` if their lengths differ.
fn metrics<const N: usize>(layer: Option<&LayerResult>, names: [&str; N]) -> Option<[Vec<f64>; N]> {
    let layer = layer?;
    let lists = names.map(|name| layer.metrics.get(name).map_or(&[][..], Vec::as_slice));
    let length = lists.first()?.len();
    if length == 0 || lists.iter().any(|list| list.len() != length) {
        return None;
    }
    let drawn: Vec<_> =
        (0..length).filter(|&i| lists.iter().all(|list| list[i].is_finite() && list[i] >= 0.0)).collect();
    (!drawn.is_empty()).then(|| lists.map(|list| drawn.iter().map(|&i| list[i]).collect()))
}

fn top(values: &[f64]) -> f64 {
    values.iter().copied().fold(0.0, f64::max)
}

/// Merges dots at the same place.
fn thin(points: Points, right: f64, top: f64) -> Points {
    let mut seen = BTreeSet::new();
    let slot = |value: f64, top: f64| slot(value, top, DOTS);
    points.into_iter().filter(|&(x, y)| seen.insert((slot(x, right), slot(y, top)))).collect()
}

/// The index of the mark nearest to a value; the marks divide 0 to `top` into `ranges` equal parts.
#[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the cast saturates")]
fn slot(value: f64, top: f64, ranges: f64) -> u64 {
    if top > 0.0 { (value / top * ranges).round() as u64 } else { 0 }
}

/// For each range of the first coordinate, the medians of both coordinates.
fn median_line(points: &[(f64, f64)], right: f64) -> Points {
    let mut ranges: BTreeMap<u64, [Vec<f64>; 2]> = BTreeMap::new();
    for &(x, y) in points {
        let [xs, ys] = ranges.entry(slot(x, right, RANGES)).or_default();
        xs.push(x);
        ys.push(y);
    }
    ranges.into_values().map(|[xs, ys]| (median(&xs), median(&ys))).collect()
}

/// The middle value; of two, the greater one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted.get(values.len() / 2).copied().unwrap_or_default()
}

/// A step function: each value holds up to the next offset. A level stretch is one line.
fn stairs(steps: impl Iterator<Item = (f64, f64)>) -> Points {
    let same = |one: f64, two: f64| one.total_cmp(&two).is_eq();
    let mut points: Points = Vec::new();
    for (x, y) in steps {
        match points[..] {
            [.., (_, start), (_, end)] if same(start, end) && same(end, y) => _ = points.pop(),
            [.., (_, before)] if !same(before, y) => points.push((x, before)),
            _ => {}
        }
        points.push((x, y));
    }
    points
}

fn draw(x: &Axis, y: &Axis, series: &[Series]) -> anyhow::Result<String> {
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let end = |axis: &Axis| if axis.top > 0.0 { axis.top * 1.04 } else { 1.0 };
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(52)
            .y_label_area_size(84)
            .build_cartesian_2d(0.0..end(x), 0.0..end(y))?;
        let label = |value: &f64| format::number(*value);
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(FONT.into_font().color(&INK))
            .x_labels(6)
            .y_labels(6)
            .x_label_formatter(&label)
            .y_label_formatter(&label)
            .x_desc(x.name)
            .y_desc(y.name)
            .draw()?;
        for Series { colour, points, mark } in series {
            match mark {
                Mark::Dots => {
                    chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.mix(0.6).filled())))?;
                }
                Mark::Line(width) => {
                    chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(*width)))?;
                }
            }
        }
        root.present()?;
    }
    Ok(svg)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_level_or_vertical() {
        let steps = [(0.0, 0.0), (1.0, 0.0), (2.0, 0.0), (3.0, 1.0), (4.0, 1.0), (5.0, 3.0)];
        let corners = [(0.0, 0.0), (2.0, 0.0), (3.0, 0.0), (3.0, 1.0), (4.0, 1.0), (5.0, 1.0), (5.0, 3.0)];
        assert_eq!(stairs(steps.into_iter()), corners);
    }

    #[test]
    fn equal_dots_are_merged_and_medians_are_drawn() {
        let points = vec![(0.0, 1.0), (0.0, 1.0), (0.0, 2.0), (100.0, 4.0)];
        assert_eq!(thin(points.clone(), 100.0, 4.0).len(), 3);
        assert_eq!(median_line(&points, 100.0), [(0.0, 1.0), (100.0, 4.0)]);
        assert_eq!(thin(vec![(0.0, 0.0); 3], 0.0, 0.0).len(), 1);
    }
}
