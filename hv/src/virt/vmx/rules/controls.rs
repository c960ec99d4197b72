//! The rules of the control fields (Intel SDM 3, 26.2.1): execution, exit, entry.

use super::Check;
use crate::arch::state::cr0;
use crate::virt::vmx::controls::{entry, exit, pin, processor, secondary};
use crate::virt::vmx::decode::event;
use crate::virt::vmx::field::{control, guest};

pub(super) fn check(c: &mut Check<'_>) {
    capabilities(c);
    execution(c);
    ept(c);
    c.rule(
        !c.has(control::EXIT_CONTROLS, exit::SAVE_TIMER) || c.has(control::PIN_BASED, pin::PREEMPTION_TIMER),
        "the preemption timer is saved and not used",
    );
    c.rule(
        !c.has(control::ENTRY_CONTROLS, entry::TO_SMM | entry::LEAVES_DUAL_MONITOR),
        "an entry control is for entries from SMM",
    );
    c.rule(
        c.has(control::ENTRY_CONTROLS, entry::LOAD_PERF_GLOBAL_CTRL)
            == c.has(control::EXIT_CONTROLS, exit::LOAD_PERF_GLOBAL_CTRL),
        "performance counters are switched one way only",
    );
    for (count, list, what) in [
        (control::EXIT_MSR_STORES, control::EXIT_MSR_STORE_LIST, "the list of MSRs to store at exits"),
        (control::EXIT_MSR_LOADS, control::EXIT_MSR_LOAD_LIST, "the list of MSRs to load at exits"),
        (control::ENTRY_MSR_LOADS, control::ENTRY_MSR_LOAD_LIST, "the list of MSRs to load at entries"),
    ] {
        let count = c.get(count);
        if count != 0 {
            let (first, last) = (c.get(list), c.get(list).wrapping_add(count * 16 - 1));
            let fits = first & 15 == 0 && c.is_physical(first) && c.is_physical(last);
            c.rule(fits, &alloc::format!("{what} is not in physical memory, in steps of 16 bytes"));
        }
    }
    injection(c);
}

/// Bits that must be 1, and those that may be.
fn capabilities(c: &mut Check<'_>) {
    const WORDS: [(u32, &str); 5] = [
        (control::PIN_BASED, "the processor does not accept the pin-based controls"),
        (control::PROCESSOR_BASED, "the processor does not accept the primary processor-based controls"),
        (control::EXIT_CONTROLS, "the processor does not accept the exit controls"),
        (control::ENTRY_CONTROLS, "the processor does not accept the entry controls"),
        (control::SECONDARY, "the processor does not accept the secondary processor-based controls"),
    ];
    for ((field, what), capability) in WORDS.into_iter().zip(c.facts.words) {
        if field == control::SECONDARY && !c.has(control::PROCESSOR_BASED, processor::SECONDARY) {
            continue;
        }
        let (must, may) = (capability & 0xffff_ffff, capability >> 32);
        let value = c.get(field);
        c.rule(value & must == must && value & !may == 0, what);
    }
}

/// 26.2.1.1.
fn execution(c: &mut Check<'_>) {
    let primary = |c: &Check<'_>, bit| c.has(control::PROCESSOR_BASED, bit);
    c.rule(c.get(control::CR3_TARGETS) <= 4, "there are more than four CR3-target values");
    if primary(c, processor::IO_BITMAPS) {
        let both = [control::IO_BITMAP_A, control::IO_BITMAP_B].map(|field| c.get(field));
        c.rule(both.iter().all(|&at| c.is_page(at)), "an I/O bitmap is not at a physical page");
    }
    if primary(c, processor::MSR_BITMAPS) {
        c.rule(c.is_page(c.get(control::MSR_BITMAP)), "the MSR bitmap is not at a physical page");
    }
    if primary(c, processor::TPR_SHADOW) {
        c.rule(c.is_page(c.get(control::VIRTUAL_APIC)), "the virtual APIC is not at a physical page");
        let threshold = c.get(control::TPR_THRESHOLD);
        c.rule(threshold >> 4 == 0, "the TPR threshold has more than four bits");
        c.rule(
            threshold & 15 <= c.facts.task_priority.into(),
            "the TPR threshold is above the task priority",
        );
    }
    let virtual_nmis = c.has(control::PIN_BASED, pin::VIRTUAL_NMI);
    c.rule(!virtual_nmis || c.has(control::PIN_BASED, pin::NMI), "virtual NMIs without exits for NMIs");
    c.rule(virtual_nmis || !primary(c, processor::NMI_WINDOW), "an NMI window without virtual NMIs");
    c.rule(!c.secondary(secondary::VPID) || c.get(control::VPID) != 0, "VPID 0 is the host's");
}

/// 26.2.1.1, the EPT pointer and what needs EPT.
fn ept(c: &mut Check<'_>) {
    if !c.secondary(secondary::EPT) {
        return c.rule(!c.secondary(secondary::UNRESTRICTED), "an unrestricted guest without EPT");
    }
    let pointer = c.get(control::EPT_POINTER);
    c.rule(matches!(pointer & 7, 0 | 6), "the EPT pointer has a memory type that is neither UC nor WB");
    c.rule(pointer >> 3 & 7 == 3, "the EPT pointer does not stand for a walk of four levels");
    c.rule(
        pointer & 1 << 6 == 0 || c.facts.features.ept_accessed_dirty,
        "the EPT pointer asks for accessed and dirty bits, which the processor has not",
    );
    c.rule(pointer & 0xf80 == 0 && c.is_physical(pointer), "the EPT pointer has reserved bits");
}

/// 26.2.1.3: the event that the entry delivers.
fn injection(c: &mut Check<'_>) {
    let word = c.get(control::ENTRY_INTERRUPTION) as u32;
    if word & event::VALID == 0 {
        return;
    }
    let (kind, vector) = (word >> 8 & 7, word & event::VECTOR);
    const MONITOR_TRAP: u64 = 1 << 27;
    let has_trap = c.facts.words[1] >> 32 & MONITOR_TRAP != 0;
    c.rule(kind != 1 && (kind != 7 || has_trap), "the event has a reserved type");
    c.rule(kind != 7 || vector == 0, "the event of type 7 has a vector");
    c.rule(kind != 2 || vector == 2, "an NMI has another vector than 2");
    c.rule(kind != 3 || vector < 32, "an exception has a vector above 31");
    let protected = !c.secondary(secondary::UNRESTRICTED) || c.get(guest::CR0) & cr0::PE != 0;
    let may = kind == 3 && protected;
    let must = may && matches!(vector, 8 | 10..=14 | 17);
    let pushes = word & event::ERROR_VALID != 0;
    let fits = if c.facts.free_error_codes { may || !pushes } else { pushes == must };
    c.rule(fits, "the event has an error code where there is none, or none where there is one");
    c.rule(word & 0x7fff_f000 == 0, "the event's word has reserved bits");
    c.rule(!pushes || c.get(control::ENTRY_ERROR_CODE) >> 16 == 0, "the error code has upper bits");
    let length = c.get(control::ENTRY_INSTRUCTION_LENGTH);
    c.rule(!matches!(kind, 4..=6) || (1..=15).contains(&length), "the event's instruction has no length");
}
