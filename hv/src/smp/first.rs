//! Whether the first PCPU, the one that booted, runs guests, and how PCPUs are numbered if it does not.
//!
//! QEMU's emulation may lose changes of the first processor's virtualization state while other processors load x87 state
//! (docs/design/0006-emulated-svm.md, "The first processor"). There the first PCPU keeps to what the hypervisor itself does: boot,
//! the console's interrupts, the monitor. It then has no number that a person sees: those in affinities, statistics and messages
//! count from 0 for the first PCPU that runs guests. *Indices* count all PCPUs in the order of their start.

use crate::sched::topology::PcpuId;

/// What `first-pcpu=` on the command line says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FirstPcpu {
    /// It runs guests, unless the processor is one of QEMU's emulation and another PCPU can run them.
    #[default]
    Auto,
    /// It runs guests.
    Guests,
    /// It runs none, if another PCPU can.
    Host,
}

impl FirstPcpu {
    /// Reads the word.
    pub fn parse(word: &str) -> Option<FirstPcpu> {
        Some(match word {
            "auto" => FirstPcpu::Auto,
            "guests" => FirstPcpu::Guests,
            "host" => FirstPcpu::Host,
            _ => return None,
        })
    }

    /// Whether guests are to run elsewhere, on a machine with QEMU's emulated processors or not.
    pub fn is_for_host(self, is_emulated: bool) -> bool {
        self == FirstPcpu::Host || self == FirstPcpu::Auto && is_emulated
    }

    /// How many PCPUs to start for guests on `most` of them: one more where the first is not for guests. One alone does everything.
    pub fn to_start(self, most: usize, is_emulated: bool) -> usize {
        most.saturating_add(usize::from(most > 1 && self.is_for_host(is_emulated)))
    }
}

/// The numbers of PCPUs by their indices, and back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbering {
    /// How many PCPUs have started, at least 1.
    pub count: u32,
    /// The first one runs no guests.
    pub first_is_apart: bool,
}

impl Numbering {
    /// The PCPUs that have numbers which people see.
    pub fn numbered(self) -> u32 {
        self.count - u32::from(self.first_is_apart)
    }

    /// The number of the PCPU with this index. That of a first one which runs no guests comes after all others, where no set or
    /// table of the scheduler has it.
    pub fn id(self, index: u32) -> PcpuId {
        let number = match self.first_is_apart {
            true if index == 0 => self.numbered(),
            true => index - 1,
            false => index,
        };
        PcpuId(number as u8)
    }

    /// The index of the PCPU with this number.
    pub fn index(self, id: PcpuId) -> u32 {
        let number = u32::from(id.0);
        match self.first_is_apart {
            true if number == self.numbered() => 0,
            true => number + 1,
            false => number,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_is_apart_on_emulators_or_where_asked_for() {
        let words = ["auto", "guests", "host"];
        let [auto, guests, host] = words.map(|word| FirstPcpu::parse(word).unwrap());
        assert_eq!((FirstPcpu::default(), FirstPcpu::parse("on")), (auto, None));
        assert_eq!([auto, guests, host].map(|first| first.is_for_host(true)), [true, false, true]);
        assert_eq!([auto, guests, host].map(|first| first.is_for_host(false)), [false, false, true]);
        // `pcpus=4` is four for guests.
        assert_eq!([auto, guests, host].map(|first| first.to_start(4, true)), [5, 4, 5]);
        assert_eq!([auto, guests, host].map(|first| first.to_start(4, false)), [4, 4, 5]);
        assert_eq!([1, usize::MAX].map(|most| auto.to_start(most, true)), [1, usize::MAX]);
    }

    #[test]
    fn numbers_count_from_the_first_that_runs_guests() {
        for count in [1, 2, 5, 64] {
            let plain = Numbering { count, first_is_apart: false };
            assert!((0..count).all(|index| plain.id(index) == PcpuId(index as u8)));
            assert!((0..count).all(|index| plain.index(plain.id(index)) == index));
        }
        for count in [2, 5, 64] {
            let apart = Numbering { count, first_is_apart: true };
            let ids: Vec<u8> = (1..count).map(|index| apart.id(index).0).collect();
            assert_eq!(ids, (0..count as u8 - 1).collect::<Vec<_>>());
            // The first one's is no other's.
            assert_eq!((apart.id(0).0, apart.numbered()), (count as u8 - 1, count - 1));
            assert!((0..count).all(|index| apart.index(apart.id(index)) == index));
        }
    }
}
