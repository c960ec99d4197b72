//! The rules that a VM entry checks of the guest's state (Intel SDM 3, 26.3.1): which of them is broken. For the report
//! after an entry that failed; a plain function of the fields.

use alloc::vec::Vec;

use super::segment::UNUSABLE;
use crate::paging::addr::Gva;
use crate::paging::guest_walk::is_canonical;
use crate::virt::SegReg;
use crate::virt::state::{cr0, cr4, efer, rflags};

/// A segment register as the VMCS holds it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentFields {
    /// The selector.
    pub selector: u64,
    /// The limit in bytes.
    pub limit: u64,
    /// Access rights.
    pub rights: u64,
    /// The base address.
    pub base: u64,
}

impl SegmentFields {
    fn is_usable(&self) -> bool {
        self.rights & UNUSABLE == 0
    }

    fn kind(&self) -> u64 {
        self.rights & 0xf
    }

    fn dpl(&self) -> u64 {
        self.rights >> 5 & 3
    }
}

/// The guest's state as an entry sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)]
pub struct GuestArea {
    pub cr0: u64,
    pub cr3: u64,
    pub cr4: u64,
    pub efer: u64,
    pub dr7: u64,
    pub rip: u64,
    pub rflags: u64,
    pub interruptibility: u64,
    pub pending_debug: u64,
    /// GDTR and IDTR: base and limit.
    pub tables: [[u64; 2]; 2],
    /// In the order of [`SegReg`].
    pub segments: [SegmentFields; 8],
    /// The entry's interruption word.
    pub event: u64,
    /// The entry control for IA-32e mode.
    pub ia32e: bool,
    /// Guests without paging or protection are allowed.
    pub unrestricted: bool,
    /// CR0 and CR4 bits that must be 1; CR4 bits that may be.
    pub cr0_ones: u64,
    pub cr4_ones: u64,
    pub cr4_allowed: u64,
    /// MAXPHYADDR
    pub physical_bits: u8,
}

/// The rules that `area` breaks, in the manual's order; empty if it breaks none of those that are known here.
pub fn broken(area: &GuestArea) -> Vec<&'static str> {
    let mut found = Vec::new();
    let mut rule = |holds: bool, what| {
        if !holds {
            found.push(what);
        }
    };
    registers(area, &mut rule);
    let virtual_8086 = area.rflags & rflags::VM != 0;
    if virtual_8086 {
        rule(
            area.segments[..6]
                .iter()
                .all(|s| s.base == s.selector << 4 && s.limit == 0xffff && s.rights == 0xf3),
            "virtual-8086 segments: base = selector × 16, limit ffff, rights f3",
        );
    } else {
        segments(area, &mut rule);
    }
    system_segments(area, &mut rule);
    flags_and_events(area, &mut rule);
    found
}

type Rule<'a> = &'a mut dyn FnMut(bool, &'static str);

/// SDM 3, 26.3.1.1.
fn registers(area: &GuestArea, rule: Rule<'_>) {
    let has = |register: u64, bit: u64| register & bit != 0;
    let paging = has(area.cr0, cr0::PG);
    let free = if area.unrestricted { cr0::PE | cr0::PG } else { 0 };
    rule(area.cr0_ones & !free & !area.cr0 == 0, "CR0 lacks a bit that VMX operation needs (PE, NE, PG)");
    rule(!paging || has(area.cr0, cr0::PE), "CR0.PG without PE");
    rule(area.cr4_ones & !area.cr4 == 0, "CR4 lacks a bit that VMX operation needs (VMXE)");
    rule(area.cr4 & !area.cr4_allowed == 0, "CR4 has a bit that this processor has not");
    rule(!area.ia32e || paging && has(area.cr4, cr4::PAE), "IA-32e mode without CR0.PG and CR4.PAE");
    rule(area.ia32e || !has(area.cr4, cr4::PCIDE), "CR4.PCIDE outside of IA-32e mode");
    rule(area.cr3 >> area.physical_bits.min(52) == 0, "CR3 is beyond the physical-address width");
    rule(area.dr7 >> 32 == 0, "DR7 has upper bits");
    rule(has(area.efer, efer::LMA) == area.ia32e, "EFER.LMA differs from the entry control for IA-32e mode");
    rule(
        !paging || has(area.efer, efer::LMA) == has(area.efer, efer::LME),
        "EFER.LMA differs from LME with paging on",
    );
    rule(area.efer & !(efer::SCE | efer::LME | efer::LMA | efer::NXE) == 0, "EFER has a reserved bit");
}

/// SDM 3, 26.3.1.2, for CS, SS, DS, ES, FS, GS outside of virtual-8086 mode.
fn segments(area: &GuestArea, rule: Rule<'_>) {
    let of = |seg: SegReg| &area.segments[seg as usize];
    let (cs, ss) = (of(SegReg::Cs), of(SegReg::Ss));
    rule(area.unrestricted || cs.selector & 3 == ss.selector & 3, "the RPLs of CS and SS differ");
    for seg in [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs] {
        let s = of(seg);
        let is_code = seg == SegReg::Cs;
        match seg {
            SegReg::Fs | SegReg::Gs => {
                rule(is_canonical(Gva(s.base)), "the base of FS or GS is not canonical")
            }
            _ if is_code || s.is_usable() => {
                rule(s.base >> 32 == 0, "the base of CS, SS, DS or ES has upper bits")
            }
            _ => {}
        }
        if !is_code && !s.is_usable() {
            continue;
        }
        rule(s.rights & 1 << 4 != 0, "a code or data segment has S clear");
        rule(s.rights & 1 << 7 != 0, "a usable segment is not present");
        rule(s.rights & 0xfffe_0f00 == 0, "access rights have reserved bits");
        limit(s, rule);
        match seg {
            SegReg::Cs => {
                let real = area.unrestricted && s.kind() == 3;
                rule(real || matches!(s.kind(), 9 | 11 | 13 | 15), "CS is no accessed code segment");
                rule(
                    match s.kind() {
                        3 => s.dpl() == 0,
                        9 | 11 => s.dpl() == ss.dpl(),
                        _ => s.dpl() <= ss.dpl(),
                    },
                    "the DPL of CS does not fit that of SS",
                );
                rule(!area.ia32e || s.rights >> 13 & 3 != 3, "CS has both L and D/B");
            }
            SegReg::Ss => rule(matches!(s.kind(), 3 | 7), "SS is no accessed, writable data segment"),
            _ => {
                rule(s.kind() & 1 != 0, "DS, ES, FS or GS is not marked accessed");
                rule(s.kind() & 8 == 0 || s.kind() & 2 != 0, "DS, ES, FS or GS is code that cannot be read");
                let conforming = s.kind() > 11;
                rule(
                    area.unrestricted || conforming || s.dpl() >= s.selector & 3,
                    "the DPL of DS, ES, FS or GS is below its RPL",
                );
            }
        }
    }
    let real_stack = cs.kind() == 3 || area.cr0 & cr0::PE == 0;
    rule(!real_stack || ss.dpl() == 0, "the DPL of SS is not 0 in real mode");
    rule(area.unrestricted || ss.dpl() == ss.selector & 3, "the DPL of SS is not its RPL");
}

/// Granularity and limit agree.
fn limit(s: &SegmentFields, rule: Rule<'_>) {
    let granular = s.rights & 1 << 15 != 0;
    rule(!granular || s.limit & 0xfff == 0xfff, "G is set, and the limit's lower 12 bits are not ones");
    rule(granular || s.limit >> 20 == 0, "G is clear, and the limit has more than 20 bits");
}

/// SDM 3, 26.3.1.2 for TR and LDTR, and 26.3.1.3.
fn system_segments(area: &GuestArea, rule: Rule<'_>) {
    let [.., ldtr, tr] = &area.segments;
    rule(tr.is_usable(), "TR is unusable");
    rule(
        if area.ia32e { tr.kind() == 11 } else { matches!(tr.kind(), 3 | 11) },
        "TR is no busy TSS of this mode",
    );
    rule(tr.selector & 4 == 0, "TR is in the LDT");
    rule(tr.rights & 0x90 == 0x80, "TR is not a present system segment");
    limit(tr, rule);
    if ldtr.is_usable() {
        rule(ldtr.kind() == 2 && ldtr.rights & 0x90 == 0x80, "LDTR is no present LDT");
        rule(ldtr.selector & 4 == 0, "LDTR is in the LDT");
        limit(ldtr, rule);
    }
    let canonical = |s: &SegmentFields| is_canonical(Gva(s.base));
    rule(canonical(tr) && (!ldtr.is_usable() || canonical(ldtr)), "the base of TR or LDTR is not canonical");
    for [base, limit] in area.tables {
        rule(is_canonical(Gva(base)), "the base of GDTR or IDTR is not canonical");
        rule(limit >> 16 == 0, "the limit of GDTR or IDTR has upper bits");
    }
}

/// SDM 3, 26.3.1.4 and 26.3.1.5.
fn flags_and_events(area: &GuestArea, rule: Rule<'_>) {
    let cs = &area.segments[SegReg::Cs as usize];
    let code64 = area.ia32e && cs.rights & 1 << 13 != 0;
    rule(if code64 { is_canonical(Gva(area.rip)) } else { area.rip >> 32 == 0 }, "RIP is out of reach");
    let reserved = !0x3f_7fd7;
    rule(area.rflags & reserved == 0 && area.rflags & 2 != 0, "RFLAGS has wrong reserved bits");
    let protected = area.cr0 & cr0::PE != 0;
    rule(area.rflags & rflags::VM == 0 || !area.ia32e && protected, "RFLAGS.VM in this mode");
    let (by_sti, by_mov_ss) = (area.interruptibility & 1 != 0, area.interruptibility & 2 != 0);
    let valid = area.event & 1 << 31 != 0;
    let kind = area.event >> 8 & 7;
    let external = valid && kind == 0;
    let nmi = valid && kind == 2;
    let interrupts = area.rflags & rflags::IF != 0;
    rule(!external || interrupts, "an external interrupt is delivered with RFLAGS.IF clear");
    rule(!(by_sti && by_mov_ss), "blocking by STI and by MOV SS");
    rule(!by_sti || interrupts, "blocking by STI with RFLAGS.IF clear");
    rule(!external || !(by_sti || by_mov_ss), "an external interrupt is delivered in an interrupt shadow");
    rule(!nmi || !by_mov_ss, "an NMI is delivered in the shadow of MOV SS");
    rule(!nmi || area.interruptibility & 8 == 0, "an NMI is delivered while NMIs are blocked");
    rule(area.interruptibility & !0x1f == 0, "interruptibility has reserved bits");
    if by_sti || by_mov_ss {
        let steps = area.rflags & rflags::TF != 0;
        rule(steps == (area.pending_debug & 1 << 14 != 0), "a pending single step does not fit RFLAGS.TF");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn long_mode() -> GuestArea {
        let data = SegmentFields { selector: 0x10, limit: 0xffff_ffff, rights: 0xc093, base: 0 };
        let mut segments = [data; 8];
        segments[SegReg::Cs as usize] = SegmentFields { selector: 8, rights: 0xa09b, ..data };
        segments[SegReg::Ldtr as usize] = SegmentFields { rights: UNUSABLE, ..SegmentFields::default() };
        segments[SegReg::Tr as usize] =
            SegmentFields { selector: 0x18, limit: 0x67, rights: 0x8b, base: 0x1000 };
        GuestArea {
            cr0: 0x8000_0031,
            cr3: 0x1000,
            cr4: 0x2020,
            efer: 0xd01,
            dr7: 0x400,
            rip: 0xffff_8000_0000_0000,
            rflags: 0x202,
            interruptibility: 0,
            pending_debug: 0,
            tables: [[0xffff_8000_0000_1000, 0x7f], [0, 0xfff]],
            segments,
            event: 0,
            ia32e: true,
            unrestricted: false,
            cr0_ones: 0x8000_0021,
            cr4_ones: 0x2000,
            cr4_allowed: 0x37_67ff,
            physical_bits: 40,
        }
    }

    fn real_mode() -> GuestArea {
        let data = SegmentFields { selector: 0, limit: 0xffff, rights: 0x93, base: 0 };
        let mut area =
            GuestArea { unrestricted: true, ia32e: false, cr0: 0x30, efer: 0, rip: 0xfff0, ..long_mode() };
        area.segments = [data; 8];
        area.segments[SegReg::Cs as usize] =
            SegmentFields { selector: 0xf000, base: 0xffff_0000, rights: 0x9b, ..data };
        area.segments[SegReg::Ldtr as usize].rights = 0x82;
        area.segments[SegReg::Tr as usize].rights = 0x8b;
        area
    }

    #[test]
    fn good_states_break_nothing() {
        assert_eq!(broken(&long_mode()), [""; 0]);
        assert_eq!(broken(&real_mode()), [""; 0]);
    }

    #[test]
    fn each_rule_is_found_alone() {
        type Breaks = fn(&mut GuestArea);
        let cases: [(Breaks, &str); 14] = [
            (|a| a.cr0 &= !cr0::NE, "CR0 lacks"),
            (|a| a.cr4 |= cr4::LA57, "CR4 has a bit"),
            (|a| a.cr3 = 1 << 40, "CR3 is beyond"),
            (|a| a.dr7 |= 1 << 32, "DR7"),
            (|a| a.efer |= efer::FFXSR, "EFER has a reserved bit"),
            (|a| a.segments[SegReg::Gs as usize].base = 1 << 47, "FS or GS is not canonical"),
            (|a| a.segments[SegReg::Ds as usize].rights &= !1, "not marked accessed"),
            (|a| a.segments[SegReg::Ss as usize].limit = 0xffff_f000, "lower 12 bits"),
            (|a| a.segments[SegReg::Tr as usize].rights = 0x89, "busy TSS"),
            (|a| a.tables[1][1] = 0x1_0000, "IDTR has upper bits"),
            (|a| a.rip = 1 << 47, "RIP is out of reach"),
            (|a| a.rflags = 0x200, "RFLAGS has wrong"),
            (|a| (a.event, a.rflags) = (0x8000_0030, 2), "RFLAGS.IF clear"),
            (|a| (a.event, a.interruptibility) = (0x8000_0202, 8), "while NMIs are blocked"),
        ];
        for (breaks, what) in cases {
            let mut area = long_mode();
            breaks(&mut area);
            let found = broken(&area);
            assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
        }
    }

    #[test]
    fn real_mode_needs_an_unrestricted_guest() {
        let found = broken(&GuestArea { unrestricted: false, ..real_mode() });
        assert!(found.iter().any(|rule| rule.contains("CR0 lacks")), "{found:?}");
    }

    #[test]
    fn a_shadow_with_a_single_step_needs_it_pending() {
        let mut area = GuestArea { interruptibility: 1, rflags: 0x302, ..long_mode() };
        assert_eq!(broken(&area), ["a pending single step does not fit RFLAGS.TF"]);
        area.pending_debug = 1 << 14;
        assert_eq!(broken(&area), [""; 0]);
    }

    proptest! {
        #[test]
        fn any_state_is_judged(words: [u64; 12], rights: [u64; 8], flags: [bool; 2]) {
            let [cr0, cr3, cr4, efer, dr7, rip, rflags, interruptibility, pending_debug, event, base, limit] = words;
            let segments = rights.map(|rights| SegmentFields { selector: rights >> 20, limit, rights, base });
            let area = GuestArea {
                cr0, cr3, cr4, efer, dr7, rip, rflags, interruptibility, pending_debug, event, segments,
                tables: [[base, limit]; 2], ia32e: flags[0], unrestricted: flags[1], ..long_mode()
            };
            // Whoever breaks no rule is at least in a mode that exists.
            if broken(&area).is_empty() {
                prop_assert!(area.cr0 & cr0::PG == 0 || area.cr0 & cr0::PE != 0);
            }
        }
    }
}
