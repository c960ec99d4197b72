//! A FIFO of the 16550: characters, each with the error bits that arrived with it.

/// Up to 16 characters.
#[derive(Clone, Debug)]
pub(super) struct Fifo {
    slots: [(u8, u8); Fifo::CAPACITY],
    head: usize,
    len: usize,
}

impl Fifo {
    pub(super) const CAPACITY: usize = 16;

    pub(super) const fn new() -> Fifo {
        Fifo { slots: [(0, 0); Fifo::CAPACITY], head: 0, len: 0 }
    }

    #[inline]
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn clear(&mut self) {
        self.len = 0;
    }

    /// Appends a character and its errors; a full FIFO loses it.
    pub(super) fn push(&mut self, byte: u8, errors: u8) {
        if self.len < Fifo::CAPACITY {
            self.slots[(self.head + self.len) % Fifo::CAPACITY] = (byte, errors);
            self.len += 1;
        }
    }

    pub(super) fn pop(&mut self) -> Option<(u8, u8)> {
        self.len = self.len.checked_sub(1)?;
        let slot = self.slots[self.head];
        self.head = (self.head + 1) % Fifo::CAPACITY;
        Some(slot)
    }

    /// The errors of the character that is read next.
    pub(super) fn front_errors(&self) -> u8 {
        if self.len == 0 { 0 } else { self.slots[self.head].1 }
    }

    pub(super) fn has_errors(&self) -> bool {
        (0..self.len).any(|i| self.slots[(self.head + i) % Fifo::CAPACITY].1 != 0)
    }
}
