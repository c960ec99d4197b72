//! The rules of the host's state (Intel SDM 3, 26.2.2 to 26.2.4).

use super::{Check, is_pat};
use crate::arch::addr::{Gva, is_canonical};
use crate::arch::state::{cr4, efer};
use crate::virt::vmx::controls::exit;
use crate::virt::vmx::field::{control, host};

pub(super) fn check(c: &mut Check<'_>) {
    let features = &c.facts.features;
    let (cr0, cr4) = (c.get(host::CR0), c.get(host::CR4));
    c.rule(
        features.cr0_ones & !cr0 == 0 && cr0 >> 32 == 0,
        "the host's CR0 is none for VMX operation (PE, NE, PG)",
    );
    c.rule(
        features.cr4_ones & !cr4 == 0 && cr4 & !features.cr4_allowed == 0,
        "the host's CR4 is none for VMX operation (VMXE)",
    );
    c.rule(c.is_physical(c.get(host::CR3)), "the host's CR3 is beyond the physical-address width");
    if c.has(control::EXIT_CONTROLS, exit::LOAD_PAT) {
        c.rule(is_pat(c.get(host::PAT)), "the host's PAT has a reserved memory type");
    }
    if c.has(control::EXIT_CONTROLS, exit::LOAD_EFER) {
        let value = c.get(host::EFER);
        let known = efer::SCE | efer::LME | efer::LMA | efer::NXE;
        c.rule(value & !known == 0, "the host's EFER has a reserved bit");
        c.rule(
            value & efer::LMA != 0 && value & efer::LME != 0,
            "the host's EFER is not that of 64-bit code (LMA, LME)",
        );
    }
    let selectors = [
        host::ES_SELECTOR,
        host::CS_SELECTOR,
        host::SS_SELECTOR,
        host::DS_SELECTOR,
        host::FS_SELECTOR,
        host::GS_SELECTOR,
        host::TR_SELECTOR,
    ];
    let low = selectors.map(|field| c.get(field)).iter().all(|selector| selector & 7 == 0);
    c.rule(low, "a selector of the host has a privilege level, or is in the LDT");
    c.rule(
        c.get(host::CS_SELECTOR) != 0 && c.get(host::TR_SELECTOR) != 0,
        "the host's CS or TR has the null selector",
    );
    for (fields, what) in [
        (
            &[host::FS_BASE, host::GS_BASE, host::TR_BASE][..],
            "the base of the host's FS, GS or TR is not canonical",
        ),
        (&[host::GDTR_BASE, host::IDTR_BASE], "the base of the host's GDTR or IDTR is not canonical"),
        (
            &[host::SYSENTER_ESP, host::SYSENTER_EIP],
            "the host's SYSENTER_ESP or SYSENTER_EIP is not canonical",
        ),
        (&[host::RIP], "the host's RIP is not canonical"),
    ] {
        c.rule(fields.iter().all(|&field| is_canonical(Gva(c.get(field)))), what);
    }
    // This is 64-bit code.
    c.rule(
        c.has(control::EXIT_CONTROLS, exit::HOST_64BIT),
        "the exit controls do not say that the host is 64-bit code",
    );
    c.rule(cr4 & cr4::PAE != 0, "the host's CR4 has PAE clear");
}
