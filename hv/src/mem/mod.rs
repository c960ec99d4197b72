//! Host memory: frame allocator and heap.
