//! Where a stack lies, and its lock.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use crate::{console, workspace};

/// Removes a file that may not be there.
pub(super) fn remove_file(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Ok(()) => Ok(()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error).with_context(|| format!("removing {}", path.display())),
    }
}

/// The directory of the stack of that name.
pub(super) fn directory_of(name: &str) -> Result<PathBuf> {
    let well_formed = !name.is_empty()
        && name
            .bytes()
            .all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
        && name != "lib";
    ensure!(
        well_formed,
        "a stack's name is made of a-z, 0-9 and `-`, and is not `lib`: `{name}`"
    );
    Ok(workspace::target().join("stack").join(name))
}

/// Takes the lock of a stack; it is held until the file is dropped. Beside the directory, which may be removed.
pub(super) fn lock(directory: &Path) -> Result<File> {
    let path = directory.with_extension("lock");
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).with_context(|| format!("making {}", parent.display()))?;
    }
    let file = File::create(&path).with_context(|| format!("making {}", path.display()))?;
    if file.try_lock().is_err() {
        console::say(format!(
            "waiting for another command on this stack ({})",
            path.display()
        ));
        file.lock().with_context(|| format!("locking {}", path.display()))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_leave_the_directory_of_stacks() {
        for wrong in ["", "..", "a/b", "lib", "Upper", "a b"] {
            assert!(directory_of(wrong).is_err(), "{wrong}");
        }
        assert!(directory_of("test-3").unwrap().ends_with("target/stack/test-3"));
    }
}
