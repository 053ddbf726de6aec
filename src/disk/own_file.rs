//! Opening the files that a store has made itself.
//!
//! Something else may have the name of such a file. A symlink leads to a foreign file, which must
//! not be written; opening a pipe blocks; a hard link is also the file of a copy, which would
//! change, too. So nothing is followed, nothing blocks, and what is no regular file is an error
//! that says what it is.

use std::fs::{File, FileType, Metadata, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::Path;

/// Opens a file for reading.
pub fn open_own(path: &Path) -> io::Result<File> {
    open_own_with(path, OpenOptions::new().read(true))
}

/// Opens a file with these options, which must not empty it.
pub fn open_own_with(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        let flags = rustix::fs::OFlags::NOFOLLOW | rustix::fs::OFlags::NONBLOCK;
        options.custom_flags(i32::try_from(flags.bits()).map_err(io::Error::other)?);
    }
    // The error of `open` says little, such as "Too many levels of symbolic links".
    let file = options.open(path).map_err(|error| match path.symlink_metadata() {
        Ok(found) if error.kind() != ErrorKind::AlreadyExists => {
            check_regular(found.file_type()).err().unwrap_or(error)
        }
        _ => error,
    })?;
    check_regular(file.metadata()?.file_type())?;
    Ok(file)
}

/// Opens a file whose content is changed in place; creates it if `options` say so.
pub fn open_own_to_change(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    let file = open_own_with(path, options.read(true).write(true).truncate(false))?;
    check_only_name(&file.metadata()?)?;
    Ok(file)
}

#[cfg(feature = "rocks")]
/// Checks a file that will be changed in place, if it exists.
pub fn check_own(path: &Path) -> io::Result<()> {
    match path.symlink_metadata() {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        found => found.and_then(|found| check_regular(found.file_type()).and_then(|()| check_only_name(&found))),
    }
}

#[cfg(feature = "rocks")]
/// Replaces a file by one of this content. What had the name before is not changed.
pub fn replace_own(path: &Path, content: &[u8]) -> io::Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = open_own_with(path, OpenOptions::new().write(true).create_new(true))?;
    io::Write::write_all(&mut file, content)
}

/// Fails if this is no regular file.
pub fn check_regular(found: FileType) -> io::Result<()> {
    if found.is_file() {
        return Ok(());
    }
    let what = kind_name(found);
    Err(io::Error::new(
        ErrorKind::InvalidInput,
        format!(
            "it is {what}, not a regular file; move it away, and if the store had a file of this name, put it back"
        ),
    ))
}

fn kind_name(found: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt as _;
        if found.is_fifo() {
            return "a pipe";
        } else if found.is_socket() {
            return "a socket";
        } else if found.is_block_device() || found.is_char_device() {
            return "a device";
        }
    }
    if found.is_dir() {
        "a directory"
    } else if found.is_symlink() {
        "a symbolic link"
    } else {
        "something else"
    }
}

/// Fails if the file has a second name.
fn check_only_name(found: &Metadata) -> io::Result<()> {
    #[cfg(unix)]
    if std::os::unix::fs::MetadataExt::nlink(found) > 1 {
        return Err(io::Error::new(
            ErrorKind::InvalidInput,
            "it has a second name (a hard link), and that file would change, too; replace it by a copy (cp FILE NEW; mv \
             NEW FILE)",
        ));
    }
    Ok(())
}

#[cfg(all(test, unix, feature = "rocks"))]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;
    use std::os::unix::net::UnixListener;

    use super::*;

    fn refused(path: &Path) -> [String; 3] {
        [
            open_own(path).unwrap_err().to_string(),
            open_own_to_change(path, OpenOptions::new().create(true)).unwrap_err().to_string(),
            check_own(path).unwrap_err().to_string(),
        ]
    }

    #[test]
    fn only_a_regular_file_is_opened_and_nothing_else_is_touched() {
        let directory = tempfile::tempdir().unwrap();
        let foreign = directory.path().join("foreign");
        fs::write(&foreign, "precious").unwrap();
        let path = directory.path().join("own");
        let check = |what: &str| {
            for error in refused(&path) {
                assert!(error.starts_with(&format!("it is {what}, not a regular file; move it away")), "{error}");
            }
        };
        symlink(&foreign, &path).unwrap();
        check("a symbolic link");
        replace_own(&path, b"own").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"own");
        assert_eq!(fs::read(&foreign).unwrap(), b"precious");
        fs::remove_file(&path).unwrap();
        symlink(directory.path().join("missing"), &path).unwrap();
        check("a symbolic link");
        assert!(!directory.path().join("missing").exists());
        fs::remove_file(&path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, &path, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
        check("a pipe");
        fs::remove_file(&path).unwrap();
        let _listener = UnixListener::bind(&path).unwrap();
        check("a socket");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        check("a directory");
        let device = open_own(Path::new("/dev/null")).unwrap_err().to_string();
        assert!(device.starts_with("it is a device"), "{device}");
    }

    #[test]
    fn a_file_with_a_second_name_is_read_and_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let (own, copy) = (directory.path().join("own"), directory.path().join("copy"));
        fs::write(&own, "own").unwrap();
        let existing = || open_own_to_change(&own, &mut OpenOptions::new());
        assert!(existing().is_ok() && check_own(&own).is_ok());
        fs::hard_link(&own, copy).unwrap();
        assert!(open_own(&own).is_ok());
        for error in [existing().unwrap_err(), check_own(&own).unwrap_err()] {
            assert!(error.to_string().contains("a second name (a hard link)"), "{error}");
        }
    }

    #[test]
    fn a_missing_file_is_missing_and_an_existing_one_is_not_created() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("own");
        assert_eq!(open_own(&path).unwrap_err().kind(), ErrorKind::NotFound);
        check_own(&path).unwrap();
        let create = || open_own_with(&path, OpenOptions::new().write(true).create_new(true));
        create().unwrap();
        assert_eq!(create().unwrap_err().kind(), ErrorKind::AlreadyExists);
    }
}
