//! The controls of VM execution, exit and entry, and how the processor's capabilities bound them (Intel SDM 3, 24.6 to
//! 24.8 and appendix A).
#![allow(dead_code)] // the manual's names, used or not

use core::fmt;

/// Pin-based controls.
#[allow(missing_docs)]
pub mod pin {
    pub const EXTERNAL_INTERRUPTS: u32 = 1 << 0;
    pub const NMI: u32 = 1 << 3;
    pub const VIRTUAL_NMI: u32 = 1 << 5;
    pub const PREEMPTION_TIMER: u32 = 1 << 6;
}

/// Primary processor-based controls.
#[allow(missing_docs)]
pub mod processor {
    pub const INTERRUPT_WINDOW: u32 = 1 << 2;
    pub const TSC_OFFSET: u32 = 1 << 3;
    pub const HLT: u32 = 1 << 7;
    pub const INVLPG: u32 = 1 << 9;
    pub const MWAIT: u32 = 1 << 10;
    pub const RDPMC: u32 = 1 << 11;
    pub const CR3_LOAD: u32 = 1 << 15;
    pub const CR3_STORE: u32 = 1 << 16;
    pub const CR8_LOAD: u32 = 1 << 19;
    pub const CR8_STORE: u32 = 1 << 20;
    pub const TPR_SHADOW: u32 = 1 << 21;
    pub const NMI_WINDOW: u32 = 1 << 22;
    pub const MOV_DR: u32 = 1 << 23;
    pub const IO_BITMAPS: u32 = 1 << 25;
    pub const MSR_BITMAPS: u32 = 1 << 28;
    pub const MONITOR: u32 = 1 << 29;
    pub const SECONDARY: u32 = 1 << 31;
}

/// Secondary processor-based controls.
#[allow(missing_docs)]
pub mod secondary {
    pub const EPT: u32 = 1 << 1;
    pub const RDTSCP: u32 = 1 << 3;
    pub const VPID: u32 = 1 << 5;
    /// WBNOINVD, too.
    pub const WBINVD: u32 = 1 << 6;
    pub const UNRESTRICTED: u32 = 1 << 7;
    pub const PAUSE_LOOP: u32 = 1 << 10;
    pub const INVPCID: u32 = 1 << 12;
}

/// Exit controls.
#[allow(missing_docs)]
pub mod exit {
    pub const SAVE_DEBUG: u32 = 1 << 2;
    pub const HOST_64BIT: u32 = 1 << 9;
    pub const LOAD_PERF_GLOBAL_CTRL: u32 = 1 << 12;
    pub const SAVE_PAT: u32 = 1 << 18;
    pub const LOAD_PAT: u32 = 1 << 19;
    pub const SAVE_EFER: u32 = 1 << 20;
    pub const LOAD_EFER: u32 = 1 << 21;
    pub const SAVE_TIMER: u32 = 1 << 22;
}

/// Entry controls.
#[allow(missing_docs)]
pub mod entry {
    pub const LOAD_DEBUG: u32 = 1 << 2;
    pub const IA32E_GUEST: u32 = 1 << 9;
    pub const TO_SMM: u32 = 1 << 10;
    pub const LEAVES_DUAL_MONITOR: u32 = 1 << 11;
    pub const LOAD_PERF_GLOBAL_CTRL: u32 = 1 << 13;
    pub const LOAD_PAT: u32 = 1 << 14;
    pub const LOAD_EFER: u32 = 1 << 15;
}

/// Which word of controls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Word {
    /// Pin-based.
    Pin,
    /// Primary processor-based.
    Processor,
    /// Exit.
    Exit,
    /// Entry.
    Entry,
}

/// Controls that are needed and that the processor does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missing {
    /// In which word.
    pub word: Word,
    /// The bits.
    pub bits: u32,
}

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = match self.word {
            Word::Pin => "pin-based",
            Word::Processor => "processor-based",
            Word::Exit => "exit",
            Word::Entry => "entry",
        };
        write!(f, "{word} controls {:#x}", self.bits)
    }
}

/// A word of controls that the processor accepts: the needed bits, the optional ones that it has, and those that it insists
/// on. `capability` is the MSR's value: bits 31:0 must be 1, bits 63:32 may be 1.
pub fn adjust(word: Word, needed: u32, optional: u32, capability: u64) -> Result<u32, Missing> {
    let (fixed, allowed) = (capability as u32, (capability >> 32) as u32);
    match needed & !allowed {
        0 => Ok(needed | optional & allowed | fixed),
        bits => Err(Missing { word, bits }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn says_what_is_missing() {
        let missing = Missing { word: Word::Pin, bits: pin::VIRTUAL_NMI };
        let capability = 0x16 | u64::from(0x16 | pin::NMI) << 32;
        assert_eq!(adjust(Word::Pin, pin::NMI | pin::VIRTUAL_NMI, 0, capability), Err(missing));
        assert_eq!(missing.to_string(), "pin-based controls 0x20");
    }

    proptest! {
        #[test]
        fn stays_within_what_the_processor_accepts(needed: u32, optional: u32, fixed: u32, more: u32) {
            // Whatever must be 1 may be 1.
            let allowed = fixed | more;
            let capability = u64::from(fixed) | u64::from(allowed) << 32;
            match adjust(Word::Exit, needed, optional, capability) {
                Ok(word) => {
                    prop_assert_eq!(word & fixed, fixed);
                    prop_assert_eq!(word & !allowed, 0);
                    prop_assert_eq!(word & needed, needed);
                    prop_assert_eq!(word & !(needed | optional | fixed), 0);
                    prop_assert_eq!(optional & allowed & !word, 0);
                }
                Err(missing) => {
                    prop_assert_ne!(missing.bits, 0);
                    prop_assert_eq!(missing.bits & (allowed | !needed), 0);
                }
            }
        }
    }
}
