//! Snapshot isolation without timestamps (Cerone and Gotsman, "Analysing Snapshot Isolation").
//!
//! A history is possible if the writers of each row can be ordered so that every cycle of
//! dependencies contains two anti-dependencies in succession.

/// What a transaction reads and writes of each row. A value is the index of its writer, and `None`
/// is the initial value.
#[derive(Clone, Debug, Default)]
pub struct Access {
    pub session: u64,
    pub reads: Vec<(usize, Option<usize>)>,
    pub writes: Vec<usize>,
}

/// Whether some order of commits and snapshots explains the reads. Transactions of one session are
/// ordered as in the list.
pub fn is_possible(txns: &[Access], keys: usize) -> bool {
    try_orders(txns, keys, &mut Vec::new())
}

fn try_orders(txns: &[Access], keys: usize, orders: &mut Vec<Vec<usize>>) -> bool {
    if orders.len() == keys {
        return is_acyclic(txns, orders);
    }
    let key = orders.len();
    let writers: Vec<usize> = (0..txns.len()).filter(|txn| txns[*txn].writes.contains(&key)).collect();
    permutations(&writers).into_iter().any(|order| {
        orders.push(order);
        let possible = try_orders(txns, keys, orders);
        orders.pop();
        possible
    })
}

pub fn permutations(of: &[usize]) -> Vec<Vec<usize>> {
    if of.is_empty() {
        return vec![Vec::new()];
    }
    let mut all = Vec::new();
    for at in 0..of.len() {
        let mut rest = of.to_vec();
        let first = rest.remove(at);
        for mut order in permutations(&rest) {
            order.insert(0, first);
            all.push(order);
        }
    }
    all
}

fn is_acyclic(txns: &[Access], orders: &[Vec<usize>]) -> bool {
    let count = txns.len();
    let mut depends = vec![vec![false; count]; count];
    let mut anti = vec![vec![false; count]; count];
    for later in 0..count {
        for earlier in 0..later {
            depends[earlier][later] |= txns[earlier].session == txns[later].session;
        }
    }
    for order in orders {
        for (at, earlier) in order.iter().enumerate() {
            for later in &order[at + 1..] {
                depends[*earlier][*later] = true;
            }
        }
    }
    for (reader, txn) in txns.iter().enumerate() {
        for (key, from) in &txn.reads {
            if let Some(from) = from {
                depends[*from][reader] = true;
            }
            let missed = orders[*key].iter().skip_while(|writer| from.is_some_and(|from| from != **writer));
            for writer in missed.filter(|writer| Some(**writer) != *from && **writer != reader) {
                anti[reader][*writer] = true;
            }
        }
    }
    let mut reach = depends.clone();
    for a in 0..count {
        for b in 0..count {
            for c in 0..count {
                reach[a][c] |= depends[a][b] && anti[b][c];
            }
        }
    }
    for through in 0..count {
        for a in 0..count {
            for b in 0..count {
                reach[a][b] |= reach[a][through] && reach[through][b];
            }
        }
    }
    (0..count).all(|txn| !reach[txn][txn])
}
