//! What the harness has shown, for people and for programs: a table on the terminal, `report.json`, and one page of HTML.
//!
//! All three are made from the [`Evidence`] that the other commands write, of one run or of several put together. The
//! page needs nothing but itself: its plots are drawn into it, nothing is loaded and nothing is run, so that it can be
//! mailed, kept beside a release, and opened from a disk in ten years. What was not run is said to be not run; an empty
//! place in a report is too easily taken for a good one.
//!
//! | file | what |
//! |---|---|
//! | `merge` | several runs put together |
//! | `verdict` | whether it all held, and if not, why not |
//! | `terminal` | the table |
//! | `page`, `grid`, `plot` | the page, its coloured tables, and its drawings |
//! | `words` | numbers and times as people write them |

mod coverage;
mod format;
mod html;
mod merge;
mod plot;
mod terminal;
#[cfg(test)]
mod tests;
mod verdict;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use crate::run_report::RunReport;
use format::plural;
use verdict::RunVerdict;

pub use plot::{LOG_ACKNOWLEDGED, LOG_OFFSET, LOG_RECOVERED, RECOVERY_LOCKS, RECOVERY_SECONDS};
pub use terminal::print;

/// Makes the report from what other commands have written, several files put together.
///
/// Exit code 0: everything held. 1: something did not, or nothing was run. 2: a file is not evidence.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// What any command wrote with `--json`; an earlier `report.json` will do as well.
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// The folder for `report.json` and `report.html`.
    #[arg(long, value_name = "DIR", default_value = "crashtest-report")]
    pub out: PathBuf,
}

/// Prints the table, writes both files and says where they are.
///
/// # Errors
/// When a file cannot be read or written, or is not evidence.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let read: Vec<_> = args.runs.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?;
    let (once, duplicates) = merge::once(read)?;
    if duplicates > 0 {
        eprintln!("{} given more than once and counted once", plural(duplicates, "file"));
    }
    let run = merge::merge(once);
    print(&run);
    // A closed pipe is no reason to fail: the files are there, and so is the exit code.
    for path in write(&run, &args.out)? {
        let _ = writeln!(io::stdout(), "{}", path.display());
    }
    Ok(if RunVerdict::of(&run).passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes `report.json` and `report.html` into a folder, and says what they are called.
///
/// # Errors
/// When they cannot be written.
pub fn write(run: &RunReport, folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let paths = [folder.join("report.json"), folder.join("report.html")];
    let contents = [json(run)?, html::page(run)?];
    for (path, content) in paths.iter().zip(contents) {
        fs::write(path, content).with_context(|| path.display().to_string())?;
    }
    Ok(paths)
}

/// The evidence with its verdict; whoever reads it as [`Evidence`] passes over the verdict.
#[derive(Serialize)]
struct ReportJson<'a> {
    passed: bool,
    reasons: Vec<String>,
    #[serde(flatten)]
    run: &'a RunReport,
}

fn json(run: &RunReport) -> anyhow::Result<String> {
    let verdict = RunVerdict::of(run);
    let report = ReportJson { passed: verdict.passed(), reasons: verdict.reasons, run };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

fn read(path: &Path) -> anyhow::Result<RunReport> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is not evidence", path.display()))
}
