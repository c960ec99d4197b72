//! One counter of the 8254: its counting element, gate and output as functions of time.
//!
//! Nothing runs between accesses. The counter remembers at which tick it was loaded and computes its value, its
//! output and its next rising edge from the present tick. Ticks are those of the 1.193182 MHz input; a count that is
//! written at tick `t` is loaded at `t + 1`, as the data sheet's timing diagrams show (Intel 8254, "Mode
//! definitions"). Three simplifications, none of which software can see without an oscilloscope: in mode 1 the output
//! falls at the trigger's own tick; a write or a gate that comes within the one tick of a strobe (modes 4 and 5) ends
//! it; and a count of 1 in modes 2 and 3, which the data sheet forbids, gives no edges.

/// What the counting element does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Run {
    /// No count has been loaded since the control word (modes 1 and 5: no trigger).
    Stopped,
    /// Loaded at tick `start`.
    Counting { start: i64 },
    /// The gate is low; `elapsed` ticks had been counted.
    Held { elapsed: i64 },
}

/// A counter. All ticks given to it must not decrease; an earlier one counts as the latest.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counter {
    mode: u8,
    bcd: bool,
    gate: bool,
    /// The count register: ticks, 1 to 65536; `None` until one is written after a control word.
    count: Option<i64>,
    /// The count that the counting element was loaded with.
    loaded: i64,
    run: Run,
    /// The count register has not reached the counting element yet.
    unloaded: bool,
    /// Modes 2 and 3: the tick at which a count written while counting is loaded.
    reload_at: Option<i64>,
    /// The latest tick looked at.
    seen: i64,
    /// The output rose since [`Counter::take_rise`].
    rose: bool,
}

impl Counter {
    pub(super) const fn new(gate: bool) -> Counter {
        Counter {
            mode: 0,
            bcd: false,
            gate,
            count: None,
            loaded: 1,
            run: Run::Stopped,
            unloaded: true,
            reload_at: None,
            seen: 0,
            rose: false,
        }
    }

    /// A control word: `mode` is 0 to 7, where 6 and 7 mean 2 and 3.
    pub(super) fn set_mode(&mut self, mode: u8, bcd: bool, tick: i64) {
        self.advance(tick);
        self.mode = if mode > 5 { mode & 3 } else { mode };
        self.bcd = bcd;
        self.count = None;
        self.run = Run::Stopped;
        self.unloaded = true;
        self.reload_at = None;
    }

    pub(super) fn mode(&self) -> u8 {
        self.mode
    }

    pub(super) fn bcd(&self) -> bool {
        self.bcd
    }

    pub(super) fn gate(&self) -> bool {
        self.gate
    }

    /// The first of two count bytes was written: mode 0 stops counting and lowers its output.
    pub(super) fn begin_write(&mut self, tick: i64) {
        self.advance(tick);
        if self.mode == 0 {
            self.run = Run::Stopped;
        }
    }

    /// A new count as it was written; 0 means the largest.
    pub(super) fn write(&mut self, raw: u16, tick: i64) {
        self.advance(tick);
        let count = match if self.bcd { from_bcd(raw) } else { raw.into() } {
            0 => self.modulus(),
            n => n,
        };
        self.count = Some(count);
        self.unloaded = true;
        match (self.mode, self.run) {
            (0 | 4, _) if self.gate => self.load(count, self.seen + 1),
            (0 | 4, _) => {
                self.load(count, self.seen + 1);
                self.run = Run::Held { elapsed: 0 };
            }
            // Hardware-triggered: the count waits for a rising gate.
            (1 | 5, _) => {}
            (_, Run::Counting { start }) if self.seen >= start => {
                // A period (in mode 3: half of one) that has begun is finished with the old count (data sheet, modes 2
                // and 3).
                self.reload_at.get_or_insert(start + self.boundary_after(self.seen - start));
            }
            _ if self.gate => self.load(count, self.seen + 1),
            _ => {}
        }
    }

    /// Drives the gate input.
    pub(super) fn set_gate(&mut self, gate: bool, tick: i64) {
        self.advance(tick);
        if gate == self.gate {
            return;
        }
        self.gate = gate;
        match (self.mode, self.run, self.count) {
            (0 | 4, Run::Held { elapsed }, _) if gate => {
                self.run = Run::Counting { start: self.seen - elapsed }
            }
            // A rising gate is the trigger: it reloads the count. In modes 0 and 4 the gate merely stops counting.
            (1 | 2 | 3 | 5, _, Some(count)) if gate => self.load(count, self.seen + 1),
            (0 | 2 | 3 | 4, Run::Counting { start }, _) if !gate => {
                self.run = Run::Held { elapsed: (self.seen - start).max(0) };
                self.reload_at = None;
            }
            _ => {}
        }
    }

    /// The counting element as software reads it.
    pub(super) fn value(&mut self, tick: i64) -> u16 {
        self.advance(tick);
        let n = self.loaded;
        let value = match self.elapsed() {
            None => self.count.unwrap_or(n),
            Some(elapsed) => match self.mode {
                2 => n - elapsed % n,
                3 => {
                    let (half, within) = (high_ticks(n), elapsed % n);
                    (n & !1) - 2 * if within < half { within } else { within - half }
                }
                _ => n - elapsed,
            },
        };
        let value = value.rem_euclid(self.modulus()) as u16;
        if self.bcd { to_bcd(value) } else { value }
    }

    /// The output pin.
    pub(super) fn output(&mut self, tick: i64) -> bool {
        self.advance(tick);
        let n = self.loaded;
        match (self.mode, self.elapsed()) {
            (0, elapsed) => elapsed.is_some_and(|elapsed| elapsed >= n),
            (1, elapsed) => elapsed.is_none_or(|elapsed| elapsed >= n),
            (2, Some(elapsed)) => !self.gate || elapsed % n != n - 1,
            (3, Some(elapsed)) => !self.gate || elapsed % n < high_ticks(n),
            (4 | 5, Some(elapsed)) => !self.gate && self.mode == 4 || elapsed != n,
            _ => true,
        }
    }

    /// Whether a written count has not been loaded yet (the status byte's NULL COUNT).
    pub(super) fn is_null(&mut self, tick: i64) -> bool {
        self.advance(tick);
        self.unloaded || matches!(self.run, Run::Counting { start } if self.seen < start)
    }

    /// Whether the output rose since the last call, by counting.
    pub(super) fn take_rise(&mut self, tick: i64) -> bool {
        self.advance(tick);
        core::mem::take(&mut self.rose)
    }

    /// The next tick at which counting raises the output.
    pub(super) fn next_rise(&self) -> Option<i64> {
        let rise = self.rise_after(self.seen);
        match self.reload_at {
            Some(at) if rise.is_none_or(|rise| rise > at) => {
                let mut later = *self;
                later.reload(at);
                later.rise_after(at)
            }
            _ => rise,
        }
    }

    /// The ticks between rising edges, if they follow each other without end.
    pub(super) fn period(&self) -> Option<i64> {
        matches!(self.mode, 2 | 3).then(|| self.count.map_or(self.loaded, |count| count.min(self.loaded)))
    }

    /// The latest tick looked at.
    pub(super) fn seen(&self) -> i64 {
        self.seen
    }

    fn advance(&mut self, tick: i64) {
        let tick = tick.max(self.seen);
        if let Some(at) = self.reload_at.filter(|&at| at <= tick) {
            self.rose |= self.rise_after(self.seen).is_some_and(|rise| rise <= at);
            self.seen = at;
            self.reload(at);
        }
        self.rose |= self.rise_after(self.seen).is_some_and(|rise| rise <= tick);
        self.seen = tick;
    }

    fn load(&mut self, count: i64, start: i64) {
        self.loaded = count;
        self.run = Run::Counting { start };
        self.unloaded = false;
        self.reload_at = None;
    }

    /// Loads a count that was written while counting, at the boundary `at` of modes 2 and 3.
    fn reload(&mut self, at: i64) {
        let (Run::Counting { start }, Some(count)) = (self.run, self.count) else {
            return;
        };
        let starts_low = self.mode == 3 && (at - start) % self.loaded != 0;
        // A low half begins: as if the high half of the new count had just passed.
        self.load(count, if starts_low { at - high_ticks(count) } else { at });
    }

    /// Modes 2 and 3: ticks from the load to the first boundary after `elapsed` at which a new count is taken over.
    fn boundary_after(&self, elapsed: i64) -> i64 {
        let period = elapsed / self.loaded * self.loaded;
        let half = high_ticks(self.loaded);
        if self.mode == 3 && elapsed - period < half { period + half } else { period + self.loaded }
    }

    /// Ticks since the load; `None` if nothing has been loaded.
    fn elapsed(&self) -> Option<i64> {
        match self.run {
            Run::Stopped => None,
            Run::Counting { start } => Some((self.seen - start).max(0)),
            Run::Held { elapsed } => Some(elapsed),
        }
    }

    /// The first rising edge after `tick`, were no new count pending.
    fn rise_after(&self, tick: i64) -> Option<i64> {
        let Run::Counting { start } = self.run else {
            return None;
        };
        let n = self.loaded;
        match self.mode {
            0 | 1 => Some(start + n),
            2 | 3 if n > 1 => Some(start + ((tick - start).div_euclid(n) + 1).max(1) * n),
            4 | 5 => Some(start + n + 1),
            _ => None,
        }
        .filter(|&rise| rise > tick)
    }

    fn modulus(&self) -> i64 {
        if self.bcd { 10_000 } else { 0x1_0000 }
    }
}

/// Mode 3: ticks for which the output is high in a period of `n`.
fn high_ticks(n: i64) -> i64 {
    (n + 1) / 2
}

/// Reads four decimal digits; digits above 9 count with their value.
fn from_bcd(raw: u16) -> i64 {
    [12, 8, 4, 0].iter().fold(0, |sum, shift| sum * 10 + i64::from(raw >> shift & 15))
}

/// Writes a number below 10000 as four decimal digits.
fn to_bcd(value: u16) -> u16 {
    (value / 1000 % 10) << 12 | (value / 100 % 10) << 8 | (value / 10 % 10) << 4 | (value % 10)
}
