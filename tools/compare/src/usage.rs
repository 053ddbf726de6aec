//! What the kernel knows of this process: memory and bytes written. Also the limit on the one, and an end with the parent.

use std::fs;

use anyhow::{Context as _, Result};
use rustix::process::{Resource, Rlimit, Signal, set_parent_process_death_signal, setrlimit};

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

/// Bytes that this process had written to disk, or will have: the kernel counts when a page gets dirty.
pub fn written_bytes() -> Result<u64> {
    field("/proc/self/io", "write_bytes:")
}

fn field(file: &str, name: &str) -> Result<u64> {
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {file}"))?;
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.split_whitespace().next());
    value.with_context(|| format!("no {name} in {file}"))?.parse().with_context(|| format!("{name} in {file}"))
}
