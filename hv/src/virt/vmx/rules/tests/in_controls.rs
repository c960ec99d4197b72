//! The control fields.

use super::*;

#[test]
fn controls() {
    let event = |word: u64| (control::ENTRY_INTERRUPTION, 0x8000_0000 | word);
    let all = long_mode();
    let without = |field, bits: u32| (field, all[&field] & !u64::from(bits));
    let with = |field, bits: u32| (field, all[&field] | u64::from(bits));
    each_is_found_alone(
        &all,
        CONTROLS,
        &facts(),
        &[
            (&[(control::CR3_TARGETS, 5)], "CR3-target"),
            (&[(control::IO_BITMAP_B, 0x1001)], "I/O bitmap"),
            (&[(control::MSR_BITMAP, 1 << 40)], "MSR bitmap"),
            (&[(control::VIRTUAL_APIC, 8)], "virtual APIC"),
            (&[(control::TPR_THRESHOLD, 0x14)], "more than four bits"),
            (&[(control::TPR_THRESHOLD, 5)], "above the task priority"),
            (&[without(control::PIN_BASED, pin::NMI)], "virtual NMIs without"),
            (&[without(control::PIN_BASED, pin::VIRTUAL_NMI)], "NMI window"),
            (&[without(control::PIN_BASED, pin::PREEMPTION_TIMER)], "timer is saved"),
            (&[(control::VPID, 0)], "VPID 0"),
            (&[(control::SECONDARY, secondary::UNRESTRICTED.into())], "without EPT"),
            (&[(control::EPT_POINTER, 0x5000 | 3 << 3 | 1)], "memory type"),
            (&[(control::EPT_POINTER, 0x5000 | 4 << 3 | 6)], "four levels"),
            (&[(control::EPT_POINTER, 0x5080 | 3 << 3 | 6)], "reserved bits"),
            (&[(control::EPT_POINTER, 1 << 40 | 3 << 3 | 6)], "reserved bits"),
            (&[with(control::ENTRY_CONTROLS, entry::TO_SMM)], "SMM"),
            (&[(control::EXIT_MSR_STORES, 1), (control::EXIT_MSR_STORE_LIST, 8)], "to store at exits"),
            (
                &[(control::EXIT_MSR_LOADS, 2), (control::EXIT_MSR_LOAD_LIST, (1 << 40) - 16)],
                "to load at exits",
            ),
            (&[(control::ENTRY_MSR_LOADS, 1), (control::ENTRY_MSR_LOAD_LIST, 1 << 40)], "to load at entries"),
            (&[event(0x130)], "reserved type"),
            (&[event(0x203)], "another vector than 2"),
            (&[event(0x320)], "above 31"),
            (&[event(0x30d)], "error code where"),
            (&[event(0xb06)], "error code where"),
            (&[event(0x1030)], "word has reserved"),
            (&[event(0xb0d), (control::ENTRY_ERROR_CODE, 0x1_0000)], "error code has upper"),
            (&[event(0x480)], "no length"),
            (&[event(0x603), (control::ENTRY_INSTRUCTION_LENGTH, 16)], "no length"),
            (&[event(0x701)], "has a vector"),
        ],
    );
    // Real mode knows no error codes.
    each_is_found_alone(&real_mode(), CONTROLS, &facts(), &[(&[event(0xb0d)], "error code where")]);
    let narrow = Facts { features: Features { ept_accessed_dirty: false, ..facts().features }, ..facts() };
    each_is_found_alone(&all, CONTROLS, &narrow, &[(&[], "accessed and dirty")]);
    // Each word of controls: a bit that must be 1, and one that may not.
    for (n, what) in
        ["pin-based", "primary", "exit controls", "entry controls", "secondary"].into_iter().enumerate()
    {
        for capability in [1 << 31 | 0xffff_ffff << 32, 0] {
            let mut facts = facts();
            // The primary controls have bit 31.
            facts.words[n] = if n == 1 && capability != 0 { capability | 1 << 30 } else { capability };
            each_is_found_alone(&all, CONTROLS, &facts, &[(&[], what)]);
        }
    }
    let trap = Facts {
        words: [
            u64::MAX << 32,
            (0xffff_ffff & !(1 << 27)) << 32,
            u64::MAX << 32,
            u64::MAX << 32,
            u64::MAX << 32,
        ],
        ..facts()
    };
    each_is_found_alone(&all, CONTROLS, &trap, &[(&[event(0x700)], "reserved type")]);
    let free = Facts { free_error_codes: true, ..facts() };
    for (word, facts) in [(0xb0d, facts()), (0x306, facts()), (0x30d, free), (0xb06, free), (0x202, free)] {
        let mut fields = all.clone();
        fields.extend([event(word)]);
        assert_eq!(broken(&fields, &facts)[CONTROLS], [""; 0], "{word:x}");
    }
}
