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

/// In front of a page: no word is divided and no line stretched, so that what it shows can be copied. groff's macros ask the registers, and
/// would undo the requests alone.
const AS_WRITTEN: &str = ".nr HY 0\n.ds AD l\n.nh\n.ad l\n";

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
    let mut all = Cli::command();
    all.build();
    let mut pages = vec![page(all.clone().display_name("percolite"))?];
    for command in commands_of(&all) {
        pages.push(page(command.clone())?);
        for own in commands_of(command) {
            pages.push(page(own.clone())?);
        }
    }
    for (name, text) in &pages {
        std::fs::write(args.folder.join(format!("{name}.1")), text).with_context(cannot)?;
    }
    say(format_args!("{} in {}", count(pages.len() as u64, "page"), args.folder.display()))
}

fn commands_of(command: &clap::Command) -> impl Iterator<Item = &clap::Command> {
    command.get_subcommands().filter(|own| !own.is_hide_set() && own.get_name() != "help")
}

/// A command's page and its name. What stands behind the options in its help is shown as it is there.
fn page(command: clap::Command) -> Result<(String, String)> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name()).to_owned();
    let behind = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let has_commands = command.get_subcommands().any(|command| !command.is_hide_set());
    let page = clap_mangen::Man::new(command);
    let mut text = AS_WRITTEN.as_bytes().to_vec();
    page.render_title(&mut text)?;
    page.render_name_section(&mut text)?;
    page.render_synopsis_section(&mut text)?;
    page.render_description_section(&mut text)?;
    page.render_options_section(&mut text)?;
    if has_commands {
        page.render_subcommands_section(&mut text)?;
    }
    let mut text = String::from_utf8(text)?;
    text.push_str(&sections(&behind));
    Ok((name, portable(&text)))
}

/// Paragraphs; one that begins with a line that ends with a colon is a section whose lines are not filled.
fn sections(behind: &str) -> String {
    let mut sections = Vec::new();
    let mut in_notes = false;
    for paragraph in behind.split("\n\n").filter(|paragraph| !paragraph.trim().is_empty()) {
        let lines = |text: &str| text.lines().map(line).collect::<String>();
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

/// A line of text that is no request, with hyphens that can be copied.
fn line(text: &str) -> String {
    format!("\\&{}\n", text.replace('\\', "\\e").replace('-', "\\-"))
}

/// In the characters that every formatter reads.
fn portable(text: &str) -> String {
    text.chars().map(|c| if c.is_ascii() { c.to_string() } else { format!("\\[u{:04X}]", c as u32) }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn examples_stand_in_pages_line_by_line_and_nothing_is_divided() {
        let all = Cli::command();
        let each = commands_of(&all).flat_map(|command| std::iter::once(command).chain(commands_of(command)));
        for command in each.filter(|command| command.get_after_help().is_some()) {
            let (_, text) = page(command.clone()).unwrap();
            assert!(text.is_ascii() && text.starts_with(AS_WRITTEN), "{text}");
            let examples = text.split(".SH \"EXAMPLES\"\n.nf\n").nth(1).unwrap().split(".fi").next().unwrap();
            assert!(examples.lines().all(|line| line.starts_with("\\&  ")), "{examples}");
        }
    }
}
