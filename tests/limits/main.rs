//! What runs out, and what grows: a full disk and limits of a process.
//!
//! Each scenario runs in a process of its own, under a limit that a shell sets first. It must end
//! by itself within [`SECONDS`], with success: no hang, no panic, no abort.
//!
//! ```text
//! cargo test --release --test limits               all scenarios
//! cargo test --release --test limits -- disk       some
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod descriptors;
mod disk;
mod full_disk;
mod growth;
mod process;
mod rows;

use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use libtest_mimic::{Arguments, Failed, Trial};

const SCENARIO: &str = "PERCOLITE_TEST_SCENARIO";
const DIRECTORY: &str = "PERCOLITE_TEST_DIRECTORY";
/// No scenario takes a fifth of this on an idle machine.
const SECONDS: u64 = 120;

/// A limit under which a scenario runs.
#[derive(Clone, Copy)]
pub enum Limit {
    /// The directory is a disk of its own with this number of KiB.
    DiskKib(u64),
    /// The directory is a disk of its own with this number of inodes.
    Inodes(u64),
    /// The process may have this number of files open.
    OpenFiles(u64),
    /// The process may have this number of KiB of address space, until it raises the limit.
    AddressSpace(u64),
    /// No file may have more than this number of blocks of 512 bytes. The signal is ignored.
    FileBlocks(u64),
    /// The same until the process raises it, and the signal has its default action.
    SoftFileBlocks(u64),
    /// The user of the process may have this number of threads, until the process raises the limit.
    /// The limit does not hold for root, so this is another user.
    Threads(u64),
}

impl Limit {
    /// The shell command that sets the limit and then runs its arguments.
    fn script(self) -> String {
        match self {
            Self::DiskKib(kib) => format!("mount -t tmpfs -o size={kib}k percolite \"$DISK\" && exec \"$@\""),
            Self::Inodes(number) => {
                format!("mount -t tmpfs -o size=64m,nr_inodes={number} percolite \"$DISK\" && exec \"$@\"")
            }
            Self::FileBlocks(number) => format!("trap '' XFSZ && ulimit -f {number} && exec \"$@\""),
            Self::SoftFileBlocks(number) => format!("ulimit -S -f {number} && exec \"$@\""),
            Self::Threads(number) => format!(
                // The build directory may be closed to others.
                "chmod 777 \"$DISK\" && cp \"$1\" \"$DISK/program\" && shift && exec setpriv --reuid=65534 \
                 --regid=65534 --clear-groups prlimit --nproc={number}: \"$DISK/program\" \"$@\""
            ),
            Self::AddressSpace(kib) => format!("ulimit -S -v {kib} && exec \"$@\""),
            Self::OpenFiles(number) => format!("ulimit -n {number} && exec \"$@\""),
        }
    }

    fn command(self, directory: &Path) -> Command {
        let mut command = match self {
            Self::DiskKib(_) | Self::Inodes(_) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "--propagation", "private", "sh"]);
                command
            }
            _ => Command::new("sh"),
        };
        command.args(["-c", &self.script(), "sh"]).env("DISK", directory);
        command
    }

    /// Why this machine cannot set the limit.
    fn missing(self) -> Option<String> {
        let directory = tempfile::tempdir().unwrap();
        match self.command(directory.path()).arg("/bin/true").output() {
            Ok(ended) if ended.status.success() => None,
            Ok(ended) => Some(String::from_utf8_lossy(&ended.stderr).trim().to_owned()),
            Err(error) => Some(error.to_string()),
        }
    }
}

#[derive(Clone, Copy)]
/// A scenario: its name, its limit, and what the process does in its directory.
pub struct Scenario {
    pub name: &'static str,
    pub limit: Limit,
    pub run: fn(&Path),
}

fn main() -> ExitCode {
    let scenarios =
        [descriptors::SCENARIOS, disk::SCENARIOS, full_disk::SCENARIOS, growth::SCENARIOS, process::SCENARIOS].concat();
    if let (Ok(name), Some(directory)) = (std::env::var(SCENARIO), std::env::var_os(DIRECTORY)) {
        let scenario = scenarios.iter().find(|scenario| scenario.name == name).unwrap();
        (scenario.run)(&PathBuf::from(directory));
        return ExitCode::SUCCESS;
    }
    let trials = scenarios.into_iter().map(|scenario| Trial::test(scenario.name, move || run(scenario)));
    libtest_mimic::run(&Arguments::from_args(), trials.collect()).exit_code()
}

fn run(Scenario { name, limit, .. }: Scenario) -> Result<(), Failed> {
    if let Some(reason) = limit.missing() {
        eprintln!("SKIPPED {name}: {reason}");
        return Ok(());
    }
    let directory = tempfile::tempdir()?;
    let mut child = limit
        .command(directory.path())
        .arg(std::env::current_exe()?)
        .env(SCENARIO, name)
        .env(DIRECTORY, directory.path())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()?;
    let outputs = [child.stdout.take().map(read), child.stderr.take().map(read)];
    let started = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break Some(status);
        }
        if started.elapsed() > Duration::from_secs(SECONDS) {
            child.kill()?;
            child.wait()?;
            break None;
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    let output: Vec<_> = outputs.into_iter().flatten().map(|output| output.join().unwrap()).collect();
    let output = output.concat();
    match status {
        Some(status) if status.success() => Ok(()),
        Some(status) => Err(format!("the process ended with {status}:\n{output}").into()),
        None => Err(format!("the process hangs; it was killed after {SECONDS} s:\n{output}").into()),
    }
}

fn read(mut from: impl std::io::Read + Send + 'static) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    })
}
