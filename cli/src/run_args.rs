//! The arguments of `tenure run`.

use std::ffi::OsString;
use std::path::Path;
use std::time::Duration;

/// The shortest lease. Its last tenth is the time that processes have to end after KILL.
const MIN_LEASE: Duration = Duration::from_secs(2);

#[derive(clap::Args, Debug)]
#[cfg_attr(not(target_os = "linux"), allow(dead_code, reason = "`run` needs Linux"))]
pub(crate) struct RunArgs {
    /// The key, without the prefix of the records
    pub(crate) key: OsString,
    /// Does not wait: if the key is held, the command is not run, and the exit code is 124
    #[arg(long = "try", conflicts_with = "wait")]
    pub(crate) is_try: bool,
    /// Waits for so long at most; without it, without a limit
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration)]
    pub(crate) wait: Option<Duration>,
    /// Keeps the key for so long after the grant, although the command has ended. Longer than the clocks of two machines differ
    #[arg(long, value_name = "TIME", value_parser = humantime::parse_duration, default_value = "0s")]
    pub(crate) at_least: Duration,
    /// Takes the key as a reader: beside other readers, and not beside a writer
    #[arg(long = "read", conflicts_with = "permits")]
    pub(crate) is_read: bool,
    /// Takes one of so many permits of the key
    #[arg(long, value_name = "N")]
    pub(crate) permits: Option<u32>,
    /// How long the key stays held if this machine fails; 2s or more
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_lease)]
    pub(crate) lease: Duration,
    /// The name that `tenure ls` shows; the file name of the command without it
    #[arg(long, value_name = "TEXT")]
    name: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) words: Vec<OsString>,
}

impl RunArgs {
    /// Returns the name of the node.
    #[cfg(target_os = "linux")]
    pub(crate) fn node_name(&self) -> String {
        let file = || Path::new(&self.words[0]).file_name().unwrap_or_default();
        let name = self.name.clone();
        name.unwrap_or_else(|| file().to_string_lossy().into_owned())
    }

    /// Returns the command with its arguments, for operators.
    #[cfg(target_os = "linux")]
    pub(crate) fn line(&self) -> String {
        let words = self.words.iter().map(|word| word.to_string_lossy());
        words.collect::<Vec<_>>().join(" ")
    }
}

fn parse_lease(text: &str) -> Result<Duration, String> {
    let lease = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if lease < MIN_LEASE {
        return Err("a lease is 2s or more: the command has its last quarter to end".to_owned());
    }
    Ok(lease)
}
