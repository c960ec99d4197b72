//! Which address spaces' entries are valid: generations, so that a flush costs nothing.
//!
//! Every entry of a translation cache carries a [`Tag`]: ASID, kind and the generation of both at the time of filling. A
//! flush makes a new generation; entries of older ones are dead, and their places are taken before any live entry's, just
//! as if the flush had emptied them.

/// Identifiers that are told apart. Those from the last one on share it, and a change between them is a flush.
pub const ASIDS: u16 = 2048;
/// Generations until they begin again; then everything is really emptied.
const GENERATIONS: u32 = 1 << 13;

/// What an entry translates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Linear addresses.
    Linear = 0,
    /// Linear addresses of pages that are global.
    Global = 1,
    /// Guest-physical addresses.
    Nested = 2,
}

/// ASID, kind and generation in 26 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tag(pub u32);

impl Tag {
    /// Bits of it.
    pub const BITS: u32 = 26;

    const fn new(asid: u16, kind: u32, generation: u32) -> Tag {
        Tag((asid as u32) << 15 | kind << 13 | generation)
    }
}

/// The generations of one processor.
pub struct Spaces {
    generations: Box<[[u16; 3]; ASIDS as usize]>,
    deaths: u64,
}

impl Default for Spaces {
    fn default() -> Self {
        Spaces { generations: Box::new([[0; 3]; ASIDS as usize]), deaths: 0 }
    }
}

impl Spaces {
    /// The tag of new entries. `asid` is below [`ASIDS`].
    pub fn tag(&self, asid: u16, kind: Kind) -> Tag {
        Tag::new(asid, kind as u32, u32::from(self.generations[usize::from(asid)][kind as usize]))
    }

    /// Whether entries with this tag are valid.
    #[inline]
    pub fn is_live(&self, tag: Tag) -> bool {
        let kind = (tag.0 >> 13 & 3) as usize;
        let generations = &self.generations[(tag.0 >> 15) as usize % usize::from(ASIDS)];
        generations.get(kind).is_some_and(|generation| u32::from(*generation) == tag.0 % GENERATIONS)
    }

    /// How often tags have died, and which are live: for [`Bank::insert`](super::bank::Bank::insert).
    #[inline]
    pub fn lives(&self) -> (u64, impl Fn(Tag) -> bool) {
        (self.deaths, |tag| self.is_live(tag))
    }

    /// Makes all entries of this kind invalid. True if the generations begin again: then the caller empties whatever
    /// holds tags.
    #[must_use]
    pub fn flush(&mut self, asid: u16, kind: Kind) -> bool {
        let generation = &mut self.generations[usize::from(asid)][kind as usize];
        *generation = (*generation + 1) % GENERATIONS as u16;
        self.deaths += 1;
        *generation == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_flush_ends_its_own_tags_only() {
        let mut spaces = Spaces::default();
        let tags = [
            (1, Kind::Linear),
            (1, Kind::Global),
            (1, Kind::Nested),
            (2, Kind::Linear),
            (2047, Kind::Nested),
        ];
        let old = tags.map(|(asid, kind)| spaces.tag(asid, kind));
        assert!(old.iter().all(|tag| spaces.is_live(*tag) && tag.0 < 1 << Tag::BITS));
        assert!(!spaces.flush(1, Kind::Linear));
        assert_eq!(old.map(|tag| spaces.is_live(tag)), [false, true, true, true, true]);
        assert!(spaces.is_live(spaces.tag(1, Kind::Linear)));
    }

    #[test]
    fn generations_that_begin_again_are_told() {
        let mut spaces = Spaces::default();
        let wraps = (0..2 * GENERATIONS).filter(|_| spaces.flush(3, Kind::Global)).count();
        assert_eq!(wraps, 2);
    }
}
