//! A processor of the machine: the model of it, and what the plugin keeps beside.
//!
//! Callbacks of the processor get it by [`Vcpu::of`], on the processor's own thread.

use std::{
    ffi::c_uint,
    sync::atomic::Ordering::{Relaxed, Release},
};

use abi::lab::PCPUS;
use labsim::{
    model::{Processor, regions::Regions},
    report::Pcpu,
};

use crate::{
    ffi,
    memory::Ram,
    registers::Registers,
    state::{ASK, Score, VCPUS, plugin},
};

/// What the last instructions did to the context, to be applied when the next block begins.
#[derive(Default)]
pub struct Pending {
    /// A control register was written.
    pub control: bool,
    /// It was CR3.
    pub cr3: bool,
    /// INVLPG; `None` inside if the address is not known, so that all goes.
    pub invlpg: Option<Option<u64>>,
    /// INVLPGA.
    pub invlpga: Option<(u64, u32)>,
    /// INVPCID.
    pub invpcid: bool,
    /// An interrupt command by WRMSR.
    pub ipi: bool,
    /// Any of these.
    pub any: bool,
}

/// A processor.
pub struct Vcpu {
    /// The model of it.
    pub processor: Processor<Ram>,
    /// Its registers.
    pub registers: Registers,
    /// QEMU's number for it.
    number: c_uint,
    /// See there.
    pub pending: Pending,
    /// What programs on it have marked.
    pub regions: Regions,
    /// Where the control block of the last VMRUN is.
    pub vmcb: u64,
    /// QEMU's mark of accesses by physical address, in the low bits of what it tells of an access. It is learnt from the
    /// first access of VMRUN to the control block. 16 matches none.
    pub physical_mark: u32,
    /// What it had counted when it said that the run ends.
    ended: Option<Pcpu>,
}

impl Vcpu {
    /// A processor starts; on its thread.
    pub extern "C" fn start(_id: ffi::Id, vcpu: c_uint) {
        let Some(place) = VCPUS.get(vcpu as usize) else { return };
        // SAFETY: this is the callback of the processor's start.
        let registers = unsafe { Registers::new() }.unwrap_or_else(|name| {
            eprintln!("labsim: this QEMU does not show the register {name}: use version 10.0");
            std::process::exit(1)
        });
        // SAFETY: QEMU starts each processor once.
        let Some(processor) = (unsafe { plugin().processor(vcpu) }) else { return };
        let pending = Pending { control: true, any: true, ..Pending::default() };
        let regions = Regions::default();
        let state = Vcpu {
            processor,
            registers,
            number: vcpu,
            pending,
            regions,
            vmcb: 0,
            physical_mark: 16,
            ended: None,
        };
        place.store(Box::into_raw(Box::new(state)), Release);
        // SAFETY: just stored.
        unsafe { Vcpu::of(vcpu) }.ask();
    }

    /// The processor of this number.
    ///
    /// # Safety
    /// In one of its callbacks, which run on its own thread; no other reference to it exists.
    #[inline(always)]
    pub unsafe fn of(vcpu: c_uint) -> &'static mut Vcpu {
        // SAFETY: it was stored before any callback, is never freed, and the caller ensures that there is no other reference.
        unsafe { &mut *VCPUS.get_unchecked(vcpu as usize % PCPUS).load(Relaxed) }
    }

    /// Whether an access is by physical address. VMRUN and #VMEXIT access control block and save area so, in the middle of
    /// any instruction, and VMLOAD and VMSAVE do. Asked before anything is looked up: a page of the same number may be known.
    #[inline(always)]
    pub fn is_physical(&self, info: ffi::MemInfo) -> bool {
        info & 15 == self.physical_mark
    }

    /// Its words, to be used at once ([`Plugin::score`](super::state::Plugin::score)).
    #[inline]
    pub fn score(&self) -> *mut Score {
        plugin().score(self.number)
    }

    /// Instructions so far.
    pub fn instructions(&self) -> u64 {
        // SAFETY: this processor's words.
        unsafe { (*self.score()).instructions }
    }

    /// The run ends here, says the machine: what follows is not reported.
    pub fn run_ends(&mut self) {
        self.ended = Some(self.count());
        plugin().run_ends();
    }

    /// What it had counted when the run's end was last said, or has until now.
    pub fn counted(&mut self) -> Pcpu {
        self.ended.take().unwrap_or_else(|| self.count())
    }

    fn count(&mut self) -> Pcpu {
        let instructions = self.instructions();
        self.processor.settle(true);
        self.processor.sync(instructions);
        let differences = self.processor.differences().to_vec();
        let regions = self.regions.all().to_vec();
        Pcpu { record: *self.processor.record(), differences, regions, is_spare: false }
    }

    /// The next block calls back, whichever it is.
    pub fn ask(&mut self) {
        // SAFETY: as above.
        unsafe { (*self.score()).code = ASK }
    }
}
