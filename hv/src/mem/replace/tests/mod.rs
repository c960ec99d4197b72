//! Each policy against a naive model written apart from it, on random traces; what must hold of all; small answers by hand.

mod adaptive;
mod hand;
mod models;
mod seq;
mod steps;

use std::collections::BTreeMap;
use std::vec::Vec;

use proptest::prelude::*;

use super::{
    AccessBits, Object, Page, Placement, Policy, Slot,
    apr::{Apr, Parameters},
    clock::Clock,
    clock_pro::ClockPro,
    lru::Lru,
    s3_fifo::S3Fifo,
    seq::Seq,
    sieve::Sieve,
};

/// A page, its object, and accesses in a row.
type Reference = (u64, u32, u32);

/// What a reference did: `None` for a hit, else what was evicted.
type Outcome = Option<Option<u64>>;

/// A policy in the plainest words.
trait Model {
    fn access(&mut self, reference: Reference) -> Outcome;
    /// See [`Policy::evict`].
    fn evict(&mut self) -> u64;
    /// See [`Policy::remove`].
    fn remove(&mut self, page: u64);
    /// See [`Policy::limit`].
    fn limit(&mut self, frames: usize);
}

#[derive(Default)]
struct Bits(Vec<bool>);

impl AccessBits for Bits {
    fn take(&mut self, slot: Slot) -> bool {
        core::mem::take(&mut self.0[slot as usize])
    }
}

/// A policy with the memory that it decides about.
struct Memory<P> {
    policy: P,
    bits: Bits,
    slots: Vec<Option<u64>>,
    /// Pages that may be resident without an eviction.
    limit: usize,
}

impl<P: Policy> Memory<P> {
    fn new(policy: P, frames: u32) -> Self {
        let frames = frames as usize;
        Memory { policy, bits: Bits(vec![false; frames]), slots: vec![None; frames], limit: frames }
    }

    fn access(&mut self, (page, object, times): Reference) -> Outcome {
        let resident = self.slots.iter().position(|slot| *slot == Some(page));
        let (slot, outcome, hits) = match resident {
            Some(slot) => (slot, None, times),
            None => {
                let Placement { slot, evicts } =
                    self.policy.fault(Page(page), Object(object), &mut self.bits);
                let slot = slot as usize;
                assert_eq!(evicts, self.slots[slot].is_some(), "a slot is free until it is used");
                assert_eq!(evicts, self.resident().count() >= self.limit, "only for want of room");
                self.bits.0[slot] = false;
                (slot, Some(self.slots[slot].replace(page)), times - 1)
            }
        };
        if hits > 0 {
            self.bits.0[slot] = true;
            self.policy.touch(slot as u32, hits);
        }
        assert!(self.policy.ghosts() <= self.slots.len());
        outcome
    }

    fn resident(&self) -> impl Iterator<Item = u64> + '_ {
        self.slots.iter().flatten().copied()
    }

    fn evict(&mut self) -> u64 {
        let slot = self.policy.evict(&mut self.bits);
        self.bits.0[slot as usize] = false;
        self.slots[slot as usize].take().unwrap()
    }

    fn remove(&mut self, page: u64) {
        let slot = self.slots.iter().position(|slot| *slot == Some(page)).unwrap();
        self.policy.remove(slot as u32);
        self.bits.0[slot] = false;
        self.slots[slot] = None;
    }

    fn faults(&mut self, trace: &[Reference]) -> usize {
        trace.iter().filter(|reference| self.access(**reference).is_some()).count()
    }
}

/// The policy does what the model does. With a `seed` that is not 0 pages are also evicted and removed without a fault, and the number of
/// frames changes.
fn agree(policy: impl Policy, mut model: impl Model, frames: u32, trace: &[Reference], seed: u64) {
    let mut memory = Memory::new(policy, frames);
    let mut state = seed;
    let mut draw = |below: u64| {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (state >> 33) % below
    };
    for (at, reference) in trace.iter().enumerate() {
        assert_eq!(memory.access(*reference), model.access(*reference), "reference {at}, {reference:?}");
        let resident = memory.resident().count() as u64;
        if seed == 0 || resident == 0 || draw(8) > 0 {
            continue;
        }
        match draw(3) {
            0 => {
                let page = memory.resident().nth(draw(resident) as usize).unwrap();
                memory.remove(page);
                model.remove(page);
            }
            1 => assert_eq!(memory.evict(), model.evict(), "after {at}"),
            _ => {
                memory.limit = 1 + draw(u64::from(frames)) as usize;
                memory.policy.limit(memory.limit as u32);
                model.limit(memory.limit);
            }
        }
    }
}

/// A seed for [`agree`].
fn seeds() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), any::<u64>()]
}

/// Loops, runs, hot sets and noise, one after the other, on few pages; pages belong to objects by ranges.
fn traces() -> impl Strategy<Value = Vec<Reference>> {
    let piece = (0u64..60, 1u64..60, 0u8..5, 1usize..90);
    proptest::collection::vec((piece, any::<u64>()), 1..12).prop_map(|pieces| {
        let mut trace = Vec::new();
        for ((begin, length, kind, count), seed) in pieces {
            let mut random = seed | 1;
            for n in 0..count as u64 {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
                let drawn = random >> 33;
                let page = match kind {
                    0 => begin + n % length,
                    1 => begin + length - n % length,
                    2 => begin + (drawn % length).min(drawn / 64 % length),
                    3 if n % 2 == 0 => begin + n / 2 % length,
                    _ => drawn % 70,
                };
                let times = if seed & 2 == 0 { 1 + (drawn >> 20) as u32 % 3 } else { 1 };
                trace.push((page, (page / 25) as u32, times));
            }
        }
        trace
    })
}

/// Faults of OPT: the resident page goes whose next use is the latest.
fn opt_faults(trace: &[Reference], frames: usize) -> usize {
    let mut resident: Vec<u64> = Vec::new();
    let mut faults = 0;
    for (at, (page, ..)) in trace.iter().enumerate() {
        if resident.contains(page) {
            continue;
        }
        faults += 1;
        if resident.len() == frames {
            let next =
                |page: &u64| trace[at..].iter().position(|(other, ..)| other == page).unwrap_or(usize::MAX);
            let latest = (0..frames).max_by_key(|slot| next(&resident[*slot])).unwrap();
            resident.swap_remove(latest);
        }
        resident.push(*page);
    }
    faults
}

/// Faults of each policy, by its name.
fn all_faults(trace: &[Reference], frames: u32) -> BTreeMap<&'static str, usize> {
    BTreeMap::from([
        ("clock", Memory::new(Clock::new(frames).unwrap(), frames).faults(trace)),
        ("clock-pro", Memory::new(ClockPro::new(frames).unwrap(), frames).faults(trace)),
        ("seq", Memory::new(Seq::new(frames).unwrap(), frames).faults(trace)),
        ("apr", Memory::new(Apr::new(frames, Parameters::default()).unwrap(), frames).faults(trace)),
        ("lru", Memory::new(Lru::new(frames).unwrap(), frames).faults(trace)),
        ("s3-fifo", Memory::new(S3Fifo::new(frames).unwrap(), frames).faults(trace)),
        ("sieve", Memory::new(Sieve::new(frames).unwrap(), frames).faults(trace)),
    ])
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn none_is_better_than_opt(trace in traces(), frames in 1u32..50) {
        let opt = opt_faults(&trace, frames as usize);
        for (name, faults) in all_faults(&trace, frames) {
            prop_assert!(faults >= opt, "{name}: {faults} faults, opt {opt}");
        }
    }

    #[test]
    fn clock_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(Clock::new(frames).unwrap(), models::Clock::new(frames), frames, &trace, seed);
    }

    #[test]
    fn lru_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(Lru::new(frames).unwrap(), models::Lru::new(frames), frames, &trace, seed);
    }

    #[test]
    fn sieve_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(Sieve::new(frames).unwrap(), models::Sieve::new(frames), frames, &trace, seed);
    }

    #[test]
    fn s3_fifo_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(S3Fifo::new(frames).unwrap(), models::S3Fifo::new(frames), frames, &trace, seed);
    }

    #[test]
    fn seq_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(Seq::new(frames).unwrap(), seq::Seq::new(frames), frames, &trace, seed);
    }

    #[test]
    fn clock_pro_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        agree(ClockPro::new(frames).unwrap(), adaptive::ClockPro::new(frames), frames, &trace, seed);
    }

    #[test]
    fn apr_is_its_model(trace in traces(), frames in 1u32..50, seed in seeds()) {
        // The third object has no place in the table, and shares that of 0.
        let parameters = Parameters { objects: 2, ..Parameters::default() };
        agree(Apr::new(frames, parameters).unwrap(), adaptive::Apr::new(frames, 2), frames, &trace, seed);
    }

    /// Access bits that are set all the time, as by guests that run meanwhile, delay no decision.
    #[test]
    fn ends_whatever_bits_say(trace in traces(), frames in 1u32..20) {
        struct Always;
        impl AccessBits for Always {
            fn take(&mut self, _slot: Slot) -> bool {
                true
            }
        }
        fn all(mut policy: impl Policy, trace: &[Reference], frames: u32) {
            for (page, object, _) in trace {
                assert!(policy.fault(Page(*page), Object(*object), &mut Always).slot < frames);
                assert!(policy.ghosts() <= frames as usize);
            }
        }
        // Each page is faulted on once, as a page that is resident is not.
        let mut seen = std::collections::BTreeSet::new();
        let trace: Vec<_> = trace.into_iter().filter(|(page, ..)| seen.insert(*page)).collect();
        all(Clock::new(frames).unwrap(), &trace, frames);
        all(ClockPro::new(frames).unwrap(), &trace, frames);
        all(Seq::new(frames).unwrap(), &trace, frames);
        all(Apr::new(frames, Parameters::default()).unwrap(), &trace, frames);
        all(Sieve::new(frames).unwrap(), &trace, frames);
    }
}
