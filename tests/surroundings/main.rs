//! What a process, or another one, can change beneath an open store, and directories as they are
//! found: see the table in `docs/operations.md`. Whatever is changed, no acknowledged commit is
//! lost, and no other store is touched.
//!
//! Each scenario runs in a process of its own, because it changes the process: its current
//! directory, its user, its limits, its standard streams.
//!
//! ```text
//! cargo test --release --test surroundings              all scenarios
//! cargo test --release --test surroundings -- fork      those with a name
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod access;
mod files;
mod forks;
mod limits;
mod paths;
mod replaced;
mod rows;
mod unix;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

const SCENARIO: &str = "PERCOLITE_TEST_SCENARIO";
const DIRECTORY: &str = "PERCOLITE_TEST_DIRECTORY";
const LIMIT: Duration = Duration::from_secs(120);

/// What runs in the scenario's process, with an empty directory of its own.
type Run = fn(&Path);

/// A scenario, and what it needs.
struct Scenario {
    name: &'static str,
    needs_root: bool,
    run: Run,
}

const fn scenario(name: &'static str, run: Run) -> Scenario {
    Scenario { name, needs_root: false, run }
}

/// A scenario that changes its user, or mounts.
const fn as_root(name: &'static str, run: Run) -> Scenario {
    Scenario { name, needs_root: true, run }
}

fn scenarios() -> impl Iterator<Item = &'static Scenario> {
    [paths::SCENARIOS, replaced::SCENARIOS, forks::SCENARIOS, limits::SCENARIOS, access::SCENARIOS, files::SCENARIOS]
        .into_iter()
        .flatten()
}

fn main() -> ExitCode {
    if let Ok(name) = std::env::var(SCENARIO) {
        let directory = PathBuf::from(std::env::var_os(DIRECTORY).unwrap());
        let helpers = [replaced::HELPERS, forks::HELPERS, limits::HELPERS, access::HELPERS, files::HELPERS];
        let named = scenarios().chain(helpers.into_iter().flatten()).find(|scenario| scenario.name == name).unwrap();
        (named.run)(&directory);
        return ExitCode::SUCCESS;
    }
    let trials = scenarios().map(|Scenario { name, needs_root, .. }| {
        Trial::test(*name, || in_own_process(name)).with_ignored_flag(*needs_root && !unix::is_root())
    });
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn in_own_process(name: &str) -> Result<(), Failed> {
    // In `/tmp`, because other users must be able to search the directories above.
    let place = tempfile::Builder::new().permissions(std::os::unix::fs::PermissionsExt::from_mode(0o755)).tempdir()?;
    let output = place.path().join("output");
    let file = std::fs::File::create(&output)?;
    let directory = place.path().join("place");
    std::fs::create_dir(&directory)?;
    let mut command = helper(name, &directory);
    command.current_dir(&directory);
    let mut child = command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file).spawn()?;
    let began = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if began.elapsed() > LIMIT {
            child.kill()?;
            child.wait()?;
            return Err(format!("no end within {LIMIT:?}\n{}", std::fs::read_to_string(&output)?).into());
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    if status.success() { Ok(()) } else { Err(format!("{status}\n{}", std::fs::read_to_string(&output)?).into()) }
}

/// The command that runs a scenario or a part of one in a process of its own.
fn helper(name: &str, directory: &Path) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.env(SCENARIO, name).env(DIRECTORY, directory);
    command
}

/// Runs a part of a scenario, which must succeed; returns what it prints.
#[track_caller]
fn run_helper(name: &str, directory: &Path) -> String {
    let ended = helper(name, directory).output().unwrap();
    let (text, errors) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{}\n{text}\n{errors}", ended.status);
    text.into_owned()
}
