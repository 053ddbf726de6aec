//! The limits of address space and of data (`ulimit -v`, `ulimit -d`), checked before an opening.
//!
//! Where memory cannot be allocated, Rust and C++ abort. RocksDB does so in the middle of an
//! opening, or waits forever for a mutex that a destructor has locked twice. So an opening compares
//! beforehand what is left with what it can take. Most of that is never written: for each thread
//! glibc reserves the address space of an *arena*.
//!
//! Measured with small buffers: an opening takes 130 MiB at its peak, and seven arenas; after some
//! openings a process has eleven. glibc gives none back, so those that are there are not counted
//! again.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::engine::EngineError;
use crate::os_limits::{MemoryLimit, memory_limits};

/// What an opening takes besides its arenas, its block cache and its write buffers: the stacks of
/// threads, and what is given back when it is open.
const FIXED_BYTES: u64 = 160 << 20;
/// The same for later openings of a process: the C library keeps stacks of threads. 53 MiB were
/// measured.
const LATER_FIXED_BYTES: u64 = 80 << 20;
/// The address space that glibc reserves for an arena, and the multiple at which it ends.
const ARENA_BYTES: u64 = 64 << 20;
/// The threads of a store and of RocksDB that exist at the same time.
const ARENAS: u64 = 12;

/// Whether this process has run the threads of an opening.
static HAS_OPENED: AtomicBool = AtomicBool::new(false);

/// The threads of an opening have run.
pub fn note_opening() {
    HAS_OPENED.store(true, Ordering::Relaxed);
}

/// Fails if the limits of this process leave less memory than an opening with these buffers needs.
pub fn check_memory_left(buffer_bytes: u64) -> Result<(), EngineError> {
    let limits = memory_limits();
    let mappings = if limits.is_empty() { String::new() } else { mappings() };
    let fixed = if HAS_OPENED.load(Ordering::Relaxed) { LATER_FIXED_BYTES } else { FIXED_BYTES };
    check(&limits, buffer_bytes.saturating_add(fixed), ARENAS.min(arenas_max()).saturating_sub(count_arenas(&mappings)))
}

fn mappings() -> String {
    // Without `/proc` no limit is checked.
    std::fs::read_to_string("/proc/self/maps").unwrap_or_default()
}

/// The arenas in the list of a process's mappings: each ends with what is only reserved.
fn count_arenas(mappings: &str) -> u64 {
    let is_end_of_arena = |line: &&str| {
        let mut words = line.split_whitespace();
        let addresses = words.next().and_then(|addresses| addresses.split_once('-'));
        let number = |text: &str| u64::from_str_radix(text, 16).ok();
        let ends_there = |(start, end): (&str, &str)| {
            let (start, end) = (number(start)?, number(end)?);
            Some(end % ARENA_BYTES == 0 && end - start.min(end) < ARENA_BYTES)
        };
        words.next() == Some("---p") && addresses.and_then(ends_there) == Some(true)
    };
    mappings.lines().filter(is_end_of_arena).count() as u64
}

/// How many arenas glibc may make.
fn arenas_max() -> u64 {
    let set = std::env::var("MALLOC_ARENA_MAX").ok();
    // The first arena is that of the main thread, and reserves nothing.
    set.and_then(|number| number.parse::<u64>().ok()).filter(|number| *number > 0).map_or(u64::MAX, |number| number - 1)
}

fn check(limits: &[MemoryLimit], bytes: u64, arenas: u64) -> Result<(), EngineError> {
    for limit in limits {
        let reserved = if limit.counts_reserved { arenas * ARENA_BYTES } else { 0 };
        let needed = bytes.saturating_add(reserved);
        let least = limit.used.saturating_add(needed);
        if limit.most < least {
            let (most, used, needed, least) =
                (limit.most >> 10, limit.used >> 10, needed.div_ceil(1 << 10), least.div_ceil(1 << 10));
            let name = limit.name;
            let fewer = if reserved == 0 { "" } else { ", or set MALLOC_ARENA_MAX=1 in its environment" };
            return Err(EngineError::Io(format!(
                "not enough memory to open a store: the limit of this process ({name}) is {most} KiB, of which {used} \
                 are in use, and an opening needs {needed}: raise the limit to {least} KiB, or use a smaller memory \
                 budget{fewer}"
            )));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn address_space(most: u64, used: u64) -> [MemoryLimit; 1] {
        [MemoryLimit { name: "ulimit -v", counts_reserved: true, most, used }]
    }

    #[test]
    fn a_limit_is_enough_from_what_the_error_names_on() {
        let (least, used) = (30 * MIB + 8 * MIB + 9 * ARENA_BYTES, 30 * MIB);
        check(&address_space(least, used), 8 * MIB, 9).unwrap();
        let error = check(&address_space(least - 1, used), 8 * MIB, 9).unwrap_err().to_string();
        assert!(error.contains(&format!("raise the limit to {} KiB", least >> 10)), "{error}");
        assert!(error.contains("(ulimit -v)") && error.contains("MALLOC_ARENA_MAX=1"), "{error}");
        check(&address_space(u64::MAX, used), u64::MAX, 9).unwrap();
    }

    #[test]
    fn the_arenas_of_a_process_are_counted() {
        let mappings = "7f1000021000-7f1004000000 ---p 00000000 00:00 0 \n\
                        7f1004000000-7f1004021000 rw-p 00000000 00:00 0 \n\
                        7f1004021000-7f1008000000 ---p 00000000 00:00 0 \n\
                        7f100bfff000-7f100c001000 ---p 00000000 00:00 0 \n\
                        7f1010000000-7f1020000000 ---p 00000000 00:00 0 \n";
        assert_eq!(count_arenas(mappings), 2);
        let threads: Vec<_> = (0..4).map(|_| std::thread::spawn(|| vec![0_u8; 100].len())).collect();
        threads.into_iter().for_each(|thread| _ = thread.join());
        assert!(!cfg!(target_env = "gnu") || count_arenas(&super::mappings()) > 0);
    }

    #[test]
    fn reserved_address_space_is_no_data() {
        let least = 8 * MIB;
        let data = |most| [MemoryLimit { name: "ulimit -d", counts_reserved: false, most, used: 0 }];
        check(&data(least), 8 * MIB, 9).unwrap();
        let error = check(&data(least - 1), 8 * MIB, 9).unwrap_err().to_string();
        assert!(error.contains("(ulimit -d)") && !error.contains("ARENA"), "{error}");
    }
}
