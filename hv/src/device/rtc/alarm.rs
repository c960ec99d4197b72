//! The daily alarm of the clock.

/// The alarm registers: `None` matches any value; a value out of range never matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alarm {
    pub(super) hour: Option<i64>,
    pub(super) minute: Option<i64>,
    pub(super) second: Option<i64>,
}

impl Alarm {
    /// Seconds from the time of day `from` (in seconds) to the first match at or after it; `None` if there is none.
    pub(super) fn wait(&self, from: i64) -> Option<i64> {
        let (hour, minute, second) = (from / 3600, from / 60 % 60, from % 60);
        let of_hour = |minute, second| {
            let found = next(self.minute, minute, 60)?;
            let second = if found == minute { second } else { 0 };
            match next(self.second, second, 60) {
                Some(second) => Some(found * 60 + second),
                // Too late within this minute: the next one that matches.
                None => Some(next(self.minute, found + 1, 60)? * 60 + next(self.second, 0, 60)?),
            }
        };
        (0..=24).find_map(|hours| {
            if self.hour.is_some_and(|wanted| wanted != (hour + hours) % 24) {
                return None;
            }
            let start = if hours == 0 { (minute, second) } else { (0, 0) };
            Some(hours * 3600 + of_hour(start.0, start.1)? - (minute * 60 + second))
        })
    }
}

/// The first value of `from..end` that `field` matches.
fn next(field: Option<i64>, from: i64, end: i64) -> Option<i64> {
    Some(field.unwrap_or(from)).filter(|value| (from..end).contains(value))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn field(end: i64) -> impl Strategy<Value = Option<i64>> {
        prop_oneof![Just(None), (0..end + 2).prop_map(Some)]
    }

    proptest! {
        #[test]
        fn agrees_with_search(hour in field(24), minute in field(60), second in field(60), from in 0_i64..86_400) {
            let alarm = Alarm { hour, minute, second };
            let matches = |field: Option<i64>, value| field.is_none_or(|field| field == value);
            let searched = (0..86_400).find(|wait| {
                let time = (from + wait) % 86_400;
                matches(hour, time / 3600) && matches(minute, time / 60 % 60) && matches(second, time % 60)
            });
            prop_assert_eq!(alarm.wait(from), searched);
        }
    }
}
