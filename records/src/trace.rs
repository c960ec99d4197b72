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
    /// Agile paging had this many guest tables (255: or more) walked nested from now on; `at` is the guest-physical address whose
    /// write decided that.
    Nest(u8),
    /// It had this many walked in shadow tables again, because they had not changed for long.
    Shadow(u8),
    /// Agile paging by address spaces (`machine=commodity`) chose this engine for the one at CR3 `at`.
    Space(u8),
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
// 6 to 9 are kinds of other records.
const NEST: u8 = 10;
const SHADOW: u8 = 11;
const SPACE: u8 = 12;

impl Event {
    /// The record.
    #[inline]
    pub const fn write(&self) -> [u64; WORDS] {
        let (kind, detail) = match self.what {
            What::Exit(kind) => (EXIT, kind),
            What::Run => (RUN, 0),
            What::Idle => (IDLE, 0),
            What::Switch(engine) => (SWITCH, engine),
            What::Nest(tables) => (NEST, tables),
            What::Shadow(tables) => (SHADOW, tables),
            What::Space(engine) => (SPACE, engine),
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
            NEST => What::Nest(detail),
            SHADOW => What::Shadow(detail),
            SPACE => What::Space(detail),
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
        let decisions = [What::Nest(3), What::Shadow(255), What::Space(1)];
        for what in [What::Exit(17), What::Run, What::Idle, What::Switch(1)].into_iter().chain(decisions) {
            let event = Event { what, vm: 200, vcpu: 63, tsc: 1 << 60, ticks: 5, at: u64::MAX };
            assert_eq!(Event::read(&event.write()), Some(event));
        }
        assert_eq!(Event::read(&[head(1, 4, 0), 0, 0, 0]), None);
        assert_eq!(Event::read(&[head(2, 3, 0), 0, 0, 0]), None);
        assert_eq!(Event::read(&[head(2, 4, 0), 0, 0]), None);
    }
}
