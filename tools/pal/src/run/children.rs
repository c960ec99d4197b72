//! The processor time of this process, and of those that it started and has waited for (proc_pid_stat(5)).

use std::fs;

/// Milliseconds that the children ran as user programs, all together; 0 where the system does not say.
pub fn user_milliseconds() -> u64 {
    let [_, _, user, _] = own_ticks();
    milliseconds(user)
}

/// Milliseconds that this process and its children ran, in user programs and in the kernel; 0 where the system does not say.
pub fn all_milliseconds() -> u64 {
    milliseconds(own_ticks().into_iter().sum())
}

fn milliseconds(ticks: u64) -> u64 {
    ticks * 1000 / rustix::param::clock_ticks_per_second().max(1)
}

fn own_ticks() -> [u64; 4] {
    fs::read_to_string("/proc/self/stat").ok().and_then(|stat| ticks(&stat)).unwrap_or_default()
}

/// Fields 14 to 17: user and system time, then the children's. The second field is the program's name, in parentheses, which may hold
/// anything.
fn ticks(stat: &str) -> Option<[u64; 4]> {
    let (_, fields) = stat.rsplit_once(") ")?;
    let mut fields = fields.split(' ').skip(11).map(|field| field.parse().ok());
    Some([fields.next()??, fields.next()??, fields.next()??, fields.next()??])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_processes_that_ended() {
        let stat = "7 (a) b) S 1 7 7 0 -1 4194560 100 200 0 0 11 12 345 14 20 0 1 0 9";
        assert_eq!(ticks(stat), Some([11, 12, 345, 14]));
        assert_eq!(ticks("7 (a) S 1"), None);
        assert!(fs::read_to_string("/proc/self/stat").is_ok_and(|stat| ticks(&stat).is_some()));
    }
}
