//! The kernel's counts of memory, processor time and written bytes of this process, its memory
//! limit, and its end when the parent process ends.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use rustix::fs::{major, minor, syncfs};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};
use rustix::time::{ClockId, Timespec, clock_gettime};

/// The unit of the kernel's statistics, whatever the disk's sector size.
const SECTOR_BYTES: u64 = 512;

/// Limits the private memory of the process: heap, stacks, private mappings.
pub fn limit_memory(bytes: u64) -> Result<()> {
    let limit = Rlimit { current: Some(bytes), maximum: Some(bytes) };
    setrlimit(Resource::Data, limit).context("cannot limit the memory")
}

/// Kills this process when its parent ends, because then no process would read the result.
pub fn end_with_parent() -> Result<()> {
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

/// Resets the maximum of the resident memory.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of the resident memory")
}

/// The maximum of the resident memory, in bytes.
pub fn peak_bytes() -> Result<u64> {
    Ok(field("/proc/self/status", "VmHWM:")? << 10)
}

/// The processor time of all threads so far.
pub fn cpu_time() -> Duration {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(u64::try_from(tv_sec).unwrap_or_default(), u32::try_from(tv_nsec).unwrap_or_default())
}

/// The bytes written so far, by source. Only differences are meaningful.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BytesWritten {
    /// Bytes sent to the block device, including the writes of other processes: the machine should
    /// be idle.
    ToDisk(u64),
    /// Bytes dirtied by this process, in whole folios. With large folios, as on ext4 since Linux
    /// 6.16, the count is many times what reaches the disk when small records are appended and
    /// synced.
    Dirtied(u64),
}

impl BytesWritten {
    /// The bytes written since `before`.
    pub fn since(self, before: Self) -> Result<Self> {
        match (self, before) {
            (Self::ToDisk(after), Self::ToDisk(before)) => Ok(Self::ToDisk(after - before)),
            (Self::Dirtied(after), Self::Dirtied(before)) => Ok(Self::Dirtied(after - before)),
            _ => bail!("the statistics of the block device are not always available"),
        }
    }
}

/// Syncs the file system, then returns the bytes that were sent to its block device. If the
/// directory is on no block device, returns the kernel's count for this process instead.
pub fn bytes_written(dir: &Path) -> Result<BytesWritten> {
    let opened = File::open(dir).with_context(|| format!("cannot open {}", dir.display()))?;
    syncfs(&opened).context("cannot sync the file system")?;
    let device = opened.metadata()?.dev();
    match fs::read_to_string(format!("/sys/dev/block/{}:{}/stat", major(device), minor(device))) {
        Ok(statistics) => sectors_written(&statistics).map(|sectors| BytesWritten::ToDisk(sectors * SECTOR_BYTES)),
        Err(_) => field("/proc/self/io", "write_bytes:").map(BytesWritten::Dirtied),
    }
}

fn sectors_written(statistics: &str) -> Result<u64> {
    let sectors = statistics.split_whitespace().nth(6).context("the statistics of the block device are incomplete")?;
    sectors.parse().context("the statistics of the block device are not numbers")
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
    fn sectors_are_parsed_from_disk_statistics() {
        let statistics = "  8146 2340 1101970 6131 73402 5821 4404019 91733 0 46444 99811 17 0 14680 3 22 1943\n";
        assert_eq!(sectors_written(statistics).unwrap(), 4_404_019);
        assert!(sectors_written("1 2 3").is_err());
    }

    #[test]
    fn written_bytes_are_counted() {
        const BYTES: u64 = 32 << 20;
        // Not the default temporary directory: if it is in memory, no bytes are written to a disk.
        let dir = tempfile::tempdir_in(std::env::current_exe().unwrap().parent().unwrap()).unwrap();
        let before = bytes_written(dir.path()).unwrap();
        fs::write(dir.path().join("file"), vec![7; usize::try_from(BYTES).unwrap()]).unwrap();
        let (BytesWritten::ToDisk(bytes) | BytesWritten::Dirtied(bytes)) =
            bytes_written(dir.path()).unwrap().since(before).unwrap();
        // The count may be higher, because other tests write at the same time.
        assert!(bytes >= BYTES, "{bytes} bytes of {BYTES}");
    }
}
