//! Address spaces with PCIDs: what was cached outlives loads of CR3 with bit 63, until something flushes that PCID (Intel SDM 3,
//! 4.10.1 and 4.10.4.1; AMD APM 2, 5.5.1).

use super::Random;
use super::model::{Kind, Setup};
use super::options;
use super::region::{ALL, PAGES, Region, target};
use super::script::Script;
use super::sharing::rounds;
use super::space::Space;
use crate::check::Check;
use crate::machine::insn::cpuid;
use crate::machine::step::{EXECUTE, INVPCID, READ, Step, WRITE};

/// Address spaces.
const SPACES: usize = 3;
/// CR3: keep what is cached.
const KEEP: u64 = 1 << 63;

/// Changes in spaces that are in use or not, flushes of all kinds, and returns to the spaces without a flush.
pub fn run(c: &mut Check) {
    if cpuid(1, 0)[2] >> 17 & 1 == 0 {
        return c.skip("the processor has no PCIDs");
    }
    let has_invpcid = cpuid(7, 0)[1] >> 10 & 1 != 0;
    let mut random = Random::new(options().seed + 14);
    let mut space = Space::new(Kind::Four);
    let roots: [u64; SPACES] =
        core::array::from_fn(|i| space.make_root(Kind::Four) | ((i as u64 + 1) * 0x155));
    let regions: [Region; SPACES] =
        core::array::from_fn(|i| Region::under(&mut space, Kind::Four, roots[i] & !0xfff));
    let mut script = Script::new(c, &mut space, Setup::new(Kind::Four));
    regions.iter().for_each(|region| region.fill(&mut script));
    script.set(Setup { pcid: true, pge: true, ..script.setup });
    for _ in 0..rounds(400) {
        script.group();
        let (changed, current) = (random.below(SPACES as u64) as usize, random.below(SPACES as u64) as usize);
        let (region, root) = (&regions[changed], roots[changed]);
        let page = random.below(PAGES);
        let at = region.page(page) + 0x100;
        // Cached, perhaps, by a read in the space itself.
        script.load_root(root | KEEP);
        script.access(READ, at);
        script.load_root(roots[current] | KEEP);
        script.access(WRITE, regions[current].page((page + 3) % PAGES) + 0x108);
        let older = script.foresee_under(root, READ, at);
        script.store(region.leaf(page), target(random.below(PAGES)) | *random.choose(&[0, 1, 3, ALL]));
        let mut keep = KEEP;
        let invpcid = |kind: u64, pcid: u64| Step::new(INVPCID, at, kind | pcid << 8);
        let pcid = root & 0xfff;
        let flushed = match random.below(if has_invpcid { 9 } else { 5 }) {
            0 => {
                keep = 0;
                true
            }
            1 => {
                script.load_root(root | KEEP);
                script.invlpg(at);
                true
            }
            2 => {
                let setup = script.setup;
                script.set(Setup { pge: !setup.pge, ..setup });
                script.set(setup);
                true
            }
            // A flush of the space that is in use, which may be another.
            3 => {
                script.reload();
                changed == current
            }
            4 => false,
            kind @ 5..=6 => {
                script.step(invpcid(kind - 5, pcid));
                true
            }
            kind => {
                script.step(invpcid(kind - 5, 0));
                true
            }
        };
        script.load_root(root | keep);
        if flushed || older.result.is_err() {
            script.access(READ, at);
        } else {
            script.access_stale(READ, at, older);
        }
        // All certain again.
        region.store(&mut script, page, target(page) | ALL);
        script.invlpg(at);
        script.settle();
        script.access(READ, at);
        script.access(EXECUTE, region.at(page, EXECUTE));
    }
    let end = script.space.root;
    script.set(Setup { pcid: false, ..script.setup });
    script.load_root(end);
}
