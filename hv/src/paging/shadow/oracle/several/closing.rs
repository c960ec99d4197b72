//! Memory that is mapped to the caches of domains, and VCPUs that move between them: only the policy tells that from more than
//! faults, and no processor reaches memory that is closed in its domain.

use super::{Fault, Several};
use crate::arch::Access;
use crate::arch::addr::{Gpa, PAGE_SIZE};
use crate::paging::guest_walk::PagingState;
use crate::paging::model::Modelled;
use crate::paging::random::Random;
use crate::paging::range::{Changed, GpaRange, OldFrames};
use crate::paging::shadow::oracle::layout::TABLES;
use crate::paging::shadow::oracle::twins::Omits;
use crate::paging::shadow::{Registers, TlbFlush};
use crate::paging::tree_key::TreeKey;
use crate::vm::work;

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
        self.change_tree(v, to);
        Ok(())
    }

    /// The VCPU goes on with the tables of this key, as by `vcpu::mmu::set_tree`.
    pub(super) fn change_tree(&mut self, v: usize, tree: TreeKey) {
        self.world.log(|| format!("    VCPU {v} changes to {tree:?}"));
        let must_load = self.world.cpus[v].borrow().work & (work::RELOAD | work::MMU) != 0;
        let has_faulted = self.world.cpus[v].borrow().has_faulted;
        let root = self.engine(v, |shadow, _, _, state| {
            let PagingState { cr0, cr3, cr4, efer, .. } = *state;
            let registers = Registers { cr0, cr3, cr4, efer };
            shadow.select(tree);
            let root = if must_load { None } else { shadow.load_in_tree(tree, &registers, has_faulted) };
            (root, TlbFlush::None)
        });
        match root {
            Some(root) => {
                let mut cpu = self.world.cpus[v].borrow_mut();
                cpu.root = root;
                cpu.used.clear();
            }
            None => _ = self.load(v),
        }
        let mut cpu = self.world.cpus[v].borrow_mut();
        cpu.processor.flush(TlbFlush::All);
        cpu.tree = tree;
        cpu.changed_tree();
    }

    /// The VCPU is moved to the other domain, unless it is in a phase; what it used before.
    pub(super) fn move_away(&mut self, v: usize) -> Option<TreeKey> {
        let tree = self.world.cpus[v].borrow().tree;
        let other = TreeKey::new(1 - tree.domain().min(1), 0).filter(|_| self.phase_of() != Some(v))?;
        self.change_tree(v, other);
        Some(tree)
    }

    /// The guest changes an entry between uses of it on the tables of two domains, and need not flush it; it may take a fault there.
    pub(super) fn roam(&mut self, v: usize, probe: usize, random: &mut Random) -> Result<(), Fault> {
        // Reads, so that what both have allows nothing else.
        for _ in 0..2 {
            self.access(v, probe, Access::READ)?;
            self.move_away(v);
        }
        let at = self.entry_on_way(v, probe, random);
        self.store(v, at, random)?;
        let cpl = self.world.cpus[v].borrow().state.cpl;
        self.access(v, probe, random.access(cpl))?;
        for _ in 0..2 {
            self.move_away(v);
            self.access(v, probe, Access::READ)?;
        }
        Ok(())
    }
}
