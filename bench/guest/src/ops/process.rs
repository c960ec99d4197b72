//! Operations on processes: fork, exec, and switches between two of them.

use std::{
    env,
    ffi::CString,
    io::{self, Read, Write},
    os::{fd::AsRawFd, unix::ffi::OsStringExt},
    ptr,
};

use libc::{c_int, pid_t};

use super::{check, must};
use crate::{EXIT_AT_ONCE, sample::Samples};

/// Forks. The child runs `body` and exits with status 0.
pub fn fork(body: impl FnOnce()) -> io::Result<pid_t> {
    // SAFETY: this program has one thread, so the child may do whatever its parent may.
    match unsafe { libc::fork() } {
        0 => {
            body();
            // SAFETY: ends this process; nothing runs afterwards.
            unsafe { libc::_exit(0) }
        }
        result => check(result),
    }
}

/// Waits for a child and checks that it ended with status 0.
pub fn wait(child: pid_t) -> io::Result<()> {
    let mut status: c_int = 0;
    // SAFETY: `status` is a valid place for the result.
    check(unsafe { libc::waitpid(child, &mut status, 0) })?;
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::other(format!("a child ended with wait status {status:#x}")))
    }
}

/// A child that exits at once.
pub fn fork_wait(samples: &mut Samples) -> io::Result<()> {
    samples.take(31, 1, || must(fork(|| ()).and_then(wait)));
    Ok(())
}

/// A child that becomes this program again, which then exits at once.
pub fn fork_exec(samples: &mut Samples) -> io::Result<()> {
    let program = CString::new(env::current_exe()?.into_os_string().into_vec())?;
    let arguments = [EXIT_AT_ONCE.as_ptr(), ptr::null()];
    let environment = [ptr::null()];
    samples.take(31, 1, || {
        let child = fork(|| {
            // SAFETY: the path is a C string; both lists are of C strings and end with a null pointer.
            unsafe { libc::execve(program.as_ptr(), arguments.as_ptr(), environment.as_ptr()) };
            // SAFETY: only reached when execve failed; ends this process.
            unsafe { libc::_exit(127) }
        });
        must(child.and_then(wait));
    });
    Ok(())
}

/// A byte to another process and one back, through two pipes.
pub fn ping_pong(samples: &mut Samples) -> io::Result<()> {
    const BATCH: u64 = 20;
    let (mut ours_in, mut theirs_out) = io::pipe()?;
    let (mut theirs_in, mut ours_out) = io::pipe()?;
    let child = {
        // The child must not hold the end that its parent closes to stop it.
        let parents_end = ours_out.as_raw_fd();
        fork(|| {
            // SAFETY: the child's copy of a descriptor that it does not use.
            unsafe { libc::close(parents_end) };
            let mut byte = [0];
            while let Ok(1) = theirs_in.read(&mut byte) {
                must(theirs_out.write_all(&byte));
            }
        })?
    };
    let mut byte = [0];
    samples.take(51, BATCH, || {
        for _ in 0..BATCH {
            must(ours_out.write_all(&byte));
            must(ours_in.read_exact(&mut byte));
        }
    });
    drop(ours_out);
    wait(child)
}
