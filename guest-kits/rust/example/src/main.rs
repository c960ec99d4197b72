//! A vector and a list of boxes, each in a region of its own: what is used together is in the same frames.
//!
//! `region-example [NODES [wait]]`; with `wait` the regions stay until the end of standard input.

use std::{env, io};

use palimpsest_region::{Region, RegionBox};

struct Node {
    next: Option<RegionBox<Node>>,
    value: u64,
    _text: [u8; 80],
}

/// Ends a list without a call for each node.
impl Drop for Node {
    fn drop(&mut self) {
        let mut next = self.next.take();
        while let Some(mut node) = next {
            next = node.next.take();
        }
    }
}

fn list(region: &Region, nodes: u64) -> io::Result<Option<RegionBox<Node>>> {
    let push = |next, value| region.alloc(Node { next, value, _text: [0; 80] }).map(Some);
    (0..nodes).try_fold(None, push)
}

fn main() -> io::Result<()> {
    let words: Vec<String> = env::args().skip(1).collect();
    let nodes = words.first().and_then(|word| word.parse().ok()).unwrap_or(10_000);
    let regions = [Region::new(), Region::new()];
    for why in regions.iter().filter_map(Region::reason) {
        println!("plain memory: {why}");
    }
    let list = list(&regions[0], nodes)?;
    let mut squares = regions[1].vec();
    squares.extend((0..nodes).map(|n| n * n));
    let values = std::iter::successors(list.as_deref(), |node| node.next.as_deref()).map(|node| node.value);
    for (region, sum) in regions.iter().zip([values.sum::<u64>(), squares.iter().sum()]) {
        println!("region {} frames {} sum {sum}", region.number().unwrap_or(0), region.frames());
    }
    if words.get(1).is_some_and(|word| word == "wait") {
        io::copy(&mut io::stdin(), &mut io::sink())?;
    }
    Ok(())
}
