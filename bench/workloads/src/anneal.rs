//! Simulated annealing on a netlist: random elements, their neighbours, and hardly a change of page tables.

use std::io;

use crate::{Work, random::Random, sys::Area};

/// Moves of a netlist's elements.
pub fn anneal(rounds: u64) -> io::Result<Work> {
    let mut netlist = Netlist::new()?;
    Ok(Box::new(move || {
        let moves = (0..rounds).filter(|round| netlist.step(1 + HOT * (rounds - round) / rounds)).count();
        Ok((netlist.length() as u64).wrapping_mul(31).wrapping_add(moves as u64))
    }))
}

const ELEMENTS: usize = 1 << 17;
/// Words of an element: where it is, its neighbours, and room for what it is about: 64 MiB in all.
const ELEMENT: usize = 64;
const NEIGHBOURS: usize = 5;
/// Places in a row of the chip.
const ROW: u64 = 512;
/// By how much a swap may make the wires longer at the beginning.
const HOT: u64 = 64;

/// Elements with wires between them, each at a place of its own.
struct Netlist {
    elements: Area,
    random: Random,
}

impl Netlist {
    fn new() -> io::Result<Netlist> {
        let mut elements = Area::new(ELEMENTS * ELEMENT * size_of::<u64>())?;
        let mut random = Random::new(19);
        for (number, element) in elements.words().chunks_exact_mut(ELEMENT).enumerate() {
            element[0] = number as u64;
            // Most wires are short, some are not.
            for (wire, to) in element[1..=NEIGHBOURS].iter_mut().enumerate() {
                let reach = if wire == 0 { ELEMENTS } else { 1 << 12 };
                *to = ((number + random.below(reach)) % ELEMENTS) as u64;
            }
        }
        elements.settle();
        // Places at random.
        let mut netlist = Netlist { elements, random };
        for element in 0..ELEMENTS {
            let other = netlist.random.below(ELEMENTS);
            netlist.swap(element, other);
        }
        Ok(netlist)
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.elements.words().swap(one * ELEMENT, other * ELEMENT);
    }

    /// The length of an element's wires, if it were at this place.
    fn wires(words: &[u64], element: usize, place: u64) -> i64 {
        let neighbours = &words[element * ELEMENT + 1..=element * ELEMENT + NEIGHBOURS];
        let length = |to: &u64| {
            let other = words[*to as usize * ELEMENT];
            (place % ROW).abs_diff(other % ROW) + (place / ROW).abs_diff(other / ROW)
        };
        neighbours.iter().map(length).sum::<u64>() as i64
    }

    /// Swaps two random elements if the wires get shorter, or, the warmer it is, not much longer. Whether it did.
    fn step(&mut self, warmth: u64) -> bool {
        let (one, other) = (self.random.below(ELEMENTS), self.random.below(ELEMENTS));
        let allowed = (self.random.next() >> 32) % warmth;
        let words = self.elements.words();
        let (from, to) = (words[one * ELEMENT], words[other * ELEMENT]);
        let now = Self::wires(words, one, from) + Self::wires(words, other, to);
        let then = Self::wires(words, one, to) + Self::wires(words, other, from);
        let swaps = then < now + allowed as i64;
        if swaps {
            self.swap(one, other);
        }
        swaps
    }

    /// The length of all wires.
    fn length(&mut self) -> i64 {
        let words = self.elements.words();
        (0..ELEMENTS).map(|element| Self::wires(words, element, words[element * ELEMENT])).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wires_get_shorter_and_every_place_is_taken_once() {
        let mut netlist = Netlist::new().unwrap();
        let before = netlist.length();
        let moved = (0..100_000).filter(|_| netlist.step(1)).count();
        assert!(moved > 1000, "{moved}");
        assert!(netlist.length() < before * 95 / 100, "{before} and {}", netlist.length());
        let mut places: Vec<u64> = netlist.elements.words().iter().step_by(ELEMENT).copied().collect();
        places.sort_unstable();
        assert!(places.iter().copied().eq(0..ELEMENTS as u64));
    }
}
