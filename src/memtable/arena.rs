//! Slots that are numbered, never move and are never freed one by one.
//!
//! Chunks grow with the arena: each has a sixteenth of the slots that were there when the size of chunks last doubled. So a small arena
//! is small, about a sixteenth is unused at most, and a number gives its chunk and place by a few instructions.
//!
//! A chunk is memory that the allocator hands out as zeros: nothing of it is touched before it is used, and the writer never pauses to
//! clear it. Nothing is locked: a chunk is made once, by the writer, and what a slot holds is atomic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The first chunks have 4 slots each.
const FIRST_BITS: u32 = 6;
/// Chunks of one size: 2^4.
const CHUNKS_PER_SIZE_BITS: u32 = 4;
/// More than there are numbers need.
const CHUNKS_MAX: usize = (33 - FIRST_BITS as usize) << CHUNKS_PER_SIZE_BITS;

/// Numbers of a slot.
pub type AtomicWords<const N: usize> = [AtomicU32; N];

/// See the [module](self).
pub struct Arena<T> {
    chunks: [OnceLock<Box<[T]>>; CHUNKS_MAX],
    bytes: AtomicUsize,
}

impl<T> Default for Arena<T> {
    fn default() -> Self {
        Self { chunks: [const { OnceLock::new() }; CHUNKS_MAX], bytes: AtomicUsize::new(0) }
    }
}

impl<T> Arena<T> {
    /// What its chunks take.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The slot of a number; its chunk is made by `make` if it is the first.
    #[inline]
    fn slot(&self, number: u32, allocate: impl FnOnce(usize) -> Box<[T]>) -> &T {
        let place = u64::from(number) + (1 << FIRST_BITS);
        let bits = place.ilog2();
        let size_bits = bits - CHUNKS_PER_SIZE_BITS;
        // The place without its highest bit: first which chunk of its size, then where in it.
        let rest = place - (1 << bits);
        let number = ((bits - FIRST_BITS) << CHUNKS_PER_SIZE_BITS) as usize + (rest >> size_bits) as usize;
        let chunk = self.chunks[number].get_or_init(|| {
            let chunk = allocate(1 << size_bits);
            self.bytes.fetch_add(size_of_val(&*chunk), Ordering::Relaxed);
            chunk
        });
        &chunk[(rest & ((1 << size_bits) - 1)) as usize]
    }
}

impl<const N: usize> Arena<AtomicWords<N>> {
    /// The slot of a number: zeros, until the writer has set it.
    #[inline]
    pub fn get(&self, number: u32) -> &AtomicWords<N> {
        self.slot(number, bytemuck::zeroed_slice_box)
    }
}

impl<T> Arena<OnceLock<T>> {
    /// What was put into a slot.
    #[inline]
    pub fn value(&self, number: u32) -> Option<&T> {
        self.slot_or_init(number).get()
    }

    /// Puts something into an empty slot.
    pub fn set(&self, number: u32, value: T) {
        let _ = self.slot_or_init(number).set(value);
    }

    #[inline]
    fn slot_or_init(&self, number: u32) -> &OnceLock<T> {
        self.slot(number, |slots| (0..slots).map(|_| OnceLock::new()).collect())
    }
}
