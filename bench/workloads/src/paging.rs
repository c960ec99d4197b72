//! Workloads that change page tables and address spaces.

use std::{
    env,
    ffi::{CStr, CString},
    io,
    os::unix::ffi::OsStringExt,
    ptr,
};

use crate::{
    EXIT_AT_ONCE, Work,
    random::Random,
    sys::{Area, PAGE, fork, wait},
};

/// Processes, each forked and executed again.
pub fn fork_exec(rounds: u64) -> io::Result<Work> {
    let program = own_program()?;
    Ok(Box::new(move || execute(&program, EXIT_AT_ONCE, rounds)))
}

/// The path of this program.
pub fn own_program() -> io::Result<CString> {
    Ok(CString::new(env::current_exe()?.into_os_string().into_vec())?)
}

/// Forks and executes this program under a name, this often; a sum of what the processes exited with.
pub fn execute(program: &CStr, name: &CStr, rounds: u64) -> io::Result<u64> {
    let mut sum = 0u64;
    for round in 0..rounds {
        let number = CString::new((round % 251).to_string())?;
        let arguments = [name.as_ptr(), number.as_ptr(), ptr::null()];
        let environment = [ptr::null()];
        let child = fork(|| {
            // SAFETY: the path is a C string; both lists are of C strings and end with a null pointer.
            unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
            u8::MAX
        })?;
        sum = sum.wrapping_mul(31).wrapping_add(wait(child)?.into());
    }
    Ok(sum)
}

/// Mappings that come and go.
pub fn mmap_churn(rounds: u64) -> io::Result<Work> {
    Ok(Box::new(move || churn(rounds)))
}

/// Maps, writes, protects, writes again and unmaps, this often.
pub fn churn(rounds: u64) -> io::Result<u64> {
    const PAGES: usize = 256;
    let mut sum = 0u64;
    for round in 0..rounds {
        let mut area = Area::new(PAGES * PAGE)?;
        area.touch(round);
        area.protect(false)?;
        sum = sum.wrapping_add(area.words().iter().step_by(PAGE / size_of::<u64>()).sum());
        area.protect(true)?;
        area.touch(1);
        sum = sum.wrapping_mul(31).wrapping_add(area.words()[(PAGES - 1) * PAGE / size_of::<u64>()]);
    }
    Ok(sum)
}

/// Children that answer requests.
pub fn fork_server(rounds: u64) -> io::Result<Work> {
    let mut server = Server::new()?;
    Ok(Box::new(move || server.serve(rounds)))
}

/// A parent with memory that its children find.
pub struct Server {
    area: Area,
    random: Random,
}

impl Server {
    const PAGES: usize = 2048;
    /// Pages that a child writes to.
    const WRITTEN: usize = 32;

    /// All of its memory is there.
    pub fn new() -> io::Result<Server> {
        let mut area = Area::new(Self::PAGES * PAGE)?;
        area.touch(3);
        Ok(Server { area, random: Random::new(5) })
    }

    /// Forks a child for each request; the sum of their answers.
    pub fn serve(&mut self, requests: u64) -> io::Result<u64> {
        let mut sum = 0u64;
        for _ in 0..requests {
            let mut random = Random::new(self.random.next());
            let words = self.area.words();
            let child = fork(|| {
                let answer = (0..Self::WRITTEN).fold(0u64, |answer, _| {
                    let word = &mut words[random.below(Self::PAGES) * (PAGE / size_of::<u64>())];
                    *word = word.wrapping_mul(31) ^ random.next();
                    answer.wrapping_add(*word)
                });
                (answer % 255) as u8
            })?;
            sum = sum.wrapping_mul(31).wrapping_add(wait(child)?.into());
        }
        Ok(sum)
    }
}

/// Children that write to all that they share.
pub fn copy_on_write(rounds: u64) -> io::Result<Work> {
    const PAGES: usize = 1024;
    let mut area = Area::new(PAGES * PAGE)?;
    area.touch(1);
    Ok(Box::new(move || {
        let mut sum = 0u64;
        for round in 0..rounds {
            let child = fork(|| {
                area.touch(round);
                let words = area.words().iter().step_by(PAGE / size_of::<u64>());
                (words.fold(0u64, |sum, word| sum.wrapping_add(*word)) % 255) as u8
            })?;
            sum = sum.wrapping_mul(31).wrapping_add(wait(child)?.into());
        }
        Ok(sum)
    }))
}

/// What a program of a build does: it fills memory, and exits with the number that it was given if that is there.
pub fn build(argument: &[u8]) -> u8 {
    const PAGES: usize = 256;
    let number = exit_with(argument);
    let filled = Area::new(PAGES * PAGE).map(|mut area| {
        area.touch(number.into());
        area.words().iter().step_by(PAGE / size_of::<u64>()).filter(|word| **word == number.into()).count()
    });
    if filled.is_ok_and(|filled| filled == PAGES) { number } else { u8::MAX }
}

/// What the executed program does: it exits with the number that it was given.
pub fn exit_with(argument: &[u8]) -> u8 {
    std::str::from_utf8(argument).ok().and_then(|text| text.parse().ok()).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_executed_exits_with_its_number() {
        for of in [exit_with, build] {
            assert_eq!([&b"7"[..], b"250", b"x", b"256"].map(of), [7, 250, 255, 255]);
        }
    }
}
