//! Arbitrary words for modes, and policies on arbitrary counts.

use super::*;
use crate::arch::counters::CounterEvent;

/// What a period takes: which counters are present, and eight numbers.
const PERIOD: usize = 1 + 8 * 8;

/// What is counted of guests.
pub(super) const OF_GUESTS: [CounterEvent; 5] = [
    CounterEvent::Instructions,
    CounterEvent::Cycles,
    CounterEvent::DtlbMisses,
    CounterEvent::Walks,
    CounterEvent::PageFaults,
];

/// The first line is a mode, as a description or the monitor may have it. If it is one, what follows are periods of samples for its
/// policy.
///
/// # Panics
/// If a mode does not come back from how it is shown, or if a policy asks for an engine or an event that its mode does not have.
pub fn fuzz_one(data: &[u8]) {
    let line = data.split(|byte| *byte == b'\n').next().unwrap_or_default();
    let Some(mode) = core::str::from_utf8(line).ok().and_then(|word| word.parse::<Mode>().ok()) else {
        return;
    };
    assert_eq!(alloc::format!("{mode}").parse(), Ok(mode));
    let mut policy = Policy::new(mode);
    let mut sample = Sample::default();
    sample.engine = check(mode, policy.on(Event::Start, &sample));
    let rest = data.get(line.len() + 1..).unwrap_or_default();
    for bytes in rest.chunks_exact(PERIOD) {
        sample.period = Some(period(bytes));
        sample.engine = check(mode, policy.on(Event::Period, &sample));
    }
}

/// The engine of a decision that is as it must be.
fn check(mode: Mode, decision: Decision) -> Engine {
    assert!(engines_of(mode).contains(decision.engine), "{mode}");
    assert_eq!(decision.next == Next::Period, mode.needs_samples(), "{mode}");
    decision.engine
}

fn period(bytes: &[u8]) -> Period {
    let number = |n: usize| {
        let part = bytes.get(1 + 8 * n..).and_then(|rest| rest.first_chunk());
        u64::from_le_bytes(part.copied().unwrap_or_default())
    };
    let (mut guest, mut host) = (Counts::ABSENT, Counts::ABSENT);
    for (n, event) in OF_GUESTS.into_iter().enumerate().filter(|(n, _)| bytes[0] >> n & 1 != 0) {
        guest.set(event, number(n));
    }
    host.set(CounterEvent::Cycles, u64::from(bytes[0]));
    let [nanos, exits, guest_faults] = [5, 6, 7].map(number);
    Period { nanos, exits, paging_exits: exits, guest_faults, guest, host }
}
