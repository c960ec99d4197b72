//! A pager on a machine of a few frames, against a model that only knows what each page holds.

use alloc::boxed::Box;
use alloc::collections::BTreeMap;
use alloc::collections::BTreeSet;
use alloc::sync::Arc;
use alloc::{vec, vec::Vec};

use abi::config::Replacement as PolicyName;
use spin::Mutex;

use super::*;
use crate::arch::addr::{Hpa, PAGE_SIZE};
use crate::mem::pager::disk::{DiskError, PageDisk, RUN, RUN_BYTES};
use crate::mem::pager::store::Store;

const PAGE: usize = PAGE_SIZE as usize;

/// The bytes of the input, one after the other.
struct Input<'a>(core::slice::Iter<'a, u8>);

impl Input<'_> {
    fn byte(&mut self) -> Option<u8> {
        self.0.next().copied()
    }

    fn word(&mut self) -> u16 {
        u16::from_le_bytes([0; 2].map(|zero: u8| self.byte().unwrap_or(zero)))
    }
}

/// Frames for tests: numbers from `first` on, with their bytes.
#[derive(Debug)]
pub struct TestFrames {
    first: u64,
    bytes: Vec<u8>,
    free: BTreeSet<u64>,
}

/// Shared, so that a test sees the bytes that the pager writes.
#[derive(Clone, Debug)]
pub struct SharedFrames(Arc<Mutex<TestFrames>>);

impl SharedFrames {
    /// `count` frames from `first` on.
    pub fn new(first: u64, count: u64) -> SharedFrames {
        let frames = TestFrames {
            first,
            bytes: vec![0xa5; count as usize * PAGE],
            free: (first..first + count).collect(),
        };
        SharedFrames(Arc::new(Mutex::new(frames)))
    }

    /// Frames that are free.
    pub fn free(&self) -> usize {
        self.0.lock().free.len()
    }

    /// Lets `change` see `len` bytes of a frame that was taken.
    fn with<R>(&self, at: Hpa, len: usize, change: impl FnOnce(&mut [u8]) -> R) -> R {
        let mut frames = self.0.lock();
        assert!(!frames.free.contains(&at.frame().0), "a frame that is free");
        let start = (at.0 - frames.first * PAGE_SIZE) as usize;
        change(&mut frames.bytes[start..start + len])
    }
}

impl FrameMemory for SharedFrames {
    fn take(&mut self) -> Option<Hfn> {
        self.0.lock().free.pop_first().map(Hfn)
    }

    fn give_back(&mut self, frame: Hfn) {
        self.with(frame.base(), PAGE, |bytes| bytes.fill(0xa5));
        assert!(self.0.lock().free.insert(frame.0), "given back twice");
    }

    fn read(&self, at: Hpa, buf: &mut [u8]) {
        self.with(at, buf.len(), |bytes| buf.copy_from_slice(bytes));
    }

    fn write(&self, at: Hpa, buf: &[u8]) {
        self.with(at, buf.len(), |bytes| bytes.copy_from_slice(buf));
    }

    fn clear(&self, frame: Hfn) {
        self.with(frame.base(), PAGE, |bytes| bytes.fill(0));
    }

    fn ticks(&self) -> u64 {
        0
    }
}

/// A disk of a few runs, which can fail.
#[derive(Clone, Debug)]
pub struct TestDisk {
    bytes: Vec<u8>,
    /// Requests until one fails; then all do.
    left: Option<u32>,
}

impl TestDisk {
    /// One with this many runs.
    pub fn new(runs: u32) -> TestDisk {
        TestDisk { bytes: vec![0x5a; runs as usize * RUN_BYTES], left: None }
    }

    /// The same, with this many requests before it fails.
    pub fn failing_after(runs: u32, requests: u32) -> TestDisk {
        TestDisk { left: Some(requests), ..TestDisk::new(runs) }
    }

    fn count(&mut self) -> Result<(), DiskError> {
        match &mut self.left {
            None => Ok(()),
            Some(0) => Err(DiskError),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

impl PageDisk for TestDisk {
    fn runs(&self) -> u32 {
        (self.bytes.len() / RUN_BYTES) as u32
    }

    fn read(&mut self, run: u32, out: &mut [u8]) -> Result<(), DiskError> {
        // Unspecified, if it fails.
        out.fill(0xee);
        self.count()?;
        out.copy_from_slice(&self.bytes[run as usize * RUN_BYTES..][..RUN_BYTES]);
        Ok(())
    }

    fn write(&mut self, place: u32, pages: &[u8]) -> Result<(), DiskError> {
        assert!((place % RUN) as usize + pages.len() / PAGE <= RUN as usize && !pages.is_empty());
        let into = &mut self.bytes[place as usize * PAGE..][..pages.len()];
        into.fill(0xee);
        self.count()?;
        self.bytes[place as usize * PAGE..][..pages.len()].copy_from_slice(pages);
        Ok(())
    }
}

/// A page's bytes: mostly zeroes, text, or noise.
fn contents(kind: u8, seed: u64) -> Vec<u8> {
    let mut word = seed | 1;
    let noise = (0..PAGE).map(move |n| {
        word = word.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(n as u64);
        (word >> 56) as u8
    });
    match kind % 4 {
        0 => vec![0; PAGE],
        1 => noise.enumerate().map(|(n, byte)| if n % 64 == 0 { byte } else { 0 }).collect(),
        2 => noise.map(|byte| byte & 3).collect(),
        _ => noise.collect(),
    }
}

/// Bits as the input has them.
struct FuzzPages<'a, 'b>(&'a mut Input<'b>);

impl Pages for FuzzPages<'_, '_> {
    fn is_evictable(&mut self, page: Resident) -> bool {
        page.page.0 % 7 != 6
    }

    fn take_accessed(&mut self, _: Resident) -> bool {
        self.0.byte().is_some_and(|byte| byte % 3 == 0)
    }
}

/// Pages of the machine of [`fuzz_pager`].
const PAGES: u32 = 40;

/// A trace for the pager or, by its first byte, for the store alone.
pub fn fuzz_one(data: &[u8]) {
    match data.split_first() {
        Some((0..192, trace)) => fuzz_pager(trace),
        Some((_, trace)) => fuzz_store(trace),
        None => {}
    }
}

/// Accesses, evictions, and resets, in any order: each page holds what was written last, until the pager says that it has failed; then
/// too.
pub(super) fn fuzz_pager(data: &[u8]) {
    let mut input = Input(data.iter());
    let policy = PolicyName::ALL[usize::from(input.byte().unwrap_or(0)) % PolicyName::ALL.len()];
    let resident = 4 + u32::from(input.byte().unwrap_or(0) % 16);
    let store = 1 + u32::from(input.byte().unwrap_or(0) % 24);
    let frames = SharedFrames::new(100, 96);
    let span = Span { low: PAGES / 2, high_start: Gfn(1 << 20), high: PAGES / 2 };
    let budget = Budget { resident, reserve: 8, store };
    let pager = Pager::new(span, budget, policy, Box::new(frames.clone())).expect("the test's own heap");
    match input.byte().unwrap_or(0) % 8 {
        0..=2 => {}
        runs @ 3..=6 => pager.use_disk(Box::new(TestDisk::new(u32::from(runs) - 2))).expect("as above"),
        _ => {
            let requests = input.byte().unwrap_or(0).into();
            pager.use_disk(Box::new(TestDisk::failing_after(3, requests))).expect("as above");
        }
    }
    let mut present = BTreeMap::<u64, Hfn>::new();
    let mut holds = BTreeMap::<u64, Vec<u8>>::new();
    while let Some(op) = input.byte() {
        match op % 8 {
            0..=4 => {
                let number = u32::from(input.byte().unwrap_or(0)) % PAGES;
                let page = span.page(number);
                assert_eq!(span.number(page), Some(number));
                let is_absent = !present.contains_key(&page.0);
                if is_absent {
                    pager.bring_in(page, &mut |frame| {
                        present.insert(page.0, frame);
                    });
                }
                let Some(frame) = present.get(&page.0) else {
                    assert!(pager.failure().is_some(), "a page that does not come");
                    continue;
                };
                let mut found = vec![0; PAGE];
                frames.read(frame.base(), &mut found);
                assert!(holds.get(&page.0).is_none_or(|held| *held == found), "page {number} has changed");
                assert!(holds.contains_key(&page.0) || found.iter().all(|byte| *byte == 0));
                if op & 0x80 != 0 {
                    let new = contents(op >> 4, u64::from(op) << 8 | u64::from(number));
                    frames.write(frame.base(), &new);
                    holds.insert(page.0, new);
                }
            }
            5 => {
                for page in pager.choose(&mut FuzzPages(&mut input)) {
                    assert_eq!(present.remove(&page.page.0), Some(page.frame));
                }
            }
            6 => {
                while pager.store(&mut |page| {
                    present.insert(page.page.0, page.frame);
                }) {}
            }
            // Also a page that is leaving.
            7 if op < 0xc0 => {
                let page = span.page(u32::from(input.byte().unwrap_or(0)) % PAGES);
                let stays = op & 8 != 0;
                let done = pager.discard(page, &mut |frame| {
                    assert_eq!(present.get(&page.0), Some(&frame));
                    !stays && present.remove(&page.0).is_some()
                });
                if done {
                    assert!(!present.contains_key(&page.0));
                    holds.remove(&page.0);
                }
            }
            _ if op == 0xff => {
                pager.reset();
                present.clear();
                holds.clear();
            }
            _ => {}
        }
        pager.check();
    }
    drop(pager);
    assert_eq!(frames.free(), 96, "frames are lost");
}

/// Puts, gets and removals in a store of a few frames, and handles that are none.
pub(super) fn fuzz_store(data: &[u8]) {
    let mut input = Input(data.iter());
    let mut frames = SharedFrames::new(7, u64::from(input.byte().unwrap_or(0) % 8));
    let (all, most) = (frames.free(), 1 + u32::from(input.byte().unwrap_or(0) % 8));
    let mut store = Store::new(most).expect("the test's own heap");
    let mut kept = BTreeMap::<u32, Vec<u8>>::new();
    while let Some(op) = input.byte() {
        let pick = u32::from(input.byte().unwrap_or(0));
        match op % 4 {
            0 | 1 => {
                let length = usize::from(input.word()) % (PAGE + 1);
                let bytes = contents(3, pick.into())[..length].to_vec();
                let before = (store.bytes(), store.frames());
                match store.put(&bytes, &mut frames) {
                    Some(handle) => assert!(kept.insert(handle, bytes).is_none(), "a handle twice"),
                    None => {
                        assert_eq!(before, (store.bytes(), store.frames()), "a failed put changed something")
                    }
                }
            }
            2 => {
                if let Some(handle) = kept.keys().nth(pick as usize % kept.len().max(1)).copied() {
                    kept.remove(&handle);
                    store.remove(handle, &mut frames);
                }
            }
            _ => {
                // May be none, or the middle of a chain.
                let mut out = [0; PAGE];
                let _anything_but_a_panic = store.get(pick, &mut out, &frames);
                if op == 0xff {
                    store.clear(&mut frames);
                    kept.clear();
                }
            }
        }
        for (handle, bytes) in &kept {
            let mut out = [0; PAGE];
            let length = store.get(*handle, &mut out, &frames).expect("it is kept");
            assert!(out[..length] == bytes[..]);
        }
        store.check();
        assert_eq!(all - frames.free(), store.frames() as usize);
    }
}
