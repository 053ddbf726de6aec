//! An arena of numbered slots, which never move and are not freed one by one.
//!
//! Chunks grow with the arena: after 16 chunks of one size, the next 16 are twice as large. So a
//! small arena takes little memory, and at most about a sixteenth of a large arena is unused. A few
//! instructions compute a slot's chunk and index from its number.
//!
//! A chunk of atomic words is memory that the allocator returns zeroed. So the writer never pauses
//! to clear a chunk, and a page of memory is touched only when a slot in the page is used. There
//! are no locks: the writer allocates each chunk once, and the content of a slot is atomic.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering};

/// The 2^4 chunks of the first size have 2^6 slots together, 4 each.
const FIRST_BITS: u32 = 6;
/// There are 2^4 chunks of each size.
const CHUNKS_PER_SIZE_BITS: u32 = 4;
/// Enough chunks for every `u32` number.
const CHUNKS_MAX: usize = (33 - FIRST_BITS as usize) << CHUNKS_PER_SIZE_BITS;

/// The words of a slot.
pub type AtomicWords<const N: usize> = [AtomicU32; N];

/// Numbered slots of `T`, in chunks that are allocated when a slot in them is first used.
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
    /// Memory of the chunks.
    pub fn memory_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// The slot with this number. If its chunk does not exist yet, `allocate` makes one with the
    /// given number of slots.
    #[inline]
    fn slot(&self, number: u32, allocate: impl FnOnce(usize) -> Box<[T]>) -> &T {
        let place = u64::from(number) + (1 << FIRST_BITS);
        let bits = place.ilog2();
        let size_bits = bits - CHUNKS_PER_SIZE_BITS;
        // The highest bit of `place` determines the chunk's size. The bits below it are the chunk's
        // number among the chunks of this size, followed by the slot's index in the chunk.
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
    /// The slot of a number: zeros, until the writer sets it.
    #[inline]
    pub fn get(&self, number: u32) -> &AtomicWords<N> {
        self.slot(number, bytemuck::zeroed_slice_box)
    }
}

impl<T> Arena<OnceLock<T>> {
    /// The value of a slot, if it was set.
    #[inline]
    pub fn value(&self, number: u32) -> Option<&T> {
        self.slot_or_init(number).get()
    }

    /// Sets an empty slot, and returns its value.
    pub fn set(&self, number: u32, value: T) -> &T {
        let slot = self.slot_or_init(number);
        let was_empty = slot.set(value).is_ok();
        assert!(was_empty, "invariant: slot {number} of an arena is set once");
        let Some(value) = slot.get() else { unreachable!("invariant: slot {number} was set") };
        value
    }

    #[inline]
    fn slot_or_init(&self, number: u32) -> &OnceLock<T> {
        self.slot(number, |slots| (0..slots).map(|_| OnceLock::new()).collect())
    }
}
