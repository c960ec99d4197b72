//! What a hypervisor with agile paging tells a machine that models the proposed processor.
//!
//! No processor walks shadow tables and goes on in the guest's. On those that there are, the hypervisor fills the nested parts of
//! its shadow tables on demand. A modelled walker sees from the [switching bit](SWITCHING) and from [`Words`] what the proposed
//! processor would have done in its place. Real processors ignore both: the bit is available to software (AMD APM 2,
//! 5.4.1; Intel SDM 3, 4.5), and the bytes of the VMCB are the hypervisor's own (AMD APM 2, appendix B, offset 0x3e0). VT-x has no such bytes:
//! there only the bit is there.

/// Offset of [`Words`] in the VMCB. All words are 0 unless agile paging is in force.
pub const VMCB_OFFSET: usize = 0x3e0;
/// In bits 63 to 32 of the first word: the words are valid.
pub const MAGIC: u64 = 0x4147_4c45;
/// Bit of the first word: the exit that this VMRUN ends was a stand-in for what the proposed processor does by itself.
pub const STAND_IN: u64 = 1 << 0;
/// Bit of the first word: the whole address space is walked nested, from the root.
pub const ROOT_NESTED: u64 = 1 << 1;
/// Bit of the first word: the register of the shadow root has the [switching bit](SWITCHING), so that the walk begins in the
/// guest's root table. Unlike with [`ROOT_NESTED`], where that table is has not to be translated first.
pub const ROOT_SWITCHING: u64 = 1 << 2;
/// Bit of a present shadow entry above level 1 that points to a table: the walk goes on in the guest's table, with
/// nested translation. The table that the entry points to stands in for what that walk would find.
pub const SWITCHING: u64 = 1 << 58;

/// The words in the VMCB, as they are at VMRUN.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Words {
    /// [`MAGIC`] in bits 63 to 32, [`STAND_IN`] and [`ROOT_NESTED`] below.
    pub state: u64,
    /// The guest's CR3.
    pub guest_cr3: u64,
    /// Host-physical address of the root of the nested tables, which are current whatever engine is in force.
    pub nested_root: u64,
    /// 0.
    pub reserved: u64,
}

const _: () = assert!(VMCB_OFFSET + core::mem::size_of::<Words>() == 0x400);

impl Words {
    /// The words while agile paging is in force.
    pub const fn new(stand_in: bool, root_nested: bool, guest_cr3: u64, nested_root: u64) -> Words {
        let state =
            MAGIC << 32 | if stand_in { STAND_IN } else { 0 } | if root_nested { ROOT_NESTED } else { 0 };
        Words { state, guest_cr3, nested_root, reserved: 0 }
    }

    /// Whether agile paging is in force.
    pub const fn is_valid(&self) -> bool {
        self.state >> 32 == MAGIC
    }

    /// Whether the exit that this VMRUN ends is not to be charged.
    pub const fn is_stand_in(&self) -> bool {
        self.is_valid() && self.state & STAND_IN != 0
    }

    /// Whether the whole address space is walked nested.
    pub const fn is_root_nested(&self) -> bool {
        self.is_valid() && self.state & ROOT_NESTED != 0
    }

    /// Whether the walk begins in the guest's root table, whose place is known.
    pub const fn is_root_switching(&self) -> bool {
        self.is_valid() && self.state & ROOT_SWITCHING != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_they_were_made_of() {
        for (stand_in, root_nested) in [(false, false), (true, false), (false, true), (true, true)] {
            let words = Words::new(stand_in, root_nested, 0x1000, 0x2000);
            assert!(words.is_valid());
            assert_eq!((words.is_stand_in(), words.is_root_nested()), (stand_in, root_nested));
            assert_eq!((words.guest_cr3, words.nested_root, words.reserved), (0x1000, 0x2000, 0));
        }
        let off = Words::default();
        assert!(!off.is_valid() && !off.is_stand_in() && !off.is_root_nested());
    }
}
