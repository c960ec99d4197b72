//! The guest's segments, and what is no register of control.

use super::*;

#[test]
fn segments() {
    let rights = |seg| of(guest::ES_RIGHTS, seg);
    let base = |seg| of(guest::ES_BASE, seg);
    let selector = |seg| of(guest::ES_SELECTOR, seg);
    let limit = |seg| of(guest::ES_LIMIT, seg);
    each_is_found_alone(
        &long_mode(),
        GUEST,
        &facts(),
        &[
            (&[(base(SegReg::Gs), 1 << 47)], "GS: the base is not canonical"),
            (&[(base(SegReg::Cs), 1 << 32)], "CS: the base has upper"),
            (&[(base(SegReg::Ds), 1 << 32)], "DS: the base has upper"),
            (&[(rights(SegReg::Es), 0xc083)], "ES: is a system"),
            (&[(rights(SegReg::Es), 0xc013)], "ES: is usable and not"),
            (&[(rights(SegReg::Fs), 0xc193)], "FS: the access rights"),
            (&[(limit(SegReg::Ss), 0xffff_f000)], "SS: G is set"),
            (&[(rights(SegReg::Ss), 0x4093)], "SS: G is clear"),
            (&[(rights(SegReg::Cs), 0xa09a)], "CS: is no accessed code"),
            (&[(rights(SegReg::Cs), 0xe09b)], "CS: has both L"),
            (&[(rights(SegReg::Cs), 0xa0fb)], "CS: the DPL does not"),
            (&[(rights(SegReg::Cs), 0xa0bf)], "CS: the DPL does not"),
            (&[(rights(SegReg::Ss), 0xc091)], "SS: is no accessed, writable"),
            (&[(rights(SegReg::Ds), 0xc092)], "DS: is not marked"),
            (&[(rights(SegReg::Ds), 0xc099)], "DS: is code that cannot"),
            (&[(selector(SegReg::Ds), 0x13)], "DS: the DPL is below"),
            (&[(selector(SegReg::Cs), 0xb)], "SS: the RPL differs"),
            (&[(selector(SegReg::Cs), 0xb), (selector(SegReg::Ss), 0x13)], "SS: the DPL is not the RPL"),
            (&[(rights(SegReg::Tr), 0x89)], "TR: is no busy TSS"),
            (&[(rights(SegReg::Tr), 0x83)], "TR: is no busy TSS"),
            (&[(rights(SegReg::Tr), UNUSABLE | 0x8b)], "TR: is unusable"),
            (&[(rights(SegReg::Tr), 0xb)], "TR: is no system segment"),
            (&[(selector(SegReg::Tr), 0x1c)], "TR: is in the LDT"),
            (&[(base(SegReg::Tr), 1 << 47)], "TR: the base"),
            (&[(limit(SegReg::Tr), 0x10_0000)], "TR: G is clear"),
            (&[(rights(SegReg::Tr), 0x18b)], "TR: the access rights"),
            (&[(rights(SegReg::Ldtr), 0x83)], "LDTR: is no LDT"),
            (&[(rights(SegReg::Ldtr), 0x82), (selector(SegReg::Ldtr), 4)], "LDTR: is in the LDT"),
            (&[(rights(SegReg::Ldtr), 0x82), (base(SegReg::Ldtr), 1 << 47)], "LDTR: the base"),
            (&[(rights(SegReg::Ldtr), 0x92)], "LDTR: is no system segment"),
        ],
    );
    each_is_found_alone(
        &real_mode(),
        GUEST,
        &facts(),
        &[
            (&[(rights(SegReg::Cs), 0x93), (rights(SegReg::Ss), 0xf3)], "SS: the DPL is not 0 in real mode"),
            (&[(rights(SegReg::Cs), 0xb3)], "CS: the DPL does not"),
        ],
    );
    each_is_found_alone(
        &virtual_8086(),
        GUEST,
        &facts(),
        &[
            (&[(base(SegReg::Fs), 0)], "FS: virtual-8086"),
            (&[(limit(SegReg::Cs), 0xffff_ffff)], "CS: virtual-8086"),
            (&[(rights(SegReg::Ss), 0x93)], "SS: virtual-8086"),
        ],
    );
    // What is unusable is not looked at.
    let mut fields = long_mode();
    fields.extend([(rights(SegReg::Ds), UNUSABLE), (base(SegReg::Ds), 1 << 32)]);
    assert_eq!(broken(&fields, &facts())[GUEST], [""; 0]);
}

#[test]
fn execution_and_what_is_no_register() {
    const STEPS: u64 = 1 << 14;
    let event = |word: u64| (control::ENTRY_INTERRUPTION, 0x8000_0000 | word);
    each_is_found_alone(
        &long_mode(),
        GUEST,
        &facts(),
        &[
            (&[(guest::RIP, 0x0001_0000_0000_0000)], "RIP"),
            (&[(guest::RFLAGS, 0x200)], "RFLAGS has wrong"),
            (&[(guest::RFLAGS, 2), event(0x30)], "delivered with RFLAGS.IF"),
            (&[(guest::ACTIVITY, 4)], "none that this processor has"),
            (&[(guest::ACTIVITY, 2), event(0x30)], "does not end"),
            (&[(guest::ACTIVITY, 3), event(0x202)], "does not end"),
            (&[(guest::ACTIVITY, 1), event(0xb0d)], "does not end"),
            (&[(guest::ACTIVITY, 2), (guest::INTERRUPTIBILITY, 1)], "not active in an interrupt shadow"),
            (&[(guest::INTERRUPTIBILITY, 1 << 5)], "interruptibility has"),
            (&[(guest::INTERRUPTIBILITY, 3)], "by STI and by MOV SS"),
            (&[(guest::INTERRUPTIBILITY, 1), (guest::RFLAGS, 2)], "STI with RFLAGS.IF"),
            (&[(guest::INTERRUPTIBILITY, 2), event(0x30)], "interrupt is delivered in"),
            (&[(guest::INTERRUPTIBILITY, 2), event(0x202)], "shadow of MOV SS"),
            (&[(guest::INTERRUPTIBILITY, 4)], "blocking by SMI"),
            (&[(guest::INTERRUPTIBILITY, 8), event(0x202)], "while NMIs are blocked"),
            (&[(guest::PENDING_DEBUG, 1 << 4)], "pending debug"),
            (&[(guest::INTERRUPTIBILITY, 1), (guest::RFLAGS, 0x302)], "single step"),
            (&[(guest::INTERRUPTIBILITY, 1), (guest::PENDING_DEBUG, STEPS)], "single step"),
            (&[(guest::LINK_POINTER, 0x1001)], "link pointer"),
            (&[(guest::LINK_POINTER, 1 << 40)], "link pointer"),
        ],
    );
    // A program: all but the code segment is that of CPL 3.
    let mut user = long_mode();
    for (seg, rights) in [(SegReg::Cs, 0xa0fb), (SegReg::Ss, 0xc0f3)] {
        user.extend([(of(guest::ES_RIGHTS, seg), rights), (of(guest::ES_SELECTOR, seg), 0x23)]);
    }
    each_is_found_alone(&user, GUEST, &facts(), &[(&[(guest::ACTIVITY, 1)], "HLT in a program")]);
    each_is_found_alone(&real_mode(), GUEST, &facts(), &[(&[(guest::RIP, 1 << 32)], "RIP")]);
    each_is_found_alone(
        &virtual_8086(),
        GUEST,
        &Facts { ..facts() },
        &[(&[(guest::RFLAGS, 0x2_0200)], "wrong")],
    );
    // What the manual allows.
    for changes in [
        // The fetch finds out that it is not canonical.
        &[(guest::RIP, 1 << 47)][..],
        &[(guest::ACTIVITY, 1), event(0x30)],
        &[(guest::ACTIVITY, 2), event(0x312)],
        &[(guest::INTERRUPTIBILITY, 1), (guest::RFLAGS, 0x302), (guest::PENDING_DEBUG, STEPS)],
        &[(guest::INTERRUPTIBILITY, 1), (guest::RFLAGS, 0x302), (guest::DEBUGCTL, 2)],
        &[(guest::INTERRUPTIBILITY, 8), event(0x202), (control::PIN_BASED, pin::NMI.into())],
    ] {
        let mut fields = long_mode();
        fields.extend(changes.iter().copied());
        assert_eq!(broken(&fields, &facts())[GUEST], [""; 0], "{changes:x?}");
    }
    let mut vm_in_long_mode = long_mode();
    vm_in_long_mode.insert(guest::RFLAGS, 0x2_0202);
    assert!(broken(&vm_in_long_mode, &facts())[GUEST].iter().any(|rule| rule.contains("RFLAGS.VM")));
    let none = Facts { activities: 0, ..facts() };
    each_is_found_alone(
        &long_mode(),
        GUEST,
        &none,
        &[(&[(guest::ACTIVITY, 1)], "none that this processor has")],
    );
}
