//! Seconds since 1970 to date and time and back, in the proleptic Gregorian calendar.

const DAY: i64 = 86_400;

/// Date and time of day. As a source of [`DateTime::seconds`] the fields may be out of range: what a guest writes
/// into a clock need not be a date, and carries over into the next larger unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DateTime {
    pub(super) year: i64,
    /// 1 to 12.
    pub(super) month: i64,
    /// 1 to 31.
    pub(super) day: i64,
    /// 0 to 23.
    pub(super) hour: i64,
    /// 0 to 59.
    pub(super) minute: i64,
    /// 0 to 59.
    pub(super) second: i64,
    /// 1 (Sunday) to 7; not used to compute seconds.
    pub(super) weekday: i64,
}

impl DateTime {
    /// The date `seconds` after 1970-01-01 00:00:00.
    pub(super) fn from_seconds(seconds: i64) -> DateTime {
        let (days, of_day) = (seconds.div_euclid(DAY), seconds.rem_euclid(DAY));
        // Years begin in March here, so that the leap day is a year's last. 400 years have 146097 days.
        let shifted = days + MARCH_0000;
        let (era, of_era) = (shifted.div_euclid(146_097), shifted.rem_euclid(146_097));
        let of_era_year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
        let of_year = of_era - days_before_year(of_era_year);
        let march_month = (5 * of_year + 2) / 153;
        let month = if march_month < 10 { march_month + 3 } else { march_month - 9 };
        DateTime {
            year: era * 400 + of_era_year + i64::from(month <= 2),
            month,
            day: of_year - days_before_month(march_month) + 1,
            hour: of_day / 3600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            weekday: (days + 4).rem_euclid(7) + 1,
        }
    }

    /// Seconds since 1970-01-01 00:00:00.
    pub(super) fn seconds(&self) -> i64 {
        let months = self.year * 12 + self.month - 3;
        let (year, march_month) = (months.div_euclid(12), months.rem_euclid(12));
        let days = year.div_euclid(400) * 146_097
            + days_before_year(year.rem_euclid(400))
            + days_before_month(march_month)
            + self.day
            - 1
            - MARCH_0000;
        days * DAY + self.hour * 3600 + self.minute * 60 + self.second
    }
}

/// Days from 0000-03-01 to 1970-01-01.
const MARCH_0000: i64 = 719_468;

/// Days before a year of 400 that begin in March.
fn days_before_year(year: i64) -> i64 {
    year * 365 + year / 4 - year / 100
}

/// Days before a month, where March is 0: the lengths repeat as 31 30 31 30 31.
fn days_before_month(march_month: i64) -> i64 {
    (153 * march_month + 2) / 5
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_counting_days() {
        let lengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
        let mut days = 0;
        for year in 1970..2450 {
            let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
            for month in 1..=12 {
                let length = lengths[month as usize - 1] + i64::from(leap && month == 2);
                for day in 1..=length {
                    let date = DateTime::from_seconds(days * DAY + 3661);
                    assert_eq!((date.year, date.month, date.day), (year, month, day));
                    assert_eq!((date.hour, date.minute, date.second), (1, 1, 1));
                    assert_eq!(date.weekday, (days + 4) % 7 + 1);
                    assert_eq!(date.seconds(), days * DAY + 3661);
                    days += 1;
                }
            }
        }
    }

    #[test]
    fn fields_carry_over() {
        let date = DateTime { year: 2023, month: 2, day: 31, hour: 25, minute: 61, second: 61, weekday: 0 };
        let carried = DateTime::from_seconds(date.seconds());
        assert_eq!((carried.month, carried.day), (3, 4));
        assert_eq!((carried.hour, carried.minute, carried.second), (2, 2, 1));
        let before = DateTime { year: 0, month: 0, day: 0, ..date };
        assert!(before.seconds() < 0);
        assert_eq!(DateTime::from_seconds(-1).year, 1969);
    }
}
