//! A PostgreSQL server of this run's own, and its benchmark program as the client: in C, over a Unix socket, with prepared statements.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};
use rustix::process::{Pid, Signal, getuid, kill_process};

/// Where Debian puts each version's programs.
const DEBIAN: &str = "/usr/lib/postgresql";
/// The server does not run as root.
const NOBODY: u32 = 65534;
const PORT: &str = "54329";
const STARTS_WITHIN: Duration = Duration::from_secs(30);
const SCRIPT: &str = "SELECT pg_advisory_lock(1);\nSELECT pg_advisory_unlock(1);\n";

/// A server, which ends with this.
pub struct Server {
    child: Child,
    programs: PathBuf,
    folder: PathBuf,
}

impl Server {
    /// `None` where there is no PostgreSQL.
    pub fn start(programs: Option<&Path>, within: &Path) -> Result<Option<Self>> {
        let Some(programs) = programs.map(Path::to_owned).or_else(newest) else { return Ok(None) };
        let folder = within.join("postgres");
        fs::create_dir(&folder)?;
        if getuid().is_root() {
            fs::set_permissions(within, fs::Permissions::from_mode(0o755))?;
            chown(&folder, Some(NOBODY), Some(NOBODY))?;
        }
        let data = folder.join("data");
        let made = as_nobody(Command::new(programs.join("initdb")))
            .args(["--auth=trust", "--username=postgres", "--encoding=UTF8", "--no-locale", "--no-sync", "-D"])
            .arg(&data)
            .output()
            .context("cannot run initdb")?;
        ensure!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let child = as_nobody(Command::new(programs.join("postgres")))
            .arg("-D")
            .arg(&data)
            .arg("-k")
            .arg(&folder)
            .args(["-p", PORT, "-c", "listen_addresses="])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .context("cannot run postgres")?;
        fs::write(folder.join("script"), SCRIPT)?;
        let server = Self { child, programs, folder };
        server.wait_until_it_answers()?;
        Ok(Some(server))
    }

    fn wait_until_it_answers(&self) -> Result<()> {
        let began = Instant::now();
        loop {
            let asked = Command::new(self.programs.join("pg_isready"))
                .args(["-q", "-p", PORT, "-h"])
                .arg(&self.folder)
                .status()
                .context("cannot run pg_isready")?;
            if asked.success() {
                return Ok(());
            }
            if began.elapsed() > STARTS_WITHIN {
                bail!("PostgreSQL has not started");
            }
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Nanoseconds of taking an advisory lock and giving it back, two round trips.
    pub fn lock_and_unlock_nanos(&self, time: Duration) -> Result<f64> {
        let ran = Command::new(self.programs.join("pgbench"))
            .args(["--no-vacuum", "--protocol=prepared", "--client=1", "--username=postgres", "-p", PORT, "-h"])
            .arg(&self.folder)
            .arg(format!("--time={}", time.as_secs().max(1)))
            .arg("-f")
            .arg(self.folder.join("script"))
            .arg("postgres")
            .output()
            .context("cannot run pgbench")?;
        let said = String::from_utf8_lossy(&ran.stdout);
        ensure!(ran.status.success(), "pgbench: {}", String::from_utf8_lossy(&ran.stderr));
        let rate = said.lines().find_map(|line| line.strip_prefix("tps = ")?.split(' ').next());
        Ok(1e9 / rate.context("pgbench says no rate")?.parse::<f64>()?)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Ends its sessions, and then itself.
        if let Some(pid) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process(pid, Signal::INT);
        }
        let _ = self.child.wait();
    }
}

fn newest() -> Option<PathBuf> {
    let version = |path: &PathBuf| path.file_name().and_then(|name| name.to_str()?.parse::<u32>().ok());
    let all = fs::read_dir(DEBIAN).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    Some(all.max_by_key(version)?.join("bin")).filter(|programs| programs.join("pgbench").exists())
}

fn as_nobody(mut command: Command) -> Command {
    if getuid().is_root() {
        command.uid(NOBODY).gid(NOBODY);
    }
    command
}
