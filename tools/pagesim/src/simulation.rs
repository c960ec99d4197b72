//! Memories of several sizes under several policies, all driven by one reading of a trace.

use std::str::FromStr;

use crate::{
    memory::{Counts, Frames, Memory},
    opt::{Future, Opt},
    replace::{
        MOST_FRAMES,
        apr::{Apr, Parameters},
        clock::Clock,
        clock_pro::ClockPro,
        lru::Lru,
        s3_fifo::S3Fifo,
        seq::Seq,
        sieve::Sieve,
    },
    trace::{Batch, Source, TraceError, Universe},
};

/// The policies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// OPT, which knows the future.
    Opt,
    /// CLOCK.
    Clock,
    /// CLOCK-Pro.
    ClockPro,
    /// SEQ.
    Seq,
    /// APR.
    Apr,
    /// LRU.
    Lru,
    /// S3-FIFO.
    S3Fifo,
    /// SIEVE.
    Sieve,
}

/// All of them, with their names.
pub const KINDS: [(Kind, &str); 8] = [
    (Kind::Opt, "opt"),
    (Kind::Clock, "clock"),
    (Kind::ClockPro, "clock-pro"),
    (Kind::Seq, "seq"),
    (Kind::Apr, "apr"),
    (Kind::Lru, "lru"),
    (Kind::S3Fifo, "s3-fifo"),
    (Kind::Sieve, "sieve"),
];

impl Kind {
    /// Its name on command lines.
    pub fn name(self) -> &'static str {
        KINDS.iter().find(|(kind, _)| *kind == self).map_or("", |(_, name)| name)
    }
}

/// A policy with its parameters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Choice {
    /// The policy.
    pub kind: Kind,
    /// Those of APR.
    pub apr: Parameters,
}

impl Choice {
    /// With the usual parameters.
    pub fn new(kind: Kind) -> Choice {
        Choice { kind, apr: Parameters { objects: 1 << 16, ..Parameters::default() } }
    }

    /// As it is written on command lines.
    pub fn name(&self) -> String {
        let name = self.kind.name();
        if self.kind != Kind::Apr || self.apr.decay_milli == Parameters::default().decay_milli {
            return name.into();
        }
        format!("{name}:decay={}", f64::from(self.apr.decay_milli) / 1000.0)
    }
}

impl FromStr for Choice {
    type Err = String;

    /// A name, and for APR `:decay=D`.
    fn from_str(text: &str) -> Result<Choice, String> {
        let (name, parameter) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let Some((kind, _)) = KINDS.iter().find(|(_, known)| *known == name) else {
            let names: Vec<_> = KINDS.iter().map(|(_, name)| *name).collect();
            return Err(format!("no policy {name}; there are {}", names.join(", ")));
        };
        let mut choice = Choice::new(*kind);
        if let Some(parameter) = parameter {
            let decay = parameter.strip_prefix("decay=").filter(|_| *kind == Kind::Apr);
            let decay =
                decay.and_then(|decay| decay.parse::<f64>().ok()).filter(|decay| (0.0..1.0).contains(decay));
            let decay = decay.ok_or_else(|| {
                format!("{text}: apr:decay=D with D from 0 to below 1 is the only parameter")
            })?;
            choice.apr.decay_milli = (decay * 1000.0).round().min(999.0) as u32;
        }
        Ok(choice)
    }
}

/// A policy on a memory, and what came out.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The policy.
    pub choice: Choice,
    /// Frames.
    pub frames: u32,
    /// What was counted.
    pub counts: Counts,
    /// Bytes of the policy's tables.
    pub policy_bytes: usize,
}

/// What a trace consists of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct About {
    /// References.
    pub references: u64,
    /// Runs, as they lie in the trace: patterns once.
    pub runs: u64,
    /// Pages.
    pub pages: u64,
    /// Objects.
    pub objects: u32,
}

/// Reads a trace and counts.
///
/// # Errors
/// The trace's.
pub fn about(source: &mut dyn Source) -> Result<About, TraceError> {
    let (mut universe, mut batch, mut about) = (Universe::default(), Batch::default(), About::default());
    loop {
        batch.clear();
        source.fill(&mut batch, &mut universe)?;
        if batch.steps.is_empty() {
            about.pages = universe.pages.len() as u64;
            about.objects = universe.object_count();
            return Ok(about);
        }
        about.references = about.references.saturating_add(batch.references());
        about.runs += batch.runs.len() as u64;
    }
}

/// Memory of this machine, as everywhere else.
const MEMORY: &str = "memory for a policy's tables";

fn memory<'a>(choice: &Choice, frames: u32, future: &'a Future) -> Box<dyn Memory + 'a> {
    match choice.kind {
        Kind::Opt => Box::new(Opt::new(future, frames)),
        Kind::Clock => Box::new(Frames::new(Clock::new(frames).expect(MEMORY), frames)),
        Kind::ClockPro => Box::new(Frames::new(ClockPro::new(frames).expect(MEMORY), frames)),
        Kind::Seq => Box::new(Frames::new(Seq::new(frames).expect(MEMORY), frames)),
        Kind::Apr => Box::new(Frames::new(Apr::new(frames, choice.apr).expect(MEMORY), frames)),
        Kind::Lru => Box::new(Frames::new(Lru::new(frames).expect(MEMORY), frames)),
        Kind::S3Fifo => Box::new(Frames::new(S3Fifo::new(frames).expect(MEMORY), frames)),
        Kind::Sieve => Box::new(Frames::new(Sieve::new(frames).expect(MEMORY), frames)),
    }
}

/// Each policy on each memory, in this order. With OPT the trace is read into memory; without it, it streams.
///
/// # Errors
/// The trace's.
pub fn simulate(
    source: &mut dyn Source,
    choices: &[Choice],
    frames: &[u32],
) -> Result<Vec<Outcome>, TraceError> {
    let needs_future = |choice: &&Choice| choice.kind == Kind::Opt;
    let (mut universe, mut batch) = (Universe::default(), Batch::default());
    let mut kept = Vec::new();
    let mut future = Future::default();
    if choices.iter().any(|choice| needs_future(&choice)) {
        loop {
            let mut batch = Batch::default();
            source.fill(&mut batch, &mut universe)?;
            if batch.steps.is_empty() {
                break;
            }
            kept.push(batch);
        }
        future = Future::of(&kept, &universe);
    }
    let each = choices
        .iter()
        .flat_map(|choice| frames.iter().map(move |frames| (choice, (*frames).clamp(1, MOST_FRAMES))));
    let mut all: Vec<_> =
        each.map(|(choice, frames)| (choice, frames, memory(choice, frames, &future))).collect();
    if kept.is_empty() {
        loop {
            batch.clear();
            source.fill(&mut batch, &mut universe)?;
            if batch.steps.is_empty() {
                break;
            }
            all.iter_mut().for_each(|(.., memory)| memory.pass(&batch, &universe));
        }
    } else {
        for batch in &kept {
            all.iter_mut().for_each(|(.., memory)| memory.pass(batch, &universe));
        }
    }
    let outcome = |(choice, frames, memory): (&Choice, u32, Box<dyn Memory + '_>)| Outcome {
        choice: *choice,
        frames,
        counts: memory.counts(),
        policy_bytes: memory.policy_bytes(),
    };
    Ok(all.into_iter().map(outcome).collect())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::trace::{Run, Step};

    /// Pieces with patterns, as a source.
    struct Pieces(Vec<Batch>, usize, u64);

    impl Source for Pieces {
        fn fill(&mut self, batch: &mut Batch, universe: &mut Universe) -> Result<(), TraceError> {
            for page in 0..self.2 {
                universe.row(page)?;
            }
            if let Some(piece) = self.0.get(self.1) {
                batch.clone_from(piece);
                self.1 += 1;
            }
            Ok(())
        }
    }

    const PAGES: u64 = 30;

    fn pieces() -> impl Strategy<Value = Vec<Batch>> {
        let run = (0..PAGES as u32, 1u32..4).prop_map(|(page, count)| Run { page, count });
        let step = (proptest::collection::vec(run, 1..6), 1u32..6);
        let piece = proptest::collection::vec(step, 1..20).prop_map(|steps| {
            let mut batch = Batch::default();
            for (runs, times) in steps {
                let (begin, len) = (batch.runs.len() as u32, runs.len() as u32);
                batch.runs.extend(runs);
                batch.steps.push(Step { begin, len, times });
            }
            batch
        });
        proptest::collection::vec(piece, 1..4)
    }

    /// The same references, each a run of its own.
    fn flat(pieces: &[Batch]) -> Vec<Batch> {
        let mut flat = Batch::default();
        for batch in pieces {
            for step in &batch.steps {
                (0..step.times).flat_map(|_| batch.of(step)).for_each(|run| flat.push(*run));
            }
        }
        vec![flat]
    }

    fn all(pieces: Vec<Batch>, frames: &[u32]) -> Vec<Outcome> {
        let choices = KINDS.map(|(kind, _)| Choice::new(kind));
        simulate(&mut Pieces(pieces, 0, PAGES), &choices, frames).unwrap()
    }

    proptest! {
        /// Patterns are a shorter way to say the same.
        #[test]
        fn patterns_change_nothing(pieces in pieces(), frames in 1u32..30) {
            let (short, long) = (all(pieces.clone(), &[frames]), all(flat(&pieces), &[frames]));
            for (short, long) in short.iter().zip(&long) {
                prop_assert_eq!(short.counts, long.counts, "{}", short.choice.name());
                prop_assert!(short.counts.ghosts <= frames as usize);
            }
        }

        #[test]
        fn opt_is_the_least_and_right(pieces in pieces(), frames in 1u32..30) {
            let outcomes = all(pieces.clone(), &[frames]);
            let opt = outcomes[0].counts.faults;
            for outcome in &outcomes {
                prop_assert!(outcome.counts.faults >= opt, "{} {opt}", outcome.choice.name());
            }
            // By searching ahead at each fault.
            let flat = &flat(&pieces)[0].runs;
            let (mut resident, mut faults) = (Vec::new(), 0);
            for (at, run) in flat.iter().enumerate() {
                if resident.contains(&run.page) {
                    continue;
                }
                faults += 1;
                if resident.len() == frames as usize {
                    let next = |page: &u32| flat[at..].iter().position(|run| run.page == *page).unwrap_or(usize::MAX);
                    let latest = (0..resident.len()).max_by_key(|slot| next(&resident[*slot])).unwrap();
                    resident.swap_remove(latest);
                }
                resident.push(run.page);
            }
            prop_assert_eq!(opt, faults);
        }
    }

    #[test]
    fn names_are_read_and_written() {
        for (kind, name) in KINDS {
            assert_eq!(name.parse::<Choice>().unwrap(), Choice::new(kind));
            assert_eq!(Choice::new(kind).name(), name);
        }
        let choice: Choice = "apr:decay=0.3".parse().unwrap();
        assert_eq!((choice.apr.decay_milli, choice.name().as_str()), (300, "apr:decay=0.3"));
        for wrong in ["fifo", "apr:decay=1", "apr:decay=x", "clock:decay=0.5", "apr:"] {
            let why = wrong.parse::<Choice>().unwrap_err();
            assert!(why.contains("there are opt, clock") || why.contains("apr:decay=D"), "{why}");
        }
    }

    #[test]
    fn refault_distances_are_counted() {
        let runs = [0, 1, 2, 0, 1, 2].map(|page| Run { page, count: 1 });
        let mut batch = Batch::default();
        runs.iter().for_each(|run| batch.push(*run));
        let outcome = &simulate(&mut Pieces(vec![batch], 0, 3), &[Choice::new(Kind::Lru)], &[2]).unwrap()[0];
        // 0 goes at the 3rd reference and comes at the 4th, and so on.
        let counts =
            Counts { references: 6, faults: 6, evictions: 4, refaults: 3, refault_distance: 3, ghosts: 0 };
        assert_eq!(outcome.counts, counts);
    }
}
