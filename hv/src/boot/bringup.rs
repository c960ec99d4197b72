//! Host bring-up, in order.

use core::arch::global_asm;
use core::ops::Range;

use super::host::Host;
use super::info::{self, BootInfo, LoaderMemory};
use super::percpu::{self, PerCpu};
use super::{image, log, memory, multiboot, pvh, start};
use crate::hw::{pic, pm};
use crate::mem::buddy::Buddy;
use crate::mem::frame;
use crate::paging::addr::{Hpa, PAGE_SIZE};

global_asm!(include_str!("entry.s"));
global_asm!(include_str!("trap.s"));

unsafe extern "C" {
    fn trap_stubs();
}

/// What `entry.s` maps.
const BOOT_MAP: u64 = 4 << 30;

/// Memory as the boot tables map it.
struct BootMemory;

impl LoaderMemory for BootMemory {
    fn bytes(&self, at: u64, len: u64) -> Option<&[u8]> {
        let end = at.checked_add(len)?;
        let image = image::all();
        let readable = at >= 0x400 && end <= BOOT_MAP && (end <= image.start || at >= image.end);
        // SAFETY: mapped, and nobody writes to the loader's memory while this borrow lives.
        readable.then(|| unsafe { core::slice::from_raw_parts(at as *const u8, len as usize) })
    }
}

/// Called by `entry.s` on the boot stack: `info` is the loader's information, `protocol` 1 for PVH, 2 for multiboot2.
#[unsafe(no_mangle)]
extern "C" fn boot_start(info: u64, protocol: u32) -> ! {
    static mut BOOT_CPU: PerCpu = PerCpu::new(0);
    static HOST: spin::Once<Host> = spin::Once::new();
    log::init();
    pm::set_debug_exit(0xf4);
    let boot_cpu = &raw mut BOOT_CPU;
    // SAFETY: this runs once, before anything else could use BOOT_CPU.
    let cpu = unsafe { (*boot_cpu).install(percpu::idt(trap_stubs as *const () as u64)) };
    // SAFETY: nothing in the host uses the PICs.
    unsafe { pic::silence(super::idt::FIRST_INTERRUPT) };
    let parsed =
        if protocol == 1 { pvh::parse(&BootMemory, info) } else { multiboot::parse(&BootMemory, info) };
    let mut boot = parsed.unwrap_or_else(|e| panic!("the boot loader's information is unusable: {e:?}"));
    boot.rsdp = boot.rsdp.or_else(|| info::find_rsdp(&BootMemory));
    start_frames(&boot);
    start::main(HOST.call_once(|| Host { boot, cpu }))
}

/// Starts the frame allocator with all free memory.
fn start_frames(boot: &BootInfo) {
    let free = memory::free(boot, image::all()).expect("too many pieces in the memory map");
    let span = |r: &Range<u64>| Hpa(r.start).frame()..Hpa(r.end).frame();
    let top = free.iter().next_back().map_or(0, |r| r.end);
    let all = span(&(0..top));
    let bytes = (Buddy::words(&all) as u64 * 8).next_multiple_of(PAGE_SIZE);
    let home = free
        .iter()
        .find(|r| r.start + bytes <= r.end.min(BOOT_MAP))
        .unwrap_or_else(|| panic!("no {bytes} bytes of memory below 4 GiB"));
    let home = home.start..home.start + bytes;
    // SAFETY: free memory, mapped by the boot tables, and taken out of what is handed over below.
    unsafe {
        let words = core::slice::from_raw_parts_mut(home.start as *mut u64, bytes as usize / 8);
        frame::init(all, words);
        for range in free.iter() {
            let range = range.start.max(if range.start == home.start { home.end } else { 0 })..range.end;
            frame::add(span(&range));
        }
    }
}
