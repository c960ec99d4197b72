//! What an address may lead to, or what fault it may cause, until the guest flushes it: any mixture of the entries that were on its way since the last
//! flush, because processors keep translations and pointers to tables apart.

use super::{Outcome, Walked, by_p2m};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::paging::guest_walk::{PagingState, Translation, WalkError, walk};
use core::cell::{Cell, RefCell};

/// Mixtures that are tried; with more, anything goes.
const MOST: usize = 400;

/// Eight bytes of a table that were changed: where, and what they were.
pub type Change = (u64, u64);

/// Memory in which each read of a changed entry returns one of its values; which one, `choices` says in order.
struct Versions<'a> {
    now: Walked<'a>,
    changes: &'a [Change],
    /// Processors keep no entry that is not present: an old value of that kind counts only if it was replaced by this change or
    /// one after it.
    absent_from: usize,
    /// For each read of a walk: the choice, and how many there are.
    choices: RefCell<Vec<(usize, usize)>>,
    reads: Cell<usize>,
}

impl GuestMemory for Versions<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.now.read(gpa, buf)?;
        let word = gpa.0 & !7;
        let from = (gpa.0 - word) as usize;
        let may_be = |&(n, change): &(usize, &Change)| {
            change.0 == word && (n >= self.absent_from || change.1 >> (8 * from) & 1 != 0)
        };
        let olds = || self.changes.iter().enumerate().filter(may_be).map(|(_, change)| change.1);
        let read = self.reads.replace(self.reads.get() + 1);
        let mut choices = self.choices.borrow_mut();
        if read == choices.len() {
            choices.push((0, 1 + olds().count()));
        }
        if let Some(old) = choices[read].0.checked_sub(1).and_then(|n| olds().nth(n)) {
            buf.copy_from_slice(&old.to_le_bytes()[from..from + buf.len()]);
        }
        Ok(())
    }
    fn write(&self, gpa: Gpa, _: &[u8]) -> Result<(), NotRam> {
        Err(NotRam { gpa })
    }
    fn compare_exchange(&self, gpa: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        Err(NotRam { gpa })
    }
}

/// Whether this can become of an access, with these changes since the last flush. Those from number `absent_from` on may have
/// come after it: up to then an entry that was not present may be what it has met.
pub fn is_possible(
    now: Walked,
    (changes, absent_from): (&[Change], usize),
    state: &PagingState,
    gva: Gva,
    access: Access,
    outcome: Outcome,
) -> bool {
    let p2m = now.p2m;
    any_mixture(now, (changes, absent_from), state, gva, access, |found, _| match found {
        Ok(found) => by_p2m(p2m, found.gpa, access) == outcome,
        Err(WalkError::PageFault(code)) => Outcome::PageFault(code) == outcome,
        Err(WalkError::NotRam { table }) => by_p2m(p2m, table, Access::WRITE) == outcome,
        Err(WalkError::Contended) => false,
    })
}

/// Whether one of the walks that are possible with these changes since the last flush is what `is_it` looks for; it also learns
/// whether that is the walk of the tables as they are. True as well if there are too many to tell.
pub fn any_mixture(
    now: Walked,
    (changes, absent_from): (&[Change], usize),
    state: &PagingState,
    gva: Gva,
    access: Access,
    mut is_it: impl FnMut(Result<Translation, WalkError>, bool) -> bool,
) -> bool {
    let versions = Versions { now, changes, absent_from, choices: RefCell::default(), reads: Cell::new(0) };
    for _ in 0..MOST {
        versions.reads.set(0);
        let found = walk(state, &versions, gva, access, false, |_| ());
        let mut choices = versions.choices.borrow_mut();
        choices.truncate(versions.reads.get());
        if is_it(found, choices.iter().all(|choice| choice.0 == 0)) {
            return true;
        }
        // The next mixture.
        while let Some((choice, count)) = choices.pop() {
            if choice + 1 < count {
                choices.push((choice + 1, count));
                break;
            }
        }
        if choices.is_empty() {
            return false;
        }
    }
    true
}
