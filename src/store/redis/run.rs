//! The run of a server: which process answers, since which promotion. A run or a reign that is not the recorded one may lack
//! the last grants of the one before it, so it begins a recovery.

use std::fmt;
use std::sync::LazyLock;
use std::time::Duration;

use redis::{Pipeline, Value, from_redis_value};

use crate::protocol::message::{GrantNumber, LinkReply, LinkRequest};
use crate::store::redis::names;
use crate::store::redis::script::LuaScript;

/// The script that compares the runs.
static SCRIPT: LazyLock<LuaScript> = LazyLock::new(|| LuaScript::new(include_str!("lua/run.lua").to_owned()));

/// What a node does about another run of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RunPolicy {
    /// The longest lease of any process, if the node begins a recovery at each other run. `None` if it does so only
    /// after another node with that policy was at the server.
    pub(crate) longest: Option<Duration>,
    /// How long a recovery lasts.
    pub(crate) recovery: Duration,
}

impl RunPolicy {
    /// Returns the text by which the server compares the policies of nodes, or an empty text.
    pub(super) fn contract(self) -> String {
        let longest = self.longest.map(|longest| Contract {
            longest,
            recovery: self.recovery,
        });
        longest.map_or_else(String::new, |contract| contract.to_string())
    }

    /// Returns why the node may not use the server, if the server has another longest lease than the node.
    pub(super) fn contradiction(self, recorded: &str) -> Option<String> {
        let own = self.contract();
        if own.is_empty() || recorded.is_empty() || own == recorded {
            return None;
        }
        let show = |text: &str| match Contract::parse(text) {
            Some(Contract { longest, recovery }) => format!("{longest:?} (a recovery lasts {recovery:?})"),
            None => format!("`{text}`"),
        };
        let key = names::LONGEST;
        Some(format!(
            "the longest lease (`longest` of `Recovery::Always` or of `Builder::quorum`) is {} here and {} in other processes: use equal values, or stop all \
             processes, `DEL {key}`, and start them with the new value",
            show(&own),
            show(recorded)
        ))
    }
}

/// What is compared when a link opens.
pub(crate) struct Comparison<'a> {
    pub(crate) link: LinkRequest<'a>,
    /// The Sentinels' name of the server, if they are asked.
    pub(crate) master: Option<&'a str>,
    /// The run that is recorded in the server.
    pub(crate) recorded: Option<String>,
}

/// Returns the commands that load and call the script. The call changes nothing if the server has another longest lease than this
/// node.
pub(crate) fn compare(comparison: &Comparison<'_>, policy: RunPolicy) -> Pipeline {
    let Comparison { link, master, .. } = comparison;
    let mut keys: Vec<_> = [names::RUN, names::RECOVERING, names::LONGEST]
        .map(str::to_owned)
        .into();
    keys.extend(link.number.map(|_| names::CLOCK.to_owned()));
    let master = master.filter(|_| link.epoch.is_some());
    keys.extend(master.map(|master| format!("{}{master}", names::EPOCH)));
    let mut questions = redis::pipe();
    questions.add_command(SCRIPT.load_command());
    questions
        .cmd("EVALSHA")
        .arg(&SCRIPT.sha)
        .arg(keys.len())
        .arg(keys);
    questions
        .arg(link.run)
        .arg(policy.contract())
        .arg(policy.recovery.as_millis() as u64)
        .arg(link.number.unwrap_or_default().0)
        .arg(link.epoch);
    questions
}

/// Reads the answer to the call: the longest lease as the server has it, and what the server answers to the link.
pub(crate) fn read(answer: Value) -> Option<(String, LinkReply)> {
    let (longest, clock, left, why): (String, u64, i64, String) = from_redis_value(answer).ok()?;
    let left = u64::try_from(left).ok();
    let reply = LinkReply {
        clock: GrantNumber(clock),
        // Only a user writes another word.
        recovering: left.map(|left| (left, why.parse().unwrap_or_default())),
    };
    Some((longest, reply))
}

/// The times on which all processes agree, as they are recorded in the server.
struct Contract {
    longest: Duration,
    recovery: Duration,
}

impl Contract {
    fn parse(text: &str) -> Option<Self> {
        let (longest, recovery) = text.split_once(':')?;
        let ms = |text: &str| text.parse().ok().map(Duration::from_millis);
        Some(Contract {
            longest: ms(longest)?,
            recovery: ms(recovery)?,
        })
    }
}

impl fmt::Display for Contract {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.longest.as_millis(), self.recovery.as_millis())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_longest_lease_is_refused_with_both_values() {
        let always = RunPolicy {
            longest: Some(Duration::from_secs(30)),
            recovery: Duration::from_secs(36),
        };
        assert_eq!(always.contradiction("30000:36000"), None);
        for (recorded, shown) in [
            ("10000:14000", "10s (a recovery lasts 14s)"),
            ("30000:37500", "30s (a recovery lasts 37.5s)"),
            ("x", "`x`"),
        ] {
            let text = always.contradiction(recorded).expect(recorded);
            for part in [shown, "30s (a recovery lasts 36s)", "DEL tenure1:longest"] {
                assert!(text.contains(part), "{text}");
            }
        }
        // A node that recovers on evidence has no longest lease of its own.
        let on_evidence = RunPolicy {
            longest: None,
            ..always
        };
        assert_eq!(on_evidence.contradiction("10000:14000"), None);
    }
}
