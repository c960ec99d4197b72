//! Steps that an engine under test leaves out, so that the [oracle](super::oracle) can show that it would notice.

/// A step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// A table that becomes unsync loses its marks of entries that are absent.
    ForgetAbsent,
    /// A table that is write-protected again is compared with what was filled.
    CompareProtected,
    /// A write to a table that stays write-protected takes the mark of an absent entry away.
    ForgetWritten,
    /// Agile paging: a flush of the guest's compares the links of nested tables.
    CompareNestedLinks,
    /// Agile paging: a flush of everything compares what was filled from nested tables of level 1.
    CompareNestedLeaves,
    /// Agile paging: a nested table that becomes shadowed is compared with what was filled.
    CompareShadowed,
    /// A page that was left alone when the guest came back from nested tables is compared when it is linked.
    CompareDeferred,
    /// INVLPG compares its entry in the tables of other cache domains, too.
    CompareOtherTrees,
    /// A change to the tables of another cache domain compares unsync tables, if the guest has taken a fault.
    CompareAfterFault,
    /// In a phase entries are filled ahead only where their pages are open.
    AskPrefetched,
    /// A write to a table fills no entry of a phase's tables.
    AskFollowed,
}

/// The step that is left out. Outside of tests none is.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeftOut(#[cfg(any(test, feature = "testing"))] pub Option<Step>);

impl LeftOut {
    /// Whether it is this one.
    #[inline(always)]
    pub(super) fn is(self, step: Step) -> bool {
        #[cfg(any(test, feature = "testing"))]
        let is_it = self.0 == Some(step);
        #[cfg(not(any(test, feature = "testing")))]
        let is_it = {
            let _none = step;
            false
        };
        is_it
    }
}
