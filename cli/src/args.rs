//! The arguments of the command line.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal};
use std::path::PathBuf;
use std::time::Duration;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};
use tenure::inspect::{Entry, Kind};

use crate::failure::Failure;
use crate::jobs::JobsArgs;
use crate::run_args::RunArgs;
use crate::serve::ServeArgs;
use crate::terminal::{ask, warn};
use crate::text::{shown, unhex};
use crate::words::is_called;

/// The shortest time between two listings of a watch.
const MIN_PERIOD: Duration = Duration::from_millis(100);

/// Shows which node holds which lease of the crate tenure, since when, and which nodes wait.
///
/// Looking changes nothing; `steal` takes a lease. The exit code is 0; 1 if the answer is no; 2 after wrong usage; 3 if the store is unavailable or
/// refuses.
#[derive(Parser)]
#[command(name = "tenure", version)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) store: StoreArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    #[command(subcommand)]
    pub(crate) command: Command,
}

#[derive(Subcommand)]
pub(crate) enum Command {
    /// Lists the keys that are held, waited for or set
    Ls(ListArgs),
    /// Shows a key with its holders and waiters; exits with 1 if it is neither held, waited for nor set
    Show {
        /// The key, without the prefix of the records
        key: OsString,
    },
    /// Lists the nodes that told of themselves within the last minute
    Nodes,
    /// Takes the lease of a key from its holder: asks for it, and revokes it after the grace
    ///
    /// A revoked lease is lost to its holder, and the next one gets it when the holder has left, or when the lease has ended. So no
    /// two hold it at once, except after --now. Exits with 1 if the lease was not taken.
    Steal(StealArgs),
    /// Runs a command while the key is held: it ends before its lease does
    ///
    /// CMD has TENURE_KEY and TENURE_FENCE. The exit code is the one of CMD, or 128 and its signal; 123 if the lease was lost or asked
    /// for; 124 if the key was not had in time; 125 after any other failure; 126 if CMD cannot be executed; 127 if there is none.
    Run(RunArgs),
    /// Lists jobs, and shows what one did
    Jobs(JobsArgs),
    /// Checks each server, and tries the locks under keys that no process has; exits with 1 if one check fails
    ///
    /// The URL is that of the services. The trial is in no contract with them, and leaves nothing but the last grant numbers.
    Doctor(DoctorArgs),
    /// Serves a page for the browser: leases, nodes and jobs, and with --operate what an operator does about them
    Serve(ServeArgs),
    /// Prints the audit list: what operators did by `steal`, the latest first
    Audit,
}

#[derive(clap::Args)]
pub(crate) struct DoctorArgs {
    /// Checks the servers only, and writes nothing
    #[arg(long = "read-only")]
    pub(crate) is_read_only: bool,
}

#[derive(clap::Args)]
pub(crate) struct StealArgs {
    /// The key, without the prefix of the records
    pub(crate) key: OsString,
    /// The number of the grant, as `show` prints it. Needed if the key has several holders
    #[arg(long, value_name = "N")]
    pub(crate) number: Option<u64>,
    /// The kind, if the key is used for several
    #[arg(long, value_parser = kind_parser())]
    pub(crate) kind: Option<Kind>,
    /// How long the holder has to release the lease; 0s revokes at once, 30 days at most
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = humantime::parse_duration)]
    pub(crate) grace: Duration,
    #[command(flatten)]
    pub(crate) operator: OperatorArgs,
    /// Hands the lease over at once, although its holder may be at work. For a node that is surely dead
    #[arg(long = "now")]
    pub(crate) is_now: bool,
}

/// Which operator acts, and why.
#[derive(clap::Args)]
pub(crate) struct OperatorArgs {
    /// The reason, which is told to those concerned and kept in the audit list
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub(crate) why: String,
    #[command(flatten)]
    name: NameArgs,
    #[command(flatten)]
    confirmation: ConfirmArgs,
}

/// Which operator acts.
#[derive(clap::Args)]
pub(crate) struct NameArgs {
    /// Your name, as the reason; $USER by default, else the name of the process's user
    #[arg(long, value_name = "NAME")]
    by: Option<String>,
}

/// Whether the operator is asked.
#[derive(clap::Args)]
pub(crate) struct ConfirmArgs {
    /// Does not ask for a confirmation
    #[arg(long = "yes")]
    is_confirmed: bool,
}

impl ConfirmArgs {
    /// Asks the operator, who must be at a terminal. Returns whether the act is confirmed.
    pub(crate) fn confirms(&self, question: &str) -> Result<bool, Failure> {
        if self.is_confirmed {
            return Ok(true);
        }
        if !io::stdin().is_terminal() {
            let text = "nothing was done: without a terminal the command needs --yes";
            return Err(Failure::Usage(text.to_owned()));
        }
        let is_confirmed = ask(&format!("{question} [y/N] "))?;
        if !is_confirmed {
            warn("nothing was done");
        }
        Ok(is_confirmed)
    }
}

impl OperatorArgs {
    pub(crate) fn confirms(&self, question: &str) -> Result<bool, Failure> {
        self.confirmation.confirms(question)
    }

    pub(crate) fn by(&self) -> String {
        self.name.by()
    }
}

impl NameArgs {
    /// Returns the name of the operator. Services and containers often lack the variables, and an entry of the audit list needs a
    /// name.
    pub(crate) fn by(&self) -> String {
        let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
        let name = self.by.clone().or_else(|| variable("USER"));
        name.or_else(|| variable("LOGNAME"))
            .or_else(process_user)
            .unwrap_or_default()
    }
}

/// Asks the system for the name of the user that runs this process.
fn process_user() -> Option<String> {
    let output = std::process::Command::new("id").arg("-un").output().ok()?;
    let name = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !name.is_empty()).then_some(name)
}

#[derive(clap::Args)]
pub(crate) struct ListArgs {
    /// What the keys begin with; all keys without it
    #[arg(value_name = "PREFIX", default_value = "")]
    pub(crate) key_prefix: OsString,
    /// Lists this kind only
    #[arg(long, value_parser = kind_parser())]
    kind: Option<Kind>,
    /// Lists keys that this node holds or waits for: a name or host as shown, or the first 8 or more digits of an id. Looks at
    /// the first 50 holders and waiters of a key
    #[arg(long)]
    node: Option<String>,
    /// How many keys to list; 0 for all
    #[arg(long, value_name = "N", default_value_t = 1000)]
    limit: usize,
    /// Shows what the holder noted, such as its request
    #[arg(long = "notes")]
    pub(crate) has_notes: bool,
    /// Lists again after this time, such as 2s, until Ctrl-C
    #[arg(long, value_name = "TIME", value_parser = parse_period)]
    pub(crate) watch: Option<Duration>,
}

#[derive(clap::Args)]
pub(crate) struct StoreArgs {
    /// redis://user:password@host:port/db, unix:///path?db=0, redis+sentinel://host,host/name, redis+cluster://host,host, or
    /// redis+quorum://host,host,host; with rediss for TLS. It is the URL that the services have; redis://127.0.0.1/ without one
    // A help text must not show a password.
    #[arg(
        long,
        value_name = "URL",
        env = "TENURE_URL",
        hide_env_values = true,
        global = true
    )]
    pub(crate) url: Option<String>,
    /// The prefix of the records; one in the URL comes first
    #[arg(long, env = "TENURE_PREFIX", default_value = "lock:", global = true)]
    pub(crate) prefix: OsString,
    /// The certificate authority of a rediss:// server, a PEM file
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) ca: Option<PathBuf>,
    /// The certificate for a rediss:// server that asks for one, a PEM file
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) cert: Option<PathBuf>,
    /// The private key of the certificate, a PEM file
    #[arg(id = "cert_key", long = "key", value_name = "FILE", global = true)]
    pub(crate) cert_key: Option<PathBuf>,
}

#[derive(clap::Args)]
pub(crate) struct OutputArgs {
    /// Prints JSON, one object per line
    #[arg(long = "json", global = true)]
    pub(crate) is_json: bool,
    /// Takes KEY and PREFIX as hexadecimal digits, and shows keys so
    #[arg(long = "hex", global = true)]
    pub(crate) is_hex: bool,
}

impl OutputArgs {
    /// Returns the bytes of a key, or of the beginning of one.
    pub(crate) fn bytes(&self, key: &OsStr) -> Result<Vec<u8>, Failure> {
        let bytes = key.as_encoded_bytes();
        if !self.is_hex {
            return Ok(bytes.to_vec());
        }
        let refused = || Failure::Usage(format!("`{}` is not pairs of hexadecimal digits", shown(bytes)));
        unhex(bytes).ok_or_else(refused)
    }
}

impl ListArgs {
    /// Returns how many keys are listed at most.
    pub(crate) fn limit(&self) -> usize {
        if self.limit == 0 { usize::MAX } else { self.limit }
    }

    /// Returns whether the entry is of the kind and of the node that are asked for.
    pub(crate) fn wants(&self, entry: &Entry) -> bool {
        let holders = entry.holders.iter().map(|holder| &holder.node);
        let mut nodes = holders.chain(entry.waiters.iter().map(|waiter| &waiter.node));
        let wanted = self.node.as_deref();
        self.kind.is_none_or(|kind| kind == entry.kind)
            && wanted.is_none_or(|wanted| nodes.any(|node| is_called(node, wanted)))
    }
}

fn kind_parser() -> impl TypedValueParser<Value = Kind> {
    let words = Kind::ALL.iter().map(|kind| kind.word());
    PossibleValuesParser::new(words).map(|word| word.parse().expect("a word of a kind"))
}

fn parse_period(text: &str) -> Result<Duration, String> {
    let period = humantime::parse_duration(text).map_err(|error| error.to_string())?;
    if period < MIN_PERIOD {
        return Err("a store is listed every 100ms at most".to_owned());
    }
    Ok(period)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn arguments_do_not_contradict_each_other() {
        Args::command().debug_assert();
    }

    #[test]
    fn options_of_the_store_may_stand_behind_the_command() {
        let args = [
            "tenure",
            "show",
            "a",
            "--url",
            "redis://one/",
            "--key",
            "file",
            "--hex",
        ];
        let args = Args::try_parse_from(args).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(args.store.url.as_deref(), Some("redis://one/"));
        assert_eq!(args.store.cert_key, Some(PathBuf::from("file")));
        assert!(args.output.is_hex && matches!(args.command, Command::Show { key } if key == "a"));
    }

    #[test]
    fn a_watch_leaves_the_store_time() {
        assert_eq!(parse_period("2s"), Ok(Duration::from_secs(2)));
        assert!(parse_period("99ms").is_err());
        assert!(parse_period("2").is_err());
    }
}
