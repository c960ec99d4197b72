//! Memory for tables in tests: a vector of frames that knows which are in use.

use crate::arch::addr::Hfn;
use crate::mem::table_memory::{ENTRIES, TableMemory};
use alloc::vec::Vec;
use core::cell::{Cell, RefCell};

/// The number of the first frame, so that a frame number is not mistaken for an index.
const FIRST: u64 = 0x40000;

/// A bounded number of table frames. Using a frame that is not allocated panics.
#[derive(Debug)]
pub struct Arena {
    frames: RefCell<Vec<Option<[u64; ENTRIES]>>>,
    limit: Cell<usize>,
}

impl Arena {
    /// Memory for `limit` tables at a time.
    pub fn new(limit: usize) -> Arena {
        Arena { frames: RefCell::default(), limit: Cell::new(limit) }
    }

    /// Frames that are allocated now.
    pub fn in_use(&self) -> usize {
        self.frames.borrow().iter().flatten().count()
    }

    /// Sets how many frames can be allocated at a time.
    pub fn set_limit(&self, limit: usize) {
        self.limit.set(limit);
    }

    fn with<R>(&self, frame: Hfn, f: impl FnOnce(&mut [u64; ENTRIES]) -> R) -> R {
        let mut frames = self.frames.borrow_mut();
        let index = frame.0.checked_sub(FIRST).and_then(|n| usize::try_from(n).ok());
        match index.and_then(|n| frames.get_mut(n)) {
            Some(Some(table)) => f(table),
            _ => panic!("{frame:?} is not an allocated table"),
        }
    }
}

impl TableMemory for Arena {
    fn allocate(&self) -> Option<Hfn> {
        if self.in_use() >= self.limit.get() {
            return None;
        }
        let mut frames = self.frames.borrow_mut();
        let index = match frames.iter().position(Option::is_none) {
            Some(index) => index,
            None => {
                frames.push(None);
                frames.len() - 1
            }
        };
        frames[index] = Some([0; ENTRIES]);
        Some(Hfn(FIRST + index as u64))
    }

    fn free(&self, frame: Hfn) {
        self.with(frame, |_| ());
        self.frames.borrow_mut()[(frame.0 - FIRST) as usize] = None;
    }

    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.with(frame, |table| table[index])
    }

    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.with(frame, |table| table[index] = value);
    }

    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.with(frame, |table| match table[index] {
            now if now == old => {
                table[index] = new;
                Ok(())
            }
            now => Err(now),
        })
    }
}
