//! The host's real-time clock, read once for the guests' clocks. MC146818A data sheet.

use super::port::{in8, out8};

const INDEX: u16 = 0x70;
const DATA: u16 = 0x71;

fn read(register: u8) -> u8 {
    // SAFETY: the index and data ports of the real-time clock; bit 7 keeps NMIs as firmware leaves them (open).
    unsafe {
        out8(INDEX, register);
        in8(DATA)
    }
}

/// Seconds since 1970 by the host's clock, taken as UTC; 0 if there is no clock.
pub fn unix_seconds() -> u64 {
    const UPDATING: u8 = 0x80;
    let fields = || [0, 2, 4, 7, 8, 9].map(read);
    // Two equal readings in a row are not torn by an update. Bounded: without a clock all registers read as ones.
    for _ in 0..10_000 {
        // During an update the time registers are undefined (MC146818A data sheet, "Update cycle").
        if read(0xa) & UPDATING != 0 {
            continue;
        }
        let first = fields();
        if first == fields() {
            return to_seconds(first, read(0xb)).unwrap_or(0);
        }
    }
    0
}

/// `fields`: second, minute, hour, day, month, year; `status_b` says how they are coded.
fn to_seconds(fields: [u8; 6], status_b: u8) -> Option<u64> {
    const BINARY: u8 = 1 << 2;
    const HOURS_24: u8 = 1 << 1;
    let number = |v: u8| u64::from(if status_b & BINARY != 0 { v } else { (v >> 4) * 10 + (v & 0xf) });
    let [second, minute, hour, day, month, year] = fields;
    let mut hours = number(hour & 0x7f);
    if status_b & HOURS_24 == 0 {
        hours = hours % 12 + if hour & 0x80 != 0 { 12 } else { 0 };
    } else {
        hours = number(hour);
    }
    let (second, minute, day, month) = (number(second), number(minute), number(day), number(month));
    if second > 59 || minute > 59 || hours > 23 || !(1..=31).contains(&day) || !(1..=12).contains(&month) {
        return None;
    }
    let year = 2000 + number(year) % 100;
    // Days since 1970 of a date in the Gregorian calendar, with years that begin in March.
    let (y, m) = if month <= 2 { (year - 1, month + 9) } else { (year, month - 3) };
    let days = 365 * y + y / 4 - y / 100 + y / 400 + (m * 306 + 5) / 10 + day - 1 - 719_468;
    Some(days * 86_400 + hours * 3_600 + minute * 60 + second)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_codings() {
        // 2024-02-29 13:05:09
        assert_eq!(to_seconds([0x09, 0x05, 0x13, 0x29, 0x02, 0x24], 2), Some(1_709_211_909));
        assert_eq!(to_seconds([9, 5, 13, 29, 2, 24], 6), Some(1_709_211_909));
        // 1 pm in 12-hour form
        assert_eq!(to_seconds([9, 5, 0x81, 29, 2, 24], 4), Some(1_709_211_909));
        assert_eq!(to_seconds([0, 0, 0, 1, 1, 0], 6), Some(946_684_800));
        assert_eq!(to_seconds([0xff; 6], 6), None);
    }
}
