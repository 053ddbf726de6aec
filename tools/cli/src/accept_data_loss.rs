//! `percolite accept-data-loss`: opens a store without the acknowledged commits that its WAL has
//! lost.

use anyhow::Result;
use percolite::Store;

use crate::exit::Code;
use crate::open::StoreDir;
use crate::output::print_line;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite verify shop                             fails; the error has the fingerprint
  percolite accept-data-loss shop 0f1e2d3c4b5a6978  the store opens without the lost commits
  percolite verify shop                             shows the loss until its files are removed

A store whose WAL is damaged among acknowledged commits does not open. A checkpoint, a dump or percolite repair may \
be the better way: this command drops every commit from the damage on. The damaged segment and later ones are \
kept in the directory, as wal/lost-*.")]
pub struct Args {
    #[command(flatten)]
    pub store: StoreDir,
    /// The fingerprint of the loss, from the error of opening
    #[arg(value_name = "FINGERPRINT", value_parser = parse_fingerprint)]
    fingerprint: u64,
}

fn parse_fingerprint(text: &str) -> Result<u64, String> {
    let number = u64::from_str_radix(text.trim().trim_start_matches("0x"), 16);
    number.map_err(|_| "a fingerprint has 16 hexadecimal digits".into())
}

pub fn run(args: &Args) -> Result<()> {
    let Err(err) = args.store.open_read_only_quiet() else {
        return Err(Code::NotFound.error(format!("no data loss: {} opens", args.store.path.display())));
    };
    if err.to_string().contains(&format!("(loss {:016x})", args.fingerprint)) {
        let store = Store::builder().accept_data_loss(args.fingerprint).open(&args.store.path)?;
        store.data_losses().iter().try_for_each(print_line)?;
        return Ok(store.close()?);
    }
    Err(err)
}
