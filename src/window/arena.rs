//! Slots that are numbered, never move and are never freed one by one.
//!
//! Chunks double in size, so a small arena is small, and a number gives its chunk and place by two instructions. A chunk is memory
//! that the allocator hands out as zeros: nothing of it is touched before it is used, and the writer never pauses to clear it.
//! Nothing is locked: a chunk is made once, by the writer, and what a slot holds is atomic.

use std::sync::OnceLock;
use std::sync::atomic::AtomicU32;

/// The first chunk has 64 slots; 27 chunks have more than there are numbers.
const FIRST_BITS: u32 = 6;
const CHUNKS: usize = 33 - FIRST_BITS as usize;

/// Numbers of a slot.
pub type Words<const N: usize> = [AtomicU32; N];

/// See the [module](self).
pub struct Arena<T>([OnceLock<Box<[T]>>; CHUNKS]);

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self([const { OnceLock::new() }; CHUNKS])
    }
}

impl<T> Arena<T> {
    /// The slot of a number; its chunk is made by `make` if it is the first.
    #[inline]
    fn slot(&self, number: u32, make: impl FnOnce(usize) -> Box<[T]>) -> &T {
        let place = u64::from(number) + (1 << FIRST_BITS);
        let bits = place.ilog2();
        let start = 1_u64 << bits;
        let chunk = self.0[(bits - FIRST_BITS) as usize].get_or_init(|| make(start as usize));
        &chunk[(place - start) as usize]
    }
}

impl<const N: usize> Arena<Words<N>> {
    /// The slot of a number: zeros, until the writer has set it.
    #[inline]
    pub fn get(&self, number: u32) -> &Words<N> {
        self.slot(number, bytemuck::zeroed_slice_box)
    }
}

impl<T> Arena<OnceLock<T>> {
    /// What was put into a slot.
    #[inline]
    pub fn value(&self, number: u32) -> Option<&T> {
        self.cell(number).get()
    }

    /// Puts something into an empty slot.
    pub fn set(&self, number: u32, value: T) {
        let _ = self.cell(number).set(value);
    }

    #[inline]
    fn cell(&self, number: u32) -> &OnceLock<T> {
        self.slot(number, |slots| (0..slots).map(|_| OnceLock::new()).collect())
    }
}
