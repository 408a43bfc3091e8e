//! The real libraries of other projects. The first test that needs them fetches pinned versions into `target/`.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;

use crate::help::Other;
use crate::server::RedisServer;

const REDIS_PY: &str = "6.4.0";
const PYTHON_REDIS_LOCK: &str = "4.0.0";
const SOURCES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/live/interop");

/// A library that shares a record with tenure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Library {
    RedisPy,
    PythonRedisLock,
    Rslock,
    Redlock4,
    Redlock5,
    SesamecareRedlock,
    RedisSemaphore,
}

impl Library {
    /// Returns the name of the library in the test programs.
    fn name(self) -> &'static str {
        match self {
            Library::RedisPy => "redis-py",
            Library::PythonRedisLock => "python-redis-lock",
            Library::Rslock => "rslock",
            Library::Redlock4 => "redlock4",
            Library::Redlock5 => "redlock5",
            Library::SesamecareRedlock => "@sesamecare-oss/redlock",
            Library::RedisSemaphore => "redis-semaphore",
        }
    }

    /// Returns the prefix of its records, which tenure uses beside it.
    pub fn prefix(self) -> &'static str {
        match self {
            Library::RedisSemaphore => "mutex:",
            _ => "lock:",
        }
    }

    fn command(self, urls: &str) -> Command {
        match self {
            Library::RedisPy | Library::PythonRedisLock => {
                let mut command = Command::new(there(&PYTHON));
                command.args([&format!("{SOURCES}/locks.py"), urls, self.name()]);
                command
            }
            Library::Rslock => {
                let mut command = Command::new(there(&RSLOCK));
                command.arg(urls);
                command
            }
            _ => {
                let mut command = Command::new("node");
                command
                    .arg(there(&NODE_MODULES).join("locks.cjs"))
                    .args([urls, self.name()]);
                command
            }
        }
    }
}

fn there(fetched: &LazyLock<Result<PathBuf, String>>) -> PathBuf {
    let path = fetched.as_ref();
    path.unwrap_or_else(|error| panic!("{error}")).clone()
}

/// A program in another language with its own locks.
pub struct Foreign(Other);

impl Foreign {
    pub fn runs(library: Library, server: &RedisServer) -> Foreign {
        Foreign::runs_on(library, &server.url())
    }

    /// Starts it on a server, or on the masters of a quorum, whose URLs have commas between them.
    pub fn runs_on(library: Library, urls: &str) -> Foreign {
        let mut other = Other::runs(library.command(urls));
        assert_eq!(other.hears("ready"), library.name());
        Foreign(other)
    }

    /// Sends a command. [`said`](Self::said) returns its result.
    pub fn tells(&mut self, what: &str) {
        self.0.tells(what);
    }

    pub fn said(&mut self) -> String {
        self.0.hears("said")
    }

    pub fn asks(&mut self, what: &str) -> String {
        self.tells(what);
        self.said()
    }
}

/// A Python with the two libraries, in its own environment: Debian's Python does not allow other installations
/// (PEP 668).
static PYTHON: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let python = |at: &Path| at.join("bin/python");
    let name = format!("redis-py-{REDIS_PY}-{PYTHON_REDIS_LOCK}");
    let made = kept(
        &name,
        |at| has_locks(&python(at)),
        |at| {
            run(Command::new("python3").args(["-m", "venv"]).arg(at))?;
            let mut pip = Command::new(python(at));
            pip.args(["-m", "pip", "install", "--quiet", "--disable-pip-version-check"]);
            pip.arg(format!("redis=={REDIS_PY}"));
            run(pip.arg(format!("python-redis-lock=={PYTHON_REDIS_LOCK}")))
        },
    );
    made.map(|at| python(&at)).map_err(|error| {
        format!("pip did not fetch redis-py and python-redis-lock (apt-get install python3 python3-venv):\n{error}")
    })
});

fn has_locks(python: &Path) -> Result<(), String> {
    let look = format!(
        "import redis, redis_lock as prl
assert (redis.__version__, prl.__version__) == ('{REDIS_PY}', '{PYTHON_REDIS_LOCK}'), (redis.__version__, prl.__version__)"
    );
    run(Command::new(python).args(["-c", &look]))
}

/// A directory in which Node.js finds its libraries. The versions and hashes of all packages are in
/// `node/package-lock.json`.
static NODE_MODULES: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    const FILES: [&str; 3] = ["locks.cjs", "package.json", "package-lock.json"];
    let source = |file| Path::new(SOURCES).join("node").join(file);
    let is_current = |at: &Path| {
        let same = |file| std::fs::read(at.join(file)).ok() == std::fs::read(source(file)).ok();
        let all = FILES.into_iter().all(same) && at.join("node_modules").is_dir();
        if all {
            Ok(())
        } else {
            Err("another version".to_owned())
        }
    };
    let made = kept("node", is_current, |at| {
        std::fs::create_dir_all(at).map_err(|error| error.to_string())?;
        for file in FILES {
            std::fs::copy(source(file), at.join(file)).map_err(|error| error.to_string())?;
        }
        let npm = [
            "ci",
            "--ignore-scripts",
            "--no-audit",
            "--no-fund",
            "--loglevel=error",
        ];
        run(Command::new("npm").args(npm).current_dir(at))
    });
    made.map_err(|error| {
        format!("npm did not fetch the locks of Node.js (apt-get install nodejs npm):\n{error}")
    })
});

/// The program is built separately, because plain `cargo test` must not compile it.
static RSLOCK: LazyLock<Result<PathBuf, String>> = LazyLock::new(|| {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).join("rslock");
    let mut cargo = Command::new(std::env::var_os("CARGO").unwrap_or("cargo".into()));
    cargo.args(["build", "--quiet", "--locked", "--manifest-path"]);
    cargo.arg(format!("{SOURCES}/rslock/Cargo.toml"));
    run(cargo.arg("--target-dir").arg(&target))?;
    Ok(target.join("debug/interop-rslock"))
});

/// Returns a directory under `target/`, and fetches its content only in the first run.
fn kept(
    name: &str,
    is_good: impl Fn(&Path) -> Result<(), String>,
    make: impl FnOnce(&Path) -> Result<(), String>,
) -> Result<PathBuf, String> {
    let tmp = Path::new(env!("CARGO_TARGET_TMPDIR"));
    let kept = tmp.join(name);
    if is_good(&kept).is_ok() {
        return Ok(kept);
    }
    let fresh = tmp.join(format!("{name}.{}", std::process::id()));
    let made = make(&fresh);
    // Another run was faster, or the existing content is not the wanted one.
    if made.is_ok() && std::fs::rename(&fresh, &kept).is_err() && is_good(&kept).is_err() {
        let _ = std::fs::remove_dir_all(&kept);
        let _ = std::fs::rename(&fresh, &kept);
    }
    let _ = std::fs::remove_dir_all(&fresh);
    made?;
    is_good(&kept)?;
    Ok(kept)
}

fn run(command: &mut Command) -> Result<(), String> {
    match command.output() {
        Ok(Output { status, .. }) if status.success() => Ok(()),
        Ok(output) => Err(format!(
            "{command:?} ended with {}:\n{}{}",
            output.status,
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        )),
        Err(error) => Err(format!("{command:?}: {error}")),
    }
}
