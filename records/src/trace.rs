//! Records of single events: exits, decisions of the scheduler, changes of the mode. Four words each.

use crate::{head, parse_head};

/// Words of an event.
pub const WORDS: usize = 4;

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// A VCPU exited, by the number of the kind in [`EXITS`](crate::sample::EXITS); `at` is its RIP.
    Exit(u8),
    /// The scheduler decided; `vm` and `vcpu` are what runs next.
    Run,
    /// The scheduler decided that nothing runs.
    Idle,
    /// The VM's engine changed, to this number in [`ENGINES`](crate::sample::ENGINES).
    Switch(u8),
}

/// An event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// What happened.
    pub what: What,
    /// The VM's number in the configuration.
    pub vm: u8,
    /// The VCPU's number in the VM.
    pub vcpu: u8,
    /// The host's TSC when it began.
    pub tsc: u64,
    /// How long it took, in ticks.
    pub ticks: u64,
    /// An address; 0 if there is none.
    pub at: u64,
}

const EXIT: u8 = 2;
const RUN: u8 = 3;
const IDLE: u8 = 4;
const SWITCH: u8 = 5;

impl Event {
    /// The record.
    #[inline]
    pub const fn write(&self) -> [u64; WORDS] {
        let (kind, detail) = match self.what {
            What::Exit(kind) => (EXIT, kind),
            What::Run => (RUN, 0),
            What::Idle => (IDLE, 0),
            What::Switch(engine) => (SWITCH, engine),
        };
        let more = self.vm as u32 | (self.vcpu as u32) << 8 | (detail as u32) << 16;
        [head(kind, WORDS, more), self.tsc, self.ticks, self.at]
    }

    /// Reads a record. `None`: it is no event that is known here.
    pub fn read(record: &[u64]) -> Option<Event> {
        let [first, tsc, ticks, at] = *record.first_chunk::<WORDS>()?;
        let (kind, words, more) = parse_head(first);
        let detail = (more >> 16) as u8;
        let what = match kind {
            _ if words < WORDS => return None,
            EXIT => What::Exit(detail),
            RUN => What::Run,
            IDLE => What::Idle,
            SWITCH => What::Switch(detail),
            _ => return None,
        };
        Some(Event { what, vm: more as u8, vcpu: (more >> 8) as u8, tsc, ticks, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        for what in [What::Exit(17), What::Run, What::Idle, What::Switch(1)] {
            let event = Event { what, vm: 200, vcpu: 63, tsc: 1 << 60, ticks: 5, at: u64::MAX };
            assert_eq!(Event::read(&event.write()), Some(event));
        }
        assert_eq!(Event::read(&[head(1, 4, 0), 0, 0, 0]), None);
        assert_eq!(Event::read(&[head(2, 3, 0), 0, 0, 0]), None);
        assert_eq!(Event::read(&[head(2, 4, 0), 0, 0]), None);
    }
}
