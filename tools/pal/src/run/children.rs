//! The processor time of processes that this one started and has waited for (proc_pid_stat(5)).

use std::fs;

/// Milliseconds that they ran as user programs, all together; 0 where the system does not say.
pub fn user_milliseconds() -> u64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    user_ticks(&stat).unwrap_or(0) * 1000 / rustix::param::clock_ticks_per_second().max(1)
}

/// Field 16. The second one is the program's name, in parentheses, which may hold anything.
fn user_ticks(stat: &str) -> Option<u64> {
    let (_, fields) = stat.rsplit_once(") ")?;
    fields.split(' ').nth(13)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_processes_that_ended() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 345 14 20 0 1 0 9";
        assert_eq!(user_ticks(stat), Some(345));
        assert_eq!(user_ticks("7 (a) S 1"), None);
        assert!(fs::read_to_string("/proc/self/stat").is_ok_and(|stat| user_ticks(&stat).is_some()));
    }
}
