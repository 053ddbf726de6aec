//! Typed keys and values: measurements by place and hour, and an index by temperature.
//!
//! ```text
//! cargo run --release --example typed
//! ```

use percolite::{Result, Store, TypedKeyspace};
use serde::{Deserialize, Serialize};

/// Encoded keys sort as the tuples do: by place, then by hour, negative hours first.
type PlaceAndHour = (String, i64);

/// The value is an enum, so that a later format can be added as a variant while stored rows stay
/// readable.
#[derive(Serialize, Deserialize)]
enum Measurement {
    V1 { degrees: f64, remark: Option<String> },
}

fn main() -> Result<()> {
    let store = Store::in_memory()?;
    let log: TypedKeyspace<PlaceAndHour, Measurement> = store.keyspace("log")?.typed();
    // The index is sorted by temperature; negative numbers come first.
    let by_degrees: TypedKeyspace<(f64, String, i64), ()> = store.keyspace("log by degrees")?.typed();

    let measurements =
        [("york", -1, -3.5), ("york", 0, 2.0), ("york", 13, 11.5), ("yorkshire", 13, 10.0), ("leeds", 13, -0.5)];
    store.transact(|txn| {
        for (place, hour, degrees) in measurements {
            let remark = (degrees < 0.0).then(|| "frost".to_owned());
            log.insert(txn, &(place.to_owned(), hour), &Measurement::V1 { degrees, remark })?;
            by_degrees.put(txn, &(degrees, place.to_owned(), hour), &())?;
        }
        Ok::<_, percolite::Error>(())
    })?;

    let snapshot = store.snapshot()?;
    // A prefix consists of the first fields of the key. Each field must be equal, so the place
    // yorkshire does not match.
    for row in log.prefix(&snapshot, ("york",))? {
        let ((place, hour), Measurement::V1 { degrees, remark }) = row?;
        println!("{place} at {hour}: {degrees} {}", remark.unwrap_or_default());
    }
    // A range of the next field, within a prefix. Keys alone need no value.
    println!("since noon: {}", log.prefix_range(&snapshot, ("york",), 12..)?.keys().count());
    // Temperatures from zero on, the highest first.
    for key in by_degrees.range(&snapshot, (0.0, String::new(), i64::MIN)..)?.keys().rev() {
        let (degrees, place, _) = key?;
        println!("{degrees} in {place}");
    }
    Ok(())
}
