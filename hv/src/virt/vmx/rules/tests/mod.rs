//! Every rule: a good state breaks none, and one change of it breaks one.

mod in_controls;
mod in_guest;

use std::collections::BTreeMap;

use super::*;
use crate::arch::state::{cr0, cr4, efer};
use crate::virt::vmx::controls::{entry, exit, pin, secondary};
use crate::virt::vmx::field::{guest, host};
use crate::virt::vmx::segment::UNUSABLE;
use proptest::prelude::*;

type Fields = BTreeMap<u32, u64>;

const BASE_64: u64 = 0xffff_8000_0000_1000;

const fn of(first: u32, seg: SegReg) -> u32 {
    first + 2 * seg as u32
}

fn facts() -> Facts {
    let accepts_all = 0xffff_ffff << 32;
    Facts {
        features: Features {
            physical_bits: 40,
            cr0_ones: cr0::NE | cr0::PE | cr0::PG,
            cr4_ones: 1 << 13,
            cr4_allowed: 0x37_67ff,
            ept_accessed_dirty: true,
            ..Features::default()
        },
        words: [accepts_all; 5],
        activities: 7,
        free_error_codes: false,
        task_priority: 4,
    }
}

fn segment(fields: &mut Fields, seg: SegReg, [selector, limit, rights, base]: [u64; 4]) {
    let parts = [guest::ES_SELECTOR, guest::ES_LIMIT, guest::ES_RIGHTS, guest::ES_BASE];
    fields.extend(parts.map(|first| of(first, seg)).into_iter().zip([selector, limit, rights, base]));
}

const CODE_AND_DATA: [SegReg; 6] = [SegReg::Es, SegReg::Cs, SegReg::Ss, SegReg::Ds, SegReg::Fs, SegReg::Gs];

/// A guest in 64-bit mode on nested tables, as the backend enters it, and the host.
fn long_mode() -> Fields {
    let primary = processor::SECONDARY
        | processor::IO_BITMAPS
        | processor::MSR_BITMAPS
        | processor::TPR_SHADOW
        | processor::NMI_WINDOW;
    let mut fields = Fields::from([
        (control::PIN_BASED, (pin::NMI | pin::VIRTUAL_NMI | pin::PREEMPTION_TIMER).into()),
        (control::PROCESSOR_BASED, primary.into()),
        (control::SECONDARY, (secondary::EPT | secondary::VPID).into()),
        (
            control::EXIT_CONTROLS,
            (exit::HOST_64BIT | exit::LOAD_PAT | exit::LOAD_EFER | exit::SAVE_TIMER).into(),
        ),
        (
            control::ENTRY_CONTROLS,
            (entry::IA32E_GUEST | entry::LOAD_PAT | entry::LOAD_EFER | entry::LOAD_DEBUG).into(),
        ),
        (control::VPID, 1),
        (control::EPT_POINTER, 0x5000 | 1 << 6 | 3 << 3 | 6),
        (control::TPR_THRESHOLD, 4),
        (guest::CR0, 0x8000_0031),
        (guest::CR3, 0x1000),
        (guest::CR4, 0x2020),
        (guest::EFER, 0xd01),
        (guest::PAT, 0x0007_0406_0007_0406),
        (guest::DR7, 0x400),
        (guest::RIP, BASE_64),
        (guest::RFLAGS, 0x202),
        (guest::LINK_POINTER, u64::MAX),
        (guest::GDTR_BASE, BASE_64),
        (guest::GDTR_LIMIT, 0x7f),
        (guest::IDTR_LIMIT, 0xfff),
        (host::CR0, 0x8001_0033),
        (host::CR3, 0x2000),
        (host::CR4, 0x2020),
        (host::PAT, 0x0007_0406_0007_0406),
        (host::EFER, 0xd00),
        (host::CS_SELECTOR, 8),
        (host::TR_SELECTOR, 0x18),
        (host::RIP, 0x20_0000),
    ]);
    for seg in CODE_AND_DATA {
        segment(&mut fields, seg, [0x10, 0xffff_ffff, 0xc093, 0]);
    }
    segment(&mut fields, SegReg::Cs, [8, 0xffff_ffff, 0xa09b, 0]);
    segment(&mut fields, SegReg::Ldtr, [0, 0, UNUSABLE, 0]);
    segment(&mut fields, SegReg::Tr, [0x18, 0x67, 0x8b, 0x1000]);
    fields
}

/// Without paging, as after RESET.
fn real_mode() -> Fields {
    let mut fields = long_mode();
    let secondary = secondary::EPT | secondary::VPID | secondary::UNRESTRICTED;
    fields.extend([
        (control::SECONDARY, secondary.into()),
        (control::ENTRY_CONTROLS, (entry::LOAD_PAT | entry::LOAD_EFER | entry::LOAD_DEBUG).into()),
        (guest::CR0, 0x30),
        (guest::EFER, 0),
        (guest::RIP, 0xfff0),
    ]);
    for seg in CODE_AND_DATA {
        segment(&mut fields, seg, [0, 0xffff, 0x93, 0]);
    }
    segment(&mut fields, SegReg::Cs, [0xf000, 0xffff, 0x9b, 0xffff_0000]);
    segment(&mut fields, SegReg::Ldtr, [0, 0xffff, 0x82, 0]);
    segment(&mut fields, SegReg::Tr, [0, 0xffff, 0x8b, 0]);
    fields
}

/// PAE paging in 32-bit code.
fn pae() -> Fields {
    let mut fields = long_mode();
    fields.extend([
        (control::ENTRY_CONTROLS, (entry::LOAD_PAT | entry::LOAD_EFER | entry::LOAD_DEBUG).into()),
        (guest::EFER, 0x800),
        (guest::RIP, 0x1000),
        (guest::POINTER_0, 0x6001),
    ]);
    segment(&mut fields, SegReg::Cs, [8, 0xffff_ffff, 0xc09b, 0]);
    fields
}

/// Virtual-8086 mode.
fn virtual_8086() -> Fields {
    let mut fields = pae();
    fields.insert(guest::RFLAGS, 0x2_0202);
    for seg in CODE_AND_DATA {
        segment(&mut fields, seg, [0x1234, 0xffff, 0xf3, 0x1_2340]);
    }
    fields
}

/// What the fields break: of the guest's state, controls, the host's state.
fn broken(fields: &Fields, facts: &Facts) -> [Vec<String>; 3] {
    let read = |field: u32| *fields.get(&field).unwrap_or(&0);
    [
        of_exit(0x8000_0021, 0, &read, facts),
        of_instruction_error(7, &read, facts),
        of_instruction_error(8, &read, facts),
    ]
}

/// Changes of the fields, and what is said of them, by exactly one rule of these.
fn each_is_found_alone(good: &Fields, which: usize, facts: &Facts, cases: &[(&[(u32, u64)], &str)]) {
    for (changes, what) in cases {
        let mut fields = good.clone();
        fields.extend(changes.iter().copied());
        let found = &broken(&fields, facts)[which];
        assert!(found.len() == 1 && found[0].contains(what), "{what}: {found:?}");
    }
}

const GUEST: usize = 0;
const CONTROLS: usize = 1;
const HOST: usize = 2;

#[test]
fn good_states_break_nothing() {
    for good in [long_mode(), real_mode(), pae(), virtual_8086()] {
        assert_eq!(broken(&good, &facts()), [const { Vec::<String>::new() }; 3]);
    }
}

#[test]
fn control_registers_and_msrs() {
    let old_entry = u64::from(entry::IA32E_GUEST);
    each_is_found_alone(
        &long_mode(),
        GUEST,
        &facts(),
        &[
            (&[(guest::CR0, 0x8000_0011)], "CR0 lacks"),
            (&[(guest::CR0, 0x1_8000_0031)], "CR0 has upper"),
            (&[(guest::CR4, 0x20)], "CR4 lacks"),
            (&[(guest::CR4, 0x2020 | cr4::LA57)], "CR4 has a bit"),
            (&[(guest::CR4, 0x2000)], "IA-32e mode without"),
            (&[(guest::CR3, 1 << 40)], "CR3 is beyond"),
            (&[(guest::EFER, 0xd01 | efer::FFXSR)], "EFER has a reserved"),
            (&[(guest::EFER, 0xc01)], "differs from LME"),
            (&[(guest::DR7, 1 << 32 | 0x400)], "DR7"),
            (&[(guest::DEBUGCTL, 1 << 3)], "DEBUGCTL"),
            (&[(guest::SYSENTER_ESP, 1 << 47)], "SYSENTER_ESP"),
            (&[(guest::SYSENTER_EIP, 1 << 47)], "SYSENTER_EIP"),
            (&[(guest::PAT, 0x0007_0406_0007_0402)], "the PAT"),
            (&[(guest::GDTR_BASE, 1 << 47)], "base of GDTR"),
            (&[(guest::IDTR_LIMIT, 0x1_0000)], "limit of GDTR"),
        ],
    );
    each_is_found_alone(
        &pae(),
        GUEST,
        &facts(),
        &[
            (&[(guest::CR4, 0x2020 | cr4::PCIDE)], "PCIDE"),
            (&[(guest::EFER, 0xd00)], "entry control for IA-32e"),
            (&[(guest::POINTER_0 + 4, 0x7101)], "page-directory pointer"),
            (&[(guest::POINTER_3, 1 << 40 | 1)], "page-directory pointer"),
        ],
    );
    // A pointer that is not present may be anything; without EPT it is not looked at here.
    for change in [(guest::POINTER_3, 0x1e6), (control::SECONDARY, secondary::VPID.into())] {
        let mut fields = pae();
        fields.insert(guest::POINTER_0, 0x6001);
        fields.extend([change]);
        assert_eq!(broken(&fields, &facts())[GUEST], [""; 0]);
    }
    let unrestricted = real_mode();
    each_is_found_alone(&unrestricted, GUEST, &facts(), &[(&[(guest::CR0, 0x8000_0030)], "PG without PE")]);
    let with_cet = Facts { features: Features { cr4_allowed: u64::MAX, ..facts().features }, ..facts() };
    each_is_found_alone(&long_mode(), GUEST, &with_cet, &[(&[(guest::CR4, 0x80_2020)], "CR4.CET")]);
    // Entries that load neither EFER, PAT nor debug registers do not look at them.
    let mut old = long_mode();
    old.extend([
        (control::ENTRY_CONTROLS, old_entry),
        (guest::EFER, 0),
        (guest::PAT, 2),
        (guest::DEBUGCTL, 1 << 3),
    ]);
    assert_eq!(broken(&old, &facts())[GUEST], [""; 0]);
}

#[test]
fn the_hosts_state() {
    let all = long_mode();
    each_is_found_alone(
        &all,
        HOST,
        &facts(),
        &[
            (&[(host::CR0, 0x8001_0013)], "CR0"),
            (&[(host::CR4, 0x20)], "VMXE"),
            (&[(host::CR4, 0x2000)], "PAE"),
            (&[(host::CR3, 1 << 40)], "CR3"),
            (&[(host::PAT, 2)], "PAT"),
            (&[(host::EFER, 0x500 | efer::FFXSR)], "EFER has a reserved"),
            (&[(host::EFER, 0x100)], "EFER is not that"),
            (&[(host::GS_SELECTOR, 3)], "privilege level"),
            (&[(host::CS_SELECTOR, 12)], "privilege level"),
            (&[(host::TR_SELECTOR, 0)], "null selector"),
            (&[(host::FS_BASE, 1 << 47)], "FS, GS or TR"),
            (&[(host::IDTR_BASE, 1 << 47)], "GDTR or IDTR"),
            (&[(host::SYSENTER_EIP, 1 << 47)], "SYSENTER"),
            (&[(host::RIP, 1 << 47)], "RIP"),
            (&[(control::EXIT_CONTROLS, 0)], "exit controls do not say"),
        ],
    );
}

#[test]
fn exits_that_are_failed_entries_have_their_words() {
    let read = |field: u32| *long_mode().get(&field).unwrap_or(&0);
    let words = |reason: u32, qualification| of_exit(0x8000_0000 | reason, qualification, &read, &facts());
    assert_eq!(words(33, 0), [""; 0]);
    for (reason, qualification, what) in [
        (33, 2, "page-directory pointers"),
        (33, 3, "NMI"),
        (33, 4, "link pointer"),
        (34, 7, "MSR number 7"),
        (41, 0, "machine check"),
    ] {
        let found = words(reason, qualification);
        assert!(found.len() == 1 && found[0].contains(what), "{found:?}");
    }
    assert_eq!(of_instruction_error(5, &read, &facts()), [""; 0]);
}

#[test]
fn real_mode_needs_an_unrestricted_guest() {
    let mut fields = real_mode();
    fields.insert(control::SECONDARY, secondary::EPT.into());
    let [found, ..] = broken(&fields, &facts());
    assert!(found.iter().any(|rule| rule.contains("CR0 lacks")), "{found:?}");
}

proptest! {
    #[test]
    fn any_state_is_judged(values: Vec<(u8, u64)>) {
        let mut fields = long_mode();
        let known: Vec<u32> = fields.keys().copied().collect();
        fields.extend(values.iter().map(|&(n, value)| (known[n as usize % known.len()], value)));
        let [guest, ..] = broken(&fields, &facts());
        // A state that breaks no rule is at least in a mode that exists.
        if guest.is_empty() {
            prop_assert!(fields[&guest::CR0] & cr0::PG == 0 || fields[&guest::CR0] & cr0::PE != 0);
        }
    }
}
