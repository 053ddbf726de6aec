//! A temporary PostgreSQL server, with pgbench as its client: in C, over a Unix socket, with
//! prepared statements.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, getuid, kill_process};

/// Debian's directory of PostgreSQL versions.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The ids of the unprivileged user and group on Debian. PostgreSQL refuses to run as root, so a
/// server that root starts runs with these ids.
const UNPRIVILEGED_USER: u32 = 65534;
const PORT: &str = "54329";
const START_TIMEOUT: Duration = Duration::from_secs(30);
const SCRIPT: &str = "SELECT pg_advisory_lock(1);\nSELECT pg_advisory_unlock(1);\n";

/// A server. Dropping this stops it.
pub struct Server {
    child: Child,
    programs: PathBuf,
    dir: PathBuf,
}

impl Server {
    /// Starts a server with these programs, or else with Debian's newest. `None` if there are none.
    pub fn start(programs: Option<&Path>, within: &Path) -> Result<Option<Self>> {
        let Some(programs) = programs.map(Path::to_owned).or_else(newest_version) else { return Ok(None) };
        let dir = within.join("postgres");
        fs::create_dir(&dir)?;
        if getuid().is_root() {
            fs::set_permissions(within, fs::Permissions::from_mode(0o755))?;
            chown(&dir, Some(UNPRIVILEGED_USER), Some(UNPRIVILEGED_USER))?;
        }
        let data = dir.join("data");
        let initdb = unprivileged(Command::new(programs.join("initdb")))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .context("cannot run initdb")?;
        ensure!(initdb.status.success(), "initdb: {}", String::from_utf8_lossy(&initdb.stderr));
        let child = unprivileged(Command::new(programs.join("postgres")))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&dir)
            .args(["-p", PORT, "-c", "listen_addresses="])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run postgres")?;
        fs::write(dir.join("script"), SCRIPT)?;
        let server = Self { child, programs, dir };
        server.wait_until_ready()?;
        Ok(Some(server))
    }

    fn wait_until_ready(&self) -> Result<()> {
        let started = Instant::now();
        loop {
            let status = Command::new(self.programs.join("pg_isready"))
                .args(["-q", "-p", PORT, "-h"])
                .arg(&self.dir)
                .status()
                .context("cannot run pg_isready")?;
            if status.success() {
                return Ok(());
            }
            if started.elapsed() > START_TIMEOUT {
                bail!("PostgreSQL did not start within 30 s");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Nanoseconds to take and release an advisory lock, in two round trips.
    pub fn lock_and_unlock_nanos(&self, time: Duration) -> Result<f64> {
        let ran = Command::new(self.programs.join("pgbench"))
            .args(["--no-vacuum", "--protocol=prepared", "--client=1", "--username=postgres", "-p", PORT, "-h"])
            .arg(&self.dir)
            .arg(format!("--time={}", time.as_secs().max(1)))
            .arg("-f")
            .arg(self.dir.join("script"))
            .arg("postgres")
            .output()
            .context("cannot run pgbench")?;
        let stdout = String::from_utf8_lossy(&ran.stdout);
        ensure!(ran.status.success(), "pgbench: {}", String::from_utf8_lossy(&ran.stderr));
        let rate = stdout.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
        Ok(1e9 / rate.context("pgbench did not print its rate")?.parse::<f64>()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // SIGINT requests a fast shutdown, which disconnects the sessions instead of waiting for
        // them.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait();
    }
}

fn newest_version() -> Option<PathBuf> {
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let all = fs::read_dir(DEBIAN).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    Some(all.max_by_key(version)?.join("bin")).filter(|programs| programs.join("pgbench").exists())
}

fn unprivileged(mut command: Command) -> Command {
    if getuid().is_root() {
        command.uid(UNPRIVILEGED_USER).gid(UNPRIVILEGED_USER);
    }
    command
}
