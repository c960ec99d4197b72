//! Host bring-up, in order.

use core::arch::global_asm;
use core::ops::Range;

use super::host::Host;
use super::idt;
use super::memory::{self, Ranges};
use super::percpu::{self, PerCpu};
use super::{fast_memory, image, log, paging, processor, report, screen, selftest, smp, start};
use crate::arch::addr::{Hfn, Hpa, PAGE_SIZE};
use crate::boot::cmdline::{HvOptions, SelfTest};
use crate::boot::fast_memory::FastError;
use crate::firmware::acpi::{self, Acpi};
use crate::firmware::info::{self, BootInfo, LoaderMemory};
use crate::firmware::{multiboot, pvh};
use crate::hw::ioapic::IoApic;
use crate::hw::lapic::{self, LocalApic};
use crate::hw::timer::Timer;
use crate::hw::uart::SerialPort;
use crate::hw::{fpu, pic, pm, tsc};
use crate::mem::buddy::Buddy;
use crate::mem::frame;
use crate::mem::frame_record;
use crate::mem::heap;
use crate::screen::Layout;

global_asm!(include_str!("entry.s"));
global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    fn trap_stubs();
}

/// What `entry.s` maps. The first [`AGAIN`] bytes follow once more: what is at physical address 0 is read there.
const BOOT_MAP: u64 = 4 << 30;
const AGAIN: u64 = 1 << 30;

/// Called by `entry.s` on the boot stack: `info` is the loader's information, `protocol` 1 for PVH, 2 for multiboot2.
#[unsafe(no_mangle)]
extern "C" fn boot_start(info: u64, protocol: u32) -> ! {
    static mut BOOT_CPU: PerCpu = PerCpu::new(0);
    static HOST: spin::Once<Host> = spin::Once::new();
    log::init();
    let boot_cpu = &raw mut BOOT_CPU;
    // SAFETY: this runs once, before anything else could use BOOT_CPU; nothing in the host uses the PICs.
    let cpu = unsafe {
        // SeaBIOS and GRUB leave PIT and PICs running, at vectors of exceptions: before the first STI.
        pic::silence(idt::FIRST_INTERRUPT);
        (*boot_cpu).install(percpu::idt(trap_stubs as *const () as u64))
    };
    let parsed =
        if protocol == 1 { pvh::parse(&BootMemory, info) } else { multiboot::parse(&BootMemory, info) };
    let mut boot = parsed.unwrap_or_else(|e| panic!("the boot loader's information is unusable: {e:?}"));
    // A multiboot2 loader need not hand the RSDP over; a BIOS leaves it below 1 MiB.
    boot.rsdp = boot.rsdp.or_else(|| info::find_rsdp(&BootMemory));
    let (mut options, layout) = configure(&boot);
    leave_page_zero(&mut boot);
    let (mut fast, mut fast_own) = start_memory(&boot, &mut options);
    // SAFETY: once, on tables without user pages.
    unsafe {
        processor::start();
        fpu::start();
    }
    screen::map(layout);
    let mut acpi = boot.rsdp.map(|rsdp| acpi::parse(&paging::HostMemory, rsdp)).unwrap_or_default();
    if options.selftest == Some(SelfTest::AbsentPcpu) {
        acpi.cpus.insert(0, selftest::ABSENT);
    }
    pm::set_acpi(acpi.soft_off, acpi.reset);
    let lapic = start_interrupts(&acpi, options.console);
    cpu.list(lapic.id);
    let runs_guests = options.selftest.is_none() && !options.probe;
    // Tests of the host and its report use all PCPUs alike.
    let pcpus = if runs_guests { smp::to_start(&options) } else { options.pcpus };
    let homes = acpi.cpus.len().min(pcpus).saturating_sub(1) as u64 * percpu::HOME_BYTES;
    if homes > 0
        && let Ok(fast) = &mut fast
        && let Some(range) = fast_memory::take_own(fast, homes, u64::MAX)
    {
        fast_own += homes;
        // SAFETY: RAM, which is mapped by now, and of no other use.
        unsafe { percpu::live_in(range) };
    }
    let (tsc_khz, tsc_source) =
        tsc::frequency_khz(acpi.pm_timer).expect("no timer to measure the TSC's frequency");
    let timer = Timer::new(lapic, tsc_khz);
    // The vector has a gate since `install`; interrupts stay closed but in the windows of the loop.
    timer.install(idt::TIMER);
    // SAFETY: no guest's registers are there yet, and the hypervisor uses none.
    let sound_xsavec = unsafe { fpu::is_xsavec_sound() };
    let host = HOST.call_once(|| Host {
        boot,
        options,
        acpi,
        cpu,
        lapic,
        tsc_khz,
        timer,
        tsc_source,
        fast,
        fast_own,
        sound_xsavec,
    });
    smp::start(host, pcpus);
    report::print(host);
    if let Some(test) = host.options.selftest {
        selftest::run(test, host);
    }
    if host.options.probe {
        report::probe(host);
    }
    ::log::debug!("{:?}", host.boot);
    start::hypervisor_main(host)
}

/// Puts the command line into effect and finds the screen.
fn configure(boot: &BootInfo) -> (HvOptions, Option<Layout>) {
    let (options, unknown) = HvOptions::parse(&boot.command_line);
    log::configure(&options);
    let screen = screen::start(boot);
    pm::set_action(options.ending(report::is_virtual()));
    for word in unknown {
        ::log::warn!("command line: unknown option {word:?} ignored");
    }
    (options, screen)
}

/// Moves what the loader put into page 0, which the hypervisor's tables do not map: on UEFI that page is like any other.
fn leave_page_zero(boot: &mut BootInfo) {
    let low = |range: &Range<u64>| range.start < PAGE_SIZE;
    for index in 0..boot.modules.len() {
        let range = boot.modules[index].range.clone();
        if low(&range) {
            boot.modules[index].range = moved(boot, &range);
        }
    }
    if let Some(range) = boot.in_use.clone().filter(low) {
        let new = moved(boot, &range);
        boot.rsdp = boot.rsdp.map(|at| if range.contains(&at) { at - range.start + new.start } else { at });
        boot.in_use = Some(new);
    }
}

/// Copies what the loader put into `range` to free memory and returns where it is now.
fn moved(boot: &BootInfo, range: &Range<u64>) -> Range<u64> {
    let len = range.end - range.start;
    let free = memory::free(boot, image::all()).expect("the memory map has too many ranges");
    let home = free.iter().find(|home| home.end.min(BOOT_MAP).saturating_sub(home.start) >= len);
    let home = home.unwrap_or_else(|| panic!("no {len} contiguous free bytes below 4 GiB")).start;
    let bytes = BootMemory.bytes(range.start, len).expect("it was readable when it was parsed");
    // SAFETY: free memory, mapped by the boot tables; no reference to it exists yet.
    unsafe { core::slice::from_raw_parts_mut(home as *mut u8, len as usize) }.copy_from_slice(bytes);
    home..home + len
}

/// Starts the frame allocator and the hypervisor's own page tables. The fast memory that neither uses, and the bytes of it that are the
/// hypervisor's own.
fn start_memory(boot: &BootInfo, options: &mut HvOptions) -> (Result<Ranges, FastError>, u64) {
    let pieces = "the memory map has too many ranges";
    let ram = memory::ram(boot).expect(pieces);
    let mut free = memory::free(boot, image::all()).expect(pieces);
    if options.fast_auto {
        let table = |name| boot.rsdp.and_then(|rsdp| acpi::find(&BootMemory, rsdp, name)).unwrap_or(&[]);
        options.fast_mem = fast_memory::find(table(b"SRAT"), table(b"HMAT"), &ram, BOOT_MAP);
    }
    let mut fast = fast_memory::take(&mut free, &ram, &options.fast_mem);
    let mut take_own = |bytes| fast_memory::take_own(fast.as_mut().ok()?, bytes, BOOT_MAP);
    let constant = image::constant();
    let code = take_own(constant.end - constant.start);
    let heap = take_own(heap::FIRST_BYTES);
    let own = [&code, &heap].into_iter().flatten().map(|range| range.end - range.start).sum();
    // Modules may lie above the last free range; their memory is released one day.
    let top = ram.iter().next_back().map_or(0, |range| range.end);
    let all = Hfn(0)..Hpa(top).frame();
    let bytes = (Buddy::words(&all) as u64 * 8).next_multiple_of(PAGE_SIZE);
    let home = free
        .iter()
        .find(|range| range.start + bytes <= range.end.min(BOOT_MAP))
        .map(|range| range.start..range.start + bytes)
        .unwrap_or_else(|| panic!("no {bytes} contiguous bytes below 4 GiB for the frame allocator"));
    free.remove(home.clone()).expect(pieces);
    // SAFETY: free memory, mapped by the boot tables; the frames are handed over once, when they are mapped, and the fast memory is of no
    // other use.
    unsafe {
        heap.into_iter().for_each(|range| heap::begin_with(Hpa(range.start)));
        frame::init(all, core::slice::from_raw_parts_mut(home.start as *mut u64, bytes as usize / 8));
        // Only what the boot tables map: the allocator's users zero frames by their addresses.
        add_frames(&free, 0..BOOT_MAP);
        paging::start(&ram, code).unwrap_or_else(|e| panic!("no memory for the host's page tables: {e:?}"));
        add_frames(&free, BOOT_MAP..u64::MAX);
    }
    let frames = |range: Range<u64>| Hpa(range.start).frame()..Hpa(range.end).frame();
    if frame_record::start(ram.iter().map(frames)).is_err() {
        ::log::warn!("no memory for the records of frames: the machine does without them");
    }
    (fast, own)
}

/// Hands the free memory within `part` to the frame allocator.
///
/// # Safety
/// It is free and mapped.
unsafe fn add_frames(free: &Ranges, part: Range<u64>) {
    for range in free.iter() {
        let (start, end) = (range.start.max(part.start), range.end.min(part.end));
        if start < end {
            // SAFETY: the caller's promise.
            unsafe { frame::add(Hpa(start).frame()..Hpa(end).frame()) };
        }
    }
}

/// Silences everything but the local APIC and the console's serial port.
fn start_interrupts(acpi: &Acpi, console: Option<SerialPort>) -> LocalApic {
    let page = lapic::page_address();
    paging::map_device(page..page + PAGE_SIZE).expect("the local APIC lies at an impossible address");
    // SAFETY: the page is mapped uncached, and the vector has a gate.
    let lapic = unsafe { lapic::enable(idt::SPURIOUS) };
    // The classic ISA lines of the four ports.
    let irq = console.map(|port| match port {
        SerialPort::Com1 | SerialPort::Com3 => 4,
        SerialPort::Com2 | SerialPort::Com4 => 3,
    });
    let wire = irq.map(|irq| acpi.isa_interrupt(irq));
    for io_apic in &acpi.io_apics {
        if paging::map_device(io_apic.address..io_apic.address + PAGE_SIZE).is_err() {
            continue;
        }
        // SAFETY: the MADT says that there is one, it is mapped, and this is its only user.
        let mut io_apic = unsafe { IoApic::new(io_apic.address, io_apic.gsi_base) };
        let id = u8::try_from(lapic.id).ok();
        if let (Some(id), Some((gsi, flags))) = (id, wire.filter(|(gsi, _)| io_apic.serves(*gsi))) {
            io_apic.route(gsi, flags, idt::CONSOLE, id);
            log::console().set_receive_interrupt(true);
        }
    }
    lapic
}

/// Memory as the boot tables map it.
struct BootMemory;

impl LoaderMemory for BootMemory {
    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        let image = image::all();
        let readable = end <= BOOT_MAP && (end <= image.start || at >= image.end);
        // A part of it that lies behind the second map is not there twice.
        let base = if end <= AGAIN { BOOT_MAP } else { 0 };
        let readable = readable && base + at != 0;
        // SAFETY: mapped, and the loader's memory is not written while this borrow lives.
        readable.then(|| unsafe { core::slice::from_raw_parts((base + at) as *const u8, len as usize) })
    }
}
