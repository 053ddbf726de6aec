//! The file that a dump goes into.
//!
//! A regular file gets its name when it is whole: until then there is another beside it, which goes if that never comes. A link is
//! followed first, so it stays a link. What is no regular file keeps its name whatever is forced: into a pipe or a character device
//! the dump is written straight, and anything else is refused.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::exit::Code;

pub struct Destination {
    pub file: File,
    partial: Option<Partial>,
}

impl Destination {
    /// Opens what is named; a file that is there is only replaced by `force`.
    pub fn open(named: &Path, force: bool) -> Result<Self> {
        let cannot = || format!("cannot write {}", named.display());
        let refused = |what: &str| Err(Code::Failed.error(format!("{} {what}", named.display())));
        let wanted = match fs::metadata(named) {
            Ok(found) if found.file_type().is_fifo() || found.file_type().is_char_device() => {
                let file = File::options().write(true).open(named).with_context(cannot)?;
                return Ok(Self { file, partial: None });
            }
            Ok(found) if found.is_dir() => return refused("is a folder: name a file in it"),
            Ok(found) if !found.is_file() => return refused("is neither a file nor a pipe"),
            Ok(_) if !force => return refused("is there already; --force writes over it"),
            Ok(_) => fs::canonicalize(named).with_context(cannot)?,
            Err(_) if named.is_symlink() => return refused("is a link that leads nowhere"),
            Err(_) => named.to_owned(),
        };
        let (file, partial) = Partial::beside(wanted)?;
        Ok(Self { file, partial: Some(partial) })
    }

    /// What an end before the end leaves behind.
    pub fn rest(&self) -> &'static str {
        if self.partial.is_some() { "nothing is left of the dump" } else { "the dump is not whole" }
    }

    /// All of it is written.
    pub fn finish(self) -> Result<()> {
        let Some(Partial { path, wanted }) = &self.partial else { return Ok(()) };
        let above = wanted.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.file
            .sync_all()
            .and_then(|()| fs::rename(path, wanted))
            .and_then(|()| File::open(above)?.sync_all())
            .with_context(|| format!("cannot write {}", wanted.display()))
    }
}

/// A file that is not whole yet.
struct Partial {
    path: PathBuf,
    wanted: PathBuf,
}

impl Partial {
    fn beside(wanted: PathBuf) -> Result<(File, Self)> {
        let mut name = wanted.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let path = wanted.with_file_name(name);
        let file = File::create(&path).with_context(|| format!("cannot write {}", wanted.display()))?;
        Ok((file, Self { path, wanted }))
    }
}

impl Drop for Partial {
    fn drop(&mut self) {
        // Gone already when it was finished.
        let _ = fs::remove_file(&self.path);
    }
}
