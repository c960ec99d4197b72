//! Interrupt messages: what I/O APIC, MSI sources and local APICs send to local APICs, and which of them a message addresses.
//!
//! The VM takes messages out of [`Messages`] (or of [`super::lapic::LapicEffect::Ipi`]), finds the receivers
//! with [`ApicAddress::matches`] and hands each of them the message through [`super::lapic::Lapic::deliver`]. A message's destination has 32 bits
//! in any mode; 8-bit senders widen theirs with [`widen_dest`], so that "everyone" has one representation.
//!
//! Intel SDM 3, 11.6.2 (destinations), 11.12.9–10 (x2APIC), 11.11 (MSI); AMD APM 2, 16.6.1.

use arrayvec::ArrayVec;

/// The destination that addresses every local APIC, physical or logical.
pub const BROADCAST: u32 = 0xffff_ffff;

/// How a receiver treats a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DeliveryMode {
    /// Every addressed APIC takes the vector.
    Fixed,
    /// One of the addressed APICs, the one with the lowest priority, takes the vector.
    LowestPriority,
    /// System-management interrupt
    Smi,
    /// Non-maskable interrupt
    Nmi,
    /// INIT
    Init,
    /// Start-up IPI; the vector names a page below 1 MiB
    Startup,
    /// The 8259A supplies the vector.
    ExtInt,
}

impl DeliveryMode {
    /// The mode with this 3-bit encoding; `None` if reserved (3).
    pub const fn from_bits(bits: u32) -> Option<DeliveryMode> {
        Some(match bits & 7 {
            0 => DeliveryMode::Fixed,
            1 => DeliveryMode::LowestPriority,
            2 => DeliveryMode::Smi,
            4 => DeliveryMode::Nmi,
            5 => DeliveryMode::Init,
            6 => DeliveryMode::Startup,
            7 => DeliveryMode::ExtInt,
            _ => return None,
        })
    }

    /// Whether the message carries a vector for the receiver's IRR.
    pub const fn has_vector(self) -> bool {
        matches!(self, DeliveryMode::Fixed | DeliveryMode::LowestPriority)
    }
}

/// The targets of an IPI that its destination field does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shorthand {
    /// The destination field counts.
    None,
    /// The sender
    Myself,
    /// Everyone, the sender too
    All,
    /// Everyone but the sender
    Others,
}

/// One interrupt on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InterruptMessage {
    /// Vector (or start-up page).
    pub vector: u8,
    /// What to do with it.
    pub mode: DeliveryMode,
    /// Physical APIC ID or logical destination; [`BROADCAST`] is everyone.
    pub dest: u32,
    /// `dest` is logical.
    pub logical: bool,
    /// Level-triggered: the receiver's EOI is told to the I/O APIC.
    pub level: bool,
    /// Replaces `dest` for IPIs.
    pub shorthand: Shorthand,
}

impl InterruptMessage {
    /// The message that a write of `data` to `address` stands for; `None` if the address is not in the
    /// interrupt range (0xfeexxxxx) or the delivery mode is reserved. The redirection hint makes a fixed
    /// logical message a lowest-priority one.
    pub const fn from_msi(address: u64, data: u32) -> Option<InterruptMessage> {
        if address >> 20 != 0xfee {
            return None;
        }
        let Some(mode) = DeliveryMode::from_bits(data >> 8) else { return None };
        let logical = address & 1 << 2 != 0;
        let redirect = address & 1 << 3 != 0;
        let mode = match mode {
            DeliveryMode::Startup => return None,
            DeliveryMode::Fixed if redirect && logical => DeliveryMode::LowestPriority,
            mode => mode,
        };
        Some(InterruptMessage {
            vector: data as u8,
            mode,
            dest: widen_dest((address >> 12) as u8),
            logical,
            level: mode.has_vector() && data & 1 << 15 != 0,
            shorthand: Shorthand::None,
        })
    }
}

/// The 32-bit form of an 8-bit destination: 0xff is [`BROADCAST`].
pub const fn widen_dest(dest: u8) -> u32 {
    if dest == 0xff { BROADCAST } else { dest as u32 }
}

/// How a local APIC compares a logical destination with its LDR.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogicalModel {
    /// xAPIC, DFR = flat: 8 bits, any bit in common
    Flat,
    /// xAPIC, DFR = cluster: 4-bit cluster number, 4-bit mask
    Cluster,
    /// x2APIC: 16-bit cluster number, 16-bit mask
    X2Apic,
}

/// The logical ID of a local APIC in x2APIC mode (Intel SDM 3, 11.12.10.2): cluster and place in it.
pub const fn x2apic_logical_id(id: u32) -> u32 {
    id >> 4 << 16 | 1 << (id & 15)
}

/// Everything about one local APIC that addressing needs: a copy can be kept where senders find it. It changes
/// only with [`super::lapic::LapicEffect::Readdressed`] and with INIT.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ApicAddress {
    /// Physical ID
    pub id: u32,
    /// Logical destination register: bits 7:0 in xAPIC mode, all bits in x2APIC mode
    pub logical_id: u32,
    /// How `logical_id` is compared.
    pub model: LogicalModel,
    /// APIC_BASE.EN: without it nothing arrives.
    pub hardware_enabled: bool,
    /// SVR bit 8: without it no vectors arrive, but INIT, NMI, SMI and start-up do.
    pub software_enabled: bool,
}

impl ApicAddress {
    /// All of it in one word, for a place that others read while it changes. The ID has 32 bits; a logical ID of x2APIC mode
    /// follows from it.
    pub fn to_bits(self) -> u64 {
        let (model, logical) = match self.model {
            LogicalModel::Flat => (0, self.logical_id & 0xff),
            LogicalModel::Cluster => (1, self.logical_id & 0xff),
            LogicalModel::X2Apic => (2, 0),
        };
        u64::from(self.id)
            | u64::from(logical) << 32
            | model << 40
            | u64::from(self.hardware_enabled) << 42
            | u64::from(self.software_enabled) << 43
    }

    /// What [`ApicAddress::to_bits`] made.
    pub fn from_bits(bits: u64) -> ApicAddress {
        let id = bits as u32;
        let logical = (bits >> 32) as u32 & 0xff;
        let (model, logical_id) = match bits >> 40 & 3 {
            0 => (LogicalModel::Flat, logical),
            1 => (LogicalModel::Cluster, logical),
            _ => (LogicalModel::X2Apic, x2apic_logical_id(id)),
        };
        let (hardware_enabled, software_enabled) = (bits >> 42 & 1 != 0, bits >> 43 & 1 != 0);
        ApicAddress { id, logical_id, model, hardware_enabled, software_enabled }
    }

    /// Whether `message` addresses this APIC; `is_sender` says whether this APIC sent it. For a lowest-priority
    /// message: whether this APIC is one of the candidates.
    pub fn matches(&self, message: &InterruptMessage, is_sender: bool) -> bool {
        if !self.hardware_enabled || message.mode.has_vector() && !self.software_enabled {
            return false;
        }
        match message.shorthand {
            Shorthand::Myself => is_sender,
            Shorthand::All => true,
            Shorthand::Others => !is_sender,
            Shorthand::None if message.dest == BROADCAST => true,
            Shorthand::None if message.logical => self.matches_logical(message.dest),
            Shorthand::None => message.dest == self.id,
        }
    }

    fn matches_logical(&self, dest: u32) -> bool {
        let cluster_shift = match self.model {
            LogicalModel::Flat => 8,
            LogicalModel::Cluster => 4,
            LogicalModel::X2Apic => 16,
        };
        // Flat is one cluster; a destination too wide for an xAPIC is in none of its clusters.
        let (id, members) = (self.logical_id, (1 << cluster_shift) - 1);
        dest >> cluster_shift == id >> cluster_shift && dest & id & members != 0
    }
}

/// Where devices put their messages. One call to a device appends at most 24 (an EOI of a vector that all pins
/// of an I/O APIC share), so a sink that is emptied after each call loses nothing.
#[derive(Clone, Debug, Default)]
pub struct Messages(ArrayVec<InterruptMessage, 32>);

impl Messages {
    /// An empty sink.
    pub const fn new() -> Messages {
        Messages(ArrayVec::new_const())
    }

    /// Appends a message; `false` if there is no room and it was not taken.
    #[must_use]
    pub fn push(&mut self, message: InterruptMessage) -> bool {
        self.0.try_push(message).is_ok()
    }

    /// Whether there is nothing to route.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes all messages out, oldest first.
    pub fn drain(&mut self) -> impl Iterator<Item = InterruptMessage> + '_ {
        self.0.drain(..)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn to(dest: u32, logical: bool) -> InterruptMessage {
        let (mode, shorthand) = (DeliveryMode::Fixed, Shorthand::None);
        InterruptMessage { vector: 0x40, mode, dest, logical, level: false, shorthand }
    }

    fn apic(model: LogicalModel, id: u32, logical_id: u32) -> ApicAddress {
        ApicAddress { id, logical_id, model, hardware_enabled: true, software_enabled: true }
    }

    #[test]
    fn physical_destinations_name_one_apic_or_all() {
        let apic = apic(LogicalModel::X2Apic, 0x1_0005, 0);
        assert!(apic.matches(&to(0x1_0005, false), false));
        assert!(!apic.matches(&to(5, false), false));
        assert!(apic.matches(&to(BROADCAST, false), false));
        assert_eq!((widen_dest(0xff), widen_dest(0xfe)), (BROADCAST, 0xfe));
    }

    #[test]
    fn flat_destinations_are_masks() {
        let apic = apic(LogicalModel::Flat, 0, 0b0000_0110);
        for (dest, expected) in [(0b10, true), (0b1001, false), (0b1111, true), (0, false), (0x102, false)] {
            assert_eq!(apic.matches(&to(dest, true), false), expected, "{dest:#x}");
        }
        assert!(apic.matches(&to(BROADCAST, true), false));
    }

    #[test]
    fn cluster_destinations_are_a_number_and_a_mask() {
        let xapic = apic(LogicalModel::Cluster, 0, 0x32);
        for (dest, expected) in [(0x32, true), (0x3f, true), (0x31, false), (0x22, false), (0x30, false)] {
            assert_eq!(xapic.matches(&to(dest, true), false), expected, "{dest:#x}");
        }
        let x2apic = apic(LogicalModel::X2Apic, 0, 0x0003_8000);
        for (dest, expected) in
            [(0x0003_8000, true), (0x0003_ffff, true), (0x8000, false), (0x0003_0001, false)]
        {
            assert_eq!(x2apic.matches(&to(dest, true), false), expected, "{dest:#x}");
        }
    }

    #[test]
    fn addresses_fit_a_word() {
        for (model, logical) in [
            (LogicalModel::Flat, 0x82),
            (LogicalModel::Cluster, 0x31),
            (LogicalModel::X2Apic, x2apic_logical_id(0x1_0025)),
        ] {
            for (hardware_enabled, software_enabled) in [(true, true), (true, false), (false, false)] {
                let address =
                    ApicAddress { hardware_enabled, software_enabled, ..apic(model, 0x1_0025, logical) };
                assert_eq!(ApicAddress::from_bits(address.to_bits()), address);
            }
        }
    }

    #[test]
    fn shorthands_ignore_the_destination() {
        let apic = apic(LogicalModel::Flat, 7, 1);
        let expected = [
            (Shorthand::Myself, true, false),
            (Shorthand::All, true, true),
            (Shorthand::Others, false, true),
        ];
        for (shorthand, by_sender, by_other) in expected {
            let message = InterruptMessage { shorthand, ..to(99, false) };
            assert_eq!((apic.matches(&message, true), apic.matches(&message, false)), (by_sender, by_other));
        }
    }

    #[test]
    fn disabled_apics_hear_little_or_nothing() {
        let enabled = apic(LogicalModel::Flat, 0, 0);
        let software_disabled = ApicAddress { software_enabled: false, ..enabled };
        let hardware_disabled = ApicAddress { hardware_enabled: false, ..software_disabled };
        let nmi = InterruptMessage { mode: DeliveryMode::Nmi, ..to(BROADCAST, false) };
        let fixed = to(BROADCAST, false);
        assert_eq!((enabled.matches(&fixed, false), enabled.matches(&nmi, false)), (true, true));
        assert_eq!(
            (software_disabled.matches(&fixed, false), software_disabled.matches(&nmi, false)),
            (false, true)
        );
        assert_eq!(
            (hardware_disabled.matches(&fixed, false), hardware_disabled.matches(&nmi, false)),
            (false, false)
        );
    }

    #[test]
    fn msi_address_and_data_become_a_message() {
        let message = InterruptMessage::from_msi(0xfee0_3004, 0xc041).unwrap();
        assert_eq!(message, InterruptMessage { vector: 0x41, level: true, ..to(3, true) });
        assert_eq!(InterruptMessage::from_msi(0xfeef_f000, 0x40), Some(to(BROADCAST, false)));
        let redirected = InterruptMessage::from_msi(0xfee0_300c, 0x40).unwrap();
        assert_eq!(redirected.mode, DeliveryMode::LowestPriority);
        let nmi = InterruptMessage::from_msi(0xfee0_0000, 0x8400).unwrap();
        assert_eq!((nmi.mode, nmi.level), (DeliveryMode::Nmi, false));
        for (address, data) in
            [(0xfed0_0000, 0x40), (0x1_fee0_0000, 0x40), (0xfee0_0000, 0x300), (0xfee0_0000, 0x600)]
        {
            assert_eq!(InterruptMessage::from_msi(address, data), None);
        }
    }

    #[test]
    fn a_full_sink_says_so() {
        let mut messages = Messages::new();
        assert_eq!((0..40).filter(|_| messages.push(to(0, false))).count(), 32);
        assert_eq!(messages.drain().count(), 32);
        assert!(messages.is_empty());
    }
}
