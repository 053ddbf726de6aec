//! The drawing of a workload: rates over the number of clients. The key is HTML beside it.

use anyhow::Result;
use plotters::prelude::*;

use crate::compare::{Summary, count};
use crate::peer::Kind;

const SIZE: (u32, u32) = (640, 340);
/// plotters divides a size by 1.24 to come to pixels.
const FONT: (&str, f64) = ("sans-serif", 13.0 * 1.24);
/// Readable on light and on dark ground.
const INK: RGBColor = RGBColor(0x80, 0x80, 0x80);
const GRID: RGBAColor = RGBAColor(0x80, 0x80, 0x80, 0.3);

/// A store's own, the same in every drawing; after Okabe and Ito, whose colours everybody can tell apart.
fn of(store: Kind) -> RGBColor {
    match store {
        Kind::Percolite => RGBColor(0xD5, 0x5E, 0x00),
        Kind::PercoliteTwoPhase => RGBColor(0xE6, 0x9F, 0x00),
        Kind::Proof => RGBColor(0x00, 0x00, 0x00),
        Kind::RocksOptimistic => RGBColor(0x56, 0xB4, 0xE9),
        Kind::RocksTransaction => RGBColor(0x00, 0x72, 0xB2),
        Kind::Rocks => RGBColor(0x33, 0x44, 0x99),
        Kind::Fjall => RGBColor(0x00, 0x9E, 0x73),
        Kind::Redb => RGBColor(0xCC, 0x79, 0xA7),
        Kind::Lmdb => RGBColor(0x8C, 0x8C, 0x8C),
        Kind::Sqlite => RGBColor(0xA6, 0x76, 0x1D),
        Kind::Surrealkv => RGBColor(0x7B, 0x3F, 0xA0),
    }
}

/// As style sheets write it.
pub fn colour(store: Kind) -> String {
    let RGBColor(red, green, blue) = of(store);
    format!("#{red:02X}{green:02X}{blue:02X}")
}

/// The stores that are drawn.
pub fn key(summaries: &[Summary]) -> Vec<(&'static str, String)> {
    stores(summaries).into_iter().map(|store| (store.name(), colour(store))).collect()
}

fn stores(summaries: &[Summary]) -> Vec<Kind> {
    let mut stores = Vec::new();
    for one in summaries.iter().filter(|one| one.rate.is_some()) {
        if !stores.contains(&one.store) {
            stores.push(one.store);
        }
    }
    stores
}

/// `None` where there is only one number of clients.
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
                // The axis has marks in between as well.
                let is_whole = (exponent - exponent.round()).abs() < 1e-6;
                if is_whole { format!("{:.0}", exponent.exp2()) } else { String::new() }
            })
            .y_label_formatter(&|rate| if *rate > 0.0 { count(*rate) } else { "0".to_owned() })
            .x_desc("clients")
            .draw()?;
        for store in stores(summaries) {
            let (points, colour) = (points(store), of(store));
            let width = if store == Kind::Percolite { 3 } else { 2 };
            chart.draw_series(LineSeries::new(points.iter().copied(), colour.stroke_width(width)))?;
            chart.draw_series(points.iter().map(|&at| Circle::new(at, 3, colour.filled())))?;
        }
        root.present()?;
    }
    Ok(Some(svg))
}
