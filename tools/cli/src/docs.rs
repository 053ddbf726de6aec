//! `percolite completions` and `percolite man`: made from the commands themselves.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::Cli;
use crate::output::{count, say, say_bytes};

/// The options of `completions`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite completions bash > ~/.local/share/bash-completion/completions/percolite
  percolite completions zsh > ~/.zfunc/_percolite
  percolite completions fish > ~/.config/fish/completions/percolite.fish")]
pub struct CompletionsArgs {
    /// The shell
    shell: Shell,
}

pub fn completions(args: &CompletionsArgs) -> Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "percolite", &mut script);
    say_bytes(&script)
}

/// In front of a page: no word is divided and no line stretched, so that examples can be copied.
const AS_WRITTEN: &str = ".nh\n.ad l\n";

/// The options of `man`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite man ~/.local/share/man/man1 && man percolite-load")]
pub struct ManArgs {
    /// The folder for the pages, one for each command; it is made if it is not there
    folder: PathBuf,
}

pub fn man(args: &ManArgs) -> Result<()> {
    let cannot = || format!("cannot write to {}", args.folder.display());
    std::fs::create_dir_all(&args.folder).with_context(cannot)?;
    clap_mangen::generate_to(Cli::command(), &args.folder).with_context(cannot)?;
    let mut pages = 0;
    for page in std::fs::read_dir(&args.folder).with_context(cannot)?.filter_map(Result::ok) {
        if page.file_name().to_string_lossy().starts_with("percolite") {
            let text = std::fs::read_to_string(page.path()).with_context(cannot)?;
            std::fs::write(page.path(), format!("{AS_WRITTEN}{text}")).with_context(cannot)?;
            pages += 1;
        }
    }
    say(format_args!("{} in {}", count(pages, "page"), args.folder.display()))
}
