//! The URL of a store: which store it is, and the options that all processes must have alike.
//!
//! Only this file cuts the text. redis-rs reads the URL of each server that is made of it. An error shows hosts, paths and
//! the names of options: never a user, a password or the text of an option.

use std::fmt::Display;
use std::time::Duration;

use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, percent_encode};

use crate::error::OptionsError;
use crate::options::is_prefix;

/// The forms that a URL has.
const FORMS: &str = "`redis://host:6379`, `rediss://…`, `unix:///path`, `redis+sentinel://host:26379,…/name`, \
                     `redis+cluster://host:6379,…`, `redis+quorum://host:6379,…` or `memory://`";

/// A store, with its options.
#[derive(PartialEq, Eq)]
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(super) struct StoreUrl {
    pub(super) location: StoreLocation,
    pub(super) prefix: Option<Vec<u8>>,
    /// Whether a server always recovers.
    pub(super) recovers: Option<bool>,
    pub(super) longest: Option<Duration>,
    pub(super) lag: Option<Duration>,
}

/// Where a store is. Each URL is that of one server, as redis-rs reads it.
#[derive(PartialEq, Eq)]
#[cfg_attr(not(feature = "redis"), allow(dead_code))]
pub(super) enum StoreLocation {
    /// The store of this name in this process.
    Memory(String),
    Server(String),
    Sentinels {
        name: String,
        /// The Sentinels.
        urls: Vec<String>,
        /// A URL with the settings of the master's connections.
        like: String,
    },
    Cluster(Vec<String>),
    Quorum(Vec<String>),
}

/// The forms of a URL, as their schemes name them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum UrlForm {
    Memory,
    Server,
    Socket,
    Sentinel,
    Cluster,
    Quorum,
}

impl UrlForm {
    /// Returns the form, and the scheme of the URL of one server.
    fn of(scheme: &str) -> Option<(UrlForm, &str)> {
        Some(match scheme {
            "memory" => (UrlForm::Memory, scheme),
            "redis" | "rediss" | "valkey" | "valkeys" => (UrlForm::Server, scheme),
            "unix" | "redis+unix" | "valkey+unix" => (UrlForm::Socket, "unix"),
            "redis+sentinel" | "rediss+sentinel" => (UrlForm::Sentinel, before_plus(scheme)),
            "redis+cluster" | "rediss+cluster" => (UrlForm::Cluster, before_plus(scheme)),
            "redis+quorum" | "rediss+quorum" => (UrlForm::Quorum, before_plus(scheme)),
            _ => return None,
        })
    }

    /// Returns the options of this form.
    fn options(self) -> &'static [&'static str] {
        match self {
            UrlForm::Memory => &["prefix"],
            UrlForm::Server | UrlForm::Socket => &["prefix", "recovery", "longest", "lag", "protocol"],
            UrlForm::Sentinel => &[
                "prefix",
                "recovery",
                "longest",
                "lag",
                "protocol",
                "sentinel_username",
                "sentinel_password",
            ],
            UrlForm::Cluster => &["prefix", "protocol"],
            UrlForm::Quorum => &["prefix", "longest", "protocol"],
        }
    }
}

fn before_plus(scheme: &str) -> &str {
    scheme.split_once('+').map_or(scheme, |(before, _)| before)
}

/// The parts of a URL, as they are written.
struct Parts<'a> {
    userinfo: Option<&'a str>,
    hosts: Vec<&'a str>,
    path: &'a str,
    query: Vec<(&'a str, &'a str)>,
    fragment: Option<&'a str>,
}

impl<'a> Parts<'a> {
    fn cut(rest: &'a str) -> Parts<'a> {
        let (rest, fragment) = match rest.split_once('#') {
            Some((rest, fragment)) => (rest, Some(fragment)),
            None => (rest, None),
        };
        let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (userinfo, hosts) = match authority.rsplit_once('@') {
            Some((userinfo, hosts)) => (Some(userinfo), hosts),
            None => (None, authority),
        };
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        Parts {
            userinfo,
            hosts: hosts.split(',').collect(),
            path: path.trim_end_matches('/'),
            query: pairs
                .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
                .collect(),
            fragment,
        }
    }

    /// Returns why the hosts cannot be used. The text has no host that may be a part of a password.
    fn check_hosts(&self) -> Result<(), String> {
        for (at, host) in self.hosts.iter().enumerate() {
            let number = at + 1;
            if host.is_empty() {
                return Err(match self.hosts.len() {
                    1 => "names no host".to_owned(),
                    _ => format!("has an empty host {number}: write one `,` between two hosts"),
                });
            }
            let (name, port) = match host.strip_prefix('[') {
                Some(inner) => inner.split_once(']').unwrap_or(("", "")),
                None if host.matches(':').count() > 1 => {
                    return Err(format!(
                        "has an IPv6 address without brackets as host {number}: write `[::1]:6379`"
                    ));
                }
                None => host.split_at(host.find(':').unwrap_or(host.len())),
            };
            let port = match port.strip_prefix(':') {
                Some(port) => port.parse().is_ok_and(|port: u16| port > 0),
                None => port.is_empty(),
            };
            let is_name = |sign: char| sign.is_alphanumeric() || "-._:%".contains(sign);
            if name.is_empty() || !name.chars().all(is_name) {
                return Err(format!("has a host {number} that is no name and no address"));
            }
            if !port {
                return Err(format!(
                    "has a host {number} whose port is no number from 1 to 65535: write `host:6379`, and user and password in front of a `@`"
                ));
            }
        }
        Ok(())
    }

    /// Returns the URL of each server.
    fn servers(&self, scheme: &str, db: &str) -> Result<Vec<String>, String> {
        if !db.is_empty() && db.parse::<u32>().is_err() {
            return Err(
                "has a path that is no number of a database: write `/0` or nothing, behind Sentinels `/name/0` or `/name`"
                    .to_owned(),
            );
        }
        let end = match self.option("protocol") {
            None => format!("/{db}"),
            Some(protocol) => format!("/{db}?protocol={protocol}"),
        };
        let server = |host: &&str| server(scheme, self.userinfo, host, &end);
        Ok(self.hosts.iter().map(server).collect())
    }

    /// Returns whether a user or a password has a sign at which the text was cut. Then no part may be shown.
    fn is_cut_in_userinfo(&self) -> bool {
        let query = self.query.iter().flat_map(|(option, value)| [option, value]);
        let mut rest = query.copied().chain([self.path]).chain(self.fragment);
        rest.any(|part| part.contains('@'))
    }

    fn option(&self, name: &str) -> Option<&'a str> {
        let mut values = self.query.iter().filter(|(option, _)| *option == name);
        values.next().map(|(_, value)| *value)
    }
}

impl StoreUrl {
    /// Reads the URL of a store.
    ///
    /// # Errors
    /// What is wrong, and what to write instead.
    pub(super) fn parse(text: &str) -> Result<StoreUrl, OptionsError> {
        let refused = |why: &dyn Display| OptionsError(format!("the URL of the store {why}"));
        if text.is_empty() {
            return Err(refused(&format_args!("is empty: write {FORMS}")));
        }
        if text.chars().any(|sign| sign.is_whitespace() || sign.is_control()) {
            return Err(refused(
                &"has a space or a line break: a space in a password is `%20`",
            ));
        }
        if text.starts_with(['"', '\'']) {
            return Err(refused(&"stands in quotes: remove them"));
        }
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(refused(&without_scheme(text)));
        };
        let scheme = scheme.to_ascii_lowercase();
        let Some((form, single)) = UrlForm::of(&scheme) else {
            return Err(refused(&foreign_form(&scheme, rest)));
        };
        let refused = |why: &dyn Display| OptionsError(format!("the URL `{scheme}://…` {why}"));
        let parts = Parts::cut(rest);
        check(form, &parts).map_err(|why| refused(&why))?;
        let location = location(form, single, &parts, rest).map_err(|why| refused(&why))?;
        let mut url = StoreUrl {
            location,
            prefix: parts
                .option("prefix")
                .map(|prefix| percent_decode_str(prefix).collect()),
            recovers: None,
            longest: None,
            lag: None,
        };
        url.read_recovery(form, &parts).map_err(|why| refused(&why))?;
        // The check of all options shows the prefix.
        if url.prefix.as_ref().is_some_and(|prefix| !is_prefix(prefix)) {
            return Err(refused(
                &"has an option `prefix` that cannot be used: 1 to 128 bytes that neither begin with `tenure` nor are a beginning of it",
            ));
        }
        Ok(url)
    }

    fn read_recovery(&mut self, form: UrlForm, parts: &Parts<'_>) -> Result<(), String> {
        let duration = |option| {
            let Some(text) = parts.option(option) else {
                return Ok(None);
            };
            let time = humantime::parse_duration(text);
            time.map(Some).map_err(|_| format!(
                "has an option `{option}` that is no time: write a number and a unit, such as `{option}=30s` or `{option}=500ms`"
            ))
        };
        (self.longest, self.lag) = (duration("longest")?, duration("lag")?);
        self.recovers = match parts.option("recovery") {
            None => None,
            Some("always") => Some(true),
            Some("evidence") => Some(false),
            Some(_) => {
                return Err("has an option `recovery` that is neither `evidence` nor `always`".to_owned());
            }
        };
        // Behind Sentinels a server always recovers, unless the URL says otherwise.
        let is_always = match form {
            UrlForm::Quorum => true,
            UrlForm::Sentinel => self.recovers != Some(false),
            _ => self.recovers == Some(true),
        };
        for (option, is_given) in [("longest", self.longest.is_some()), ("lag", self.lag.is_some())] {
            if is_given && !is_always {
                return Err(format!(
                    "has an option `{option}` without effect: it needs `recovery=always`"
                ));
            }
        }
        Ok(())
    }
}

/// Checks what every form must have.
fn check(form: UrlForm, parts: &Parts<'_>) -> Result<(), String> {
    if form != UrlForm::Socket && parts.is_cut_in_userinfo() && parts.fragment.is_none() {
        return Err(
            "has a `@` behind its first `/` or `?`: in a user or a password write `%2F` for `/`, `%3F` for `?`, `%23` for `#` and `%40` for `@`"
                .to_owned(),
        );
    }
    check_fragment(parts)?;
    check_options(form, parts)?;
    if matches!(form, UrlForm::Memory | UrlForm::Socket) {
        return Ok(());
    }
    parts.check_hosts()?;
    let userinfo = parts.userinfo.unwrap_or_default();
    if userinfo.contains(',') && (form != UrlForm::Server || userinfo.contains('@')) {
        return Err(
            "has a `,` before its last `@`: user and password stand once, in front of the first host; in a password write `%2C` for `,` and `%40` for `@`"
                .to_owned(),
        );
    }
    Ok(())
}

fn check_fragment(parts: &Parts<'_>) -> Result<(), String> {
    match parts.fragment {
        Some(fragment) if fragment.eq_ignore_ascii_case("insecure") => {
            Err(
                "turns off the verification of certificates: remove `#insecure`, and give the authority by `Builder::tls`"
                    .to_owned(),
            )
        }
        Some(_) => {
            Err("has a `#`: in a password write `%23`; the name of a master is the path".to_owned())
        }
        None => Ok(()),
    }
}

fn check_options(form: UrlForm, parts: &Parts<'_>) -> Result<(), String> {
    let of_redis_rs: &[&str] = match form {
        UrlForm::Socket => &["db", "user", "pass"],
        _ => &[],
    };
    for (at, (option, value)) in parts.query.iter().enumerate() {
        if *option == "node" {
            return Err(format!(
                "has an option `node`: write all hosts in front of the path, as in {FORMS}"
            ));
        }
        if !form.options().contains(option) && !of_redis_rs.contains(option) {
            let known = [form.options(), of_redis_rs].concat().join("`, `");
            return Err(format!(
                "has an option that is unknown here: the options are `{known}`"
            ));
        }
        if value.is_empty() {
            return Err(format!("has an option `{option}` without a value"));
        }
        if *option == "protocol" && !["2", "3", "resp2", "resp3"].contains(value) {
            return Err("has an option `protocol` that is neither `resp2` nor `resp3`".to_owned());
        }
        if parts.query[..at].iter().any(|(before, _)| before == option) {
            return Err(format!("has the option `{option}` twice"));
        }
    }
    Ok(())
}

/// Returns where the store is. `rest` is what follows the scheme.
fn location(form: UrlForm, scheme: &str, parts: &Parts<'_>, rest: &str) -> Result<StoreLocation, String> {
    match form {
        UrlForm::Memory => match (parts.userinfo, parts.path, &*parts.hosts) {
            (None, "", [name]) => Ok(StoreLocation::Memory((*name).to_owned())),
            _ => Err("has more than a name: write `memory://` or `memory://name`".to_owned()),
        },
        UrlForm::Socket => {
            let path = rest.split(['?', '#']).next().unwrap_or_default();
            if !path.starts_with('/') {
                return Err(
                    "has something in front of its path: write `unix:///path`, and user and password as `?user=…&pass=…`"
                        .to_owned(),
                );
            }
            let is_own = |option: &str| UrlForm::Socket.options().contains(&option) && option != "protocol";
            let kept = parts.query.iter().filter(|(option, _)| !is_own(option));
            // redis-rs takes a `+` for a space here, and nowhere else.
            let kept = kept.map(|(option, value)| format!("{option}={}", value.replace('+', "%2B")));
            let kept: Vec<String> = kept.collect();
            Ok(StoreLocation::Server(format!(
                "{scheme}://{path}?{}",
                kept.join("&")
            )))
        }
        UrlForm::Server if parts.hosts.len() > 1 => {
            let hosts = parts.hosts.join(",");
            Err(format!(
                "has several hosts: write `redis+cluster://{hosts}`, `redis+quorum://{hosts}` or `redis+sentinel://{hosts}/name`"
            ))
        }
        UrlForm::Server => Ok(StoreLocation::Server(
            parts.servers(scheme, parts.path)?.remove(0),
        )),
        UrlForm::Cluster if !matches!(parts.path, "" | "0") => {
            Err("names a database: a cluster has database 0 only, remove it".to_owned())
        }
        UrlForm::Cluster => Ok(StoreLocation::Cluster(parts.servers(scheme, "0")?)),
        UrlForm::Quorum => Ok(StoreLocation::Quorum(parts.servers(scheme, parts.path)?)),
        UrlForm::Sentinel => behind_sentinels(scheme, parts),
    }
}

fn behind_sentinels(scheme: &str, parts: &Parts<'_>) -> Result<StoreLocation, String> {
    let (name, db) = parts.path.split_once('/').unwrap_or((parts.path, ""));
    if name.is_empty() {
        let hosts = parts.hosts.join(",");
        return Err(format!(
            "names no master: write `redis+sentinel://{hosts}/name`, with the name in `sentinel monitor <name> …`"
        ));
    }
    let name = percent_decode_str(name).decode_utf8();
    let name = name.map_err(|_| "has a name of a master that is no UTF-8".to_owned())?;
    let encoded = |option| {
        let value = parts.option(option).map(percent_decode_str);
        let bytes = value.map(|value| value.collect::<Vec<u8>>());
        bytes.map(|bytes| percent_encode(&bytes, NON_ALPHANUMERIC).to_string())
    };
    let user = encoded("sentinel_username").unwrap_or_default();
    let userinfo = encoded("sentinel_password").map(|password| format!("{user}:{password}"));
    if userinfo.is_none() && !user.is_empty() {
        return Err(
            "has an option `sentinel_username` without effect: it needs `sentinel_password`".to_owned(),
        );
    }
    let sentinel = |host: &&str| server(scheme, userinfo.as_deref(), host, "/");
    Ok(StoreLocation::Sentinels {
        name: name.into_owned(),
        urls: parts.hosts.iter().map(sentinel).collect(),
        like: parts.servers(scheme, db)?.remove(0),
    })
}

/// Returns the URL of one server.
fn server(scheme: &str, userinfo: Option<&str>, host: &str, end: &str) -> String {
    let userinfo = userinfo.map(|userinfo| format!("{userinfo}@"));
    format!("{scheme}://{}{host}{end}", userinfo.unwrap_or_default())
}

/// Returns advice for a text without a scheme.
fn without_scheme(text: &str) -> String {
    let parts = Parts::cut(text);
    let is_safe = parts.userinfo.is_none() && !parts.is_cut_in_userinfo() && parts.check_hosts().is_ok();
    match parts.hosts.join(",") {
        hosts if is_safe && parts.hosts.len() == 1 => format!("lacks a scheme: write `redis://{hosts}`"),
        _ => format!("lacks a scheme: write {FORMS}"),
    }
}

/// Returns the URL to write instead of a form that other libraries have.
fn foreign_form(scheme: &str, rest: &str) -> String {
    let parts = Parts::cut(rest);
    let tls = if scheme.starts_with("rediss") || scheme.starts_with("valkeys") {
        "rediss"
    } else {
        "redis"
    };
    // A part of a password may stand anywhere in a text that is cut in the password.
    let is_safe = parts.check_hosts().is_ok() && !parts.is_cut_in_userinfo();
    let (hosts, path) = match is_safe {
        true => (parts.hosts.join(","), parts.path),
        false => ("host:6379".to_owned(), ""),
    };
    let user = if parts.userinfo.is_some() {
        "user:password@"
    } else {
        ""
    };
    if scheme.contains("sentinel") {
        let (name, db) = match path.split_once('/') {
            Some((name, db)) => (name, db),
            None if path.parse::<u32>().is_ok() => ("", path),
            None => (path, ""),
        };
        let name = parts.fragment.filter(|_| is_safe).unwrap_or(name);
        let is_name = !name.is_empty()
            && name
                .chars()
                .all(|sign| sign.is_alphanumeric() || "-._".contains(sign));
        let name = if is_name { name } else { "name" };
        let db = if db.parse::<u32>().is_ok() {
            format!("/{db}")
        } else {
            String::new()
        };
        return format!("is of another library: write `{tls}+sentinel://{user}{hosts}/{name}{db}`");
    }
    if scheme.contains("cluster") {
        return format!("is of another library: write `{tls}+cluster://{user}{hosts}`");
    }
    format!("has an unknown scheme: write {FORMS}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn location(text: &str) -> StoreLocation {
        StoreUrl::parse(text)
            .unwrap_or_else(|error| panic!("{text}: {error}"))
            .location
    }

    #[test]
    fn a_url_names_one_server_or_each_of_several() {
        let text = |text: &str| text.to_owned();
        for (url, server) in [
            ("redis://127.0.0.1/", "redis://127.0.0.1/"),
            ("REDIS://one", "redis://one/"),
            ("rediss://u:p@one:6380/2", "rediss://u:p@one:6380/2"),
            (
                "valkey://[::1]:7000?protocol=resp3&prefix=a:",
                "valkey://[::1]:7000/?protocol=resp3",
            ),
            ("redis://:p@q:r@one", "redis://:p@q:r@one/"),
            (
                "unix:///run/redis.sock?db=1&prefix=a&pass=p@q",
                "unix:///run/redis.sock?db=1&pass=p@q",
            ),
            (
                "redis+unix:///run/redis.sock?pass=a+b",
                "unix:///run/redis.sock?pass=a%2Bb",
            ),
        ] {
            assert!(location(url) == StoreLocation::Server(text(server)), "{url}");
        }
        let several = [
            "redis://u:p%40q@one:1/",
            "redis://u:p%40q@two/",
            "redis://u:p%40q@[::1]:3/",
        ]
        .map(text);
        let url = "redis+quorum://u:p%40q@one:1,two,[::1]:3";
        assert!(location(url) == StoreLocation::Quorum(several.to_vec()));
        let several = ["rediss://one/0", "rediss://two:2/0"].map(text);
        assert!(location("rediss+cluster://one,two:2/") == StoreLocation::Cluster(several.to_vec()));
        let url = "rediss+sentinel://u:p@one,[::1]:2/my%20master/3?sentinel_username=s&sentinel_password=a%2Fb:c&protocol=3";
        assert!(
            location(url)
                == StoreLocation::Sentinels {
                    name: text("my master"),
                    urls: ["rediss://s:a%2Fb%3Ac@one/", "rediss://s:a%2Fb%3Ac@[::1]:2/"]
                        .map(text)
                        .to_vec(),
                    like: text("rediss://u:p@one/3?protocol=3"),
                }
        );
        assert!(location("memory://") == StoreLocation::Memory(String::new()));
        assert!(location("memory://a?prefix=b") == StoreLocation::Memory(text("a")));
    }

    #[test]
    fn the_options_of_a_url_are_read() {
        let url = StoreUrl::parse("redis://one?prefix=a%3A%ff&recovery=always&longest=1m&lag=500ms");
        let url = url.unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(url.prefix.as_deref(), Some(&b"a:\xff"[..]));
        assert_eq!(url.recovers, Some(true));
        let times = (Some(Duration::from_secs(60)), Some(Duration::from_millis(500)));
        assert_eq!((url.longest, url.lag), times);
    }
}
