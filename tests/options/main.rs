//! Every option over the whole range of its type, each value in a process of its own.
//!
//! With a value within the option's bounds a store opens, writes, flushes and reopens. Any other
//! value is refused by every way to open a store, with the option, the value and the bounds. No
//! process is ended by a signal.
//!
//! ```text
//! cargo test --release --test options                         all options
//! cargo test --release --test options -- block_cache_bytes    one option
//! PERCOLITE_SEED=7 cargo test ...                             the values of the run that printed 7
//! ```

#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "a test that cannot go on fails")]
#![allow(clippy::pedantic, missing_docs, reason = "style of a library, not of its tests")]

mod child;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::process::{Command, ExitCode, Output};
use std::time::Duration;

use libtest_mimic::{Arguments, Failed, Trial};
use percolite::option_ranges::{self, OptionRange, Unit};

use crate::child::{FAILED, REFUSED};
use crate::support::Dice;

/// How many times [`values`] draws its three kinds of random values for an option.
const RANDOM_VALUES: usize = 2;

/// The options to try, with their bounds and the greatest value of their type.
fn tried() -> Vec<(String, OptionRange, u128)> {
    let greatest = |bounds: &OptionRange| match bounds.name {
        "retry_policy.max_attempts" | "semaphore" => u32::MAX.into(),
        "application_name" => 1 << 20,
        "ttl_ms" => Duration::from_millis(u64::MAX).as_nanos(),
        _ if bounds.unit == Unit::Nanoseconds => Duration::MAX.as_nanos(),
        _ => usize::MAX as u128,
    };
    let of_stores = option_ranges::ALL.iter().map(|bounds| (bounds.name.to_owned(), *bounds, greatest(bounds)));
    let of_transactions = [option_ranges::RETRY_MAX_ATTEMPTS, option_ranges::RETRY_TIMEOUT]
        .map(|bounds| (format!("{} of a transaction", bounds.name), bounds, greatest(&bounds)));
    of_stores.chain(of_transactions).collect()
}

fn main() -> ExitCode {
    if let Some(code) = child::run() {
        return code;
    }
    let arguments = Arguments::from_args();
    let seed = std::env::var("PERCOLITE_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(rand::random);
    let mut trials = vec![
        Trial::test("every option with a number is tried", || {
            every_option_is_tried();
            Ok(())
        }),
        Trial::test("a transaction accepts any label", || {
            run("label of a transaction", 1 << 20, None).map(|ended| succeeded(&ended))?
        }),
    ];
    if cfg!(target_os = "linux") {
        let what = "a cache larger than the address space is refused";
        trials.push(Trial::test(what, no_addresses));
    }
    for (number, (name, bounds, greatest)) in tried().into_iter().enumerate() {
        let mut dice = Dice(seed ^ number as u64);
        let about = name.clone();
        trials.push(Trial::test(about, move || {
            let whole = values(bounds, greatest, &mut dice);
            whole.into_iter().try_for_each(|value| {
                an_option_works_or_is_refused(&name, bounds, value).map_err(|error| with_seed(error, seed))
            })
        }));
    }
    if !arguments.list {
        println!("PERCOLITE_SEED={seed}");
    }
    libtest_mimic::run(&arguments, trials).exit_code()
}

fn with_seed(reason: String, seed: u64) -> Failed {
    format!("{reason}\nPERCOLITE_SEED={seed}").into()
}

/// The values to try: the ends of the bounds and of the type, their neighbours, and random values.
fn values(bounds: OptionRange, greatest: u128, dice: &mut Dice) -> BTreeSet<u128> {
    let most = bounds.max.unwrap_or(greatest);
    let ends = [0, bounds.min, most, greatest];
    let beside = ends.into_iter().flat_map(|end| [end.saturating_sub(1), end, end.saturating_add(1)]);
    let mut values: BTreeSet<u128> = beside.collect();
    let mut anything = || u128::from(dice.next()) << 64 | u128::from(dice.next());
    for _ in 0..RANDOM_VALUES {
        let bits = greatest.ilog2() + 1;
        let shift = 128 - 1 - anything() as u32 % bits;
        values.extend([
            anything() % greatest,
            // A value with a random number of bits, because most values of the whole type are far
            // too large.
            anything() >> shift,
            bounds.min + anything() % (most - bounds.min),
        ]);
    }
    values.retain(|value| *value <= greatest);
    // A time to live is set in whole milliseconds, so smaller parts are cut off.
    if bounds == option_ranges::ROW_LOCK_TTL {
        values.into_iter().map(|value| value / 1_000_000 * 1_000_000).collect()
    } else {
        values
    }
}

/// Tries one value. `kilobytes` limits the address space of the process.
fn run(option: &str, value: u128, kilobytes: Option<u64>) -> Result<Output, String> {
    let directory = tempfile::tempdir().map_err(|error| error.to_string())?;
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut command = match kilobytes {
        Some(kilobytes) => {
            let mut limited = Command::new("sh");
            limited.args(["-c", &format!("ulimit -v {kilobytes}; exec \"$0\"")]).arg(own);
            limited
        }
        None => Command::new(own),
    };
    command.envs([(child::OPTION, option), (child::VALUE, &value.to_string())]).env(child::DIRECTORY, directory.path());
    command.output().map_err(|error| error.to_string())
}

fn describe(ended: &Output) -> String {
    let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
    format!("{}: {}{}", ended.status, text(&ended.stdout), text(&ended.stderr))
}

fn succeeded(ended: &Output) -> Result<(), Failed> {
    if ended.status.success() { Ok(()) } else { Err(describe(ended).into()) }
}

fn an_option_works_or_is_refused(name: &str, bounds: OptionRange, value: u128) -> Result<(), String> {
    let ended = run(name, value, None)?;
    let (within, output) = (bounds.check(value).is_ok(), String::from_utf8_lossy(&ended.stdout).into_owned());
    let number = match bounds.unit {
        Unit::Nanoseconds => format!("{:?}", child::duration(value)),
        _ => value.to_string(),
    };
    let names_all = || {
        output.starts_with(&format!("{} is {number}", bounds.name))
            && output.contains(&format!("; it must be {bounds}\n"))
    };
    match ended.status.code() {
        Some(0) if within => Ok(()),
        Some(REFUSED) if !within && names_all() => Ok(()),
        _ => Err(format!("{name} of {number}, within bounds: {within}: {}", describe(&ended))),
    }
}

fn no_addresses() -> Result<(), Failed> {
    let most = option_ranges::BLOCK_CACHE_BYTES.max.unwrap();
    let ended = run("block_cache_bytes", most, Some(8 << 20))?;
    let output = describe(&ended);
    if ended.status.code() != Some(FAILED)
        || !output.contains("the limit of this process (ulimit -v, LimitAS) is 8388608 KiB")
    {
        return Err(output.into());
    }
    succeeded(&run("block_cache_bytes", 128 << 20, Some(8 << 20))?)
}

/// Only options with bounds are tried, so every setter that takes a number must have bounds.
fn every_option_is_tried() {
    let source = include_str!("../../src/store/builder.rs");
    let setters = source.lines().filter_map(|line| line.trim().strip_prefix("pub fn "));
    let numbers: Vec<&str> = setters
        .filter(|setter| ["usize)", "u64)", "u32)", "Duration)"].iter().any(|number| setter.contains(number)))
        .map(|setter| setter.split('(').next().unwrap())
        // `accept_data_loss` needs no bounds: any number may be a fingerprint.
        .filter(|setter| *setter != "accept_data_loss")
        .collect();
    assert!(numbers.len() > 9, "{numbers:?}");
    for setter in numbers {
        assert!(option_ranges::ALL.iter().any(|bounds| bounds.name == setter), "{setter} has no bounds");
    }
}
