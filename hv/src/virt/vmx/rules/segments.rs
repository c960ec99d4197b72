//! The rules of the guest's segment registers (Intel SDM 3, 26.3.1.2).

use super::{Check, guest as state};
use crate::arch::addr::{Gva, is_canonical};
use crate::arch::state::{SegReg, cr0, rflags};
use crate::virt::vmx::controls::secondary;
use crate::virt::vmx::field::guest;
use crate::virt::vmx::segment::UNUSABLE;

/// The field with the access rights of a segment register.
pub(super) fn rights_of(seg: SegReg) -> u32 {
    guest::ES_RIGHTS + 2 * seg as u32
}

/// A segment register as the VMCS holds it.
#[derive(Clone, Copy)]
struct Fields {
    selector: u64,
    limit: u64,
    rights: u64,
    base: u64,
}

impl Fields {
    fn of(c: &Check<'_>, seg: SegReg) -> Fields {
        let at = |first: u32| c.get(first + 2 * seg as u32);
        Fields {
            selector: at(guest::ES_SELECTOR),
            limit: at(guest::ES_LIMIT),
            rights: at(guest::ES_RIGHTS),
            base: at(guest::ES_BASE),
        }
    }

    fn is_usable(&self) -> bool {
        self.rights & UNUSABLE == 0
    }

    fn kind(&self) -> u64 {
        self.rights & 0xf
    }

    fn dpl(&self) -> u64 {
        self.rights >> 5 & 3
    }

    fn rpl(&self) -> u64 {
        self.selector & 3
    }
}

/// The registers of code and data.
const SEGMENTS: [SegReg; 6] = [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs];

pub(super) fn check(c: &mut Check<'_>) {
    if c.get(guest::RFLAGS) & rflags::VM != 0 {
        for seg in SEGMENTS {
            let s = Fields::of(c, seg);
            let fits = s.base == s.selector << 4 && s.limit == 0xffff && s.rights == 0xf3;
            c.rule_of(seg, fits, "virtual-8086 mode needs base = selector × 16, limit ffff, rights f3");
        }
    } else {
        for seg in SEGMENTS {
            segment(c, seg);
        }
        code_and_stack(c);
    }
    let long = state::is_long(c);
    let tr = Fields::of(c, SegReg::Tr);
    c.rule_of(SegReg::Tr, tr.is_usable(), "is unusable");
    let busy = if long { tr.kind() == 11 } else { matches!(tr.kind(), 3 | 11) };
    c.rule_of(SegReg::Tr, busy, "is no busy TSS of this mode");
    system(c, SegReg::Tr, &tr);
    let ldtr = Fields::of(c, SegReg::Ldtr);
    if ldtr.is_usable() {
        c.rule_of(SegReg::Ldtr, ldtr.kind() == 2, "is no LDT");
        system(c, SegReg::Ldtr, &ldtr);
    }
}

/// One register of code or data, outside of virtual-8086 mode.
fn segment(c: &mut Check<'_>, seg: SegReg) {
    let s = Fields::of(c, seg);
    let used = seg == SegReg::Cs || s.is_usable();
    match seg {
        SegReg::Fs | SegReg::Gs => c.rule_of(seg, is_canonical(Gva(s.base)), "the base is not canonical"),
        _ => c.rule_of(seg, !used || s.base >> 32 == 0, "the base has upper bits"),
    }
    if !used {
        return;
    }
    c.rule_of(seg, s.rights & 1 << 4 != 0, "is a system segment (S is clear)");
    c.rule_of(seg, s.rights & 1 << 7 != 0, "is usable and not present");
    common(c, seg, &s);
    let unrestricted = c.secondary(secondary::UNRESTRICTED);
    match seg {
        SegReg::Cs => {
            let real = unrestricted && s.kind() == 3;
            c.rule_of(seg, real || matches!(s.kind(), 9 | 11 | 13 | 15), "is no accessed code segment");
            c.rule_of(seg, !state::is_long(c) || s.rights >> 13 & 3 != 3, "has both L and D/B");
        }
        SegReg::Ss => c.rule_of(seg, matches!(s.kind(), 3 | 7), "is no accessed, writable data segment"),
        _ => {
            c.rule_of(seg, s.kind() & 1 != 0, "is not marked accessed");
            c.rule_of(seg, s.kind() & 8 == 0 || s.kind() & 2 != 0, "is code that cannot be read");
            let conforming = s.kind() > 11;
            c.rule_of(seg, unrestricted || conforming || s.dpl() >= s.rpl(), "the DPL is below the RPL");
        }
    }
}

/// Privilege levels of CS and SS.
fn code_and_stack(c: &mut Check<'_>) {
    let (cs, ss) = (Fields::of(c, SegReg::Cs), Fields::of(c, SegReg::Ss));
    let unrestricted = c.secondary(secondary::UNRESTRICTED);
    let fits = match cs.kind() {
        3 => cs.dpl() == 0,
        9 | 11 => cs.dpl() == ss.dpl(),
        _ => cs.dpl() <= ss.dpl(),
    };
    c.rule_of(SegReg::Cs, fits, "the DPL does not fit that of SS");
    c.rule_of(SegReg::Ss, unrestricted || cs.rpl() == ss.rpl(), "the RPL differs from that of CS");
    c.rule_of(SegReg::Ss, unrestricted || ss.dpl() == ss.rpl(), "the DPL is not the RPL");
    let real = cs.kind() == 3 || c.get(guest::CR0) & cr0::PE == 0;
    c.rule_of(SegReg::Ss, !real || ss.dpl() == 0, "the DPL is not 0 in real mode");
}

/// What holds for TR and LDTR.
fn system(c: &mut Check<'_>, seg: SegReg, s: &Fields) {
    c.rule_of(seg, s.selector & 4 == 0, "is in the LDT");
    c.rule_of(seg, s.rights & 0x90 == 0x80, "is no system segment that is present");
    c.rule_of(seg, is_canonical(Gva(s.base)), "the base is not canonical");
    common(c, seg, s);
}

/// What holds for any register that is used.
fn common(c: &mut Check<'_>, seg: SegReg, s: &Fields) {
    c.rule_of(seg, s.rights & 0xfffe_0f00 == 0, "the access rights have reserved bits");
    let granular = s.rights & 1 << 15 != 0;
    c.rule_of(
        seg,
        !granular || s.limit & 0xfff == 0xfff,
        "G is set, and the limit's lower 12 bits are not ones",
    );
    c.rule_of(seg, granular || s.limit >> 20 == 0, "G is clear, and the limit has more than 20 bits");
}
