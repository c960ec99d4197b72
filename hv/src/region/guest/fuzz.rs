//! A kernel that calls at random.

use super::*;

/// Frames of RAM: two ranges, and more than one request moves.
const RAM: [Range<Gfn>; 2] = [Gfn(0)..Gfn(0xa0), Gfn(0x100)..Gfn(0xa00)];
/// Bytes of a request.
const REQUEST: usize = 10;

/// Performs the bytes as requests.
///
/// # Panics
/// If a request that is refused changes a region, if one that is performed does not do what it says, or if the partition's records
/// contradict each other.
pub fn fuzz_one(data: &[u8]) {
    let Ok(mut regions) = GuestRegions::new(RAM) else { return };
    let mut requests = 0;
    for request in data.chunks_exact(REQUEST).take(64) {
        perform(&mut regions, request);
        requests += 1;
        let Counts { performed, refused } = regions.counts();
        assert_eq!(performed + refused, requests);
    }
    if let Err(what) = regions.partition().check() {
        panic!("{what}");
    }
}

/// Frames in each of the guest's regions, by its numbers.
fn sizes(regions: &GuestRegions) -> alloc::vec::Vec<(u16, u32)> {
    let frames = |rid| regions.partition().info(rid).map_or(u32::MAX, |info| info.frames);
    regions.list().map(|(number, rid)| (number, frames(rid))).collect()
}

fn perform(regions: &mut GuestRegions, request: &[u8]) {
    let before = sizes(regions);
    let frames_of = |sizes: &[(u16, u32)], number: u64| {
        sizes.iter().find(|(own, _)| u64::from(*own) == number).map(|(_, frames)| u64::from(*frames))
    };
    // Mostly numbers that may be right, and sometimes any.
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&request[1..9]);
    let any = u64::from_le_bytes(bytes);
    let (order, number) = (u64::from(request[1]) % 12, u64::from(request[9]) % 8);
    let number = if request[9] == u8::MAX { any } else { number };
    let first = match request[2] % 8 {
        0 => any,
        1 => u64::from(request[3]),
        _ => u64::from(u16::from_le_bytes([request[3], request[4]]) & 0xfff) >> order << order,
    };
    // All of these regions are open everywhere.
    let follow: Follow<'_> = &mut |effect| assert!(!matches!(effect, Effect::Close(..)), "{effect:?}");
    let is_done = match request[0] % 5 {
        0 => {
            let added = regions.add(follow);
            if let Ok(number) = added {
                assert_eq!(frames_of(&before, number.into()), None, "number {number} is in use");
                assert_eq!(frames_of(&sizes(regions), number.into()), Some(0));
            }
            added.is_ok()
        }
        1 => {
            let removed = regions.remove(number, follow);
            let (then, now) = (frames_of(&before, number), frames_of(&sizes(regions), number));
            match removed {
                Ok(()) => assert!(then.is_some_and(|then| then <= MAX_FRAMES) && now.is_none()),
                Err(GuestError::Again) => assert_eq!(then, now.map(|now| now + MAX_FRAMES)),
                Err(_) => assert!(then.is_none() && now.is_none()),
            }
            // Some have gone back, though it was refused.
            return;
        }
        2 => {
            let removed = regions.remove_pages(first, order, number, follow);
            if removed.is_ok() {
                let (then, now) = (frames_of(&before, number), frames_of(&sizes(regions), number));
                assert_eq!(then, now.map(|now| now + (1 << order)));
            }
            removed.is_ok()
        }
        _ => {
            let added = regions.add_pages(first, order, number, follow);
            if added.is_ok() {
                let (then, now) = (frames_of(&before, number), frames_of(&sizes(regions), number));
                assert_eq!(then.map(|then| then + (1 << order)), now);
            }
            added.is_ok()
        }
    };
    assert!(is_done || before == sizes(regions), "a refused request has changed something");
}
