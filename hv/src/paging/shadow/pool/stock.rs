//! Pages that stand for nothing, and how many frames the pool has.

use super::{NONE, Page, PageId};
use crate::mem::pieces::Pieces;

/// Pages on top of each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stack {
    pub top: PageId,
    pub len: usize,
}

impl Stack {
    pub(super) const EMPTY: Stack = Stack { top: NONE, len: 0 };

    #[inline(always)]
    pub(super) fn push(&mut self, pages: &mut Pieces<Page>, id: PageId) {
        pages[id as usize].next = core::mem::replace(&mut self.top, id);
        self.len += 1;
    }

    #[inline(always)]
    pub(super) fn pop(&mut self, pages: &Pieces<Page>) -> Option<PageId> {
        let id = self.top;
        if id == NONE {
            return None;
        }
        self.top = pages[id as usize].next;
        self.len -= 1;
        Some(id)
    }
}

/// Frames of tables and of what is known about entries.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Frames {
    /// Of them, tables.
    pub tables: usize,
    /// Of them, chunks.
    pub chunks: usize,
    /// The most of both.
    pub limit: usize,
    /// Tables that are never given back, so that each operation has what it needs; twice as many frames of chunks.
    pub reserve: usize,
    /// The most that there were.
    pub most: usize,
}

impl Frames {
    /// Of both kinds.
    pub(super) fn total(&self) -> usize {
        self.tables + self.chunks
    }
}
