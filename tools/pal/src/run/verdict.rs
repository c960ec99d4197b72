//! From what was observed to the exit status and a sentence for the person. Pure, so that every way a run can end is
//! tested without running anything.

use super::{
    machine::Emulator,
    qmp::Processor,
    telemetry::{End, EndReason, ResetBy},
};
use crate::status::exit;

/// Why pal stopped a machine that was still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `Ctrl-a x`.
    Quit,
    /// The time limit, in seconds.
    Timeout(u64),
    /// Another shell, by `pal stop`.
    Asked,
    /// A signal to pal.
    Signal(i32),
    /// The reader of standard output is gone.
    StdoutClosed,
    /// The guest restarted during `--exec`, or by a triple fault.
    Restart,
}

/// How many processors a message names.
const SHOWN: usize = 8;

/// Everything that was seen during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// What emulates the machine.
    pub emulator: Emulator,
    /// The guests, in the order of the configuration.
    pub guests: Vec<Guest>,
    /// They ran on the hypervisor, not alone.
    pub hypervisor: bool,
    /// The guest has a test device.
    pub test_device: bool,
    /// The emulator completed the machine and started it.
    pub started: bool,
    /// The hypervisor's record of an end that is no guest's.
    pub end: Option<End>,
    /// The hypervisor's panic.
    pub panic: Option<String>,
    /// The hypervisor refuses the machine.
    pub unsuitable: Option<String>,
    /// Pal stopped the machine.
    pub stop: Option<Stop>,
    /// The emulator's reason for a shutdown.
    pub shutdown: Option<String>,
    /// The machine's registers at a triple fault of its own (not of a guest of the hypervisor).
    pub triple_fault: Option<String>,
    /// The emulator's exit code, if it ended by itself and not by a signal.
    pub code: Option<i32>,
    /// What the emulator wrote to its standard error.
    pub complaints: String,
    /// Where the machine's processors were when its time was over.
    pub processors: Vec<Processor>,
}

/// What was seen of a guest.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Guest {
    /// Its name.
    pub name: String,
    /// It runs one command (`--exec`).
    pub exec: bool,
    /// The command's status, from the end mark.
    pub command_status: Option<u8>,
    /// The hypervisor's record of its end.
    pub end: Option<End>,
    /// Its Linux kernel panicked, for this reason.
    pub kernel_panic: Option<String>,
}

impl Guest {
    /// It boots from the beginning: what was seen of its end and of its command does not count any more.
    pub fn begin_again(&mut self) {
        (self.end, self.command_status) = (None, None);
    }

    /// It was restarted. True if that ends the run: its command has to run once, and no person at the monitor has asked for another
    /// time.
    pub fn reset(&mut self, by: Option<ResetBy>) -> bool {
        if self.exec && by != Some(ResetBy::Monitor) {
            self.end = Some(End::reset(self.name.clone()));
            return true;
        }
        self.begin_again();
        false
    }
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// Exit status.
    pub status: u8,
    /// What to say, if anything.
    pub message: Option<String>,
    /// The console's last lines belong to the explanation.
    pub show_tail: bool,
    /// The guest that decided, by number.
    pub guest: Option<usize>,
}

impl Verdict {
    fn silent(status: u8) -> Self {
        Self { status, message: None, show_tail: false, guest: None }
    }

    fn died(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()), show_tail: true, guest: None }
    }

    fn refused(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()), show_tail: false, guest: None }
    }
}

/// Judges a run.
pub fn judge(seen: &Observed) -> Verdict {
    if let Some(detail) = &seen.unsuitable {
        return Verdict::refused(
            exit::UNSUITABLE,
            format!("this machine cannot run the hypervisor: {detail}"),
        );
    }
    if let Some(message) = &seen.panic {
        return Verdict::died(exit::HYPERVISOR_DIED, format!("the hypervisor panicked: {message}"));
    }
    if let Some(end) = &seen.end {
        return ended(&Guest::default(), end);
    }
    if !seen.guests.is_empty() && seen.guests.iter().all(|guest| guest.end.is_some()) {
        return worst(seen).unwrap_or(Verdict::silent(0));
    }
    match seen.stop {
        Some(Stop::Quit) => return Verdict::silent(0),
        Some(Stop::Asked) => return asked(seen),
        Some(Stop::Timeout(seconds)) => {
            let mut message = format!("no end{} after {seconds} s (see --timeout)", of_guests(seen));
            for (number, processor) in seen.processors.iter().take(SHOWN).enumerate() {
                let comma = if number == 0 { "; its processors are at " } else { ", " };
                message += &format!("{comma}{processor}");
            }
            return Verdict::died(exit::TIMEOUT, message);
        }
        Some(Stop::Signal(signal)) => {
            return Verdict::silent(
                u8::try_from(signal).map_or(exit::TOOL, |signal| exit::SIGNAL.saturating_add(signal)),
            );
        }
        Some(Stop::StdoutClosed) => return Verdict::silent(exit::STDOUT_CLOSED),
        Some(Stop::Restart) | None => {}
    }
    if !seen.started {
        let what = if seen.complaints.is_empty() { "it said nothing" } else { &seen.complaints };
        return Verdict::refused(
            exit::TOOL,
            format!("{} did not start the machine: {what}", seen.emulator.name()),
        );
    }
    // One that had to run once has started again.
    match worst(seen) {
        Some(verdict) => verdict,
        None if seen.hypervisor => vanished(seen),
        None => native(seen),
    }
}

/// Another shell ended the run: a command that has not ended has no status.
fn asked(seen: &Observed) -> Verdict {
    if seen.guests.iter().any(|guest| guest.exec && guest.end.is_none() && guest.command_status.is_none()) {
        let message = "another shell stopped the run before the command of --exec ended";
        return Verdict::refused(exit::GUEST_DIED, message);
    }
    let status = seen.guests.iter().filter_map(|guest| guest.command_status).find(|&status| status != 0);
    worst(seen).unwrap_or(Verdict::silent(status.unwrap_or(0)))
}

/// What to say and to return for the first guest, in the order of the configuration, that has not ended well.
fn worst(seen: &Observed) -> Option<Verdict> {
    failures(seen).next()
}

/// What to say of the guests that have not ended well, besides the one that decided.
pub fn others(seen: &Observed, verdict: &Verdict) -> Vec<String> {
    let others = failures(seen).filter(|other| other.guest != verdict.guest);
    others.filter_map(|other| other.message).collect()
}

/// Causes outside the hypervisor for an end on a machine whose guests run on `pcpus` processors, the first included, and what to
/// do about them.
pub fn doubt(seen: &Observed, verdict: &Verdict, pcpus: u32) -> Option<&'static str> {
    // A guest may end with the same status.
    let died = verdict.guest.is_none() && verdict.status == exit::HYPERVISOR_DIED;
    let reason = |guest: &Guest| guest.end.as_ref().and_then(|end| end.reason);
    let lost = died || seen.guests.iter().any(|guest| reason(guest) == Some(EndReason::TripleFault));
    (lost && seen.hypervisor && seen.emulator == Emulator::Qemu && pcpus > 1).then_some(
        "on several processors QEMU itself may have gone wrong: keep guests off its first one by --hv-arg first-pcpu=host, \
         or try --pcpus 1 (why: \"The first processor\" in docs/design/0006-emulated-svm.md)",
    )
}

/// The guests that have not ended well, in the order of the configuration.
fn failures(seen: &Observed) -> impl Iterator<Item = Verdict> {
    seen.guests.iter().enumerate().filter_map(|(number, guest)| {
        let mut verdict = ended(guest, guest.end.as_ref()?);
        verdict.guest = Some(number);
        if seen.guests.len() > 1 {
            let name = &guest.name;
            verdict.message = Some(match verdict.message {
                Some(message) => format!("{name}: {message}"),
                None => format!("{name} ended with {}", verdict.status),
            });
        }
        (verdict.status != 0).then_some(verdict)
    })
}

/// Which guests have not ended, where there are several.
fn of_guests(seen: &Observed) -> String {
    if seen.guests.len() < 2 {
        return String::new();
    }
    let names = seen.guests.iter().filter(|guest| guest.end.is_none()).map(|guest| guest.name.as_str());
    format!(" of {}", names.collect::<Vec<_>>().join(", "))
}

/// The hypervisor reported the guest's end.
fn ended(guest: &Guest, end: &End) -> Verdict {
    let with_detail = |text: &str| {
        let separator = if end.detail.is_empty() { "" } else { "\n" };
        format!("{text}{separator}{}", end.detail)
    };
    let died = |how: &str| Verdict::died(exit::GUEST_DIED, with_detail(&format!("the guest died{how}")));
    match end.reason {
        Some(EndReason::PowerOff) => powered_off(guest),
        Some(EndReason::Probe | EndReason::Destroyed) => Verdict::silent(0),
        Some(EndReason::Reset) => restarted(guest),
        // An exit status has eight bits.
        Some(EndReason::TestDevice) => Verdict::silent((end.value & 0xff) as u8),
        Some(EndReason::TripleFault) => died(": triple fault"),
        Some(EndReason::UnknownExit) => died(": unknown exit"),
        Some(EndReason::InvalidState) => died(": the processor refused its state"),
        Some(EndReason::EmulationFailure) => died(": an instruction cannot be emulated"),
        Some(EndReason::HaltedForever) => died(": HLT with interrupts disabled, which nothing can end"),
        Some(EndReason::ShadowDisagreement) => died(": its shadow tables are not what its own tables say"),
        Some(EndReason::OutOfMemory) => died(": the host has no memory left for it"),
        None => died(""),
        Some(EndReason::LoadError) => {
            Verdict::refused(exit::USAGE, with_detail("the guest cannot be loaded:"))
        }
        Some(EndReason::ConfigError) => {
            Verdict::refused(exit::USAGE, with_detail("the hypervisor refuses the configuration:"))
        }
    }
}

fn powered_off(guest: &Guest) -> Verdict {
    match guest.command_status {
        _ if !guest.exec => Verdict::silent(0),
        Some(status) => Verdict::silent(status),
        None => Verdict::died(exit::GUEST_DIED, "the guest powered off before the command of --exec ended"),
    }
}

fn restarted(guest: &Guest) -> Verdict {
    if let Some(reason) = &guest.kernel_panic {
        return Verdict::died(exit::GUEST_DIED, format!("the guest's kernel panicked: {reason}"));
    }
    let when =
        if guest.exec && guest.command_status.is_none() { " before the command of --exec ended" } else { "" };
    Verdict::died(exit::GUEST_DIED, format!("the guest asked for a reset{when}"))
}

/// The hypervisor's machine ended without a record of why.
fn vanished(seen: &Observed) -> Verdict {
    let message = match (&seen.triple_fault, &seen.shutdown) {
        (Some(registers), _) => format!("the hypervisor died: triple fault\n{registers}"),
        (None, Some(reason)) => {
            format!("the hypervisor ended without a word ({}: {reason})", seen.emulator.name())
        }
        (None, None) => format!("the hypervisor ended without a word{}", emulator_end(seen)),
    };
    Verdict::died(exit::HYPERVISOR_DIED, message)
}

/// A guest alone on the machine: QEMU's end is the guest's.
fn native(seen: &Observed) -> Verdict {
    if let Some(registers) = &seen.triple_fault {
        return Verdict::died(exit::GUEST_DIED, format!("the guest died: triple fault\n{registers}"));
    }
    let unseen = Guest::default();
    let guest = seen.guests.first().unwrap_or(&unseen);
    match (seen.shutdown.as_deref(), seen.code) {
        (Some("guest-shutdown"), _) => powered_off(guest),
        (Some("guest-reset"), _) => restarted(guest),
        (None, _) if seen.stop == Some(Stop::Restart) => restarted(guest),
        (Some(reason), _) => Verdict::died(exit::GUEST_DIED, format!("the guest ended: {reason}")),
        // The exit device ends QEMU with twice the value plus 1.
        (None, Some(code)) if seen.test_device && code & 1 == 1 => Verdict::silent((code >> 1) as u8),
        (None, _) => {
            Verdict::died(exit::TOOL, format!("the machine ended unexpectedly{}", emulator_end(seen)))
        }
    }
}

fn emulator_end(seen: &Observed) -> String {
    let code = seen.code.map_or_else(|| " by a signal".to_owned(), |code| format!(" with status {code}"));
    let separator = if seen.complaints.is_empty() { "" } else { "\n" };
    format!("; {} ended{code}{separator}{}", seen.emulator.name(), seen.complaints)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn native_run() -> Observed {
        let guests = vec![Guest { name: "guest".into(), ..Guest::default() }];
        Observed { started: true, code: Some(0), guests, ..Observed::default() }
    }

    fn end(reason: impl Into<Option<EndReason>>) -> Option<End> {
        let reason = reason.into();
        Some(End { vm: "guest".into(), reason, value: 0x1_2a, detail: "RIP=1".into() })
    }

    fn nested_run(reason: impl Into<Option<EndReason>>) -> Observed {
        let mut seen = Observed { hypervisor: true, ..native_run() };
        seen.guests[0].end = end(reason);
        seen
    }

    /// The same with something else about the guest.
    fn with(mut seen: Observed, change: impl FnOnce(&mut Guest)) -> Observed {
        change(&mut seen.guests[0]);
        seen
    }

    fn shutdown(reason: &str) -> Option<String> {
        Some(reason.to_owned())
    }

    #[test]
    fn native_ends() {
        let off = Observed { shutdown: shutdown("guest-shutdown"), ..native_run() };
        assert_eq!(judge(&off), Verdict::silent(0));
        let exec = with(off.clone(), |guest| guest.exec = true);
        assert_eq!(judge(&exec).status, 3);
        assert_eq!(judge(&with(exec, |guest| guest.command_status = Some(42))), Verdict::silent(42));
        let reset = Observed { shutdown: shutdown("guest-reset"), ..native_run() };
        assert_eq!(judge(&reset).status, 3);
        let panic = judge(&with(reset.clone(), |guest| guest.kernel_panic = Some("no init".into())));
        assert!(panic.status == 3 && panic.message.unwrap().contains("no init"));
        let fault = judge(&Observed { triple_fault: Some("EIP=00100000".into()), ..reset });
        assert_eq!((fault.status, fault.show_tail), (3, true));
        assert!(fault.message.unwrap().contains("EIP=00100000"));
        let device = Observed { test_device: true, code: Some(0x55), ..native_run() };
        assert_eq!(judge(&device).status, 0x2a);
        assert_eq!(judge(&Observed { test_device: false, ..device }).status, 1);
    }

    #[test]
    fn a_command_ends_with_a_reset_unless_a_person_asked_for_it() {
        let exec = || Guest { name: "guest".into(), exec: true, ..Guest::default() };
        for (by, ends) in [
            (Some(ResetBy::Guest), true),
            (Some(ResetBy::Death), true),
            (None, true),
            (Some(ResetBy::Monitor), false),
        ] {
            // Once more: the command had ended, and the guest was restarted before it was off.
            let mut guest = Guest { command_status: Some(9), ..exec() };
            assert_eq!(guest.reset(by), ends, "{by:?}");
            let mut seen = Observed { hypervisor: true, guests: vec![guest], ..native_run() };
            if ends {
                assert_eq!(judge(&seen).status, exit::GUEST_DIED);
                continue;
            }
            assert_eq!(seen.guests[0], exec(), "nothing is left of the first time");
            seen.guests[0].command_status = Some(7);
            seen.guests[0].end = end(EndReason::PowerOff);
            assert_eq!(judge(&seen).status, 7);
            // A guest without a command goes on, whatever restarts it.
            let mut shell = Guest { exec: false, ..exec() };
            assert!(!shell.reset(by) && !shell.reset(Some(ResetBy::Guest)));
        }
    }

    #[test]
    fn qemu_that_does_not_start_is_not_the_test_device() {
        let seen = Observed {
            test_device: true,
            code: Some(1),
            complaints: "bad -foo".into(),
            ..Observed::default()
        };
        let verdict = judge(&seen);
        assert_eq!(verdict.status, 1);
        assert!(verdict.message.unwrap().contains("bad -foo"));
    }

    #[test]
    fn the_hypervisors_word_counts() {
        for (reason, status) in [
            (EndReason::PowerOff, 0),
            (EndReason::Probe, 0),
            (EndReason::Destroyed, 0),
            (EndReason::Reset, 3),
            (EndReason::TestDevice, 0x2a),
            (EndReason::TripleFault, 3),
            (EndReason::UnknownExit, 3),
            (EndReason::InvalidState, 3),
            (EndReason::EmulationFailure, 3),
            (EndReason::HaltedForever, 3),
            (EndReason::ShadowDisagreement, 3),
            (EndReason::OutOfMemory, 3),
            (EndReason::LoadError, 2),
            (EndReason::ConfigError, 2),
        ] {
            let verdict = judge(&nested_run(reason));
            assert_eq!(verdict.status, status, "{reason:?}");
            let explained = verdict.message.is_some_and(|message| message.contains("RIP=1"));
            assert_eq!(
                explained,
                !matches!(
                    reason,
                    EndReason::PowerOff
                        | EndReason::Probe
                        | EndReason::Destroyed
                        | EndReason::Reset
                        | EndReason::TestDevice
                ),
                "{reason:?}"
            );
        }
        let later = judge(&nested_run(None));
        assert!(later.status == 3 && later.message.unwrap().contains("RIP=1"), "a reason of a later version");
        let run = with(nested_run(EndReason::PowerOff), |guest| guest.end = None);
        assert_eq!(judge(&run).status, 4);
        assert_eq!(judge(&Observed { panic: Some("boom".into()), ..run.clone() }).status, 4);
        assert_eq!(judge(&Observed { unsuitable: Some("no SVM".into()), ..run }).status, 5);
    }

    #[test]
    fn pal_stopped_it() {
        let stopped =
            |stop| judge(&with(Observed { stop: Some(stop), ..native_run() }, |guest| guest.exec = true));
        assert_eq!(stopped(Stop::Quit), Verdict::silent(0));
        assert_eq!(stopped(Stop::Asked).status, 3);
        let asked = |change: fn(&mut Guest)| {
            judge(&with(Observed { stop: Some(Stop::Asked), ..native_run() }, change)).status
        };
        assert_eq!(asked(|_| {}), 0);
        assert_eq!(asked(|guest| (guest.exec, guest.command_status) = (true, Some(7))), 7);
        assert_eq!(stopped(Stop::Timeout(5)).status, 124);
        assert_eq!(stopped(Stop::Signal(15)), Verdict::silent(143));
        assert_eq!(stopped(Stop::StdoutClosed), Verdict::silent(141));
        assert_eq!(stopped(Stop::Restart).status, 3);
    }

    #[test]
    fn what_the_emulator_may_have_done() {
        let dead = nested_run(EndReason::TripleFault);
        let told = |seen: &Observed, pcpus| doubt(seen, &judge(seen), pcpus).is_some();
        assert!(told(&dead, 2) && !told(&dead, 1));
        assert!(!told(&Observed { emulator: Emulator::Bochs, ..dead.clone() }, 2));
        assert!(!told(&nested_run(EndReason::PowerOff), 2) && !told(&nested_run(EndReason::LoadError), 2));
        let four = |guest: &mut Guest| (guest.exec, guest.command_status) = (true, Some(4));
        assert!(!told(&with(nested_run(EndReason::PowerOff), four), 2), "the guest's own status");
        let mut late = Observed { stop: Some(Stop::Timeout(5)), ..dead.clone() };
        late.guests.insert(0, Guest::default());
        assert!(told(&late, 2), "another one has not ended");
        assert!(told(&Observed { panic: Some("boom".into()), ..dead }, 2));
        let alone = Observed { triple_fault: Some(String::new()), ..native_run() };
        assert!(!told(&alone, 2), "without a hypervisor no VMRUN loses anything");
    }

    #[test]
    fn several_guests() {
        let guest = |name: &str, reason: Option<EndReason>| Guest {
            name: name.into(),
            end: reason.and_then(end),
            ..Guest::default()
        };
        let run = |guests: Vec<Guest>| Observed { hypervisor: true, guests, ..native_run() };
        let well = run(vec![guest("a", Some(EndReason::PowerOff)), guest("b", Some(EndReason::Destroyed))]);
        assert_eq!(judge(&well), Verdict::silent(0));
        let bad = run(vec![
            guest("a", Some(EndReason::PowerOff)),
            guest("b", Some(EndReason::TripleFault)),
            guest("c", Some(EndReason::TestDevice)),
        ]);
        let verdict = judge(&bad);
        assert_eq!((verdict.status, verdict.guest), (3, Some(1)), "the first in order");
        assert_eq!(others(&bad, &verdict), ["c ended with 42"]);
        assert!(verdict.message.unwrap().starts_with("b: the guest died: triple fault"));
        let command = Guest { exec: true, command_status: Some(7), ..guest("b", Some(EndReason::PowerOff)) };
        let verdict = judge(&run(vec![guest("a", Some(EndReason::PowerOff)), command]));
        assert_eq!((verdict.status, verdict.message.as_deref()), (7, Some("b ended with 7")));
        let late = run(vec![guest("a", Some(EndReason::TripleFault)), guest("b", None), guest("c", None)]);
        let verdict = judge(&Observed { stop: Some(Stop::Timeout(5)), ..late.clone() });
        assert_eq!(verdict.status, 124);
        assert!(verdict.message.unwrap().ends_with("no end of b, c after 5 s (see --timeout)"));
        let processors = [0x10, 0x8000].map(|rip| Processor { rip, halted: rip == 0x10 }).to_vec();
        let verdict = judge(&Observed { stop: Some(Stop::Timeout(5)), processors, ..late.clone() });
        assert!(verdict.message.unwrap().ends_with("; its processors are at 0x10 (halted), 0x8000"));
        assert_eq!(judge(&Observed { stop: Some(Stop::Quit), ..late.clone() }), Verdict::silent(0));
        assert_eq!(judge(&late).status, 3, "the machine is gone, and that may be why");
        assert_eq!(judge(&run(vec![guest("a", Some(EndReason::PowerOff)), guest("b", None)])).status, 4);
    }
}
