//! What a process can do to itself, by calls of the operating system.

#![allow(
    unsafe_code,
    reason = "fork, limits and descriptors have no safe interface; no test passes pointers that it keeps"
)]

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

/// A child process by `fork`, without a new program.
pub struct Forked(libc::pid_t);

/// How a child may take.
const CHILD_LIMIT: Duration = Duration::from_secs(20);

/// Runs `work` in a child, which ends with code 0 if `work` returns, and with 101 if it panics.
pub fn fork(work: impl FnOnce()) -> Forked {
    // SAFETY: the child uses what is documented to work after a fork: the store's refusals, memory
    // and standard output. glibc's allocator works in a forked child.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => {
            let worked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work));
            end_child(if worked.is_ok() { 0 } else { 101 });
        }
        child => Forked(child),
    }
}

/// Forks, and returns in both processes: the child in the parent, nothing in the child.
pub fn fork_here() -> Option<Forked> {
    // SAFETY: as in `fork`.
    match unsafe { libc::fork() } {
        -1 => panic!("fork: {}", io::Error::last_os_error()),
        0 => None,
        child => Some(Forked(child)),
    }
}

/// [`fork_here`] by a bare system call, which calls no handler of the C library.
#[cfg(target_os = "linux")]
pub fn clone_here() -> Option<Forked> {
    // SAFETY: as in `fork`; without a stack of its own the child goes on with a copy of this one.
    match unsafe { libc::syscall(libc::SYS_clone, libc::SIGCHLD, 0, 0, 0, 0) } {
        -1 => panic!("clone: {}", io::Error::last_os_error()),
        0 => None,
        child => Some(Forked(libc::pid_t::try_from(child).unwrap())),
    }
}

/// Ends a child without the destructors of the program, as a forked child must.
pub fn end_child(code: i32) -> ! {
    // SAFETY: the call takes no pointers and does not return.
    unsafe { libc::_exit(code) }
}

/// Kills a process that a test has started.
pub fn kill(process: i32) {
    // SAFETY: no pointers.
    unsafe { libc::kill(process, libc::SIGKILL) };
}

impl Forked {
    /// Waits for the child, which must succeed in time.
    pub fn succeeds(self) {
        let began = Instant::now();
        loop {
            let mut status = 0;
            // SAFETY: `status` is a valid place for the status.
            let ended = unsafe { libc::waitpid(self.0, &raw mut status, libc::WNOHANG) };
            if ended == self.0 {
                assert!(
                    libc::WIFEXITED(status) && libc::WEXITSTATUS(status) == 0,
                    "the child ended with status {status:#x}"
                );
                return;
            }
            if began.elapsed() > CHILD_LIMIT {
                self.kill();
                panic!("the child hangs");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn kill(&self) {
        // SAFETY: the process is a child that was not waited for, so the id is its own.
        unsafe { libc::kill(self.0, libc::SIGKILL) };
    }
}

/// Closes a standard stream.
pub fn close(descriptor: i32) {
    // SAFETY: only the standard streams are closed, which no test uses afterwards through an owner.
    unsafe { libc::close(descriptor) };
}

/// Writes to a descriptor, as a program that prints without a check.
pub fn write(descriptor: i32, text: &str) -> io::Result<()> {
    // SAFETY: pointer and length are those of `text`.
    let written = unsafe { libc::write(descriptor, text.as_ptr().cast(), text.len()) };
    if written < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

pub fn make_pipe(path: &Path) {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    // SAFETY: the string is valid and ends with a zero.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o600) }, 0, "mkfifo: {}", io::Error::last_os_error());
}

pub fn umask(mask: u32) {
    // SAFETY: no pointers.
    unsafe { libc::umask(mask) };
}

pub fn is_root() -> bool {
    // SAFETY: no pointers.
    unsafe { libc::geteuid() == 0 }
}

/// Becomes another user for good.
pub fn become_user(id: u32) {
    // SAFETY: no pointers.
    let done = unsafe { libc::setgroups(0, std::ptr::null()) == 0 && libc::setgid(id) == 0 && libc::setuid(id) == 0 };
    assert!(done, "setuid: {}", io::Error::last_os_error());
}

/// Which limit of the process.
#[derive(Clone, Copy)]
pub enum Limit {
    Files,
    FileSize,
    AddressSpace,
}

/// Lowers a soft limit.
pub fn lower(limit: Limit, to: u64) {
    let resource = match limit {
        Limit::Files => libc::RLIMIT_NOFILE,
        Limit::FileSize => libc::RLIMIT_FSIZE,
        Limit::AddressSpace => libc::RLIMIT_AS,
    };
    let mut both = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `both` is a valid place for the limits.
    let done = unsafe {
        libc::getrlimit(resource, &raw mut both) == 0 && {
            both.rlim_cur = to;
            libc::setrlimit(resource, &raw const both) == 0
        }
    };
    assert!(done, "setrlimit: {}", io::Error::last_os_error());
}

/// The number of open descriptors.
pub fn open_files() -> u64 {
    std::fs::read_dir("/proc/self/fd").unwrap().count() as u64
}

pub fn ignore_signal(signal: i32) {
    // SAFETY: ignoring a signal installs no code.
    unsafe { libc::signal(signal, libc::SIG_IGN) };
}

extern "C" fn nothing(_: libc::c_int) {}

/// Sends this process a signal, whose handler does nothing, every millisecond.
pub fn interrupt_all_the_time(signal: i32) {
    // SAFETY: the handler does nothing. Without `SA_RESTART` any blocking call may be interrupted.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as *const () as usize;
        libc::sigaction(signal, &raw const action, std::ptr::null_mut());
    }
    std::thread::spawn(move || {
        loop {
            for task in std::fs::read_dir("/proc/self/task").unwrap().flatten() {
                let Ok(thread) = task.file_name().to_string_lossy().parse::<libc::pid_t>() else { continue };
                // SAFETY: no pointers; a thread that has ended is an error that does not matter.
                unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, signal) };
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Mounts an empty file system in memory over a directory, in a mount namespace of this process.
pub fn mount_over(path: &Path) -> io::Result<()> {
    let (path, kind) = (CString::new(path.as_os_str().as_bytes())?, c"tmpfs".as_ptr());
    let done = |code| if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: all strings are valid and end with a zero.
    unsafe {
        done(libc::unshare(libc::CLONE_NEWNS))?;
        let private = libc::MS_REC | libc::MS_PRIVATE;
        done(libc::mount(c"none".as_ptr(), c"/".as_ptr(), std::ptr::null(), private, std::ptr::null()))?;
        done(libc::mount(kind, path.as_ptr(), kind, 0, std::ptr::null()))
    }
}
