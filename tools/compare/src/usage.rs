//! What the kernel knows of this process: memory and bytes written. Also the limit on the one, and an end with the parent.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{major, minor, syncfs};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// In the kernel's statistics, whatever the disk has.
const SECTOR_BYTES: u64 = 512;

/// Bounds what the process can have of its own: heap, stacks, private mappings.
pub fn limit_memory(bytes: u64) -> Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, limit).context("cannot limit the memory")
}

/// Nobody reads the figures of a process whose parent is gone.
pub fn end_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Forgets how much was resident so far.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of memory")
}

/// The most that was resident, in bytes.
pub fn peak_bytes() -> Result<u64> {
    Ok(field("/proc/self/status", "VmHWM:")? << 10)
}

/// How long the threads of this process have run so far.
pub fn processor() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or_default(), u32::try_from(tv_nsec).unwrap_or_default())
}

/// How many bytes were written so far, for differences, and who counted them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Written {
    /// Sent to the disk: the work of other processes is among them, which a measured machine should not have.
    ToDisk(u64),
    /// The pages that this process made dirty, whole folios of them: where those are large, as on ext4 since Linux 6.16, it is
    /// many times what reaches the disk when small records are appended and synced.
    Dirtied(u64),
}

impl Written {
    /// What came on top.
    pub fn since(self, before: Self) -> Result<Self> {
        match (self, before) {
            (Self::ToDisk(after), Self::ToDisk(before)) => Ok(Self::ToDisk(after - before)),
            (Self::Dirtied(after), Self::Dirtied(before)) => Ok(Self::Dirtied(after - before)),
            _ => bail!("the disk said once what was written to it, and not always"),
        }
    }
}

/// What is still to be written is written first. Where the folder lies on no disk the kernel's count for this process has to do.
pub fn written(folder: &Path) -> Result<Written> {
    let opened = File::open(folder).with_context(|| format!("cannot open {}", folder.display()))?;
    syncfs(&opened).context("cannot write what is still to be written")?;
    let device = opened.metadata()?.dev();
    match fs::read_to_string(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device))) {
        Ok(statistics) => sectors_written(&statistics).map(|sectors| Written::ToDisk(sectors * SECTOR_BYTES)),
        Err(_) => field("/proc/self/io", "write_bytes:").map(Written::Dirtied),
    }
}

fn sectors_written(statistics: &str) -> Result<u64> {
    let sectors = statistics.split_whitespace().nth(6).context("the disk does not say what was written to it")?;
    sectors.parse().context("what was written to the disk")
}

fn field(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    value.with_context(|| format!("no {name} in {file}"))?.parse().with_context(|| format!("{name} in {file}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_found_among_the_statistics_of_a_disk() {
        let statistics = "  8146 2340 1101970 6131 73402 5821 4404019 91733 0 46444 99811 17 0 14680 3 22 1943\n";
        assert_eq!(sectors_written(statistics).unwrap(), 4_404_019);
        assert!(sectors_written("1 2 3").is_err());
    }

    #[test]
    fn what_is_written_counts() {
        const BYTES: u64 = 32 << 20;
        // The usual place may be in memory.
        let folder = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let before = written(folder.path()).unwrap();
        fs::write(folder.path().join("file"), vec![7; usize::try_from(BYTES).unwrap()]).unwrap();
        let (Written::ToDisk(bytes) | Written::Dirtied(bytes)) = written(folder.path()).unwrap().since(before).unwrap();
        // Other tests write, too.
        assert!(bytes >= BYTES, "{bytes} bytes, of {BYTES}");
    }
}
