//! `percolite accept-loss`: to go on without acknowledged commits that the log has lost.

use anyhow::Result;
use percolite::Store;

use crate::exit::Code;
use crate::open::Folder;
use crate::output::say;

/// The command's options.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite verify shop                             does not open: names the loss by its fingerprint
  percolite accept-loss shop 0f1e2d3c4b5a6978       opens it without these commits, from now on
  percolite verify shop                             shows the loss until its files are removed

A store whose log is damaged among acknowledged commits does not open. A checkpoint or a dump, or percolite repair, may be the better way. \
This one gives up every commit from the damage on. The damaged segment and later ones are kept in the folder, as log/lost-*.")]
pub struct Args {
    #[command(flatten)]
    store: Folder,
    /// Names the loss, as the error of opening does
    #[arg(value_name = "FINGERPRINT", value_parser = fingerprint)]
    fingerprint: u64,
}

fn fingerprint(text: &str) -> Result<u64, String> {
    let number = u64::from_str_radix(text.trim_start_matches("0x"), 16);
    number.map_err(|_| "a fingerprint has 16 hexadecimal digits".into())
}

pub fn run(args: &Args) -> Result<()> {
    let Err(why) = args.store.look_silently() else {
        return Err(Code::Missing.error(format!("no commits are lost: {} opens as it is", args.store.folder.display())));
    };
    if why.to_string().contains(&format!("(loss {:016x})", args.fingerprint)) {
        let store = Store::builder().accept_data_loss(args.fingerprint).open(&args.store.folder)?;
        store.data_losses().iter().try_for_each(say)?;
        return Ok(store.close()?);
    }
    Err(why)
}
