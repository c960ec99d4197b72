//! What the hypervisor's policies decide on given counts: their own code (`hv/src/paging/policy`), compiled for this machine.
//!
//! `cargo pal evaluate` and the trainer's tests run it (`tools/train/palimpsest_train/replay.py`). Counts are lines of numbers on
//! standard input; each decision is a word on a line of standard output.
//!
//! - `policy-replay replay POLICY`: a line for each period of samples, `nanoseconds instructions guest-cycles host-cycles
//!   TLB-misses page-faults counted`; `nested` or `shadow`, which is wanted at the start and after each period. `counted` is 1 if
//!   the guest counts its page faults itself; if not, a policy in nested mode gets none, as on a machine. With 2 nothing but
//!   instructions is counted.
//! - `policy-replay decide POLICY`: a line for each interval of a linear model, `page-faults TLB-misses`; `nested`, `shadow`, or
//!   `stay` within its margin.

use std::{
    env,
    io::{self, BufRead, BufWriter, Write},
    process::ExitCode,
};

use abi::{mode::Mode, policy::DspOffset};
use hv::{
    arch::counters::{CounterEvent, Counts},
    paging::{
        engine::Engine,
        policy::{Event, Period, Policy, Sample, decide},
    },
};

fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    let output = &mut BufWriter::new(io::stdout().lock());
    let result = match &words[..] {
        [what, policy] if what == "replay" => parse(policy).and_then(|mode| replay(mode, output)),
        [what, policy] if what == "decide" => {
            parse(policy).and_then(linear).and_then(|model| decisions(&model, output))
        }
        _ => Err("policy-replay replay|decide POLICY < COUNTS".into()),
    };
    match result.and_then(|()| output.flush().map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn parse(policy: &str) -> Result<Mode, String> {
    policy.parse().map_err(|error| format!("{policy}: {error}"))
}

fn linear(mode: Mode) -> Result<DspOffset, String> {
    match mode {
        Mode::DspOffset(model) => Ok(model),
        Mode::AspSvm(model) => Ok(model.into()),
        _ => Err(format!("{mode} is no linear model: take dsp-offset or asp-svm")),
    }
}

/// Calls `each` with the numbers of each line.
fn lines<const N: usize>(mut each: impl FnMut([u64; N]) -> io::Result<()>) -> Result<(), String> {
    for (number, line) in io::stdin().lock().lines().enumerate() {
        let line = line.map_err(|error| error.to_string())?;
        let numbers: Option<Vec<u64>> = line.split_whitespace().map(|word| word.parse().ok()).collect();
        let numbers = numbers.and_then(|numbers| <[u64; N]>::try_from(numbers).ok());
        let numbers = numbers.ok_or_else(|| format!("line {}: {N} numbers are due", number + 1))?;
        each(numbers).map_err(|error| error.to_string())?;
    }
    Ok(())
}

fn replay(mode: Mode, output: &mut impl Write) -> Result<(), String> {
    let mut policy = Policy::new(mode);
    let mut sample = Sample::default();
    sample.engine = policy.on(Event::Start, &sample).engine;
    writeln!(output, "{}", sample.engine.name()).map_err(|error| error.to_string())?;
    lines(|[nanos, instructions, cycles, host_cycles, misses, faults, counted]| {
        let (mut guest, mut host) = (Counts::ABSENT, Counts::ABSENT);
        guest.set(CounterEvent::Instructions, instructions);
        if counted < 2 {
            guest.set(CounterEvent::Cycles, cycles);
            guest.set(CounterEvent::DtlbMisses, misses);
            host.set(CounterEvent::Cycles, host_cycles);
        }
        if counted == 1 {
            guest.set(CounterEvent::PageFaults, faults);
        }
        let guest_faults = if sample.engine == Engine::Shadow { faults } else { 0 };
        // Of exits only the guest's page faults are known; no policy that is judged from a log looks at others.
        sample.period = Some(Period {
            nanos,
            exits: guest_faults,
            paging_exits: guest_faults,
            guest_faults,
            guest,
            host,
        });
        sample.engine = policy.on(Event::Period, &sample).engine;
        writeln!(output, "{}", sample.engine.name())
    })
}

fn decisions(model: &DspOffset, output: &mut impl Write) -> Result<(), String> {
    lines(|[faults, misses]| {
        writeln!(output, "{}", decide(model, faults, misses).map_or("stay", Engine::name))
    })
}
