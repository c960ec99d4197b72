//! One 8259A.

/// The next initialization command word that the data port expects.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Init {
    Done,
    Icw2,
    Icw3,
    Icw4,
}

#[derive(Clone, Debug)]
pub(super) struct Chip {
    /// Inputs that are high.
    lines: u8,
    /// Inputs that went high and were not acknowledged since. Those that are edge-triggered wait although they went low again.
    edges: u8,
    /// Level-triggered inputs.
    elcr: u8,
    /// Inputs whose in-service bit does not hold back more of the same in special fully nested mode: the
    /// cascade.
    slaves: u8,
    imr: u8,
    isr: u8,
    /// The input with the lowest priority; the next one up has the highest.
    lowest: u8,
    /// Vector of input 0.
    base: u8,
    init: Init,
    single: bool,
    icw4_follows: bool,
    auto_eoi: bool,
    rotate_on_auto_eoi: bool,
    special_fully_nested: bool,
    special_mask: bool,
    read_isr: bool,
    poll: bool,
}

impl Chip {
    /// A chip with slaves at the inputs `slaves`, whose outputs are levels.
    pub(super) const fn new(slaves: u8) -> Chip {
        Chip {
            lines: 0,
            edges: 0,
            elcr: slaves,
            slaves,
            imr: 0xff,
            isr: 0,
            lowest: 7,
            base: 0,
            init: Init::Done,
            single: false,
            icw4_follows: false,
            auto_eoi: false,
            rotate_on_auto_eoi: false,
            special_fully_nested: false,
            special_mask: false,
            read_isr: false,
            poll: false,
        }
    }

    pub(super) fn set_line(&mut self, input: u8, high: bool) {
        let bit = 1 << input;
        if high {
            self.edges |= bit & !self.lines;
            self.lines |= bit;
        } else {
            // A level that falls before the acknowledge is no request any more; an edge stays (see the module above).
            self.edges &= !(bit & self.elcr);
            self.lines &= !bit;
        }
    }

    pub(super) fn pulse(&mut self, input: u8) {
        self.edges |= 1 << input & !self.elcr;
    }

    pub(super) fn output(&self) -> bool {
        self.request().is_some()
    }

    /// INTA or a poll: the input now in service, if there is a request.
    pub(super) fn acknowledge(&mut self) -> Option<u8> {
        let input = self.request()?;
        self.edges &= !(1 << input);
        if !self.auto_eoi {
            self.isr |= 1 << input;
        } else if self.rotate_on_auto_eoi {
            self.lowest = input;
        }
        Some(input)
    }

    /// The vector for what [`Chip::acknowledge`] returned.
    pub(super) fn vector(&self, input: Option<u8>) -> u8 {
        self.base | input.unwrap_or(7)
    }

    pub(super) fn elcr(&self) -> u8 {
        self.elcr
    }

    pub(super) fn set_elcr(&mut self, value: u8) {
        self.elcr = value;
    }

    pub(super) fn read(&mut self, data_port: bool) -> u8 {
        if self.poll {
            // A poll is answered by one read (data sheet, "Poll command").
            self.poll = false;
            return self.acknowledge().map_or(0, |input| 0x80 | input);
        }
        match (data_port, self.read_isr) {
            (true, _) => self.imr,
            (false, true) => self.isr,
            (false, false) => self.irr(),
        }
    }

    pub(super) fn write(&mut self, data_port: bool, value: u8) {
        match (data_port, self.init) {
            (false, _) if value & 0x10 != 0 => self.icw1(value),
            (false, _) if value & 0x08 != 0 => self.ocw3(value),
            (false, _) => self.ocw2(value),
            // Outside of an initialization the data port is the mask register (OCW1).
            (true, Init::Done) => self.imr = value,
            (true, Init::Icw2) => {
                self.base = value & 0xf8;
                self.init = if self.single { self.after_icw3() } else { Init::Icw3 };
            }
            // How the chips are wired is known.
            (true, Init::Icw3) => self.init = self.after_icw3(),
            (true, Init::Icw4) => {
                self.auto_eoi = value & 0x02 != 0;
                self.special_fully_nested = value & 0x10 != 0;
                self.init = Init::Done;
            }
        }
    }

    fn irr(&self) -> u8 {
        self.lines & self.elcr | self.edges & !self.elcr
    }

    /// The input that wants to be served now.
    fn request(&self) -> Option<u8> {
        let mut in_service = self.isr;
        if self.special_mask {
            in_service &= !self.imr;
        }
        // The slave may have a request of higher priority while one of its own is in service: the cascade must not block
        // it.
        if self.special_fully_nested {
            in_service &= !self.slaves;
        }
        let rank = self.highest_rank(self.irr() & !self.imr)?;
        match self.highest_rank(in_service) {
            Some(serving) if serving <= rank => None,
            _ => Some(self.input_of(rank)),
        }
    }

    /// The priority (0 is the highest) of the foremost of these inputs.
    fn highest_rank(&self, inputs: u8) -> Option<u8> {
        let ranked = inputs.rotate_right(u32::from((self.lowest + 1) & 7));
        (ranked != 0).then_some(ranked.trailing_zeros() as u8)
    }

    fn input_of(&self, rank: u8) -> u8 {
        (self.lowest + 1 + rank) & 7
    }

    fn after_icw3(&self) -> Init {
        if self.icw4_follows { Init::Icw4 } else { Init::Done }
    }

    fn icw1(&mut self, value: u8) {
        // LTIM (bit 3) gave way to the edge/level registers.
        // ICW1 restarts the chip (data sheet, "Initialization command words"). What stays: lines are levels from outside,
        // the ELCR is the chipset's, and the vectors are set by ICW2.
        *self = Chip {
            lines: self.lines,
            elcr: self.elcr,
            base: self.base,
            imr: 0,
            init: Init::Icw2,
            single: value & 0x02 != 0,
            icw4_follows: value & 0x01 != 0,
            ..Chip::new(self.slaves)
        };
    }

    fn ocw2(&mut self, value: u8) {
        let specific = value & 0x40 != 0;
        let target = if specific { Some(value & 7) } else { self.non_specific_target() };
        let (rotate, eoi) = (value & 0x80 != 0, value & 0x20 != 0);
        match (eoi, target) {
            (true, Some(input)) => {
                self.isr &= !(1 << input);
                if rotate {
                    self.lowest = input;
                }
            }
            (true, None) => {}
            (false, _) if specific && rotate => self.lowest = value & 7,
            // Specific without EOI and rotation is the no-operation command.
            (false, _) if specific => {}
            (false, _) => self.rotate_on_auto_eoi = rotate,
        }
    }

    /// What a non-specific EOI ends: in special mask mode, masked inputs do not count.
    fn non_specific_target(&self) -> Option<u8> {
        let candidates = if self.special_mask { self.isr & !self.imr } else { self.isr };
        self.highest_rank(candidates).map(|rank| self.input_of(rank))
    }

    fn ocw3(&mut self, value: u8) {
        if value & 0x40 != 0 {
            self.special_mask = value & 0x20 != 0;
        }
        self.poll = value & 0x04 != 0;
        if value & 0x02 != 0 {
            self.read_isr = value & 0x01 != 0;
        }
    }
}

#[cfg(any(test, feature = "testing"))]
impl Chip {
    pub(super) fn line(&self, input: u8) -> bool {
        self.lines & 1 << input != 0
    }

    /// The priority resolver agrees with a search from the highest priority down.
    pub(super) fn check(&self) {
        let mut expected = None;
        for step in 1..=8 {
            let input = (self.lowest + step) % 8;
            let (bit, is_slave) = (1 << input, self.slaves & 1 << input != 0);
            let masked = self.imr & bit != 0;
            let blocks = !(self.special_mask && masked || self.special_fully_nested && is_slave);
            if self.isr & bit != 0 && blocks {
                break;
            }
            if self.irr() & bit != 0 && !masked {
                expected = Some(input);
                break;
            }
        }
        assert_eq!(self.request(), expected);
    }
}
