//! What accesses to control registers take, in ticks for each operation: with `--icount` a tick is an instruction, the
//! hypervisor's included. An end-to-end case holds the figures against its bounds.
//!
//! A *toggle* is two writes: the bit is changed and changed back.

use core::arch::asm;

use crate::check::Check;
use crate::machine::insn::{cr0, cr4, rdtsc, set_cr0};
use crate::say;

const OPERATIONS: u64 = 64;
/// Batches; the least is reported, so that a timer's interrupt or the first decoding does not count.
const BATCHES: usize = 8;

const TS: u64 = 1 << 3;
const EM: u64 = 1 << 2;
const WP: u64 = 1 << 16;
const PGE: u64 = 1 << 7;

/// Ticks of one operation of `batch`, which performs [`OPERATIONS`].
fn ticks(mut batch: impl FnMut()) -> u64 {
    (0..BATCHES).map(|_| time(&mut batch)).min().unwrap_or(u64::MAX)
}

/// Not inlined: were each batch code of its own, each would begin with the decoding of its instructions.
#[inline(never)]
fn time(batch: &mut impl FnMut()) -> u64 {
    let start = rdtsc();
    batch();
    (rdtsc() - start) / OPERATIONS
}

/// Writes `a` and `b` to a control register in turn.
macro_rules! toggle {
    ($name:literal, $register:literal, $a:expr, $b:expr) => {{
        let (a, b) = ($a, $b);
        let each = ticks(|| {
            // SAFETY: `b` is what the register holds, and `a` differs in a bit that this code does not depend on.
            unsafe {
                asm!("2:", concat!("mov ", $register, ", {a}"), concat!("mov ", $register, ", {b}"), "dec {n}", "jnz 2b",
                     a = in(reg) a, b = in(reg) b, n = inout(reg) OPERATIONS => _);
            }
        });
        report($name, each);
    }};
}

/// The same instruction again and again.
macro_rules! repeat {
    ($name:literal, $code:literal) => {{
        let each = ticks(|| {
            // SAFETY: the instruction changes nothing but RAX and CR0.TS, which is clear.
            unsafe { asm!("2:", $code, "dec {n}", "jnz 2b", n = inout(reg) OPERATIONS => _, out("rax") _) };
        });
        report($name, each);
    }};
}

pub fn measure(_: &mut Check) {
    let (old, four) = (cr0(), cr4());
    toggle!("toggle-ts", "cr0", old | TS, old & !TS);
    toggle!("toggle-em", "cr0", old | EM, old & !EM);
    toggle!("write-same", "cr0", old, old);
    repeat!("clts", "clts");
    repeat!("read-cr0", "mov rax, cr0");
    repeat!("smsw", "smsw ax");
    toggle!("toggle-wp", "cr0", old ^ WP, old);
    toggle!("toggle-pge", "cr4", four ^ PGE, four);
    set_cr0(old & !WP);
    repeat!("read-cr0-without-wp", "mov rax, cr0");
    repeat!("smsw-without-wp", "smsw ax");
    repeat!("clts-without-wp", "clts");
    toggle!("toggle-ts-without-wp", "cr0", old & !WP | TS, old & !WP & !TS);
    set_cr0(old);
}

/// The exit that costs least, for comparison: CPUID, with XOR EAX and the loop.
pub fn measure_cpuid(_: &mut Check) {
    let each = ticks(|| {
        // SAFETY: RBX, which the compiler keeps for itself, is put back.
        unsafe {
            asm!("mov {rbx}, rbx", "2:", "xor eax, eax", "cpuid", "dec {n}", "jnz 2b", "mov rbx, {rbx}",
                 rbx = out(reg) _, n = inout(reg) OPERATIONS => _, out("rax") _, out("rcx") _, out("rdx") _);
        }
    });
    say!("cpuid {each}");
}

fn report(name: &str, ticks: u64) {
    say!("control {name} {ticks}");
}
