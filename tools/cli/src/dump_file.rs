//! The file that a dump is written to.
//!
//! A regular file is written under a temporary name in the same directory, and renamed when it is
//! complete. If the dump fails, the temporary file is removed. A symbolic link is followed first,
//! so the rename does not replace the link. A pipe or a character device is written directly. Any
//! other kind of file is an error.

use std::fs::{self, File};
use std::os::unix::fs::FileTypeExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::exit::Code;

pub struct DumpFile {
    pub file: File,
    temp: Option<TempFile>,
}

impl DumpFile {
    /// Opens the file; an existing file is replaced only if `overwrite`.
    pub fn open(named: &Path, overwrite: bool) -> Result<Self> {
        let cannot = || format!("cannot write {}", named.display());
        let refused = |what: &str| Err(Code::Failed.error(format!("{} {what}", named.display())));
        let target = match fs::metadata(named) {
            Ok(found) if found.file_type().is_fifo() || found.file_type().is_char_device() => {
                let file = File::options().write(true).open(named).with_context(cannot)?;
                return Ok(Self { file, temp: None });
            }
            Ok(found) if found.is_dir() => return refused("is a directory: name a file in it"),
            Ok(found) if !found.is_file() => return refused("is neither a file nor a pipe"),
            Ok(_) if !overwrite => return refused("exists already; --overwrite replaces it"),
            Ok(_) => fs::canonicalize(named).with_context(cannot)?,
            Err(_) if named.is_symlink() => return refused("is a dangling symbolic link"),
            Err(_) => named.to_owned(),
        };
        let (file, temp) = TempFile::create_beside(target)?;
        Ok(Self { file, temp: Some(temp) })
    }

    /// For the error message of a failed dump: what became of its file.
    pub fn leftover_note(&self) -> &'static str {
        if self.temp.is_some() { "the partial dump was removed" } else { "the dump is incomplete" }
    }

    /// Makes a complete dump durable under its name.
    pub fn finish(self) -> Result<()> {
        let Some(TempFile { path, target }) = &self.temp else { return Ok(()) };
        let above = target.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
        self.file
            .sync_all()
            .and_then(|()| fs::rename(path, target))
            .and_then(|()| File::open(above)?.sync_all())
            .with_context(|| format!("cannot write {}", target.display()))
    }
}

/// The temporary file, removed on drop.
struct TempFile {
    path: PathBuf,
    target: PathBuf,
}

impl TempFile {
    fn create_beside(target: PathBuf) -> Result<(File, Self)> {
        let mut name = target.file_name().unwrap_or_default().to_owned();
        name.push(format!(".partial-{}", std::process::id()));
        let path = target.with_file_name(name);
        let file = File::create(&path).with_context(|| format!("cannot write {}", target.display()))?;
        Ok((file, Self { path, target }))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        // This fails if the dump is finished, because its file has been renamed.
        let _ = fs::remove_file(&self.path);
    }
}
