//! The line of text that names a format, in the marker file of a store or at the start of a dump.
//!
//! ```text
//!   percolite store, format 1, build <tag>, wal 0f1e2d3c4b5a6978
//!   percolite dump, format 1, build <tag>
//! ```
//!
//! Until 0.1.0 is released the format's number stays 1 while the format changes. The build tag
//! distinguishes the development formats: a program reads only the format of its own build.

/// The format that this program reads and writes.
pub const FORMAT: u32 = 1;

/// The name of the development format. It is changed with every change of the format until 0.1.0 is
/// released.
pub const BUILD_TAG: &str = "0.1.0-dev.4";

const BUILD: &str = "build ";
const TAG_MAX_BYTES: usize = 32;

/// What a line says about the format.
#[derive(Debug, PartialEq, Eq)]
pub enum Named<'a> {
    /// This program's format, and the rest of the line.
    Own(&'a str),
    Other(OtherFormat<'a>),
}

/// A format that this program does not read.
#[derive(Debug, PartialEq, Eq)]
pub enum OtherFormat<'a> {
    Number(u32),
    /// The format of a development build, with its tag. The first development builds wrote no tag.
    Build(Option<&'a str>),
}

impl OtherFormat<'_> {
    /// The error text. `what` names the store or dump that has this format.
    pub fn refusal(&self, what: &str) -> String {
        let build = match self {
            Self::Number(number) => {
                return format!(
                    "{what} has format {number}, this program reads format {FORMAT}: use another version of percolite"
                );
            }
            Self::Build(Some(tag)) => format!("another development build, {tag}"),
            Self::Build(None) => "an older development build, without a build tag".into(),
        };
        format!(
            "{what} is of {build}; this program is build {BUILD_TAG}: use the build that wrote it, \
             development builds do not read the stores and dumps of others"
        )
    }
}

/// The line that names this program's format, after these first words; without a line feed.
pub fn own(first_words: &str) -> String {
    format!("{first_words}{FORMAT}, {BUILD}{BUILD_TAG}")
}

/// Parses a line whose first words and line feed are removed. `None` if the line names no format.
pub fn parse(text: &str) -> Option<Named<'_>> {
    let (number, rest) = next_part(text);
    if !number.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    match number.parse().ok()? {
        FORMAT => {}
        other => return Some(Named::Other(OtherFormat::Number(other))),
    }
    let (build, rest) = next_part(rest);
    match build.strip_prefix(BUILD) {
        Some(BUILD_TAG) => Some(Named::Own(rest)),
        Some(tag) => is_tag(tag).then_some(Named::Other(OtherFormat::Build(Some(tag)))),
        None => Some(Named::Other(OtherFormat::Build(None))),
    }
}

fn next_part(text: &str) -> (&str, &str) {
    text.split_once(", ").unwrap_or((text, ""))
}

/// Whether the text can be a tag. The error text repeats the tag, so only short, printable tags are
/// valid.
fn is_tag(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-+".contains(&byte);
    (1..=TAG_MAX_BYTES).contains(&text.len()) && text.bytes().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_own_build_is_accepted() {
        let own = super::own("");
        assert_eq!(own, format!("1, build {BUILD_TAG}"));
        assert_eq!(parse(&own), Some(Named::Own("")));
        assert_eq!(parse(&format!("{own}, rest, of it")), Some(Named::Own("rest, of it")));
        let build = |tag| Some(Named::Other(OtherFormat::Build(tag)));
        assert_eq!(parse("1, build 0.1.0-dev.0, rest"), build(Some("0.1.0-dev.0")));
        let longer = format!("{BUILD_TAG}0");
        assert_eq!(parse(&format!("{own}0")), build(Some(&longer)));
        assert_eq!([parse("1"), parse("1, wal 0f"), parse("1, build")], [build(None), build(None), build(None)]);
        for number in [0, 2, u32::MAX] {
            let other = Some(Named::Other(OtherFormat::Number(number)));
            assert_eq!(parse(&format!("{number}, build {BUILD_TAG}")), other);
        }
    }

    #[test]
    fn other_text_names_no_format() {
        let long = format!("1, build {}", "x".repeat(TAG_MAX_BYTES + 1));
        for text in ["", "+1", "one", "4294967296", "1, build ", "1, build \u{7}", "1, build a b", &long] {
            assert_eq!(parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_refusal_names_both_builds() {
        for (other, found) in [(Some("0.1.0-dev.0"), "0.1.0-dev.0"), (None, "without a build tag")] {
            let text = OtherFormat::Build(other).refusal("the dump");
            assert!([found, BUILD_TAG, "use the build that wrote it"].iter().all(|part| text.contains(part)), "{text}");
        }
        assert!(OtherFormat::Number(2).refusal("shop").starts_with("shop has format 2, this program reads format 1"));
    }
}
