//! The word that names an event for delivery, or one whose delivery was interrupted: bits 31:0 are the same with both vendors
//! (AMD APM 2, 15.20 and 15.7.2; Intel SDM 3, 24.8.3 and 24.9.3). AMD has the error code above them, Intel in a field of its own.
#![allow(missing_docs)]

use super::Event;
use crate::arch::task::GateEvent;
use crate::arch::{Exception, vector};

pub const VECTOR: u32 = 0xff;
pub const TYPE: u32 = 7 << 8;
pub const EXTERNAL: u32 = 0 << 8;
pub const NMI: u32 = 2 << 8;
pub const HARDWARE_EXCEPTION: u32 = 3 << 8;
/// A software interrupt.
pub const SOFTWARE: u32 = 4 << 8;
/// INT1, with Intel only.
pub const PRIVILEGED_SOFTWARE: u32 = 5 << 8;
pub const ERROR_VALID: u32 = 1 << 11;
/// Of an exit of VT-x: an IRET has ended the blocking of NMIs.
pub const NMI_UNBLOCKED: u32 = 1 << 12;
pub const VALID: u32 = 1 << 31;

/// The word for an event, and its error code.
pub fn encode(what: Event) -> (u32, Option<u32>) {
    match what {
        Event::Nmi => (VALID | NMI | u32::from(vector::NMI), None),
        Event::Exception(Exception { vector, error, .. }) => {
            let error_valid = if error.is_some() { ERROR_VALID } else { 0 };
            (VALID | HARDWARE_EXCEPTION | error_valid | u32::from(vector), error)
        }
    }
}

/// The event that must be delivered again. External interrupts are offered again by the backends; software interrupts, INT1,
/// INT3 and INTO execute again, because RIP still points at them.
pub fn decode(word: u32, error: impl Fn() -> u32, cr2: u64) -> Option<Event> {
    let number = (word & VECTOR) as u8;
    match word & TYPE {
        NMI => Some(Event::Nmi),
        HARDWARE_EXCEPTION => Some(Event::Exception(Exception {
            vector: number,
            error: (word & ERROR_VALID != 0).then(error),
            cr2: (number == vector::PF).then_some(cr2),
        })),
        _ => None,
    }
}

/// What a task gate must know of the event that this word names.
pub fn of_gate(word: u32, error: Option<u32>) -> GateEvent {
    let number = (word & VECTOR) as u8;
    let kind = word & TYPE;
    // AMD's processors call INT3 and INTO exceptions; Intel's have a type for them, beside those of INT n and INT1.
    let software = match kind {
        EXTERNAL | NMI => false,
        HARDWARE_EXCEPTION => matches!(number, vector::BP | vector::OF),
        _ => true,
    };
    let fault = kind == HARDWARE_EXCEPTION && !software && number != vector::DB;
    GateEvent { software, fault, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_survive_a_round_trip() {
        let pf = Event::Exception(Exception { vector: 14, error: Some(7), cr2: Some(0x1000) });
        assert_eq!(encode(pf), (0x8000_0b0e, Some(7)));
        assert_eq!(decode(0x8000_0b0e, || 7, 0x1000), Some(pf));
        assert_eq!(encode(Event::Nmi), (0x8000_0202, None));
        assert_eq!(decode(0x8000_0202, || panic!("no error code"), 0), Some(Event::Nmi));
        let ud = Event::Exception(Exception::UD);
        assert_eq!(encode(ud), (0x8000_0306, None));
        assert_eq!(decode(0x8000_0306, || panic!("no error code"), 0), Some(ud));
    }

    #[test]
    fn software_and_external_interrupts_are_not_repeated_as_events() {
        for word in [0x8000_0480, 0x8000_0040, 0x8000_0603, 0x8000_0501] {
            assert_eq!(decode(word, || panic!("no error code"), 0), None, "{word:#x}");
        }
    }
}
