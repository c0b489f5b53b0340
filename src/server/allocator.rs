// SPDX-License-Identifier: MIT

//! An allocator for servers whose memory is aligned to eight bytes only.
//!
//! A server that uses musl's `malloc` stores the size of an allocation in the eight bytes before it. Rust relies on the
//! requested alignment: without it, the first access to a hash table may crash the server.

use std::alloc::{GlobalAlloc, Layout};
use std::ptr;

/// Alignment that every server provides.
const SERVER_ALIGN: usize = 8;

/// Aligns the memory of another allocator, which need only provide [`SERVER_ALIGN`].
pub(crate) struct Aligned<A>(pub(crate) A);

// SAFETY: the memory comes from `A`, is aligned, and has room for the pointer to its start before the returned address.
unsafe impl<A: GlobalAlloc> GlobalAlloc for Aligned<A> {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if layout.align() <= SERVER_ALIGN {
            // SAFETY: the caller's promise.
            return unsafe { self.0.alloc(layout) };
        }
        let Some(padded) = padded(layout) else { return ptr::null_mut() };
        // SAFETY: the size is not 0. The offset is at least `SERVER_ALIGN`, so the pointer fits before the returned address.
        // The offset is at most the alignment, which is the size of the padding.
        unsafe {
            let start = self.0.alloc(padded);
            if start.is_null() {
                return start;
            }
            let aligned = start.add(layout.align() - start.addr() % layout.align());
            aligned.cast::<*mut u8>().sub(1).write(start);
            aligned
        }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: `alloc` has returned the pointer for this layout, and has written the start before it.
        unsafe {
            match padded(layout) {
                Some(padded) if layout.align() > SERVER_ALIGN => {
                    self.0.dealloc(pointer.cast::<*mut u8>().sub(1).read(), padded);
                }
                _ => self.0.dealloc(pointer, layout),
            }
        }
    }
}

fn padded(layout: Layout) -> Option<Layout> {
    Layout::from_size_align(layout.size().checked_add(layout.align())?, SERVER_ALIGN).ok()
}

#[cfg(test)]
mod tests {
    use std::alloc::System;

    use super::*;

    /// Returns addresses that are no multiple of 16, as a server with musl may do.
    struct Misaligned;

    // SAFETY: the memory comes from the system, with eight bytes more.
    unsafe impl GlobalAlloc for Misaligned {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            let larger = Layout::from_size_align(layout.size() + 8, 64).unwrap();
            // SAFETY: the size is not 0.
            unsafe { System.alloc(larger).add(8) }
        }

        unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
            let larger = Layout::from_size_align(layout.size() + 8, 64).unwrap();
            // SAFETY: `alloc` has added eight bytes.
            unsafe { System.dealloc(pointer.sub(8), larger) }
        }
    }

    #[test]
    fn memory_is_aligned() {
        for align in [1, 8, 16, 32, 64, 4096] {
            for size in [1, 16, 1000] {
                let layout = Layout::from_size_align(size, align).unwrap();
                // SAFETY: the size is not 0, and all writes are in bounds.
                unsafe {
                    let memory = Aligned(Misaligned).alloc(layout);
                    assert_eq!(memory.addr() % align, 0, "{layout:?}");
                    memory.write_bytes(7, size);
                    Aligned(Misaligned).dealloc(memory, layout);
                }
            }
        }
    }
}
