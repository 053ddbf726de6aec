//! Pseudo-random numbers for simulated disks and networks: random enough to choose faults.

/// The generator `splitmix64`.
#[derive(Clone, Debug, Default)]
pub struct SplitMix64(u64);

impl SplitMix64 {
    /// The generator for this seed.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next number.
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    }

    /// A number below the bound, which is not 0.
    pub fn next_below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    /// An index below the bound, which is not 0.
    pub fn index(&mut self, bound: usize) -> usize {
        usize::try_from(self.next_below(bound as u64)).unwrap_or(0)
    }

    /// Whether an event of this probability, in per mille, happens.
    pub fn happens(&mut self, per_mille: u16) -> bool {
        self.next_below(1000) < u64::from(per_mille)
    }

    /// A number from 1 to `most`.
    pub fn up_to(&mut self, most: u64) -> u64 {
        1 + self.next_below(most.max(1))
    }
}
