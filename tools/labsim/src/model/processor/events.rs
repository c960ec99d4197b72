//! What changes a processor's context, and what that flushes: no more than the hardware would.

use abi::lab::Side;

use super::Processor;
use crate::model::{
    context::{Control, TlbControl, Vmcb},
    memory::Memory,
    space::{ASIDS, Kind},
    walk::Regime,
    witness::GuestFlush,
};

impl<M: Memory> Processor<M> {
    /// The registers are these; a change that the hardware flushes at is a flush. A write of CR3 is told apart.
    pub fn set_control(&mut self, control: Control) {
        if self.control.flushes(&control) {
            self.guest_flushes(GuestFlush::All);
            self.flush(self.asid, true, false);
        }
        self.load(control);
    }

    fn load(&mut self, control: Control) {
        self.control = control;
        self.set_regime();
    }

    fn set_regime(&mut self) {
        let nested = self.nested;
        let global_pages = self.control.has_global_pages();
        let cr3 = self.control.cr3;
        self.regime = self.control.format().map(|format| Regime { format, cr3, global_pages, nested });
    }

    /// A write of CR3, of whatever value, that took effect.
    pub fn write_cr3(&mut self) {
        self.counters().cr3_writes += 1;
        self.stall(self.costs.cr3_write);
        self.guest_flushes(GuestFlush::NonGlobal);
        self.flush(self.asid, false, false);
    }

    /// INVLPG in the running address space.
    pub fn invlpg(&mut self, va: u64) {
        self.counters().invlpgs += 1;
        self.stall(self.costs.invlpg);
        self.guest_flushes(GuestFlush::Page(va));
        if let Some(witness) = &mut self.witness {
            witness.flush_page(self.asid, va);
        }
        self.tlbs.invalidate(va, self.tags);
        self.walker.forget_linear(self.walk_tags.linear);
        self.tlbs.flushed(self.asid);
        self.take_tags();
    }

    /// INVLPGA: one page of any address space.
    pub fn invlpga(&mut self, va: u64, asid: u32) {
        let asid = narrow(asid);
        let running = std::mem::replace(&mut self.asid, asid);
        self.take_tags();
        self.invlpg(va);
        self.asid = running;
        self.take_tags();
    }

    /// INVPCID, of which only that it was executed is known: the running address space is flushed.
    pub fn invpcid(&mut self) {
        self.guest_flushes(GuestFlush::All);
        self.flush(self.asid, true, false);
    }

    /// The guest flushes by an instruction of its own, which is executed or intercepted. Nothing else binds those who stand in
    /// for the processor.
    pub fn guest_flushes(&mut self, flush: GuestFlush) {
        if let (Some(witness), Some(agile)) = (&mut self.witness, &self.agile) {
            witness.guest_flushed(agile.nested_root, flush);
        }
    }

    /// An interrupt command.
    pub fn ipi(&mut self) {
        self.counters().ipis += 1;
        self.stall(self.costs.ipi);
    }

    /// VMRUN, with `host` in the registers. `instructions`: see [`sync`](Self::sync).
    pub fn vmrun(&mut self, vmcb: &Vmcb, host: Control, instructions: u64) {
        self.counters().vmruns += 1;
        self.stall(self.costs.vmrun);
        self.sync(instructions);
        let asid = narrow(vmcb.asid);
        self.note_entry(asid, vmcb.agile.as_ref());
        self.host = Some(host);
        self.take_side(if vmcb.nested.is_some() { Side::Nested } else { Side::Shadow });
        if asid == ASIDS - 1 && std::mem::replace(&mut self.wide_asid, vmcb.asid) != vmcb.asid {
            self.flush(asid, true, true);
        }
        match vmcb.tlb_control {
            TlbControl::Nothing => {}
            TlbControl::All => self.flush_all(),
            // What stands in for a guest's own flush does not flush nested translations.
            TlbControl::Asid => self.flush(asid, true, vmcb.agile.is_none_or(|it| it.stand_in.is_none())),
            TlbControl::AsidNonGlobal => self.flush(asid, false, false),
        }
        self.asid = asid;
        // A control register whose write was intercepted.
        if self.exit.control.take().is_some_and(|control| control.flushes(&vmcb.control)) {
            self.guest_flushes(GuestFlush::All);
        }
        self.control = vmcb.control;
        self.nested = vmcb.nested;
        self.set_regime();
        self.take_tags();
    }

    /// #VMEXIT: the host goes on.
    pub fn vmexit(&mut self, instructions: u64) {
        let Some(host) = self.host.take() else { return };
        self.sync(instructions);
        self.take_side(Side::Host);
        self.note_exit();
        self.agile = None;
        self.counters().vmexits += 1;
        self.stall(self.costs.vmexit);
        self.asid = 0;
        self.control = host;
        self.nested = None;
        self.set_regime();
        self.take_tags();
    }

    /// Forgets an address space: with its global pages or without, and with its nested tables or without.
    fn flush(&mut self, asid: u16, global: bool, nested: bool) {
        self.counters().flushes += 1;
        if let Some(witness) = &mut self.witness {
            witness.flush(asid, global);
        }
        let mut began_again = self.spaces.flush(asid, Kind::Linear);
        if global {
            began_again |= self.spaces.flush(asid, Kind::Global);
        }
        if nested {
            began_again |= self.spaces.flush(asid, Kind::Nested);
        }
        if began_again {
            self.tlbs.clear();
            self.walker.clear();
        }
        self.tlbs.flushed(asid);
        self.take_tags();
    }

    /// Empties everything.
    pub(super) fn flush_all(&mut self) {
        self.counters().flushes += 1;
        if let Some(witness) = &mut self.witness {
            witness.flush_all();
        }
        self.tlbs.clear();
        self.walker.clear();
        self.take_tags();
    }
}

/// The place of an ASID.
fn narrow(asid: u32) -> u16 {
    asid.min(u32::from(ASIDS) - 1) as u16
}
