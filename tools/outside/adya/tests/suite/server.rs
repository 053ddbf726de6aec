//! The server's process, and what happens to it while a workload runs.

use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use adya::run::{Client, RunOpts, Stats};
use percolite_outside_adya::client::Connection;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tempfile::TempDir;

use crate::disk::Disk;

/// What happens to the server again and again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crashes {
    None,
    Kills,
    PowerCuts,
}

/// How a run is set up.
#[derive(Debug)]
pub struct Setting {
    /// Options of the server.
    pub options: Vec<&'static str>,
    pub crashes: Crashes,
}

/// A running server.
pub struct Server {
    child: Child,
    arguments: Vec<String>,
    disk: Option<Disk>,
    socket: PathBuf,
    crashes: Crashes,
    rng: StdRng,
    power_cuts: Arc<AtomicU64>,
    _directory: TempDir,
}

const PATIENCE: Duration = Duration::from_secs(60);

impl Server {
    /// Starts the server on a new store, or says why this machine cannot.
    pub fn start(setting: &Setting, seed: u64) -> Result<Self, String> {
        let directory = tempfile::tempdir().unwrap();
        let disk = (setting.crashes == Crashes::PowerCuts).then(|| Disk::ext4(256 << 10)).transpose()?;
        let store = disk.as_ref().map_or(directory.path(), Disk::path).join("store");
        let socket = directory.path().join("socket");
        let text = |path: &Path| path.to_str().unwrap().to_owned();
        let mut arguments = vec![env!("CARGO_BIN_EXE_percolite-outside-adya-server").to_owned()];
        arguments.extend(["--store".into(), text(&store), "--socket".into(), text(&socket)]);
        arguments.extend(setting.options.iter().map(|option| (*option).to_owned()));
        let mut server = Self {
            child: spawn(&arguments, disk.as_ref()),
            arguments,
            disk,
            socket,
            crashes: setting.crashes,
            rng: StdRng::seed_from_u64(seed),
            power_cuts: Arc::default(),
            _directory: directory,
        };
        server.wait_until_ready();
        Ok(server)
    }

    fn wait_until_ready(&mut self) {
        let until = Instant::now() + PATIENCE;
        while UnixStream::connect(&self.socket).is_err() {
            if let Some(status) = self.child.try_wait().unwrap() {
                panic!("the server has ended: {status}");
            }
            assert!(Instant::now() < until, "the server did not open its store in {PATIENCE:?}");
            thread::sleep(Duration::from_millis(2));
        }
    }

    fn crash(&mut self) {
        if let Some(disk) = &mut self.disk {
            self.power_cuts.fetch_add(1, Ordering::SeqCst);
            disk.cut_power().unwrap();
        }
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        // A connection to the old socket is refused, and one to none fails: clients try again.
        if let Some(disk) = &mut self.disk {
            disk.remount().unwrap();
        }
        self.child = spawn(&self.arguments, self.disk.as_ref());
        self.wait_until_ready();
    }

    /// Runs a workload. Returns its history, its counts, and the number of crashes.
    pub fn run(mut self, opts: &RunOpts) -> (String, Stats, u64) {
        let (socket, power_cuts) = (self.socket.clone(), Arc::clone(&self.power_cuts));
        let is_done = AtomicBool::new(false);
        let connect = || {
            let until = Instant::now() + PATIENCE;
            loop {
                match Connection::open(&socket, &power_cuts) {
                    Ok(connection) => return Ok(Box::new(connection) as Box<dyn Client>),
                    Err(error) if Instant::now() > until => return Err(adya::Error::new(error.to_string())),
                    Err(_) => thread::sleep(Duration::from_millis(2)),
                }
            }
        };
        thread::scope(|scope| {
            let nemesis = scope.spawn(|| {
                let mut crashes = 0;
                while self.crashes != Crashes::None && !is_done.load(Ordering::SeqCst) {
                    thread::sleep(Duration::from_millis(self.rng.random_range(5..200)));
                    self.crash();
                    crashes += 1;
                }
                crashes
            });
            let result = adya::run::run(&connect, opts);
            is_done.store(true, Ordering::SeqCst);
            let crashes = nemesis.join().unwrap();
            let (history, stats) = result.unwrap();
            (history, stats, crashes)
        })
    }
}

fn spawn(arguments: &[String], disk: Option<&Disk>) -> Child {
    let mut command = if let Some(disk) = disk {
        disk.command(arguments)
    } else {
        let mut command = Command::new(&arguments[0]);
        command.args(&arguments[1..]);
        command
    };
    command.spawn().unwrap()
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
