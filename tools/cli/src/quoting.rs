//! Arguments of recommended commands.

use std::path::Path;

/// A path as an argument of a command, quoted for a shell where necessary.
pub fn shell_quoted(path: &Path) -> String {
    // An argument that begins with a dash would be an option.
    let is_like_option = path.as_os_str().as_encoded_bytes().starts_with(b"-");
    let path = if is_like_option { Path::new(".").join(path) } else { path.to_owned() };
    let path = path.display().to_string();
    shlex::try_quote(&path).map_or_else(|_| path.clone(), Into::into)
}
