//! A store in a process that can be killed: `percolite-outside-adya-server --help`.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::{fs, io, thread};

use clap::Parser;
use percolite::{CommitProtocol, Durability, Keyspace, Store};
use percolite_outside_adya::request::{answer, parse_request};
use percolite_outside_adya::transaction::{run, run_with_lost_updates};

#[derive(Clone, Parser)]
#[expect(clippy::struct_excessive_bools, reason = "each is an option")]
struct Args {
    /// The socket that clients connect to
    #[arg(long)]
    socket: PathBuf,
    /// The directory of the store
    #[arg(long)]
    store: PathBuf,
    /// Acknowledge commits before they are durable
    #[arg(long)]
    buffered: bool,
    /// Commit in two phases
    #[arg(long)]
    two_phase: bool,
    /// Lock rows in the store before the commit
    #[arg(long)]
    large: bool,
    /// Lose updates, to see that this is found
    #[arg(long)]
    lose_updates: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let mut builder = Store::builder().memory_budget(8 << 20).write_buffer_bytes(256 << 10);
    if args.buffered {
        builder = builder.durability(Durability::Buffered);
    }
    if args.two_phase {
        builder = builder.commit_protocol(CommitProtocol::TwoPhase);
    }
    if args.large {
        builder = builder.large_transaction_bytes(1);
    }
    let store = builder.open(&args.store)?;
    let rows = store.keyspace("rows")?;
    match fs::remove_file(&args.socket) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    let listener = UnixListener::bind(&args.socket)?;
    for stream in listener.incoming() {
        let (store, rows, lose_updates) = (store.clone(), rows.clone(), args.lose_updates);
        let stream = stream?;
        thread::spawn(move || {
            if let Err(error) = serve(&store, &rows, stream, lose_updates) {
                eprintln!("a client: {error}");
            }
        });
    }
    Ok(())
}

fn serve(store: &Store, rows: &Keyspace, stream: UnixStream, lose_updates: bool) -> anyhow::Result<()> {
    let mut answers = stream.try_clone()?;
    for line in BufReader::new(stream).lines() {
        let ops = parse_request(&line?)?;
        let outcome = if lose_updates { run_with_lost_updates(store, rows, &ops) } else { run(store, rows, &ops) };
        answers.write_all(answer(&outcome).as_bytes())?;
    }
    Ok(())
}
