//! The choices of a run, of which all combinations are tried: the first run always takes the first
//! possibility, and each further run takes the next combination.

/// The choices of one run. See the [module](self).
#[derive(Debug, Default)]
pub struct Choices {
    /// What is chosen, and of how many.
    made: Vec<(usize, usize)>,
    next: usize,
}

impl Choices {
    /// Chooses one of the possibilities, of which there are `possible`.
    ///
    /// # Panics
    /// A run with the same choices has other possibilities: what is run is not deterministic.
    pub fn choose(&mut self, possible: usize) -> usize {
        if self.next == self.made.len() {
            self.made.push((0, possible));
        }
        let (chosen, of) = self.made[self.next];
        assert_eq!(of, possible, "invariant: a run with the same choices has the same possibilities");
        self.next += 1;
        chosen
    }

    /// What this run has chosen.
    pub fn chosen(&self) -> Vec<usize> {
        self.made[..self.next].iter().map(|(chosen, _)| *chosen).collect()
    }

    /// Turns to the next combination; false after the last one.
    pub fn advance(&mut self) -> bool {
        self.made.truncate(self.next);
        self.next = 0;
        while let Some((chosen, of)) = self.made.last_mut() {
            *chosen += 1;
            if chosen < of {
                return true;
            }
            self.made.pop();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once() {
        let (mut choices, mut seen) = (Choices::default(), Vec::new());
        loop {
            // The second choice exists only after one of the first.
            if choices.choose(3) == 1 {
                choices.choose(2);
            }
            seen.push(choices.chosen());
            if !choices.advance() {
                break;
            }
        }
        assert_eq!(seen, [vec![0], vec![1, 0], vec![1, 1], vec![2]]);
    }
}
