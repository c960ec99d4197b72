//! A model of a processor that walks guest tables through nested tables, for tests: the reference walker over the model
//! of nested translations, behind a TLB of guest-virtual addresses that keeps what it is not told to forget.

use super::{Outcome, Stopped};
use crate::arch::Access;
use crate::arch::addr::{Gpa, Gva, Hfn, Hpa, PAGE_SIZE};
use crate::mem::guest_memory::{GuestMemory, NotRam};
use crate::mem::host_access::{HostAccess, VecHost};
use crate::paging::arena::Arena;
use crate::paging::guest_walk::reference::reference;
use crate::paging::guest_walk::{PagingState, Rights, WalkError};
use crate::paging::model::{Processor, Vendor};
use crate::paging::range::Flush;
use crate::paging::shadow::TlbFlush;
use core::cell::{Cell, RefCell};

struct Cached {
    gva: u64,
    /// log2 of the size of the guest's page, which INVLPG forgets as one.
    shift: u8,
    to: Hpa,
    rights: Rights,
    global: bool,
    /// Filled by a write: both dirty bits are set.
    written: bool,
}

/// The processor.
pub struct TwoDimensional {
    nested: RefCell<Processor>,
    translations: Vec<Cached>,
    next: usize,
}

const CAPACITY: usize = 48;

/// Guest memory as page walks reach it; remembers the first address at which one faulted.
struct Walks<'a> {
    arena: &'a Arena,
    root: Hfn,
    processor: &'a RefCell<Processor>,
    host: &'a VecHost,
    fault: Cell<Option<Gpa>>,
}

impl Walks<'_> {
    fn hpa(&self, gpa: Gpa) -> Result<Hpa, NotRam> {
        self.processor.borrow_mut().access(&self.arena, self.root, gpa, Access::WRITE).map_err(|_| {
            self.fault.set(self.fault.get().or(Some(gpa)));
            NotRam { gpa }
        })
    }
}

impl GuestMemory for Walks<'_> {
    fn read(&self, gpa: Gpa, buf: &mut [u8]) -> Result<(), NotRam> {
        self.host.read(self.hpa(gpa)?, buf);
        Ok(())
    }
    fn write(&self, gpa: Gpa, buf: &[u8]) -> Result<(), NotRam> {
        self.host.write(self.hpa(gpa)?, buf);
        Ok(())
    }
    fn compare_exchange(&self, gpa: Gpa, _: usize, _: u64, _: u64) -> Result<bool, NotRam> {
        // The reference walker returns what it would write.
        Err(NotRam { gpa })
    }
}

impl TwoDimensional {
    /// With empty caches.
    pub fn new(vendor: Vendor) -> TwoDimensional {
        let nested = RefCell::new(Processor::new(vendor));
        TwoDimensional { nested, translations: Vec::new(), next: 0 }
    }

    /// What the guest flushes.
    pub fn flush(&mut self, flush: TlbFlush) {
        match flush {
            TlbFlush::None => {}
            TlbFlush::Page(gva) => self.translations.retain(|it| it.gva >> it.shift != gva.0 >> it.shift),
            TlbFlush::NonGlobal => self.translations.retain(|it| it.global),
            TlbFlush::All => self.translations.clear(),
        }
    }

    /// What a change of nested tables makes it forget: of combined translations, everything.
    pub fn flush_nested(&mut self, flush: Flush) {
        if flush != Flush::None {
            self.translations.clear();
        }
        self.nested.borrow_mut().flush(flush);
    }

    /// An access by the guest. `gva` is what the kind of paging sees of the address.
    pub fn access(
        &mut self,
        arena: &Arena,
        root: Hfn,
        host: &VecHost,
        state: &PagingState,
        gva: Gva,
        access: Access,
    ) -> Result<Outcome, Stopped> {
        let page = gva.0 & !(PAGE_SIZE - 1);
        let hit =
            |it: &&Cached| it.gva == page && state.allows(access, it.rights) && (it.written || !access.write);
        if let Some(it) = self.translations.iter().find(hit) {
            return Ok(Outcome::Done(Hpa(it.to.0 + gva.offset())));
        }
        let walks = Walks { arena, root, processor: &self.nested, host, fault: Cell::new(None) };
        let (found, writes) = reference(state, &walks, gva, access);
        for (at, size, value) in writes {
            // Read a moment ago.
            let _written = walks.write(at, &value.to_le_bytes()[..size]);
        }
        let found = match (walks.fault.get(), found) {
            (Some(table), _) => return Err(Stopped { gpa: table, access: Access::WRITE }),
            (None, Ok(found)) => found,
            (None, Err(WalkError::PageFault(code))) => {
                self.flush(TlbFlush::Page(gva));
                return Ok(Outcome::PageFault(code));
            }
            (None, Err(_)) => return Err(Stopped { gpa: Gpa(u64::MAX), access }),
        };
        let Ok(hpa) = self.nested.borrow_mut().access(&arena, root, found.gpa, access) else {
            return Err(Stopped { gpa: found.gpa, access });
        };
        let cached = Cached {
            gva: page,
            shift: found.page_shift,
            to: Hpa(hpa.0 & !(PAGE_SIZE - 1)),
            rights: Rights { writable: found.writable, user: found.user, executable: found.executable },
            global: found.global,
            written: access.write,
        };
        if self.translations.len() < CAPACITY {
            self.translations.push(cached);
        } else {
            self.next = (self.next + 1) % CAPACITY;
            self.translations[self.next] = cached;
        }
        Ok(Outcome::Done(hpa))
    }
}
