//! Arguments of recommended commands.

use std::path::Path;

/// A path as an argument of a command, quoted for a shell where necessary.
pub fn shell_quoted(path: &Path) -> String {
    // An argument that begins with a dash would be an option.
    let is_like_option = path.as_os_str().as_encoded_bytes().starts_with(b"-");
    let path = if is_like_option { Path::new(".").join(path) } else { path.to_owned() };
    quoted(&path.display().to_string())
}

/// A name as an argument of a command. One that begins with a dash ends the options first.
pub fn quoted_name(name: &str) -> String {
    let end_of_options = if name.starts_with('-') { "-- " } else { "" };
    format!("{end_of_options}{}", quoted(name))
}

fn quoted(text: &str) -> String {
    shlex::try_quote(text).map_or_else(|_| text.to_owned(), Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_of_advice_reach_a_command_as_they_are() {
        for (name, expected) in [("job", "job"), ("a b", "'a b'"), ("it's", "\"it's\""), ("-x", "-- -x"), ("", "''")] {
            assert_eq!(quoted_name(name), expected);
        }
        assert_eq!(shell_quoted(Path::new("-x")), "./-x");
        assert_eq!(shell_quoted(Path::new("a b")), "'a b'");
    }
}
