//! Private disks of two kinds: a file system with a journal, for power cuts, and a small file
//! system in memory, which can be filled.
//!
//! Each disk is mounted by a shell, the *mounter*, in a mount namespace of its own. Processes that
//! [`Disk::command`] starts see the disk, too; the harness, which does not, reaches it through
//! `/proc`. The mounter reads commands from the harness. When the harness ends, this input ends,
//! and the mounter unmounts and deletes everything. If the mounter is killed, the kernel removes
//! the mounts with the namespace.

mod shutdown;

use std::fs;
use std::io::{self, BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

/// The script of the mounter. Arguments: the kind of disk, and its size in KiB.
const MOUNT_SCRIPT: &str = r#"
trap '' INT TERM HUP PIPE
home=$(mktemp -d "${TMPDIR:-/tmp}/percolite-disk-XXXXXX") || exit 1
device=
cleanup() {
    for attempt in 1 2 3 4 5; do
        mountpoint -q "$home/disk" || break
        umount "$home/disk" 2>/dev/null && break
        sleep 0.1
    done
    mountpoint -q "$home/disk" && umount -l "$home/disk"
    test -z "$device" || losetup -d "$device"
    rm -rf "$home"
}
trap cleanup EXIT
mkdir "$home/disk" || exit 1
case "$1" in
ext4)
    truncate -s "$2K" "$home/image" || exit 1
    mkfs.ext4 -q -F -E lazy_itable_init=1,lazy_journal_init=1 "$home/image" || exit 1
    device=$(losetup --find --show "$home/image") || exit 1
    mount -t ext4 "$device" "$home/disk" || exit 1 ;;
*)
    mount -t tmpfs -o "size=$2k" percolite "$home/disk" || exit 1 ;;
esac
echo "$home/disk"
while read -r order; do
    umount "$home/disk" && mount -t ext4 "$device" "$home/disk" || exit 1
    echo "$home/disk"
done
"#;

/// See the [module](self).
#[derive(Debug)]
pub struct Disk {
    mounter: Child,
    commands: Option<ChildStdin>,
    replies: BufReader<ChildStdout>,
    path: PathBuf,
}

impl Disk {
    /// A file system with a journal, in a file on a loop device.
    ///
    /// # Errors
    /// Why this machine cannot have one.
    pub fn ext4(kib: u64) -> Result<Self, String> {
        Self::mount("ext4", kib)
    }

    /// A small file system in memory.
    ///
    /// # Errors
    /// Why this machine cannot have one.
    pub fn tmpfs(kib: u64) -> Result<Self, String> {
        Self::mount("tmpfs", kib)
    }

    fn mount(kind: &str, kib: u64) -> Result<Self, String> {
        let mut mounter = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", MOUNT_SCRIPT, "mounter", kind, &kib.to_string()])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // A Ctrl-C must not end the mounter, which ends with its input.
            .process_group(0)
            .spawn()
            .map_err(|error| format!("unshare: {error}"))?;
        let (Some(commands), Some(replies)) = (mounter.stdin.take(), mounter.stdout.take()) else {
            return Err("no pipe to the mounter of the disk".into());
        };
        let errors = mounter.stderr.take();
        let mut disk =
            Self { mounter, commands: Some(commands), replies: BufReader::new(replies), path: PathBuf::new() };
        match disk.read_reply() {
            Ok(place) => {
                disk.path = place;
                Ok(disk)
            }
            Err(error) => {
                let mut text = String::new();
                drop(disk.commands.take());
                let _ = errors.map(|mut errors| errors.read_to_string(&mut text));
                let first = text.lines().find(|line| !line.trim().is_empty()).map(str::to_owned);
                Err(format!("cannot mount a {kind} disk: {}", first.unwrap_or(error)))
            }
        }
    }

    /// The mount point, for processes started by [`Disk::command`].
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path for this process, through `/proc`. Files can be read and written by this path, but
    /// the path cannot be canonicalised.
    pub fn proc_path(&self) -> PathBuf {
        let place = self.path.strip_prefix("/").unwrap_or(&self.path);
        Path::new("/proc").join(self.mounter.id().to_string()).join("root").join(place)
    }

    /// A command that runs in the mount namespace of the disk.
    pub fn command(&self, arguments: &[String]) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.mounter.id())).args(arguments);
        command
    }

    /// Cuts the power: nothing more reaches the disk, not even what the file system has buffered
    /// for its journal.
    ///
    /// # Errors
    /// Errors of the file system.
    pub fn cut_power(&self) -> io::Result<()> {
        shutdown::shut_down(&fs::File::open(self.proc_path())?)
    }

    /// Unmounts and mounts the disk, as after a power cut: the kernel drops its caches.
    ///
    /// # Errors
    /// Errors of the mounter, for example while a process has a file open.
    pub fn remount(&mut self) -> Result<(), String> {
        let commands = self.commands.as_mut().ok_or("no mounter")?;
        writeln!(commands, "remount").map_err(|error| error.to_string())?;
        self.read_reply().map(drop)
    }

    fn read_reply(&mut self) -> Result<PathBuf, String> {
        let mut line = String::new();
        self.replies.read_line(&mut line).map_err(|error| error.to_string())?;
        if line.ends_with('\n') { Ok(line.trim_end().into()) } else { Err("the mounter has ended".into()) }
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        drop(self.commands.take());
        let _ = self.mounter.wait();
    }
}
