//! A VM without hardware, for tests of what works on VMs and VCPUs.

use alloc::boxed::Box;

use crate::guest::build::{self, HostFacts};
use crate::guest::config::Config;
use crate::guest::cpuid::{CpuidPolicy, CpuidTable};
use crate::guest::ram::{HostAccess, VecHost};
use crate::guest::vm::Vm;
use crate::paging::TableMemory;
use crate::paging::addr::{Hfn, Hpa, PageSize};
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingFeatures;
use crate::vcpu::Vcpu;
use crate::virt::fake::Fake;

/// Where the guest's RAM is.
const RAM: Hpa = Hpa(0x1000_0000);
const RAM_BYTES: u64 = 20 << 20;
/// Frequency of the TSC.
pub const TSC_KHZ: u64 = 1_000_000;
/// Host TSC at the VM's start.
pub const START: u64 = 5_000_000_000;

/// Frames for tables and bytes for the guest.
#[derive(Clone)]
pub struct Memory {
    tables: &'static Arena,
    bytes: &'static VecHost,
}

impl TableMemory for Memory {
    fn allocate(&self) -> Option<Hfn> {
        self.tables.allocate()
    }
    fn free(&self, frame: Hfn) {
        self.tables.free(frame);
    }
    fn load(&self, frame: Hfn, index: usize) -> u64 {
        self.tables.load(frame, index)
    }
    fn store(&self, frame: Hfn, index: usize, value: u64) {
        self.tables.store(frame, index, value);
    }
    fn compare_exchange(&self, frame: Hfn, index: usize, old: u64, new: u64) -> Result<(), u64> {
        self.tables.compare_exchange(frame, index, old, new)
    }
}

impl HostAccess for Memory {
    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.bytes.read(at, buf);
    }
    fn load(&self, at: Hpa) -> u64 {
        self.bytes.load(at)
    }
    fn write(&self, at: Hpa, buf: &[u8]) {
        self.bytes.write(at, buf);
    }
    fn fill(&self, at: Hpa, len: u64, byte: u8) {
        self.bytes.fill(at, len, byte);
    }
    fn compare_exchange(&self, at: Hpa, size: usize, old: u64, new: u64) -> bool {
        self.bytes.compare_exchange(at, size, old, new)
    }
}

/// A VM of 20 MiB with one VCPU after RESET.
pub struct Scene {
    /// The VM.
    pub vm: Vm<Npt, Memory>,
    /// Its VCPUs.
    pub vcpus: [Box<Vcpu<Fake>>; 1],
}

impl Scene {
    /// Machine time 0 at host TSC [`START`].
    pub fn new() -> Scene {
        let config = "version = 1\n[[vm]]\nname = \"guest\"\nkernel = \"k\"\nmemory_mib = 20\n";
        let config = Config::parse(config.as_bytes()).unwrap();
        let facts = HostFacts {
            tsc_khz: TSC_KHZ,
            tsc: START,
            wall_seconds: 0,
            paging: PagingFeatures { physical_bits: 48, gib_pages: true, upper_global_reserved: true },
            largest_leaf: PageSize::Size2M,
        };
        let memory = Memory {
            tables: Box::leak(Box::new(Arena::new(64))),
            bytes: Box::leak(Box::new(VecHost::new(RAM, RAM_BYTES as usize))),
        };
        let vm = build::build(&config.vm[0], memory, &facts, |bytes| Some((RAM, bytes))).unwrap();
        let policy = CpuidPolicy {
            apic_id: 0,
            vcpus: 1,
            tsc_khz: TSC_KHZ as u32,
            invariant_tsc: true,
            xcr0: 0,
            pv_clock: false,
        };
        let vcpu = Vcpu::new(0, Fake::new([]), CpuidTable::new(&policy, |_, _| [0; 4]), TSC_KHZ);
        Scene { vm, vcpus: [Box::new(vcpu)] }
    }

    /// The VCPU.
    pub fn vcpu(&mut self) -> &mut Vcpu<Fake> {
        &mut self.vcpus[0]
    }
}
