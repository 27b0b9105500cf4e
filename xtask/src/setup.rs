//! `cargo xtask setup`: what this machine must have, and how to get what it lacks.
//!
//! As root on a Debian system the missing packages are installed; everywhere else the user is told the command.

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use clap::ValueEnum;
use xtask::{console, process, stack};

/// What the machine shall be able to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Purpose {
    /// Build and run the single-process mode.
    Dev,
    /// Build all, and run every test on the real stack.
    Test,
}

/// One thing that is needed, how to see that it is there, and the packages that bring it.
struct Need {
    what: &'static str,
    is_there: fn() -> bool,
    debian: &'static [&'static str],
    fedora: &'static [&'static str],
    homebrew: &'static [&'static str],
}

/// Bundled SQLite is C, and so is the linker's driver; everything else of the single-process mode is Rust.
const DEV: &[Need] = &[Need {
    what: "a C compiler",
    is_there: || process::which("cc").is_some(),
    debian: &["gcc", "libc6-dev"],
    fedora: &["gcc"],
    homebrew: &["llvm"],
}];

/// librdkafka is built from source, and the stack runs on Java.
const TEST: &[Need] = &[
    Need {
        what: "a C++ compiler",
        is_there: || process::which("c++").is_some(),
        debian: &["g++"],
        fedora: &["gcc-c++"],
        homebrew: &["llvm"],
    },
    Need {
        what: "make",
        is_there: || process::which("make").is_some(),
        debian: &["make"],
        fedora: &["make"],
        homebrew: &["make"],
    },
    Need {
        what: "CMake",
        is_there: || process::which("cmake").is_some(),
        debian: &["cmake"],
        fedora: &["cmake"],
        homebrew: &["cmake"],
    },
    Need {
        what: "pkg-config",
        is_there: || process::which("pkg-config").is_some(),
        debian: &["pkg-config"],
        fedora: &["pkgconf-pkg-config"],
        homebrew: &["pkgconf"],
    },
    Need {
        what: "OpenSSL headers",
        is_there: || has_headers("openssl"),
        debian: &["libssl-dev"],
        fedora: &["openssl-devel"],
        homebrew: &["openssl@3"],
    },
    Need {
        what: "curl headers",
        is_there: || has_headers("libcurl"),
        debian: &["libcurl4-openssl-dev"],
        fedora: &["libcurl-devel"],
        homebrew: &["curl"],
    },
    Need {
        what: "zlib headers",
        is_there: || has_headers("zlib"),
        debian: &["zlib1g-dev"],
        fedora: &["zlib-devel"],
        homebrew: &["zlib"],
    },
    Need {
        what: "Java 17",
        is_there: || stack::java::find().is_ok(),
        debian: &["openjdk-17-jre-headless"],
        fedora: &["java-17-openjdk-headless"],
        homebrew: &["openjdk@17"],
    },
    Need {
        what: "Maven",
        is_there: || process::which("mvn").is_some(),
        debian: &["maven"],
        fedora: &["maven"],
        homebrew: &["maven"],
    },
    Need {
        what: "redis-server",
        is_there: || process::which("redis-server").is_some(),
        debian: &["redis-server"],
        fedora: &["redis"],
        homebrew: &["redis"],
    },
    Need {
        what: "setsid",
        is_there: || process::which("setsid").is_some(),
        debian: &["util-linux"],
        fedora: &["util-linux"],
        homebrew: &["util-linux"],
    },
];

/// Checks what is there, installs what is missing if it may, and fails with the remedy otherwise.
pub(crate) fn run(purpose: Purpose) -> Result<()> {
    if purpose == Purpose::Test && !cfg!(target_os = "linux") {
        console::say("note: the local stack runs on Linux only; on this system use a virtual machine or a container");
    }
    let missing = missing(purpose);
    if missing.is_empty() {
        console::say(format!("setup: nothing is missing ({} checks)", needs(purpose).count()));
        return Ok(());
    }
    console::say(format!("setup: missing: {}", names(&missing)));
    let remedy = remedy(&missing);
    if !may_install() {
        bail!("install what is missing and try again:\n  {remedy}");
    }
    install(&packages(&missing, |need| need.debian)).with_context(|| format!("installing; by hand:\n  {remedy}"))?;

    let still_missing: Vec<&Need> = needs(purpose).filter(|need| !(need.is_there)()).collect();
    if !still_missing.is_empty() {
        bail!(
            "installed, and still missing: {}; look at what apt-get said above",
            names(&still_missing)
        );
    }
    console::say("setup: done");
    Ok(())
}

fn needs(purpose: Purpose) -> impl Iterator<Item = &'static Need> {
    let more = match purpose {
        Purpose::Dev => [].iter(),
        Purpose::Test => TEST.iter(),
    };
    DEV.iter().chain(more)
}

fn missing(purpose: Purpose) -> Vec<&'static Need> {
    needs(purpose).filter(|need| !(need.is_there)()).collect()
}

fn names(needs: &[&Need]) -> String {
    needs.iter().map(|need| need.what).collect::<Vec<_>>().join(", ")
}

fn packages(needs: &[&'static Need], of: fn(&Need) -> &'static [&'static str]) -> Vec<&'static str> {
    let mut packages: Vec<&str> = needs.iter().flat_map(|need| of(need)).copied().collect();
    packages.sort_unstable();
    packages.dedup();
    packages
}

/// The command that installs what is missing, for the package manager of this machine.
fn remedy(needs: &[&'static Need]) -> String {
    if is_debian() {
        let packages = packages(needs, |need| need.debian).join(" ");
        return format!("sudo apt-get update && sudo apt-get install --no-install-recommends {packages}");
    }
    if process::which("dnf").is_some() {
        return format!("sudo dnf install {}", packages(needs, |need| need.fedora).join(" "));
    }
    if process::which("brew").is_some() {
        return format!("brew install {}", packages(needs, |need| need.homebrew).join(" "));
    }
    format!("with your package manager: {}", names(needs))
}

fn is_debian() -> bool {
    Path::new("/etc/debian_version").exists() && process::which("apt-get").is_some()
}

fn may_install() -> bool {
    // The owner of this process's directory is its effective user.
    is_debian() && std::fs::metadata("/proc/self").is_ok_and(|metadata| metadata.uid() == 0)
}

fn install(packages: &[&str]) -> Result<()> {
    console::say("setup: apt-get update");
    apt_get(&["update"])?;
    console::say(format!("setup: apt-get install {}", packages.join(" ")));
    let mut arguments = vec!["install", "--yes", "--no-install-recommends"];
    arguments.extend(packages);
    apt_get(&arguments)
}

fn apt_get(arguments: &[&str]) -> Result<()> {
    let status = Command::new("apt-get")
        // Another apt-get may be running; one step of it does not take longer.
        .args([
            "-o",
            "DPkg::Lock::Timeout=120",
            "-o",
            "Dpkg::Use-Pty=0",
            "-o",
            "Acquire::Retries=3",
            "--quiet",
        ])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        // The redis-server package would start a service; only its program is used here.
        .env("RUNLEVEL", "1")
        .stdin(Stdio::null())
        // Standard output is for results.
        .stdout(std::io::stderr())
        .status()
        .context("running apt-get")?;
    if !status.success() {
        bail!("apt-get {} failed ({status})", arguments.join(" "));
    }
    Ok(())
}

fn has_headers(library: &str) -> bool {
    let status = Command::new("pkg-config")
        .args(["--exists", library])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_package_is_named_once() {
        let two: Vec<&Need> = vec![&DEV[0], &DEV[0], &TEST[0]];
        assert_eq!(packages(&two, |need| need.debian), vec!["g++", "gcc", "libc6-dev"]);
    }

    #[test]
    fn testing_needs_all_that_developing_needs() {
        assert_eq!(needs(Purpose::Dev).count(), DEV.len());
        assert_eq!(needs(Purpose::Test).count(), DEV.len() + TEST.len());
    }

    #[test]
    fn every_need_has_packages_everywhere() {
        for need in needs(Purpose::Test) {
            assert!(
                !need.debian.is_empty() && !need.fedora.is_empty() && !need.homebrew.is_empty(),
                "{}",
                need.what
            );
        }
    }
}
