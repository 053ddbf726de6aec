//! Names, reasons, leases and semaphores at and beyond their limits.

use std::time::Duration;

use percolite::{LockOptions, MAX_LOCK_REASON_BYTES, Store, Timestamp, TxnOptions};

use crate::support::is_invalid;

const DAY: Duration = Duration::from_secs(24 * 3600);
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = DAY.saturating_mul(366);
const NANOSECOND: Duration = Duration::from_nanos(1);

fn refused(store: &Store, name: &str, options: LockOptions) -> bool {
    store.lock_with(name, options).is_err_and(|error| is_invalid(&error))
}

/// Every call that takes a name must refuse this one.
fn refuses_name(store: &Store, name: &str) {
    let token = Timestamp::from_u64(1);
    let leased = LockOptions::exclusive().lease(DAY);
    let nothing = |_: &mut percolite::Txn| Ok(());
    let answers = [
        store.lock(name).map(drop),
        store.try_lock(name).map(drop),
        store.lock_with(name, leased).map(drop),
        store.transact_with_lock(name, LockOptions::exclusive(), TxnOptions::default(), nothing),
        store.lock_holders(name).map(drop),
        store.attach_lock(name, token).map(drop),
        store.force_unlock(name, token).map(drop),
        store.get_lock(name, DAY).map(drop),
        store.release_lock(name, token).map(drop),
        store.is_free_lock(name).map(drop),
    ];
    for (call, answer) in answers.into_iter().enumerate() {
        assert!(answer.is_err_and(|error| is_invalid(&error)), "call {call} accepts the name {name:?}");
    }
}

#[test]
fn names_reasons_leases_and_permits_work_up_to_their_limits() {
    let store = Store::in_memory().unwrap();
    let longest = "n".repeat(255);
    let of_characters = "\u{e4}".repeat(127) + "n";
    for name in ["n", "a name/with:anything-in \u{2764}", &longest, &of_characters] {
        let guard = store.lock(name).unwrap();
        assert_eq!(guard.entry().target, name.into());
        assert!(!store.is_free_lock(name).unwrap());
    }
    let (too_long, of_more) = (longest + "n", "\u{e4}".repeat(128));
    for name in ["", "line\n", "\0", "\u{7f}", &too_long, &of_more] {
        refuses_name(&store, name);
    }

    let longest_reason = "w".repeat(MAX_LOCK_REASON_BYTES);
    for reason in ["", &longest_reason] {
        let guard = store.lock_with("with reason", LockOptions::exclusive().reason(reason)).unwrap();
        assert_eq!(guard.entry().reason.as_deref(), Some(reason));
    }
    assert!(refused(&store, "with reason", LockOptions::exclusive().reason(longest_reason + "w")));
    assert_eq!(MAX_LOCK_REASON_BYTES, 255);

    for lease in [SHORTEST, LONGEST] {
        let guard = store.lock_with("leased", LockOptions::exclusive().lease(lease).auto_renew(false)).unwrap();
        assert!(guard.entry().lease_remaining.is_some_and(|left| left <= lease));
        guard.renew(DAY).unwrap();
        guard.renew(lease).unwrap();
        for lease in [SHORTEST - NANOSECOND, LONGEST + NANOSECOND] {
            assert!(guard.renew(lease).is_err_and(|error| is_invalid(&error)), "{lease:?}");
        }
        guard.renew(DAY).unwrap();
        guard.release().unwrap();
        let token = store.get_lock("leased", lease).unwrap().unwrap();
        let _ = store.release_lock("leased", token).unwrap();
    }
    for lease in [SHORTEST - NANOSECOND, LONGEST + NANOSECOND, Duration::ZERO, Duration::MAX] {
        assert!(refused(&store, "leased", LockOptions::exclusive().lease(lease)), "{lease:?}");
        assert!(store.get_lock("leased", lease).is_err_and(|error| is_invalid(&error)), "{lease:?}");
    }
    assert!(refused(&store, "leased", LockOptions::exclusive().auto_renew(false)));
    assert!(refused(&store, "leased", LockOptions::semaphore(2).lease(DAY)));

    for most in [1, u32::MAX] {
        drop(store.lock_with("counted", LockOptions::semaphore(most)).unwrap());
    }
    assert!(refused(&store, "counted", LockOptions::semaphore(0)));

    let table = store.lock_table().unwrap();
    assert_eq!((table.entries.len(), table.held, table.waiting), (0, 0, 0));
    assert!(store.is_free_lock("leased").unwrap());
}
