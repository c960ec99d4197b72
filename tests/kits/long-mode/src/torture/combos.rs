//! Every bit of an entry, at every level, against every kind of access and every setting of the registers.
//!
//! Thinned out unless the word `full` is given: each single bit with each access and one setting, each pair of bits with
//! one access and setting, and seeded random entries.

use super::model::{Cpu, Kind, Setup, entry_at, shifts};
use super::region::Region;
use super::script::Script;
use super::space::{CODE, Space, TARGET, USER_CODE, linear};
use super::{Options, Random};
use crate::check::Check;
use crate::machine::step::{AC, EXECUTE, MODIFY, READ, USER, WRITE};

/// Supervisor and user accesses of all kinds.
pub const ACCESSES: [u32; 11] = [
    READ,
    WRITE,
    EXECUTE,
    MODIFY,
    READ | AC,
    WRITE | AC,
    MODIFY | AC,
    READ | USER,
    WRITE | USER,
    EXECUTE | USER,
    MODIFY | USER,
];

/// Combinations of WP, NXE, SMEP, SMAP.
const SETUPS: u32 = 16;

/// A bit of the entry at a level (0 is the root's).
type Bit = (usize, u32);

/// What a probe changes in the entries, which otherwise allow everything.
#[derive(Clone, Copy)]
struct Probe {
    /// The level of the leaf.
    leaf: usize,
    /// For user mode.
    user: bool,
    /// Bits to invert, for each level.
    change: [u64; 4],
}

/// All of a kind's combinations.
pub fn run(c: &mut Check, kind: Kind, options: &Options) -> u64 {
    let cpu = Cpu::here(c.tcg);
    let mut space = Space::new(kind);
    let mut tables = [space.root; 4];
    for table in &mut tables[1..shifts(kind).len()] {
        *table = space.table();
    }
    tables[0] = space.cr3();
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    for number in 0..SETUPS {
        let mut setup = Setup::numbered(kind, number, &cpu);
        let mut random = Random::new(options.seed + u64::from(number));
        let mut index = number;
        // In 32-bit mode entries of another meaning come with CR4.PSE: only while nothing depends on them.
        setup.pge = number & 1 != 0;
        script.group();
        script.set(setup);
        each_single(kind, &cpu, |probe| {
            index += 1;
            if options.full || index % (SETUPS * options.thin) == 0 {
                for op in ACCESSES {
                    perform(&mut script, &tables, &probe, op, index);
                }
            }
        });
        each_pair(kind, &cpu, |probe| {
            index += 1;
            if options.full {
                for op in ACCESSES {
                    perform(&mut script, &tables, &probe, op, index);
                }
            } else if index % (SETUPS * options.thin) == 0 {
                perform(&mut script, &tables, &probe, *random.choose(&ACCESSES), index);
            }
        });
        for _ in 0..if options.full { 10_000 } else { 128 / options.thin } {
            index += 1;
            let probe = random_probe(kind, &cpu, &mut random);
            perform(&mut script, &tables, &probe, *random.choose(&ACCESSES), index);
        }
    }
    script.groups()
}

/// One page with all rights in the last entry, and one access after the other without a flush in between: what the first one
/// cached must not let the others do more.
pub fn sequences(c: &mut Check, kind: Kind, options: &Options) {
    let cpu = Cpu::here(c.tcg);
    let mut random = Random::new(options.seed + 3);
    let mut space = Space::new(kind);
    let region = Region::new(&mut space);
    let mut script = Script::new(c, &mut space, Setup::new(kind));
    region.map(&mut script);
    let nx = if kind == Kind::Two { 0 } else { 1 << 63 };
    for number in 0..SETUPS {
        let setup = Setup { pge: number & 1 != 0, ..Setup::numbered(kind, number, &cpu) };
        script.group();
        script.set(setup);
        for (flags, first) in (0..16u64).flat_map(|flags| ACCESSES.map(|first| (flags, first))) {
            let execute = if setup.nxe && flags & 8 != 0 { nx } else { 0 };
            let entry = TARGET | 1 | (flags & 3) << 1 | (flags & 4) << 4 | execute;
            for second in ACCESSES {
                if !options.full && random.below(16 * u64::from(options.thin)) != 0 {
                    continue;
                }
                script.group();
                script.settle();
                script.store(region.leaf(0), entry);
                script.invlpg(region.page(0));
                for op in [first, second, *random.choose(&ACCESSES), first] {
                    script.access(op, region.at(0, op));
                }
                script.load(region.leaf(0), super::model::entry_bytes(kind));
            }
        }
    }
}

/// Writes the entries, flushes, accesses, looks at what became of entries and data.
fn perform(script: &mut Script<'_>, tables: &[u64; 4], probe: &Probe, op: u32, index: u32) {
    let kind = script.setup.kind;
    let shifts = shifts(kind);
    let at = linear(kind);
    let pae = kind == Kind::Pae;
    let bytes = super::model::entry_bytes(kind);
    script.group();
    script.settle();
    for (level, &shift) in shifts.iter().enumerate().take(probe.leaf + 1) {
        let pointer = pae && level == 0;
        let leaf = level == probe.leaf;
        let target = if leaf { TARGET >> shift << shift } else { tables[level + 1] };
        let large = if leaf && shift > 12 { 0x80 } else { 0 };
        let rights = if pointer { 1 } else { 3 | u64::from(probe.user) << 2 };
        let entry = (target | large | rights) ^ probe.change[level];
        script.store(entry_at(kind, shift, tables[level], at), entry);
    }
    // A new pointer counts from the next load of CR3 on; INVLPG reaches global pages as well.
    if pae || index.is_multiple_of(4) {
        script.reload();
    }
    script.invlpg(at);
    let offset = match op & 3 {
        EXECUTE if op & USER != 0 => USER_CODE,
        EXECUTE => CODE,
        other => 0x100 + u64::from(other) * 8,
    };
    script.access(op, at + offset);
    for (level, &shift) in shifts.iter().enumerate().take(probe.leaf + 1) {
        script.load(entry_at(kind, shift, tables[level], at), bytes);
    }
    if op & 1 != 0 {
        script.load(TARGET + offset, 4);
    }
}

/// The bits that make sense at a level.
fn bits(kind: Kind, cpu: &Cpu, level: usize, leaf: bool, mut bit: impl FnMut(u32)) {
    let shift = shifts(kind)[level];
    let mut each = |bits: &[u32]| bits.iter().for_each(|&b| bit(b));
    if kind == Kind::Pae && level == 0 {
        return each(&[0, 3, 4, 9, 11]);
    }
    each(&[0, 1, 2, 3, 4, 5, 6, 9, 11]);
    // A table instead of a 1 GiB page would lie at 0.
    if !(leaf && shift == 30) {
        each(&[7]);
    }
    // Bit 8 of the upper two levels' tables is reserved on some processors and ignored on others.
    if leaf || shift < 30 {
        each(&[8]);
    }
    if kind != Kind::Two {
        each(&[cpu.width, 51, 52, 62, 63]);
    }
    if leaf && shift > 12 {
        each(&[12]);
        each(if kind == Kind::Two { &[21] } else { &[13, 20] });
        if shift == 30 {
            each(&[29]);
        }
    }
}

/// Calls `probe` for each kind of leaf and starting point.
fn each_base(kind: Kind, mut probe: impl FnMut(Probe)) {
    let levels = shifts(kind).len();
    let first = if matches!(kind, Kind::Two) { 0 } else { 1 };
    for leaf in first..levels {
        if kind == Kind::Pae && leaf == 0 {
            continue;
        }
        for user in [false, true] {
            probe(Probe { leaf, user, change: [0; 4] });
        }
    }
}

/// Each base, with none and with each single bit inverted.
fn each_single(kind: Kind, cpu: &Cpu, mut probe: impl FnMut(Probe)) {
    each_base(kind, |base| {
        probe(base);
        each_bit(kind, cpu, base.leaf, |bit| probe(with(base, bit)));
    });
}

/// Each base with two bits inverted.
fn each_pair(kind: Kind, cpu: &Cpu, mut probe: impl FnMut(Probe)) {
    each_base(kind, |base| {
        each_bit(kind, cpu, base.leaf, |first| {
            each_bit(kind, cpu, base.leaf, |second| {
                if first < second {
                    probe(with(with(base, first), second));
                }
            });
        });
    });
}

fn each_bit(kind: Kind, cpu: &Cpu, leaf: usize, mut bit: impl FnMut(Bit)) {
    for level in 0..=leaf {
        bits(kind, cpu, level, level == leaf, |b| bit((level, b)));
    }
}

fn with(mut probe: Probe, (level, bit): Bit) -> Probe {
    probe.change[level] ^= 1 << bit;
    probe
}

/// Any base, with about every fourth bit inverted; rarely those with which nothing else matters.
fn random_probe(kind: Kind, cpu: &Cpu, random: &mut Random) -> Probe {
    let mut bases = [None; 8];
    let mut count = 0;
    each_base(kind, |base| {
        bases[count] = Some(base);
        count += 1;
    });
    let mut probe = bases[random.below(count as u64) as usize].unwrap_or_else(|| unreachable!());
    each_bit(kind, cpu, probe.leaf, |(level, bit)| {
        let rare =
            bit == 0 || bit == 7 || (12..52).contains(&bit) || (kind == Kind::Pae && bit < 63 && bit > 51);
        if random.below(if rare { 24 } else { 3 }) == 0 {
            probe = with(probe, (level, bit));
        }
    });
    probe
}
