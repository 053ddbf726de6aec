//! `locks`: what locks by name cost, beside what a program would take in their place.
//!
//! In each round all are measured one after the other, ours and theirs in turn; ratios are taken within a round. [`uncontended`] has one
//! thread, [`ring`] those that hand a lock on, [`durable`] what takes a sync, [`counted`] instructions and
//! memory, and [`postgres`] a server of its own.

mod counted;
mod durable;
mod postgres;
mod ring;
mod uncontended;

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};
use clap::Args;
use comfy_table::{CellAlignment, Table};
use percolite::{Durability, Store};
use serde::Serialize;
use tempfile::TempDir;

pub use self::counted::{Work, probe};

use crate::interrupt;
use crate::statistics::Spread;

#[derive(Args)]
pub struct Choice {
    /// Three short rounds, and a tenth of the names
    #[arg(long)]
    quick: bool,
    /// How many rounds ratios are taken over [default: 15, quick 3]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..))]
    rounds: Option<u64>,
    /// Only the figures in whose names this is found
    #[arg(long)]
    only: Option<String>,
    /// Where PostgreSQL's programs are [default: the newest of Debian's]; without any its line is left out
    #[arg(long, value_name = "FOLDER")]
    postgres: Option<PathBuf>,
    /// Where the stores are made, in a folder that goes in the end [default: the system's for temporary files]
    #[arg(long, value_name = "FOLDER")]
    folder: Option<PathBuf>,
    /// One JSON document instead of a table
    #[arg(long)]
    json: bool,
}

/// What the median of a figure has to be.
#[derive(Clone, Copy, Serialize)]
#[serde(rename_all = "snake_case")]
enum Goal {
    AtMost(f64),
    AtLeast(f64),
    None,
}

impl Goal {
    fn is_met(self, figure: f64) -> bool {
        match self {
            Self::AtMost(most) => figure <= most,
            Self::AtLeast(least) => figure >= least,
            Self::None => true,
        }
    }
}

/// Something that is measured in each round.
struct Line<'a> {
    name: String,
    goal: Goal,
    /// Ours, and where there is one, theirs; the figure is their ratio.
    measure: Box<dyn FnMut() -> Result<(f64, Option<f64>)> + 'a>,
}

impl<'a> Line<'a> {
    fn ratio(name: impl Into<String>, goal: Goal, mut both: impl FnMut() -> Result<(f64, f64)> + 'a) -> Self {
        Self { name: name.into(), goal, measure: Box::new(move || both().map(|(ours, theirs)| (ours, Some(theirs)))) }
    }

    fn alone(name: impl Into<String>, goal: Goal, mut ours: impl FnMut() -> Result<f64> + 'a) -> Self {
        Self { name: name.into(), goal, measure: Box::new(move || ours().map(|ours| (ours, None))) }
    }
}

/// What came out.
#[derive(Serialize)]
struct Figure {
    name: String,
    ours: Spread,
    theirs: Option<Spread>,
    /// Ours over theirs; ours where there is nothing to compare with.
    figure: Spread,
    goal: Goal,
    is_met: bool,
}

/// Places and amounts.
struct Bench {
    folder: TempDir,
    names: u64,
    turns: u64,
    time: Duration,
}

impl Bench {
    fn open(&self, name: &str, durability: Durability) -> Result<Store> {
        Ok(Store::builder().durability(durability).open(self.folder.path().join(name))?)
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }
}

/// How many goals were missed; `None` if the run was interrupted.
pub fn run(choice: &Choice) -> Result<Option<usize>> {
    let within = choice.folder.clone().unwrap_or_else(std::env::temp_dir);
    let folder = tempfile::Builder::new().prefix("percolite-locks-").tempdir_in(within)?;
    let (names, turns, time) = if choice.quick { (10_000, 20_000, 300) } else { (100_000, 100_000, 1000) };
    let bench = Bench { folder, names, turns, time: Duration::from_millis(time) };
    let rounds = choice.rounds.unwrap_or(if choice.quick { 3 } else { 15 });
    let server = postgres::Server::start(choice.postgres.as_deref(), bench.path())?;
    let mut lines = uncontended::lines(&bench, server.as_ref())?;
    lines.extend(ring::lines(&bench)?);
    lines.extend(durable::lines(&bench)?);
    lines.extend(counted::lines(&bench)?);
    if let Some(only) = &choice.only {
        lines.retain(|line| line.name.contains(only.as_str()));
    }
    let mut measured = vec![Vec::new(); lines.len()];
    for _ in 0..rounds {
        for (line, measured) in lines.iter_mut().zip(&mut measured) {
            if interrupt::came() {
                return Ok(None);
            }
            measured.push((line.measure)().with_context(|| line.name.clone())?);
        }
    }
    let figures: Vec<Figure> =
        lines.into_iter().zip(measured).map(|(line, measured)| figure(line, &measured)).collect::<Result<_>>()?;
    if choice.json {
        println!("{}", serde_json::to_string_pretty(&figures)?);
    } else {
        println!("{}", show(&figures));
        if server.is_none() {
            println!("without PostgreSQL, which was not found");
        }
    }
    Ok(Some(figures.iter().filter(|figure| !figure.is_met).count()))
}

fn figure(line: Line<'_>, measured: &[(f64, Option<f64>)]) -> Result<Figure> {
    let spread = |figures: Vec<f64>| Spread::of(figures).context("no round");
    let ours = spread(measured.iter().map(|(ours, _)| *ours).collect())?;
    let ratios: Vec<f64> = measured.iter().filter_map(|(ours, theirs)| Some(ours / (*theirs)?)).collect();
    let theirs = Spread::of(measured.iter().filter_map(|(_, theirs)| *theirs).collect());
    let figure = Spread::of(ratios).unwrap_or(ours);
    Ok(Figure { name: line.name, ours, theirs, figure, goal: line.goal, is_met: line.goal.is_met(figure.median) })
}

fn show(figures: &[Figure]) -> Table {
    let mut table = Table::new();
    table.load_preset(comfy_table::presets::UTF8_HORIZONTAL_ONLY);
    table.set_header(["what", "ours", "theirs", "figure (least..greatest)", "goal", ""]);
    for one in figures {
        let goal = match one.goal {
            Goal::AtMost(most) => format!("≤ {most}"),
            Goal::AtLeast(least) => format!("≥ {least}"),
            Goal::None => String::new(),
        };
        let met = match one.goal {
            Goal::None => "",
            _ if one.is_met => "met",
            _ => "missed",
        };
        let theirs = one.theirs.map_or_else(String::new, |theirs| format!("{:.1}", theirs.median));
        let ours = format!("{:.1}", one.ours.median);
        table.add_row([one.name.clone(), ours, theirs, one.figure.to_string(), goal, met.to_owned()]);
    }
    table.column_iter_mut().skip(1).take(4).for_each(|column| column.set_cell_alignment(CellAlignment::Right));
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_figure_is_the_median_of_the_rounds_ratios_and_is_judged_by_it() {
        let line = Line::ratio("one", Goal::AtMost(2.0), || Ok((1.0, 1.0)));
        let one = figure(line, &[(4.0, Some(2.0)), (1.0, Some(1.0)), (30.0, Some(10.0))]).unwrap();
        assert_eq!((one.figure.median, one.is_met), (2.0, true));
        let line = Line::alone("one", Goal::AtLeast(2.0), || Ok(1.0));
        let one = figure(line, &[(1.0, None), (3.0, None), (1.5, None)]).unwrap();
        assert_eq!((one.figure.median, one.is_met, one.theirs.is_none()), (1.5, false, true));
    }
}
