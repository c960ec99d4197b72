//! What must hold of one present entry.

use super::{Check, Disagreement};
use crate::arch::addr::{Gpa, PageSize};
use crate::arch::state::{cr0, cr4, efer};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::table_memory::TableMemory;
use crate::paging::format::x86::{ACCESSED, DIRTY, LongMode, NO_EXECUTE, PRESENT, PageAttr, USER, WRITE};
use crate::paging::format::{PteFormat, address_mask};
use crate::paging::guest_walk::{Meaning, PagingKind, PagingState, meaning};
use crate::paging::shadow::pool::PageId;
use crate::paging::shadow::role::{Allowed, Controls, HOST_WRITABLE, Role, Source};
use abi::agile::SWITCHING;
use alloc::boxed::Box;

/// The bits of a leaf that can be fewer than the guest allows; U cannot, because SMEP and SMAP want it.
const MAY_LACK: u64 = WRITE | DIRTY | ACCESSED;

/// What the guest's leaf means: where, how, and the most that a shadow leaf may allow.
struct Page {
    gpa: Gpa,
    shift: u8,
    /// As it is.
    plain: PageAttr,
    /// Writable for the supervisor without CR0.WP.
    overridden: Option<PageAttr>,
}

impl<M: TableMemory, F: PteFormat, N: TableMemory, G: GuestMemory> Check<'_, M, F, N, G> {
    /// An entry that follows one of the guest's.
    pub(super) fn table_entry(&self, id: PageId, role: Role, index: usize) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let Some((at, now)) = self.guest_entry(id, index) else {
            return Err(self.report("the guest's entry cannot be read", id, index, None));
        };
        let page = pool.page(id);
        let guest = if page.unsync || page.deferred { pool.guest_pte(id, index) } else { now };
        // Tables that cannot be written keep the bits that they have.
        let guest = if self.p2m.promised(at).writable().is_none() { guest | ACCESSED | DIRTY } else { guest };
        if guest & ACCESSED == 0 {
            return Err(self.report("the guest's accessed bit is clear", id, index, None));
        }
        let state = self.state_of(role);
        match meaning(&state, role.level, guest) {
            Meaning::NotPresent => Err(self.report("the guest's entry is not present", id, index, None)),
            Meaning::Reserved => Err(self.report("the guest's entry has reserved bits set", id, index, None)),
            Meaning::Table(table) => {
                let mut allowed = role.allowed;
                allowed.set(Allowed::WRITE, allowed.contains(Allowed::WRITE) && guest & WRITE != 0);
                allowed.set(Allowed::USER, allowed.contains(Allowed::USER) && guest & USER != 0);
                allowed
                    .set(Allowed::EXECUTE, allowed.contains(Allowed::EXECUTE) && is_executable(role, guest));
                let quadrant = if role.kind == PagingKind::TwoLevel { index as u8 & 1 } else { 0 };
                let guarded = self.shadow.guards(pool.page(id).key, index);
                self.link(
                    id,
                    index,
                    Role { level: role.level - 1, quadrant, allowed, guarded, ..role },
                    table,
                )
            }
            Meaning::Page { gpa, shift, pat, global } => {
                let page = Page::new(role, guest, gpa, shift, pat, global);
                self.page_entry(id, role, index, &page)
            }
        }
    }

    /// A leaf of the guest: a leaf, or a split page.
    fn page_entry(&self, id: PageId, role: Role, index: usize, page: &Page) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let span = 1 << (12 + 9 * u32::from(role.level - 1));
        // An entry for 4 MiB of the guest's is two of 2 MiB here.
        let part = if page.shift == 22 { (index as u64 & 1) << 21 } else { 0 };
        let gpa = Gpa(page.gpa.0 + part);
        let Some(child) = pool.child(id, index) else {
            return self.leaf(id, role.level, index, gpa, page.plain, page.overridden);
        };
        if role.level == 1 {
            return Err(self.report("a link at level 1", id, index, None));
        }
        let key = pool.page(child).key;
        let direct = key.role();
        let fits = |attr: &PageAttr| {
            let lacks_write = !direct.allowed.contains(Allowed::WRITE);
            direct.allowed.contains(Allowed::USER) == attr.user
                && direct.allowed.contains(Allowed::EXECUTE) == attr.execute
                && (lacks_write || attr.write)
                && direct.source == Source::Direct(attr.pat | u8::from(attr.global) << 3)
        };
        if key.number() != gpa.align_down(span).frame().0
            || direct.level != role.level - 1
            || direct.kind != PagingKind::Off
            || direct.guarded != self.shadow.guards(pool.page(id).key, index)
            || !(fits(&page.plain) || page.overridden.as_ref().is_some_and(fits))
        {
            return Err(self.report("the page under a large page is another one", id, index, None));
        }
        self.link_bits(id, index, child)
    }

    /// An entry of a page that stands for guest-physical memory.
    pub(super) fn direct_entry(
        &self,
        id: PageId,
        role: Role,
        leaf: u8,
        index: usize,
    ) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        if role.level > 2 {
            return Err(self.report("no large page is as large", id, index, None));
        }
        let base = pool.page(id).key.number() << 12;
        let gpa = Gpa(base + ((index as u64) << (12 + 9 * u32::from(role.level - 1))));
        match pool.child(id, index) {
            Some(child) => {
                let key = pool.page(child).key;
                let guarded = self.shadow.guards(pool.page(id).key, index);
                if key.role() != (Role { level: role.level - 1, guarded, ..role })
                    || key.number() != gpa.frame().0
                {
                    return Err(self.report("the page below is another one", id, index, None));
                }
                self.link_bits(id, index, child)
            }
            None => {
                let attr = PageAttr {
                    write: role.allowed.contains(Allowed::WRITE),
                    user: role.allowed.contains(Allowed::USER),
                    execute: role.allowed.contains(Allowed::EXECUTE),
                    global: leaf & 8 != 0,
                    pat: leaf & 7,
                };
                self.leaf(id, role.level, index, gpa, attr, None)
            }
        }
    }

    /// A page-directory pointer over the tables of a guest with fewer levels.
    pub(super) fn pointer(&self, id: PageId, role: Role, index: usize) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let guarded = self.shadow.guards(pool.page(id).key, index);
        let below = Role { level: 2, source: Source::Table, guarded, ..role };
        match role.kind {
            PagingKind::TwoLevel => {
                // Above it is the number of the VCPU.
                let root = Gpa(pool.page(id).key.number() << 12 & 0xffff_f000);
                self.link(id, index, Role { quadrant: index as u8 & 3, ..below }, root)
            }
            PagingKind::Pae => {
                let Some(child) = pool.child(id, index) else {
                    return Err(self.report("a pointer to nothing", id, index, None));
                };
                let loaded = self.state.pdptes.filter(|_| pool.root() == Some(id));
                let table = match loaded {
                    Some(pointers) => Gpa(pointers[index & 3] & address_mask(52)),
                    // What the processor read at the last load of CR3 is not known any more.
                    None => pool.page(child).gfn.base(),
                };
                self.link(id, index, below, table)
            }
            _ => {
                let wanted = Role {
                    level: 2,
                    kind: PagingKind::Off,
                    quadrant: 0,
                    controls: Controls::empty(),
                    allowed: Allowed::all(),
                    source: Source::Direct(0),
                    tree: role.tree,
                    guarded,
                };
                match pool.child(id, index) {
                    Some(child)
                        if pool.page(child).key.role() == wanted
                            && pool.page(child).key.number() == (index as u64) << 18 =>
                    {
                        self.link_bits(id, index, child)
                    }
                    _ => Err(self.report("the page below is another one", id, index, None)),
                }
            }
        }
    }

    /// An entry that must point to the page with this role for the guest's table at `table`.
    fn link(&self, id: PageId, index: usize, role: Role, table: Gpa) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let found = pool.child(id, index).filter(|&child| {
            let key = pool.page(child).key;
            key.role() == role && Some(key.number()) == self.frame(table).map(|frame| frame.0)
        });
        match found {
            Some(child) => self.link_bits(id, index, child),
            None => Err(self.report("the entry points to another page", id, index, None)),
        }
    }

    fn link_bits(&self, id: PageId, index: usize, child: PageId) -> Result<(), Box<Disagreement>> {
        let pool = &self.shadow.pool;
        let frame = pool.page(child).frame;
        let (wanted, ignored) = match pool.page(id).key.is_top() {
            // Emulated processors set it there.
            true => (frame.base().0 | PRESENT, ACCESSED),
            false => {
                let switches = pool.page(child).nested && !pool.page(id).nested;
                (LongMode::table(frame) | if switches { SWITCHING } else { 0 }, ACCESSED | DIRTY)
            }
        };
        if (pool.entry(id, index) ^ wanted) & !ignored != 0 {
            return Err(self.report("the entry does not say where the page is", id, index, Some(wanted)));
        }
        Ok(())
    }

    fn leaf(
        &self,
        id: PageId,
        level: u8,
        index: usize,
        gpa: Gpa,
        plain: PageAttr,
        overridden: Option<PageAttr>,
    ) -> Result<(), Box<Disagreement>> {
        let raw = self.shadow.pool.entry(id, index);
        let span = PageSize::Size4K.bytes() << (9 * (level - 1));
        let (entry, len) = self.p2m.run(gpa, span);
        let Some(to) = entry.readable().filter(|to| len == span && to.is_aligned(span)) else {
            return Err(self.report("there is no such memory", id, index, None));
        };
        let page = self.shadow.pool.page(id);
        let tree = page.key.tree();
        if entry.closed_in(tree.domain()).is_some() && !tree.is_of_phase() {
            return Err(self.report("the memory is closed in this cache domain", id, index, None));
        }
        if level > 1 && tree.is_of_phase() {
            return Err(self.report("a leaf is of more than the page that is open", id, index, None));
        }
        if raw & WRITE != 0 && self.shadow.guards(self.shadow.pool.page(id).key, index) {
            return Err(self.report("the guest can write to a guarded page", id, index, None));
        }
        if raw & HOST_WRITABLE != 0 && entry.writable().is_none() {
            return Err(self.report("the memory does not take writes", id, index, None));
        }
        let most = |attr: PageAttr| {
            let attr = PageAttr { write: attr.write && entry.writable().is_some(), ..attr };
            self.shadow.typed(LongMode::leaf(to, level, attr), level)
        };
        let is_within = |attr: PageAttr| {
            let most = most(attr);
            // Fetches may be forbidden too, never allowed.
            (raw ^ most) & !(MAY_LACK | NO_EXECUTE | HOST_WRITABLE) == 0
                && raw & WRITE & !most == 0
                && most & NO_EXECUTE & !raw == 0
        };
        if is_within(plain) || overridden.is_some_and(is_within) {
            return Ok(());
        }
        Err(self.report("a leaf says what the guest does not", id, index, Some(most(plain))))
    }

    /// Registers under which entries mean what they mean in this role.
    fn state_of(&self, role: Role) -> PagingState {
        let bit = |bit: u64, control| if role.controls.contains(control) { bit } else { 0 };
        let mut state = PagingState {
            cr0: cr0::PE | bit(cr0::WP, Controls::WRITE_PROTECT),
            cr4: bit(cr4::SMEP, Controls::SMEP)
                | bit(cr4::SMAP, Controls::SMAP)
                | bit(cr4::PGE, Controls::GLOBAL)
                | bit(cr4::PSE, Controls::LARGE),
            efer: bit(efer::NXE, Controls::NO_EXECUTE),
            ..*self.state
        };
        match role.kind {
            PagingKind::Off => {}
            PagingKind::TwoLevel => state.cr0 |= cr0::PG,
            PagingKind::Pae => (state.cr0, state.cr4) = (state.cr0 | cr0::PG, state.cr4 | cr4::PAE),
            PagingKind::FourLevel => {
                (state.cr0, state.cr4) = (state.cr0 | cr0::PG, state.cr4 | cr4::PAE);
                state.efer |= efer::LME | efer::LMA;
            }
        }
        state
    }
}

impl Page {
    /// A leaf of a table with this role.
    fn new(role: Role, guest: u64, gpa: Gpa, shift: u8, pat: u8, global: bool) -> Page {
        let writable = role.allowed.contains(Allowed::WRITE) && guest & WRITE != 0;
        let user = role.allowed.contains(Allowed::USER) && guest & USER != 0;
        let execute = role.allowed.contains(Allowed::EXECUTE) && is_executable(role, guest);
        let dirty = guest & DIRTY != 0;
        let plain = PageAttr { write: writable && dirty, user, execute, global, pat };
        let forbidden = role.controls.contains(Controls::WRITE_PROTECT)
            || (user && role.controls.contains(Controls::SMAP));
        let may = dirty && !writable && !forbidden;
        let fetch = execute && !(user && role.controls.contains(Controls::SMEP));
        let overridden = may.then_some(PageAttr { write: true, user: false, execute: fetch, ..plain });
        Page { gpa, shift, plain, overridden }
    }
}

fn is_executable(role: Role, guest: u64) -> bool {
    role.kind == PagingKind::TwoLevel || guest & NO_EXECUTE == 0
}
