//! `percolite completions` and `percolite man`: generated from the commands.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use clap::CommandFactory as _;
use clap_complete::Shell;

use crate::output::{count, print_bytes, print_line};
use crate::{Cli, words};

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
    print_bytes(&script)
}

/// Turns off hyphenation and justification, so that examples can be copied. groff's man macros set
/// both again from the register `HY` and the string `AD`, so the requests `.nh` and `.ad` alone are
/// not enough.
const ROFF_PREAMBLE: &str = ".nr HY 0\n.ds AD l\n.nh\n.ad l\n";

/// The options of `man`.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  percolite man ~/.local/share/man/man1 && man percolite-load")]
pub struct ManArgs {
    /// The directory for the pages, one per command; created if it does not exist
    dir: PathBuf,
}

pub fn man(args: &ManArgs) -> Result<()> {
    let cannot = || format!("cannot write to {}", args.dir.display());
    std::fs::create_dir_all(&args.dir).with_context(cannot)?;
    let all = words::explain(Cli::command());
    let mut pages = vec![man_page(all.clone().display_name("percolite"))?];
    for command in visible_subcommands(&all) {
        pages.push(man_page(command.clone())?);
        for subcommand in visible_subcommands(command) {
            pages.push(man_page(subcommand.clone())?);
        }
    }
    for (name, text) in &pages {
        std::fs::write(args.dir.join(format!("{name}.1")), text).with_context(cannot)?;
    }
    print_line(format_args!("{} in {}", count(pages.len() as u64, "page"), args.dir.display()))
}

fn visible_subcommands(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|subcommand| !subcommand.is_hide_set() && subcommand.get_name() != "help")
}

/// The name and the text of a command's page. The text after the options is that of `--help`.
fn man_page(command: clap::Command) -> Result<(String, String)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let after_help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    let page = clap_mangen::Man::new(command);
    let mut text = ROFF_PREAMBLE.as_bytes().to_vec();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if has_commands {
        page.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text)?;
    text.push_str(&roff_sections(&after_help));
    Ok((name, roff_ascii(&text)))
}

/// The sections of a page, from the text after the options. A paragraph whose first line ends with
/// a colon is a section: that line is the heading, and the others keep their line breaks. All other
/// paragraphs are notes.
fn roff_sections(after_help: &str) -> String {
    let mut sections = Vec::new();
    let mut in_notes = false;
    for paragraph in after_help.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let lines = |text: &str| text.lines().map(roff_line).collect::<String>();
        if let Some((heading, listed)) = paragraph.split_once(":\n").filter(|(heading, _)| !heading.contains('\n')) {
            let heading = heading.trim().to_uppercase();
            sections.push(format!(".SH \"{heading}\"\n.nf\n{}.fi\n", lines(listed)));
            in_notes = false;
        } else {
            sections.push(format!("{}{}", if in_notes { ".PP\n" } else { ".SH NOTES\n" }, lines(paragraph)));
            in_notes = true;
        }
    }
    sections.concat()
}

/// A line of text: `\&` keeps it from being a request, and `\-` is a hyphen that can be copied.
fn roff_line(text: &str) -> String {
    format!("\\&{}\n", text.replace('\\', "\\e").replace('-', "\\-"))
}

/// The text in ASCII, which every formatter reads.
fn roff_ascii(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", c as u32) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_are_not_filled_and_not_hyphenated() {
        let all = Cli::command();
        let commands =
            visible_subcommands(&all).flat_map(|command| std::iter::once(command).chain(visible_subcommands(command)));
        for command in commands.filter(|command| command.get_after_help().is_some()) {
            let (_, text) = man_page(command.clone()).unwrap();
            assert!(text.is_ascii() && text.starts_with(ROFF_PREAMBLE), "{text}");
            let examples = text.split(".SH \"EXAMPLES\"\n.nf\n").nth(1).unwrap().split(".fi").next().unwrap();
            assert!(examples.lines().all(|line| line.starts_with("\\&  ")), "{examples}");
        }
    }
}
