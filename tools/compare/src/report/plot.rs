//! The chart of a workload: rates by the number of clients. The chart has no legend; the HTML of
//! the report has it beside the chart.

use anyhow::Result;
use plotters::prelude::*;

use crate::format::count;
use crate::peer::StoreKind;
use crate::summary::Summary;

const SIZE: (u32, u32) = (640, 340);
/// plotters divides a size by 1.24 to get pixels.
const FONT: (&str, f64) = ("sans-serif", 13.0 * 1.24);
/// Readable on light and on dark backgrounds.
const INK: RGBColor = RGBColor(0x80, 0x80, 0x80);
const GRID: RGBAColor = RGBAColor(0x80, 0x80, 0x80, 0.3);

/// The colors of the stores, after Okabe and Ito, whose colors are safe for color-blind readers.
fn of(store: StoreKind) -> RGBColor {
    match store {
        StoreKind::Percolite => RGBColor(0xD5, 0x5E, 0x00),
        StoreKind::PercoliteTwoPhase => RGBColor(0xE6, 0x9F, 0x00),
        StoreKind::RocksOptimistic => RGBColor(0x56, 0xB4, 0xE9),
        StoreKind::RocksTransaction => RGBColor(0x00, 0x72, 0xB2),
        StoreKind::Rocks => RGBColor(0x33, 0x44, 0x99),
        StoreKind::Fjall => RGBColor(0x00, 0x9E, 0x73),
        StoreKind::Redb => RGBColor(0xCC, 0x79, 0xA7),
        StoreKind::Lmdb => RGBColor(0x8C, 0x8C, 0x8C),
        StoreKind::Sqlite => RGBColor(0xA6, 0x76, 0x1D),
        StoreKind::Surrealkv => RGBColor(0x7B, 0x3F, 0xA0),
    }
}

/// The color in CSS.
pub fn color(store: StoreKind) -> String {
    let RGBColor(red, green, blue) = of(store);
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// Names and colors of the stores in the chart.
pub fn legend(summaries: &[Summary]) -> Vec<(&'static str, String)> {
    stores(summaries).into_iter().map(|store| (store.name(), color(store))).collect()
}

fn stores(summaries: &[Summary]) -> Vec<StoreKind> {
    let mut stores = Vec::new();
    for one in summaries.iter().filter(|one| one.rate.is_some()) {
        if !stores.contains(&one.store) {
            stores.push(one.store);
        }
    }
    stores
}

/// The chart as SVG; `None` with only one number of clients.
#[allow(clippy::cast_precision_loss, reason = "a few hundred clients")]
pub fn rates(summaries: &[Summary]) -> Result<Option<String>> {
    let mut clients: Vec<u64> = summaries.iter().map(|one| one.setting.clients).collect();
    clients.sort_unstable();
    clients.dedup();
    let points = |store| {
        let own = summaries.iter().filter(move |one| one.store == store);
        let mut points: Vec<(f64, f64)> =
            own.filter_map(|one| Some(((one.setting.clients as f64).log2(), one.rate?.median))).collect();
        points.sort_by(|one, other| one.0.total_cmp(&other.0));
        points
    };
    let (Some(&few), Some(&many)) = (clients.first(), clients.last()) else { return Ok(None) };
    let top = summaries.iter().filter_map(|one| Some(one.rate?.median)).fold(0.0, f64::max);
    if few == many || top <= 0.0 {
        return Ok(None);
    }
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, SIZE).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .margin_right(24)
            .x_label_area_size(48)
            .y_label_area_size(72)
            .build_cartesian_2d((few as f64).log2()..(many as f64).log2(), 0.0..top * 1.04)?;
        chart
            .configure_mesh()
            .axis_style(INK)
            .bold_line_style(GRID)
            .light_line_style(TRANSPARENT)
            .label_style(FONT.into_font().color(&INK))
            .x_labels(9)
            .y_labels(6)
            .disable_x_mesh()
            .x_label_formatter(&|exponent| {
                // The axis also has marks between the powers of two; they get no text.
                let is_whole = (exponent - exponent.round()).abs() < 1e-6;
                if is_whole { format!("{:.0}", exponent.exp2()) } else { String::new() }
            })
            .y_label_formatter(&|rate| if *rate > 0.0 { count(*rate) } else { "0".to_owned() })
            .x_desc("clients")
            .draw()?;
        for store in stores(summaries) {
            let (points, color) = (points(store), of(store));
            let width = if store == StoreKind::Percolite { 3 } else { 2 };
            chart.draw_series(LineSeries::new(points.iter().copied(), color.stroke_width(width)))?;
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, color.filled())))?;
        }
        root.present()?;
    }
    Ok(Some(svg))
}
