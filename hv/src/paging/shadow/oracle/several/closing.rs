//! Memory that is mapped to the caches of domains, and VCPUs that move between them: only the policy tells that from more than
//! faults, and no processor reaches memory that is closed in its domain.

use super::{Fault, Several};
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::paging::shadow::TlbFlush;
use crate::paging::shadow::oracle::layout::TABLES;
use crate::paging::shadow::oracle::twins::Omits;
use crate::paging::tree_key::TreeKey;

impl<F: Modelled> Several<F> {
    /// Some pages are mapped to the cache of one of two domains, or opened in both.
    pub(super) fn close_memory(&mut self, v: usize, random: &mut Random) {
        let first = random.draw() % TABLES;
        let pages = TABLES.min(first + 1 + random.draw() % 3) - first;
        let range = GpaRange::new(Gpa(first * PAGE_SIZE), pages * PAGE_SIZE).expect("a small range");
        let home = [Some(0), Some(1), Some(1), None][random.draw() as usize % 4];
        self.world.log(|| format!("    {range:x?} is mapped to {home:?}"));
        let forgets = self.world.omits.get() == Omits::Close;
        self.edit(v, |p2m| {
            let changed = p2m.set_home(range, home)?;
            let was = if forgets { OldFrames::NONE } else { changed.was };
            Ok([Changed { was, ..changed }].into())
        });
    }

    /// The VCPU uses the tables of this key from its next root on.
    pub(super) fn use_tree(&mut self, v: usize, tree: TreeKey) {
        self.world.log(|| format!("    VCPU {v} uses {tree:?}"));
        self.engine(v, |shadow, _, _, _| (shadow.select(tree), TlbFlush::None));
        self.world.cpus[v].borrow_mut().tree = tree;
    }

    /// The VCPU has touched memory that is closed to it: it moves to the other domain, or the page is opened.
    pub(super) fn serve_closed(&mut self, v: usize, gpa: Gpa, home: u8) -> Result<(), Fault> {
        let tree = self.world.cpus[v].borrow().tree;
        let entry = self.world.p2m.borrow().translate(gpa);
        if entry.closed_in(tree.domain()) != Some(home) {
            return Err(format!("{gpa} is said to be closed in {tree:?}, and is {entry:?}"));
        }
        if self.world.once_in(4) {
            self.edit(v, |p2m| Ok([p2m.set_home(GpaRange::page(gpa), None)?].into()));
            return Ok(());
        }
        let to = TreeKey::new(home, tree.phase()).ok_or("no such domain")?;
        self.use_tree(v, to);
        self.load(v);
        self.world.cpus[v].borrow_mut().processor.flush(TlbFlush::All);
        Ok(())
    }
}
