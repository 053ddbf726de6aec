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

mod grid;
mod merge;
mod page;
mod plot;
mod terminal;
#[cfg(test)]
mod tests;
mod verdict;
mod words;

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::Args;
use serde::Serialize;

use crate::evidence::Evidence;
use verdict::Verdict;
use words::some;

pub use plot::{RECOVERY_LOCKS, RECOVERY_SECONDS, SWEEP_ACKNOWLEDGED, SWEEP_OFFSET, SWEEP_RECOVERED};
pub use terminal::print;

/// Makes the report from what other commands have written, several files put together.
///
/// Exit code 0: everything held. 1: something did not, or nothing was run. 2: a file is not evidence.
#[derive(Args, Clone, Debug)]
pub struct ReportArgs {
    /// What any command wrote with `--json`; an earlier `report.json` will do as well.
    #[arg(required = true)]
    pub evidence: Vec<PathBuf>,
    /// The folder for `report.json` and `report.html`.
    #[arg(long, value_name = "DIR", default_value = "crashtest-report")]
    pub out: PathBuf,
}

/// Prints the table, writes both files and says where they are.
///
/// # Errors
/// When a file cannot be read or written, or is not evidence.
pub fn run(args: &ReportArgs) -> anyhow::Result<ExitCode> {
    let read: Vec<_> = args.evidence.iter().map(|path| read(path)).collect::<anyhow::Result<_>>()?;
    let (once, again) = merge::once(read)?;
    if again > 0 {
        eprintln!("{} given more than once and counted once", some(again, "file"));
    }
    let evidence = merge::merge(once);
    print(&evidence);
    // A closed pipe is no reason to fail: the files are there, and so is the exit code.
    for path in write(&evidence, &args.out)? {
        let _ = writeln!(io::stdout(), "{}", path.display());
    }
    Ok(if Verdict::of(&evidence).held() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Writes `report.json` and `report.html` into a folder, and says what they are called.
///
/// # Errors
/// When they cannot be written.
pub fn write(evidence: &Evidence, folder: &Path) -> anyhow::Result<[PathBuf; 2]> {
    fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    let paths = [folder.join("report.json"), folder.join("report.html")];
    let contents = [json(evidence)?, page::page(evidence)?];
    for (path, content) in paths.iter().zip(contents) {
        fs::write(path, content).with_context(|| path.display().to_string())?;
    }
    Ok(paths)
}

/// The evidence with its verdict; whoever reads it as [`Evidence`] passes over the verdict.
#[derive(Serialize)]
struct Judged<'a> {
    held: bool,
    why_not: Vec<String>,
    #[serde(flatten)]
    evidence: &'a Evidence,
}

fn json(evidence: &Evidence) -> anyhow::Result<String> {
    let verdict = Verdict::of(evidence);
    let judged = Judged { held: verdict.held(), why_not: verdict.why_not, evidence };
    Ok(serde_json::to_string_pretty(&judged)? + "\n")
}

fn read(path: &Path) -> anyhow::Result<Evidence> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| format!("{} is not evidence", path.display()))
}
