//! From what was observed to the exit status and a sentence for the person. Pure, so that every way a run can end is
//! tested without running anything.

use super::{
    machine::Emulator,
    telemetry::{End, Reason},
};
use crate::status::exit;

/// Why pal stopped a machine that was still running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stop {
    /// `Ctrl-a x`.
    Quit,
    /// The time limit of so many seconds.
    Timeout(u64),
    /// A signal to pal.
    Signal(i32),
    /// Nobody reads standard output any more.
    StdoutClosed,
    /// The guest restarted during `--exec`, or by a triple fault.
    Restart,
}

/// Everything that was seen during a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Observed {
    /// What emulates the machine.
    pub emulator: Emulator,
    /// The run is one command (`--exec`).
    pub exec: bool,
    /// The guest ran on the hypervisor, not alone.
    pub hypervisor: bool,
    /// The guest has a test device.
    pub test_device: bool,
    /// The emulator completed the machine and started it.
    pub started: bool,
    /// The status from the end mark.
    pub command_status: Option<u8>,
    /// The hypervisor's record of the guest's end.
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
    /// The guest's Linux kernel panicked, for this reason.
    pub kernel_panic: Option<String>,
    /// What the emulator wrote to its standard error.
    pub complaints: String,
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
}

impl Verdict {
    fn silent(status: u8) -> Self {
        Self { status, message: None, show_tail: false }
    }

    fn died(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()), show_tail: true }
    }

    fn refused(status: u8, message: impl Into<String>) -> Self {
        Self { status, message: Some(message.into()), show_tail: false }
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
        return ended(seen, end);
    }
    match seen.stop {
        Some(Stop::Quit) => return Verdict::silent(0),
        Some(Stop::Timeout(seconds)) => {
            let message = format!("no end after {seconds} s (see --timeout)");
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
    if seen.hypervisor { vanished(seen) } else { native(seen) }
}

/// The hypervisor reported the guest's end.
fn ended(seen: &Observed, end: &End) -> Verdict {
    let with_detail = |text: &str| {
        let separator = if end.detail.is_empty() { "" } else { "\n" };
        format!("{text}{separator}{}", end.detail)
    };
    match end.reason {
        Reason::PowerOff => powered_off(seen),
        Reason::Probe => Verdict::silent(0),
        Reason::Reset => restarted(seen),
        // An exit status has eight bits.
        Reason::TestDevice => Verdict::silent((end.value & 0xff) as u8),
        Reason::TripleFault => Verdict::died(exit::GUEST_DIED, with_detail("the guest died: triple fault")),
        Reason::UnknownExit => Verdict::died(exit::GUEST_DIED, with_detail("the guest died: unknown exit")),
        Reason::InvalidState => {
            Verdict::died(exit::GUEST_DIED, with_detail("the guest died: the processor refused its state"))
        }
        Reason::EmulationFailure => {
            Verdict::died(exit::GUEST_DIED, with_detail("the guest died: an instruction cannot be emulated"))
        }
        Reason::Other => Verdict::died(exit::GUEST_DIED, with_detail("the guest died")),
        Reason::LoadError => Verdict::refused(exit::USAGE, with_detail("the guest cannot be loaded:")),
        Reason::ConfigError => {
            Verdict::refused(exit::USAGE, with_detail("the hypervisor refuses the configuration:"))
        }
    }
}

fn powered_off(seen: &Observed) -> Verdict {
    match seen.command_status {
        _ if !seen.exec => Verdict::silent(0),
        Some(status) => Verdict::silent(status),
        None => Verdict::died(exit::GUEST_DIED, "the guest powered off before the command of --exec ended"),
    }
}

fn restarted(seen: &Observed) -> Verdict {
    if let Some(reason) = &seen.kernel_panic {
        return Verdict::died(exit::GUEST_DIED, format!("the guest's kernel panicked: {reason}"));
    }
    let when =
        if seen.exec && seen.command_status.is_none() { " before the command of --exec ended" } else { "" };
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
    match (seen.shutdown.as_deref(), seen.code) {
        (Some("guest-shutdown"), _) => powered_off(seen),
        (Some("guest-reset"), _) => restarted(seen),
        (None, _) if seen.stop == Some(Stop::Restart) => restarted(seen),
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
        Observed { started: true, code: Some(0), ..Observed::default() }
    }

    fn nested_run(reason: Reason) -> Observed {
        let end = End { vm: "guest".into(), reason, value: 0x1_2a, detail: "RIP=1".into() };
        Observed { hypervisor: true, end: Some(end), ..native_run() }
    }

    fn shutdown(reason: &str) -> Option<String> {
        Some(reason.to_owned())
    }

    #[test]
    fn native_ends() {
        let off = Observed { shutdown: shutdown("guest-shutdown"), ..native_run() };
        assert_eq!(judge(&off), Verdict::silent(0));
        let exec = Observed { exec: true, ..off.clone() };
        assert_eq!(judge(&exec).status, 3);
        assert_eq!(judge(&Observed { command_status: Some(42), ..exec }), Verdict::silent(42));
        let reset = Observed { shutdown: shutdown("guest-reset"), ..native_run() };
        assert_eq!(judge(&reset).status, 3);
        let panic = judge(&Observed { kernel_panic: Some("no init".into()), ..reset.clone() });
        assert!(panic.status == 3 && panic.message.unwrap().contains("no init"));
        let fault = judge(&Observed { triple_fault: Some("EIP=00100000".into()), ..reset });
        assert_eq!((fault.status, fault.show_tail), (3, true));
        assert!(fault.message.unwrap().contains("EIP=00100000"));
        let device = Observed { test_device: true, code: Some(0x55), ..native_run() };
        assert_eq!(judge(&device).status, 0x2a);
        assert_eq!(judge(&Observed { test_device: false, ..device }).status, 1);
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
            (Reason::PowerOff, 0),
            (Reason::Probe, 0),
            (Reason::Reset, 3),
            (Reason::TestDevice, 0x2a),
            (Reason::TripleFault, 3),
            (Reason::UnknownExit, 3),
            (Reason::InvalidState, 3),
            (Reason::EmulationFailure, 3),
            (Reason::Other, 3),
            (Reason::LoadError, 2),
            (Reason::ConfigError, 2),
        ] {
            let verdict = judge(&nested_run(reason));
            assert_eq!(verdict.status, status, "{reason:?}");
            let explained = verdict.message.is_some_and(|message| message.contains("RIP=1"));
            assert_eq!(
                explained,
                !matches!(reason, Reason::PowerOff | Reason::Probe | Reason::Reset | Reason::TestDevice),
                "{reason:?}"
            );
        }
        let run = Observed { end: None, ..nested_run(Reason::PowerOff) };
        assert_eq!(judge(&run).status, 4);
        assert_eq!(judge(&Observed { panic: Some("boom".into()), ..run.clone() }).status, 4);
        assert_eq!(judge(&Observed { unsuitable: Some("no SVM".into()), ..run }).status, 5);
    }

    #[test]
    fn pal_stopped_it() {
        let stopped = |stop| judge(&Observed { stop: Some(stop), exec: true, ..native_run() });
        assert_eq!(stopped(Stop::Quit), Verdict::silent(0));
        assert_eq!(stopped(Stop::Timeout(5)).status, 124);
        assert_eq!(stopped(Stop::Signal(15)), Verdict::silent(143));
        assert_eq!(stopped(Stop::StdoutClosed), Verdict::silent(141));
        assert_eq!(stopped(Stop::Restart).status, 3);
    }
}
