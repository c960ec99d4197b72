//! A VM without hardware, and a scripted PCPU to run it on, for tests of what works on VMs and VCPUs.

mod bytes;
mod processor;

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, VecDeque};
use alloc::rc::Rc;
use alloc::vec::Vec;

use self::processor::cpuid;
use crate::arch::addr::{Gpa, Hfn, Hpa, PageSize};
use crate::arch::state::{ArchState, Segment, cr0, cr4, rflags};
use crate::guest::build::{self, HostFacts};
use crate::guest::config::Config;
use crate::guest::cpuid::{CpuidPolicy, CpuidTable};
use crate::mem::guest_memory::GuestMemory;
use crate::mem::host_access::VecHost;
use crate::mem::table_memory::TableMemory;
use crate::paging::arena::Arena;
use crate::paging::format::npt::Npt;
use crate::paging::guest_walk::PagingFeatures;
use crate::vcpu::Vcpu;
use crate::vcpu::host::Host;
use crate::vcpu::outcome::{Cause, Return, Stop};
use crate::vcpu::run::run;
use crate::virt::Virt;
use crate::virt::fake::{Fake, Processor, Step};
use crate::vm::Vm;
use crate::vm::mailbox::Mailbox;

/// Where the guest's RAM is, and behind it 4 MiB that tests may have for fast memory.
const RAM: Hpa = Hpa(0x1000_0000);
const RAM_BYTES: u64 = 20 << 20;
/// Frequency of the TSC.
pub const TSC_KHZ: u64 = 1_000_000;
/// Host TSC at the VM's start.
pub const START: u64 = 5_000_000_000;

/// Frames for tables and bytes for the guest.
#[derive(Clone)]
pub struct Memory {
    /// Frames of all tables, the retired ones too.
    pub tables: Rc<Arena>,
    pub bytes: Rc<VecHost>,
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

/// A VM of 20 MiB with one VCPU after RESET.
pub struct Scene {
    /// The VM.
    pub vm: Vm<Npt, Memory>,
    /// Its VCPUs.
    pub vcpus: [Box<Vcpu<Fake>>; 1],
}

impl Default for Scene {
    fn default() -> Scene {
        Scene::new()
    }
}

impl Scene {
    /// Machine time 0 at host TSC [`START`].
    pub fn new() -> Scene {
        Scene::with("", &[], |_, _| [0; 4])
    }

    /// The same with more lines in the VM's configuration, a script for the VCPU, and the host's CPUID values.
    fn with(options: &str, script: &[Step], cpuid: impl Fn(u32, u32) -> [u32; 4]) -> Scene {
        let config = "version = 1\n[[vm]]\nname = \"guest\"\nkernel = \"k\"\nmemory_mib = 20\n";
        let config = Config::parse(alloc::format!("{config}{options}").as_bytes()).unwrap();
        let facts = HostFacts {
            tsc_khz: TSC_KHZ,
            tsc: START,
            wall_seconds: 0,
            paging: PagingFeatures {
                physical_bits: 48,
                gib_pages: true,
                upper_global_reserved: true,
                pointer_bits_reserved: true,
            },
            largest_leaf: PageSize::Size2M,
            is_modelled: false,
        };
        let memory = Memory {
            tables: Rc::new(Arena::new(240)),
            bytes: Rc::new(VecHost::new(RAM, RAM_BYTES as usize + (4 << 20))),
        };
        let vm = build::build(&config.vm[0], memory, &facts, |bytes| Some((RAM, bytes)), None).unwrap();
        let policy = CpuidPolicy {
            apic_id: 0,
            vcpus: 1,
            tsc_khz: TSC_KHZ as u32,
            invariant_tsc: true,
            xcr0: 7,
            pv_clock: false,
            arch_capabilities: 0,
            hidden: config.vm[0].hidden,
        };
        let vcpu = Vcpu::new(0, Fake::new(script.iter().copied()), CpuidTable::new(&policy, cpuid), TSC_KHZ);
        Scene { vm, vcpus: [Box::new(vcpu)] }
    }

    /// The VCPU.
    pub fn vcpu(&mut self) -> &mut Vcpu<Fake> {
        &mut self.vcpus[0]
    }
}

/// The PCPU: its time is [`Processor::tsc`]; waiting takes it to the next thing that happens.
#[derive(Debug, Default)]
pub struct ScriptHost {
    /// Shared with the VCPU.
    pub cpu: Rc<Processor>,
    /// Ticks that each reading of the clock takes.
    pub slow: u64,
    /// When the timer interrupts.
    pub armed: Option<u64>,
    /// By how much the timer interrupts too early, once.
    pub early: u64,
    /// How many of the timer's interrupts get lost if they come while the guest runs, and whether one was.
    pub losses: usize,
    lost: bool,
    /// The timer has interrupted.
    pub fired: bool,
    /// How often the timer was armed.
    pub arms: usize,
    /// Waits so far.
    pub waits: usize,
    /// Times that it opened its interrupts while a guest ran.
    pub windows: usize,
    /// Console input, and the TSC value at which it arrives.
    pub input: VecDeque<(u64, u8)>,
    /// The PCPU is wanted for something else at this TSC value.
    pub wanted_at: Option<u64>,
    /// Whether another VCPU waits for the PCPU.
    pub others_wait: bool,
    /// Console output.
    pub output: Vec<u8>,
    /// The console takes no byte more than there are, until this TSC value.
    pub output_stuck: Option<(usize, u64)>,
    held: Option<u8>,
    /// XMM registers, zero if not written.
    pub xmm: BTreeMap<u8, u128>,
    /// XCR0.
    pub xcr0: u64,
    /// TSC_AUX.
    pub tsc_aux: u64,
    /// Writes of SPEC_CTRL, PRED_CMD and FLUSH_CMD.
    pub speculation: Vec<(u32, u64)>,
    /// How often an interrupt was to wait for the PCPU itself.
    pub self_interrupts: u32,
    /// How often the breakpoints were cleared.
    pub breakpoints_cleared: u32,
    /// VCPUs that were kicked.
    pub kicks: Vec<u32>,
    /// Its cache domain, which follows moves; each domain has one PCPU of the same number.
    pub domain: u8,
    /// Domains where the VCPU may run, a bit for each.
    pub allowed: u16,
    /// It has taken the VCPU from its domain.
    pub took: bool,
}

impl ScriptHost {
    fn fire(&mut self) {
        if self.armed.is_some_and(|at| at.saturating_sub(self.early) <= self.cpu.tsc.get()) {
            (self.armed, self.early, self.fired) = (None, 0, true);
        }
        if self.fired && self.losses > 0 {
            (self.losses, self.lost, self.fired) = (self.losses - 1, true, false);
        }
    }

    /// Waits until something happens.
    fn idle(&mut self) {
        self.waits += 1;
        assert!(self.waits < 1000, "nothing but the longest time of the host's timer wakes the guest");
        self.losses = 0;
        if core::mem::take(&mut self.lost) {
            self.fired = true;
            return;
        }
        let timer = self.armed.map(|at| at.saturating_sub(self.early));
        let input = self.input.front().map(|&(at, _)| at);
        let next = [timer, input, self.wanted_at].into_iter().flatten().min();
        let next = next.expect("the guest waits, and nothing will wake it");
        self.cpu.tsc.set(self.tsc().max(next));
        self.fire();
    }

    /// Guests must not be in the processor while the host waits or opens its interrupts.
    fn assert_released(&self) {
        assert!(!self.cpu.held.get(), "the processor still holds guest state");
    }
}

impl Host for ScriptHost {
    fn tsc(&self) -> u64 {
        self.cpu.tsc.set(self.cpu.tsc.get() + self.slow);
        self.cpu.tsc.get()
    }
    fn arm_timer(&mut self, deadline: u64) -> u64 {
        self.assert_released();
        self.arms += 1;
        *self.armed.insert(deadline)
    }
    fn interrupt_self(&mut self) {
        self.assert_released();
        self.self_interrupts += 1;
    }
    fn timer_fired(&mut self) -> bool {
        core::mem::take(&mut self.fired)
    }
    fn serve_interrupts(&mut self) {
        self.assert_released();
        self.windows += 1;
        self.fire();
    }
    fn kick(&mut self, mailbox: &Mailbox) {
        self.assert_released();
        self.kicks.push(mailbox.id());
    }
    fn is_wanted(&mut self) -> bool {
        let now = self.tsc();
        self.wanted_at.take_if(|at| *at <= now).is_some()
    }
    fn others_wait(&self) -> bool {
        self.others_wait
    }
    fn cache_domain(&self) -> u8 {
        self.domain
    }
    fn place_in(&mut self, _: &Mailbox, domain: u8) -> Option<u8> {
        (self.allowed >> domain & 1 != 0).then_some(domain)
    }
    fn was_taken(&mut self, _: &Mailbox) -> bool {
        core::mem::take(&mut self.took)
    }
    fn console_ready(&self) -> bool {
        self.input.front().is_some_and(|&(at, _)| at <= self.tsc())
    }
    fn console_read(&mut self) -> Option<u8> {
        let now = self.tsc();
        self.input.pop_front_if(|(at, _)| *at <= now).map(|(_, byte)| byte)
    }
    fn console_write(&mut self, byte: u8) -> bool {
        assert!(self.held.is_none(), "the console said that it takes no more");
        if self.output_stuck.is_some_and(|(len, until)| self.output.len() >= len && self.tsc() < until) {
            self.held = Some(byte);
            return false;
        }
        self.output.push(byte);
        true
    }
    fn console_writable(&mut self) -> bool {
        if let Some(byte) = self.held.take() {
            return self.console_write(byte);
        }
        true
    }
    fn xmm(&self, index: u8) -> u128 {
        self.xmm.get(&index).copied().unwrap_or(0)
    }
    fn set_xmm(&mut self, index: u8, value: u128) {
        self.xmm.insert(index, value);
    }
    fn mmx(&self, _index: u8) -> Option<u64> {
        Some(0)
    }
    fn set_mmx(&mut self, _index: u8, _value: u64) {}
    fn xcr0(&self) -> u64 {
        self.xcr0
    }
    fn set_xcr0(&mut self, value: u64) {
        self.xcr0 = value;
    }
    fn set_tsc_aux(&mut self, value: u64) {
        self.tsc_aux = value;
    }
    fn set_spec_ctrl(&mut self, wanted: u64) {
        self.speculation.push((crate::arch::msr::SPEC_CTRL, wanted));
    }
    fn forget_speculation(&mut self, msr: u32) {
        self.speculation.push((msr, 1));
    }
    fn clear_breakpoints(&mut self) {
        self.assert_released();
        self.breakpoints_cleared += 1;
    }
}

/// Where the guest of a [`Machine`] executes.
pub const CODE: u64 = 0x1000;

/// A VM, its VCPU in flat 32-bit mode at [`CODE`] with x2APIC on and interrupts open, and the PCPU.
pub struct Machine {
    /// The VM.
    pub vm: Vm<Npt, Memory>,
    /// The VCPU.
    pub vcpu: Box<Vcpu<Fake>>,
    /// The PCPU.
    pub host: ScriptHost,
}

impl Machine {
    /// A machine whose guest plays `script`; with the test device.
    pub fn new(script: &[Step]) -> Machine {
        Machine::with("test_device = true\n", script)
    }

    /// The same with these lines in the VM's configuration.
    pub fn with(options: &str, script: &[Step]) -> Machine {
        let Scene { vm, vcpus: [mut vcpu] } = Scene::with(options, script, cpuid);
        let host = ScriptHost { cpu: vcpu.virt.cpu.clone(), xcr0: 1, ..ScriptHost::default() };
        host.cpu.tsc.set(START);
        vcpu.virt.set_tsc_offset(START.wrapping_neg());
        vcpu.virt.next_rip = Some(CODE + 2);
        vcpu.virt.regs = flat();
        let x2apic = vcpu.lapic.set_base(vcpu.lapic.base() | 3 << 10, 48);
        assert!(x2apic.is_ok() || !vcpu.cpuid.limits().x2apic);
        Machine { vm, vcpu, host }
    }

    /// Puts code where the guest is.
    pub fn code(&mut self, bytes: &[u8]) {
        self.write(CODE, bytes);
    }

    /// Writes guest memory.
    pub fn write(&self, at: u64, bytes: &[u8]) {
        self.vm.memory.read().ram().write(Gpa(at), bytes).unwrap();
    }

    /// Reads guest memory.
    pub fn read<const N: usize>(&self, at: u64) -> [u8; N] {
        let mut bytes = [0; N];
        self.vm.memory.read().ram().read(Gpa(at), &mut bytes).unwrap();
        bytes
    }

    /// Runs until the VM stops.
    pub fn run(&mut self) -> Stop {
        self.run_or_yield().expect("no yield")
    }

    /// Runs until the VM stops, or (`None`) the PCPU is wanted for something else.
    pub fn run_or_yield(&mut self) -> Option<Stop> {
        loop {
            let end = run(&mut self.vcpu, &self.vm, &mut (), &mut self.host);
            assert!(!self.host.cpu.held.get(), "the processor still holds guest state");
            match end {
                Return::Idle => self.host.idle(),
                Return::Yield | Return::Spin => return None,
                Return::Move(pcpu) => self.host.domain = pcpu,
                Return::Stop(stop) => return Some(stop),
            }
        }
    }

    /// Runs to the end of the script, where the guest triple-faults.
    pub fn play(&mut self) {
        let stop = self.run();
        assert!(matches!(&stop, Stop::Died(death) if death.cause == Cause::TripleFault), "{stop:?}");
        assert!(self.vcpu.virt.script.is_empty());
    }
}

/// Flat 32-bit mode at CPL 0, interrupts open.
fn flat() -> ArchState {
    let mut state = ArchState {
        rip: CODE,
        rflags: rflags::FIXED | rflags::IF,
        cr0: cr0::PE | cr0::ET,
        cr4: cr4::OSFXSR,
        ..ArchState::reset()
    };
    state.segments[..6].fill(Segment::flat(0x10, 0xc93));
    state.segments[1] = Segment::flat(8, 0xc9b);
    state
}
