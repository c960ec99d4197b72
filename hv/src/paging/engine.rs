//! The ways of translating a guest's addresses, and sets of them.
//!
//! A processor, and the state that a guest is in, supports a set of engines ([`Engines`]): a value, so code that
//! chooses tests the set instead of assuming that there are two engines. [`super::policy`] says which engine is wanted, `vm::translation` which one is in
//! force, and `vcpu::mmu` performs a change.

/// A way of translating guest-virtual to host-physical addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(u8)]
pub enum Engine {
    /// The processor walks the guest's tables and nested tables below them (AMD APM 2, 15.25; Intel SDM 3, 29.3).
    #[default]
    Nested,
    /// The processor walks shadow tables, which stand in the place of the guest's.
    Shadow,
    /// Shadow tables with [nested parts](super::shadow), which the guest writes without exits.
    Agile,
}

impl Engine {
    /// How many there are.
    pub const COUNT: usize = 3;

    /// All of them, by number; an earlier one is preferred where the wanted one cannot be used.
    pub const ALL: [Engine; Engine::COUNT] = [Engine::Nested, Engine::Shadow, Engine::Agile];

    /// Those that policies choose between; agile paging chooses for each table by itself.
    pub const CHOICES: [Engine; 2] = [Engine::Nested, Engine::Shadow];

    /// The other one of [`CHOICES`](Self::CHOICES); after agile paging nested tables.
    pub const fn other(self) -> Engine {
        if self.is_shadow() { Engine::Nested } else { Engine::Shadow }
    }

    /// The name in logs and statistics.
    pub const fn name(self) -> &'static str {
        match self {
            Engine::Nested => "nested",
            Engine::Shadow => "shadow",
            Engine::Agile => "agile",
        }
    }

    /// Whether the processor walks tables of the shadow engine, of either kind.
    #[inline(always)]
    pub const fn is_shadow(self) -> bool {
        !matches!(self, Engine::Nested)
    }

    /// The engine after this one, and after the last one the first: a round through all.
    pub const fn next(self) -> Engine {
        Engine::ALL[(self as usize + 1) % Engine::COUNT]
    }
}

/// A set of engines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Engines(u8);

impl Engines {
    /// No engine: the processor cannot run the guest at all.
    pub const NONE: Engines = Engines(0);
    /// All engines.
    pub const ALL: Engines = Engines((1 << Engine::COUNT) - 1);

    /// The set of one engine.
    pub const fn only(engine: Engine) -> Engines {
        Engines(1 << engine as u8)
    }

    /// The set with `engine` in it if `present`.
    #[must_use]
    pub const fn with(self, engine: Engine, present: bool) -> Engines {
        if present { Engines(self.0 | 1 << engine as u8) } else { self }
    }

    /// The set without `engine`.
    #[must_use]
    pub const fn without(self, engine: Engine) -> Engines {
        Engines(self.0 & !(1 << engine as u8))
    }

    /// Whether `engine` is in the set.
    pub const fn contains(self, engine: Engine) -> bool {
        self.0 & 1 << engine as u8 != 0
    }

    /// Whether one of them uses tables of the shadow engine.
    pub const fn uses_shadow(self) -> bool {
        self.contains(Engine::Shadow) || self.contains(Engine::Agile)
    }

    /// `wanted` if it is in the set, otherwise the first one that is; `None` from the empty set.
    pub fn choose(self, wanted: Engine) -> Option<Engine> {
        [wanted].into_iter().chain(Engine::ALL).find(|&engine| self.contains(engine))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_positions() {
        for (number, engine) in Engine::ALL.into_iter().enumerate() {
            assert_eq!(engine as usize, number);
            assert!(Engines::ALL.contains(engine) && !Engines::NONE.contains(engine));
        }
        assert_eq!(Engine::CHOICES.map(Engine::other), [Engine::Shadow, Engine::Nested]);
        assert_eq!(Engines::ALL.without(Engine::Nested).choose(Engine::Nested), Some(Engine::Shadow));
        let round: Vec<_> = (0..Engine::COUNT)
            .scan(Engine::Shadow, |at, _| Some(core::mem::replace(at, at.next())))
            .collect();
        assert!(Engine::ALL.iter().all(|engine| round.contains(engine)));
    }

    #[test]
    fn what_is_wanted_is_chosen_where_it_can_be() {
        let nested = Engines::only(Engine::Nested);
        assert_eq!(nested.choose(Engine::Shadow), Some(Engine::Nested));
        assert_eq!(nested.with(Engine::Shadow, true).choose(Engine::Shadow), Some(Engine::Shadow));
        assert_eq!(nested.with(Engine::Shadow, false), nested);
        assert_eq!(Engines::ALL.choose(Engine::Nested), Some(Engine::Nested));
        assert_eq!(Engines::NONE.choose(Engine::Nested), None);
    }
}
