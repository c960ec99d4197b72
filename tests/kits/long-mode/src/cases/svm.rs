//! Instructions of features that guests do not have.

use core::arch::{asm, naked_asm};

use super::{GP, UD, raised};
use crate::check::{Case, Check, case};
use crate::machine::insn::*;
use crate::machine::trap::vector;
use crate::machine::{is_intel, is_palimpsest, user};

pub const CASES: &[Case] = &[
    case("svm.instructions", instructions),
    case("svm.vmmcall", vmmcall),
    case("svm.monitor", monitor),
    case("svm.rdpmc", rdpmc),
    case("svm.caches", caches),
    case("svm.write-back", write_back),
    case("svm.pause", pause),
    case("svm.user-mode", user_mode),
];

macro_rules! all {
    ($c:ident, $want:expr, [$($code:literal),+]) => {$(
        // SAFETY: faults.
        $c.raises($code, $want, || unsafe { asm!($code, in("rax") 0u64, in("rcx") 0u64, in("rdx") 0u64) });
    )+};
}

fn instructions(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("the emulated processor itself has SVM");
    }
    all!(c, UD, ["vmrun rax", "vmload rax", "vmsave rax", "stgi", "clgi", "invlpga rax, ecx"]);
    // SAFETY: faults.
    c.raises("skinit", UD, || unsafe { asm!("skinit eax", in("eax") 0) });
    // The other vendor's hypercall.
    if is_intel() {
        // SAFETY: faults.
        c.raises("vmmcall", UD, || unsafe { asm!("vmmcall", inout("rax") 0u64 => _) });
    } else {
        // SAFETY: faults.
        c.raises("vmcall", UD, || unsafe { asm!("vmcall", inout("rax") 0u64 => _) });
    }
}

fn vmmcall(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("without a hypervisor VMMCALL and VMCALL are #UD or ignored");
    }
    use abi::hypercall::{COUNTER_PAGE, KVM_EFAULT, KVM_EINVAL, KVM_EOPNOTSUPP, NOT_IMPLEMENTED};
    c.equal("a hypercall that does not exist", hypercall(0x1234_5678, [0; 3]), NOT_IMPLEMENTED);
    // The page is looked at by the hypervisor only, and only if there are samples.
    let page = crate::machine::paging::scratch(0);
    for (what, value, version, error) in [
        ("a counter page", page | 1, 1, 0),
        ("another layout", page | 1, 2, KVM_EOPNOTSUPP),
        ("a bit that means nothing", page | 3, 1, KVM_EINVAL),
        ("an address that is not aligned", (page + 8) | 1, 1, KVM_EINVAL),
        ("the I/O APIC as a counter page", 0xfec0_0001, 1, KVM_EFAULT),
        ("no memory as a counter page", (1 << 45) | 1, 1, KVM_EFAULT),
        ("no counter page", 0, 0, 0),
    ] {
        c.equal(what, hypercall(COUNTER_PAGE, [value, version, 0]), error.wrapping_neg());
    }
    use abi::hypercall::{TIER_ENODEV, TIER_TARGET};
    for (target, error) in [(1001, KVM_EINVAL), (1 << 32, KVM_EINVAL), (0, TIER_ENODEV), (1000, TIER_ENODEV)]
    {
        let answer = hypercall(TIER_TARGET, [target, 0, 0]);
        c.equal("a target on a machine without fast memory", answer, error.wrapping_neg());
    }
    regions(c);
}

/// The guest divides its memory into regions.
fn regions(c: &mut Check) {
    use abi::hypercall::{
        ADD_GUEST_REGION, ADD_PAGE, DEL_GUEST_REGION, DEL_PAGE, KVM_EFAULT, KVM_EINVAL, REGION_EEXIST,
        REGION_ENOENT, REGION_ENOSPC, REGIONS_MAX,
    };
    let frame = crate::machine::paging::scratch(0) >> 12;
    let one = hypercall(ADD_GUEST_REGION, [0; 3]);
    let other = hypercall(ADD_GUEST_REGION, [0; 3]);
    c.holds("regions have numbers of their own", one != other && (1..=REGIONS_MAX).contains(&one));
    for (what, number, arguments, error) in [
        ("a frame joins a region", ADD_PAGE, [frame, 0, one], 0),
        ("a frame that is in it", ADD_PAGE, [frame, 0, one], REGION_EEXIST),
        ("a frame that is in another one", ADD_PAGE, [frame, 0, other], REGION_EEXIST),
        ("a block that is not aligned", ADD_PAGE, [frame | 1, 1, other], KVM_EINVAL),
        ("a block that is too large", ADD_PAGE, [0, 11, other], KVM_EINVAL),
        ("the I/O APIC in a region", ADD_PAGE, [0xf_ec00, 0, other], KVM_EFAULT),
        ("no memory in a region", ADD_PAGE, [1 << 33, 10, other], KVM_EFAULT),
        ("a region that does not exist", ADD_PAGE, [frame, 0, REGIONS_MAX], REGION_ENOENT),
        ("a frame leaves a region that it is not in", DEL_PAGE, [frame, 0, other], REGION_ENOENT),
        ("a frame leaves", DEL_PAGE, [frame, 0, one], 0),
        ("a region ends", DEL_GUEST_REGION, [one, 0, 0], 0),
        ("a region that has ended", DEL_GUEST_REGION, [one, 0, 0], REGION_ENOENT),
    ] {
        c.equal(what, hypercall(number, arguments), error.wrapping_neg());
    }
    let mut made = 1;
    let refused = loop {
        match hypercall(ADD_GUEST_REGION, [0; 3]) {
            number if number <= REGIONS_MAX && made < REGIONS_MAX => made += 1,
            answer => break answer,
        }
    };
    c.equal("regions beyond the quota", (made, refused), (REGIONS_MAX, REGION_ENOSPC.wrapping_neg()));
    let all_end = (1..=REGIONS_MAX).all(|number| hypercall(DEL_GUEST_REGION, [number, 0, 0]) == 0);
    c.holds("all regions end", all_end);
}

/// A hypercall with three arguments. It may have the hypervisor read the page that it names.
fn hypercall(number: u64, arguments: [u64; 3]) -> u64 {
    let [first, second, third] = arguments;
    let mut answer = number;
    // SAFETY: no hypercall changes memory or registers but RAX. RBX is the compiler's own and cannot be named.
    unsafe {
        if is_intel() {
            asm!("xchg rbx, {0}", "vmcall", "xchg rbx, {0}", inout(reg) first => _, inout("rax") answer, in("rcx") second, in("rdx") third);
        } else {
            asm!("xchg rbx, {0}", "vmmcall", "xchg rbx, {0}", inout(reg) first => _, inout("rax") answer, in("rcx") second, in("rdx") third);
        }
    }
    answer
}

fn monitor(c: &mut Check) {
    if cpuid(1, 0)[2] >> 3 & 1 != 0 {
        return c.skip("this processor has MONITOR");
    }
    all!(c, UD, ["monitor", "mwait"]);
}

fn rdpmc(c: &mut Check) {
    if !is_palimpsest() {
        return c.skip("QEMU's emulation ends at RDPMC");
    }
    let read = |counter: u32| {
        // SAFETY: reads a counter, or faults.
        raised(|| unsafe { asm!("rdpmc", in("ecx") counter, out("eax") _, out("edx") _) })
    };
    // AMD processors have four counters that no CPUID bit tells of.
    let legacy = if is_intel() { GP } else { None };
    for pce in [0, 1 << 8] {
        set_cr4(cr4() | pce);
        c.equal(format_args!("RDPMC 0, CR4.PCE {pce:x}"), read(0), legacy);
        c.equal(format_args!("RDPMC 3, CR4.PCE {pce:x}"), read(3), legacy);
        c.equal(format_args!("RDPMC 4, CR4.PCE {pce:x}"), read(4), GP);
    }
    set_cr4(cr4() & !(1 << 8));
    c.equal("RDPMC in user mode", user::run(user_rdpmc, 0).vector, vector::GP);
}

#[unsafe(naked)]
unsafe extern "C" fn user_rdpmc() {
    naked_asm!("xor ecx, ecx", "rdpmc", "int 0x80")
}

fn caches(c: &mut Check) {
    poke(crate::machine::paging::scratch(0), 0x1234_5678_u32);
    all!(c, None, ["wbinvd", "invd"]);
    // INVD must not lose what the hypervisor keeps in caches, nor the guest's memory.
    c.equal("memory after INVD", peek::<u32>(crate::machine::paging::scratch(0)), 0x1234_5678);
}

/// The end-to-end test counts the exits.
fn write_back(c: &mut Check) {
    for _ in 0..500 {
        // WBINVD, and WBNOINVD, which is WBINVD with a prefix where it does not exist.
        all!(c, None, ["wbinvd", ".byte 0xf3, 0x0f, 0x09"]);
    }
}

fn pause(c: &mut Check) {
    for _ in 0..10_000 {
        core::hint::spin_loop();
    }
    all!(c, None, ["pause", "nop"]);
}

#[unsafe(naked)]
unsafe extern "C" fn user_vmrun() {
    naked_asm!("xor eax, eax", "vmrun rax", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_vmmcall() {
    naked_asm!("vmmcall", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_cpuid() {
    naked_asm!("mov eax, 0x40000000", "cpuid", "mov rax, rbx", "int 0x80")
}

#[unsafe(naked)]
unsafe extern "C" fn user_vmcall() {
    naked_asm!("vmcall", "int 0x80")
}

fn user_mode(c: &mut Check) {
    let trap = user::run(user_cpuid, 0);
    c.equal("CPUID in user mode", (trap.vector, trap.rax), (user::DONE, cpuid(0x4000_0000, 0)[1].into()));
    if is_palimpsest() {
        // An AMD processor has SVM on in guest mode, and looks at the privilege level before it asks the hypervisor.
        let vmrun = user::run(user_vmrun, 0).vector;
        c.holds("VMRUN in user mode is #UD or #GP", vmrun == vector::UD || vmrun == vector::GP);
        let hypercall = if is_intel() { user_vmcall } else { user_vmmcall };
        let trap = user::run(hypercall, 0);
        let refused = abi::hypercall::KVM_EPERM.wrapping_neg();
        c.equal("a hypercall in user mode", (trap.vector, trap.rax), (user::DONE, refused));
    }
}
