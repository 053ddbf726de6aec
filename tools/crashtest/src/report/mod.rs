//! Reports for people and programs: a table on the terminal, `report.json`, and an HTML page.
//!
//! All three are made from the [`RunReport`]s that the other commands write, of one run or of
//! several. The page is self-contained: its plots are inline, it loads nothing and has no scripts,
//! so it can be mailed or archived. Everything that was not run is marked as not run, because an
//! empty section is easily taken for a pass.
//!
//! | file | content |
//! |---|---|
//! | `merge` | merges several runs |
//! | `run_result` | whether the run passed, and if not, why not |
//! | `terminal` | the table on the terminal |
//! | `html`, `coverage`, `plot` | the page, its coloured tables, and its drawings |
//! | `format` | numbers and times |

mod coverage;
mod format;
mod html;
mod merge;
mod plot;
mod run_result;
mod terminal;
#[cfg(test)]
mod tests;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use crate::run_report::RunReport;
use format::plural;
use run_result::RunResult;

pub use plot::{LOG_ACKNOWLEDGED, LOG_OFFSET, LOG_RECOVERED, RECOVERY_LOCKS, RECOVERY_SECONDS};
pub use terminal::print;

/// Make a report from run reports, several files merged.
///
/// Exit code 0: passed. 1: failed, or nothing was run. 2: a file is not a run report.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// Run reports, as written with `--json`; an earlier `report.json` is accepted as well.
    #[arg(required = true)]
    pub runs: Vec<PathBuf>,
    /// The directory for `report.json` and `report.html`.
    #[arg(long, value_name = "DIR", default_value = "crashtest-report")]
    pub out: PathBuf,
}

/// Prints the table, writes both files and prints their paths.
///
/// # Errors
/// A file cannot be read or written, or is not a run report.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let read: Vec<_> = args.runs.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?;
    let (once, duplicates) = merge::once(read)?;
    if duplicates > 0 {
        eprintln!("{} repeated; each is counted once", plural(duplicates, "file"));
    }
    let run = merge::merge(once);
    print(&run);
    // A closed pipe is no error: the files are written, and the exit code is set.
    for path in write(&run, &args.out)? {
        let _ = writeln!(io::stdout(), "{}", path.display());
    }
    Ok(if RunResult::of(&run).passed() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes `report.json` and `report.html` into a directory, and returns their paths.
///
/// # Errors
/// The files cannot be written.
pub fn write(run: &RunReport, dir: &Path) -> anyhow::Result<[PathBuf; 2]> {
    fs::create_dir_all(dir).with_context(|| dir.display().to_string())?;
    let paths = [dir.join("report.json"), dir.join("report.html")];
    let contents = [json(run)?, html::page(run)?];
    for (path, content) in paths.iter().zip(contents) {
        fs::write(path, content).with_context(|| path.display().to_string())?;
    }
    Ok(paths)
}

/// The run report with its result; reading it as [`RunReport`] ignores the result.
#[derive(Serialize)]
struct ReportJson<'a> {
    passed: bool,
    reasons: Vec<String>,
    #[serde(flatten)]
    run: &'a RunReport,
}

fn json(run: &RunReport) -> anyhow::Result<String> {
    let result = RunResult::of(run);
    let report = ReportJson { passed: result.passed(), reasons: result.reasons, run };
    Ok(serde_json::to_string_pretty(&report)? + "\n")
}

fn read(path: &Path) -> anyhow::Result<RunReport> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is not a run report", path.display()))
}
