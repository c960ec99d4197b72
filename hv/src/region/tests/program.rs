//! Programs of the modelled machine: the frames that they access, one after the other.

/// The order of a program's accesses to its frames.
#[derive(Clone, Debug)]
pub struct Program {
    pub regions: u64,
    pub frames: u64,
    visit: u64,
    is_random: bool,
    done: u64,
    at: [u64; 2],
    state: u64,
}

impl Program {
    /// Two regions of this many frames each, which are used by turns for this many accesses, in a loop over each.
    pub fn memlat(frames: u64, visit: u64) -> Program {
        Program { regions: 2, frames, visit, is_random: false, done: 0, at: [0; 2], state: 1 }
    }

    /// One such region.
    pub fn memlat_of_one(frames: u64) -> Program {
        Program { regions: 1, ..Program::memlat(frames, u64::MAX) }
    }

    /// Any frame at any time.
    pub fn random(frames: u64) -> Program {
        Program { is_random: true, ..Program::memlat_of_one(frames) }
    }

    /// The frame of the next access, from 0 on.
    pub fn next(&mut self) -> u64 {
        if self.is_random {
            self.state =
                self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            return (self.state >> 33) % self.frames;
        }
        let region = self.done / self.visit % self.regions;
        self.done += 1;
        let at = &mut self.at[region as usize];
        *at = (*at + 1) % self.frames;
        region * self.frames + *at
    }
}
