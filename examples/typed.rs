//! Keys and values of types of their own: a log of measurements by place and hour, and an index of the warm ones.
//!
//! `cargo run --release --example typed`

use percolite::{Result, Store, TypedKeyspace};
use serde::{Deserialize, Serialize};

/// Sorted by place, then by hour; hours before the first are negative and come first.
type Place = (String, i64);

/// An enum from the beginning: there is room for a second version.
#[derive(Serialize, Deserialize)]
enum Measured {
    V1 { degrees: f64, remark: Option<String> },
}

fn main() -> Result<()> {
    let store = Store::in_memory()?;
    let log: TypedKeyspace<Place, Measured> = store.keyspace("log")?.typed();
    // Sorted by temperature: floats keep their order, those below zero too.
    let by_degrees: TypedKeyspace<(f64, String, i64), ()> = store.keyspace("log by degrees")?.typed();

    let measured =
        [("york", -1, -3.5), ("york", 0, 2.0), ("york", 13, 11.5), ("yorkshire", 13, 10.0), ("leeds", 13, -0.5)];
    store.transact(|txn| {
        for (place, hour, degrees) in measured {
            let remark = (degrees < 0.0).then(|| "frost".to_owned());
            log.insert(txn, &(place.to_owned(), hour), &Measured::V1 { degrees, remark })?;
            by_degrees.put(txn, &(degrees, place.to_owned(), hour), &())?;
        }
        Ok::<_, percolite::Error>(())
    })?;

    let snapshot = store.snapshot()?;
    // Those of York alone, not of Yorkshire.
    for row in log.prefix(&snapshot, ("york",))? {
        let ((place, hour), Measured::V1 { degrees, remark }) = row?;
        println!("{place} at {hour}: {degrees} {}", remark.unwrap_or_default());
    }
    let since_noon = ("york".to_owned(), 12)..=("york".to_owned(), i64::MAX);
    println!("since noon: {}", log.range(&snapshot, since_noon)?.count());
    let mut warmest = by_degrees.range(&snapshot, (0.0, String::new(), i64::MIN)..)?.rev();
    while let Some(((degrees, place, _), ())) = warmest.next().transpose()? {
        println!("{degrees} in {place}");
    }
    Ok(())
}
