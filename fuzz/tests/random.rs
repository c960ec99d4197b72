//! Each fuzz target on random inputs, the same in each run: that it starts, and that what nearly any input would find is not
//! there. It takes no build of its own, as libFuzzer does, and cannot search as that can.

use std::{
    fs,
    panic::catch_unwind,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
};

use fuzz_targets::{TARGETS, Target};

/// Inputs of each target.
const INPUTS: u64 = 96;
/// Bytes of an input at most, as for libFuzzer.
const MOST: u64 = 4096;

/// Numbers that look random (Steele, Lea, Flood, "Fast Splittable Pseudorandom Number Generators", SplitMix).
struct Random(u64);

impl Random {
    fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ mixed >> 31
    }
}

/// An input: short ones as often as long ones; bytes of any value, or of few, so that checks of lengths and kinds are passed,
/// too.
fn input(random: &mut Random) -> Vec<u8> {
    let most = MOST >> (random.draw() % 10);
    let len = random.draw() % (most + 1);
    let mask = [0xff, 0x0f, 0x03, 0x81][(random.draw() % 4) as usize];
    let mut bytes: Vec<u8> = (0..len).map(|_| random.draw() as u8 & mask).collect();
    // A part that is empty.
    if !bytes.is_empty() && random.draw() & 1 == 0 {
        let from = random.draw() as usize % bytes.len();
        let to = from + random.draw() as usize % (bytes.len() - from);
        bytes[from..to].fill(0);
    }
    bytes
}

/// What it found, if it found anything.
fn run(name: &str, target: Target) -> Result<(), String> {
    // Named by its letters, so that another target's inputs do not depend on how many there are.
    let mut random =
        Random(name.bytes().fold(0, |seed: u64, byte| seed.wrapping_mul(31).wrapping_add(u64::from(byte))));
    for _ in 0..INPUTS {
        let bytes = input(&mut random);
        if catch_unwind(|| target(&bytes)).is_err() {
            let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{name}.input"));
            let kept = match fs::write(&path, &bytes) {
                Ok(()) => format!("it is in {}", path.display()),
                Err(error) => format!("it cannot be kept ({error}): {bytes:?}"),
            };
            return Err(format!("{name} fails on an input of {} bytes; {kept}", bytes.len()));
        }
    }
    Ok(())
}

#[test]
fn targets_hold_on_random_inputs() {
    let next = AtomicUsize::new(0);
    let work = || {
        let targets = std::iter::from_fn(|| TARGETS.get(next.fetch_add(1, Relaxed)));
        targets.filter_map(|(name, target)| run(name, *target).err()).collect::<Vec<_>>()
    };
    let workers = thread::available_parallelism().map_or(1, usize::from);
    let found: Vec<String> = thread::scope(|scope| {
        let workers: Vec<_> = (0..workers).map(|_| scope.spawn(work)).collect();
        workers.into_iter().flat_map(|worker| worker.join().expect("the worker does not panic")).collect()
    });
    assert!(TARGETS.len() > 30, "only {} targets were found", TARGETS.len());
    assert!(found.is_empty(), "{}", found.join("\n"));
}
