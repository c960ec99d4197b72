//! The rules of the guest's state but for segments (Intel SDM 3, 26.3.1).

use super::{Check, is_pat, segments};
use crate::arch::addr::{Gva, is_canonical};
use crate::arch::state::{SegReg, cr0, cr4, efer, rflags};
use crate::virt::vmx::controls::{entry, pin, secondary};
use crate::virt::vmx::decode::event;
use crate::virt::vmx::field::{control, guest};

pub(super) fn check(c: &mut Check<'_>) {
    control_registers(c);
    other_registers(c);
    segments::check(c);
    execution(c);
    activity(c);
    interruptibility(c);
    pending_debug(c);
    let link = c.get(guest::LINK_POINTER);
    c.rule(
        link == u64::MAX || c.is_page(link),
        "the VMCS link pointer is neither all ones nor a physical page",
    );
    pointers(c);
}

/// Whether the guest will be in IA-32e mode.
pub(super) fn is_long(c: &Check<'_>) -> bool {
    c.has(control::ENTRY_CONTROLS, entry::IA32E_GUEST)
}

/// 26.3.1.1.
fn control_registers(c: &mut Check<'_>) {
    let features = &c.facts.features;
    let (cr0, cr4) = (c.get(guest::CR0), c.get(guest::CR4));
    let paging = cr0 & cr0::PG != 0;
    let free = if c.secondary(secondary::UNRESTRICTED) { cr0::PE | cr0::PG } else { 0 };
    c.rule(features.cr0_ones & !free & !cr0 == 0, "CR0 lacks a bit that VMX operation needs (PE, NE, PG)");
    c.rule(cr0 >> 32 == 0, "CR0 has upper bits");
    c.rule(!paging || cr0 & cr0::PE != 0, "CR0.PG without PE");
    c.rule(features.cr4_ones & !cr4 == 0, "CR4 lacks a bit that VMX operation needs (VMXE)");
    c.rule(cr4 & !features.cr4_allowed == 0, "CR4 has a bit that this processor has not");
    const CET: u64 = 1 << 23;
    c.rule(cr4 & CET == 0 || cr0 & cr0::WP != 0, "CR4.CET without CR0.WP");
    let long = is_long(c);
    c.rule(!long || paging && cr4 & cr4::PAE != 0, "IA-32e mode without CR0.PG and CR4.PAE");
    c.rule(long || cr4 & cr4::PCIDE == 0, "CR4.PCIDE outside of IA-32e mode");
    c.rule(c.is_physical(c.get(guest::CR3)), "CR3 is beyond the physical-address width");
    if c.has(control::ENTRY_CONTROLS, entry::LOAD_EFER) {
        let value = c.get(guest::EFER);
        let (lma, lme) = (value & efer::LMA != 0, value & efer::LME != 0);
        c.rule(value & !(efer::SCE | efer::LME | efer::LMA | efer::NXE) == 0, "EFER has a reserved bit");
        c.rule(lma == long, "EFER.LMA differs from the entry control for IA-32e mode");
        c.rule(!paging || lma == lme, "EFER.LMA differs from LME with paging on");
    }
}

/// 26.3.1.1 and 26.3.1.3.
fn other_registers(c: &mut Check<'_>) {
    if c.has(control::ENTRY_CONTROLS, entry::LOAD_DEBUG) {
        c.rule(c.get(guest::DR7) >> 32 == 0, "DR7 has upper bits");
        const DEBUGCTL: u64 = 0xffc7;
        c.rule(c.get(guest::DEBUGCTL) & !DEBUGCTL == 0, "DEBUGCTL has reserved bits");
    }
    let sysenter = [guest::SYSENTER_ESP, guest::SYSENTER_EIP].map(|field| is_canonical(Gva(c.get(field))));
    c.rule(sysenter == [true; 2], "SYSENTER_ESP or SYSENTER_EIP is not canonical");
    if c.has(control::ENTRY_CONTROLS, entry::LOAD_PAT) {
        c.rule(is_pat(c.get(guest::PAT)), "the PAT has a reserved memory type");
    }
    for (base, limit) in [(guest::GDTR_BASE, guest::GDTR_LIMIT), (guest::IDTR_BASE, guest::IDTR_LIMIT)] {
        c.rule(is_canonical(Gva(c.get(base))), "the base of GDTR or IDTR is not canonical");
        c.rule(c.get(limit) >> 16 == 0, "the limit of GDTR or IDTR has upper bits");
    }
}

/// 26.3.1.4.
fn execution(c: &mut Check<'_>) {
    let long = is_long(c);
    let code64 = long && c.get(segments::rights_of(SegReg::Cs)) & 1 << 13 != 0;
    // Any address whose upper bits are alike, canonical or not: the fetch finds that out.
    let rip = c.get(guest::RIP);
    let fits = if code64 { matches!(rip as i64 >> 48, 0 | -1) } else { rip >> 32 == 0 };
    c.rule(fits, "RIP is out of reach");
    let flags = c.get(guest::RFLAGS);
    let reserved = !0x3f_7fd7;
    c.rule(flags & reserved == 0 && flags & rflags::FIXED != 0, "RFLAGS has wrong reserved bits");
    let protected = c.get(guest::CR0) & cr0::PE != 0;
    c.rule(flags & rflags::VM == 0 || !long && protected, "RFLAGS.VM in this mode");
    let external = event_of(c).is_some_and(|(kind, _)| kind == EXTERNAL);
    c.rule(!external || flags & rflags::IF != 0, "an external interrupt is delivered with RFLAGS.IF clear");
}

const EXTERNAL: u32 = 0;
const NMI: u32 = 2;
const EXCEPTION: u32 = 3;
const OTHER: u32 = 7;

/// Type and vector of the event that the entry delivers.
fn event_of(c: &Check<'_>) -> Option<(u32, u32)> {
    let word = c.get(control::ENTRY_INTERRUPTION) as u32;
    (word & event::VALID != 0).then_some((word >> 8 & 7, word & event::VECTOR))
}

/// Interruptibility: in the shadow of STI, and of MOV SS.
fn shadows(c: &Check<'_>) -> (bool, bool) {
    let value = c.get(guest::INTERRUPTIBILITY);
    (value & 1 != 0, value & 2 != 0)
}

/// 26.3.1.5: the activity state.
fn activity(c: &mut Check<'_>) {
    let state = c.get(guest::ACTIVITY);
    if state == 0 {
        return;
    }
    const HLT: u64 = 1;
    let known = state <= 3 && c.facts.activities >> (state - 1) & 1 != 0;
    c.rule(known, "the activity state is none that this processor has");
    let user = c.get(segments::rights_of(SegReg::Ss)) >> 5 & 3 != 0;
    c.rule(state != HLT || !user, "the activity state is HLT in a program (SS.DPL is not 0)");
    c.rule(shadows(c) == (false, false), "the activity state is not active in an interrupt shadow");
    let event = event_of(c);
    let wakes = match state {
        HLT => matches!(event, Some((EXTERNAL | NMI, _) | (EXCEPTION, 1 | 18) | (OTHER, 0))),
        2 => matches!(event, Some((NMI, _) | (EXCEPTION, 18))),
        _ => false,
    };
    c.rule(event.is_none() || wakes, "the event does not end this activity state");
}

/// 26.3.1.5: the interruptibility state.
fn interruptibility(c: &mut Check<'_>) {
    let value = c.get(guest::INTERRUPTIBILITY);
    let (by_sti, by_mov_ss) = shadows(c);
    let event = event_of(c).map(|(kind, _)| kind);
    let nmi = event == Some(NMI);
    c.rule(value & !0x1f == 0, "interruptibility has reserved bits");
    c.rule(!(by_sti && by_mov_ss), "blocking by STI and by MOV SS");
    c.rule(!by_sti || c.get(guest::RFLAGS) & rflags::IF != 0, "blocking by STI with RFLAGS.IF clear");
    c.rule(
        event != Some(EXTERNAL) || !(by_sti || by_mov_ss),
        "an external interrupt is delivered in an interrupt shadow",
    );
    c.rule(!nmi || !by_mov_ss, "an NMI is delivered in the shadow of MOV SS");
    c.rule(value & 4 == 0, "blocking by SMI outside of SMM");
    c.rule(
        !nmi || value & 8 == 0 || !c.has(control::PIN_BASED, pin::VIRTUAL_NMI),
        "an NMI is delivered while NMIs are blocked",
    );
}

/// 26.3.1.5: pending debug exceptions.
fn pending_debug(c: &mut Check<'_>) {
    let pending = c.get(guest::PENDING_DEBUG);
    c.rule(pending & !0x1_500f == 0, "the pending debug exceptions have reserved bits");
    let (by_sti, by_mov_ss) = shadows(c);
    if by_sti || by_mov_ss || c.get(guest::ACTIVITY) == 1 {
        const BTF: u64 = 1 << 1;
        let steps = c.get(guest::RFLAGS) & rflags::TF != 0 && c.get(guest::DEBUGCTL) & BTF == 0;
        c.rule(steps == (pending & 1 << 14 != 0), "a pending single step does not fit RFLAGS.TF");
    }
}

/// 26.3.1.6: where EPT has the pointers of PAE paging come from the VMCS.
fn pointers(c: &mut Check<'_>) {
    let pae = c.get(guest::CR0) & cr0::PG != 0 && c.get(guest::CR4) & cr4::PAE != 0 && !is_long(c);
    if !pae || !c.secondary(secondary::EPT) {
        return;
    }
    for field in (guest::POINTER_0..=guest::POINTER_3).step_by(2) {
        let pointer = c.get(field);
        let clean = pointer & 0x1e6 == 0 && c.is_physical(pointer);
        c.rule(pointer & 1 == 0 || clean, "a page-directory pointer has reserved bits");
    }
}
