//! The Sentinels of a master: where the master is, and when it has moved.
//!
//! Each Sentinel is asked for the epoch of its configuration, and then for the master's address, so that an address is never
//! taken for that of a later epoch. The address is that of GET-MASTER-ADDR-BY-NAME: for seconds after a promotion, the MASTER
//! of the leading Sentinel has the old address under the new epoch. The Sentinels are asked again and again while a link is
//! open, because a message about a move could be missed, and would be missed for ever.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, Value, from_redis_value};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior, interval, timeout};

use crate::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
pub(super) use crate::protocol::cluster::Address;
use crate::protocol::flaw::Plant;
use crate::protocol::sentinels::{KnownMaster, NamedMaster, Reign, SentinelAnswer, has_majority};
use crate::store::WarnSink;
use crate::store::redis::{decode, tls, url};

/// How long the answers of the Sentinels are awaited.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the Sentinels are asked while a link is open.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// The shortest time between two warnings that too few Sentinels answer.
const WARN_INTERVAL: Duration = Duration::from_secs(60);

/// The Sentinels that know a master by a name. Their settings come from their URLs.
pub(super) struct Sentinels {
    name: String,
    clients: Vec<Client>,
    known: Mutex<KnownMaster<Address>>,
    /// When it was last reported that too few Sentinels answer.
    warned_at: Mutex<Option<Instant>>,
}

/// The Sentinels with a connection to each of them. Dropping it closes the connections.
pub(super) struct SentinelWatch {
    sentinels: Arc<Sentinels>,
    /// A connection for each Sentinel that answered last time.
    connections: Vec<Option<MultiplexedConnection>>,
    /// Why Sentinels refused to answer last time.
    pub(super) refusals: Vec<String>,
    timeout: Duration,
}

/// How many answers are awaited.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    /// A majority under one epoch: a Sentinel that is away does not delay a link.
    ForMajority,
    ForAll,
}

/// The reason why a Sentinel gave no address.
struct NoAddress {
    kind: StoreErrorKind,
    text: String,
}

impl Sentinels {
    /// Returns the Sentinels at these URLs, for the master that they know by this name.
    pub(super) fn new<U: AsRef<str>>(
        name: &str,
        urls: impl IntoIterator<Item = U>,
        like: &Client,
    ) -> Result<Self, OptionsError> {
        let refused = |why: &str| Err(OptionsError(why.to_owned()));
        if name.is_empty() {
            return refused(
                "a master behind Sentinels has a name: it is the one in `sentinel monitor <name> …`",
            );
        }
        let client = |url: U| url::with_certificates_of(like, &url::sentinel(url.as_ref())?);
        let clients = urls.into_iter().map(client);
        let mut clients: Vec<Client> = clients.collect::<Result<_, _>>()?;
        // A Sentinel that is listed twice has one vote.
        let mut listed = HashSet::new();
        clients.retain(|client| listed.insert(address(client).to_string()));
        if clients.is_empty() {
            return refused("the list of Sentinels is empty: give the URL of each Sentinel");
        }
        Ok(Sentinels {
            name: name.to_owned(),
            clients,
            known: Mutex::default(),
            warned_at: Mutex::default(),
        })
    }

    /// Returns where the master was at the last decision. Asks the Sentinels if there is none.
    pub(super) async fn master(self: &Arc<Self>, limit: Duration) -> Result<Address, StoreError> {
        let known = self.known().address().cloned();
        match known {
            Some(known) => Ok(known),
            None => Ok(self.watch(limit).find(Wait::ForMajority).await?.address),
        }
    }

    /// Returns a watch without a connection. `limit` is how long a link may take to open, of which the answers get a
    /// quarter at most.
    pub(super) fn watch(self: &Arc<Self>, limit: Duration) -> SentinelWatch {
        SentinelWatch {
            sentinels: self.clone(),
            connections: vec![None; self.clients.len()],
            refusals: Vec::new(),
            timeout: ANSWER_TIMEOUT.min(limit / 4),
        }
    }

    fn known(&self) -> MutexGuard<'_, KnownMaster<Address>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the name by which the Sentinels know the master.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Notes that a link to the master could not be opened.
    pub(super) fn note_link_failed(&self) {
        self.known().note_link_failed();
    }

    /// Returns whether it is time to warn that too few Sentinels answer: at most once a minute.
    fn may_warn(&self) -> bool {
        let mut warned_at = self.warned_at.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = warned_at.is_none_or(|at| at.elapsed() >= WARN_INTERVAL);
        if is_due {
            *warned_at = Some(Instant::now());
        }
        is_due
    }

    /// Says that too few Sentinels answer.
    fn too_few(&self, named: &NamedMaster<Address>) -> String {
        let (host, port) = &named.address;
        format!(
            "{} of {} Sentinels of `{}` answers under one epoch, {} must: nothing is granted at {host}:{port} until then",
            named.votes,
            named.sentinels,
            self.name,
            named.majority(),
        )
    }

    /// Returns the error if no Sentinel has ever answered. If all of them refuse, another attempt is of no use.
    fn no_master(&self, failures: Vec<NoAddress>) -> StoreError {
        let is_refusal = |failure: &NoAddress| matches!(failure.kind, StoreErrorKind::Refused(_));
        let refusal = failures.first().filter(|_| failures.iter().all(is_refusal));
        let kind = refusal.map_or(StoreErrorKind::Unreachable, |failure| failure.kind.clone());
        let texts: Vec<_> = failures.into_iter().map(|failure| failure.text).collect();
        let name = &self.name;
        StoreError::new(
            kind,
            format_args!(
                "no Sentinel tells where the master `{name}` is: {}",
                texts.join("; ")
            ),
        )
    }
}

/// Writes the name of the master and the addresses of its Sentinels, for errors.
impl fmt::Display for Sentinels {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let addresses = self.clients.iter().map(|client| address(client).to_string());
        let addresses: Vec<_> = addresses.collect();
        write!(
            f,
            "the master `{}` of the Sentinels at {}",
            self.name,
            addresses.join(", ")
        )
    }
}

impl SentinelWatch {
    /// Asks the Sentinels where the master is, for a link that opens there. If none answers, returns where it was.
    pub(super) async fn locate(&mut self) -> Result<Address, StoreError> {
        let address = self.find(Wait::ForMajority).await?.address;
        self.sentinels.known().note_link(address.clone());
        Ok(address)
    }

    /// Returns the name by which the Sentinels know the master.
    pub(super) fn name(&self) -> &str {
        self.sentinels.name()
    }

    /// Returns whether it is time to warn that too few Sentinels answer.
    pub(super) fn may_warn(&self) -> bool {
        self.sentinels.may_warn()
    }

    /// Asks the Sentinels **again**, after the first answer of the server at `address`. [`sentinels`](crate::protocol::sentinels)
    /// says why. Returns the reign of the link, and what to say if too few Sentinels answer.
    ///
    /// # Errors
    ///
    /// Returns an error if the Sentinels name another address.
    pub(super) async fn confirm(&mut self, address: &Address) -> Result<(Reign, Option<String>), StoreError> {
        let named = self.find(Wait::ForMajority).await?;
        if named.address != *address {
            let ((host, port), (to, at)) = (address, &named.address);
            let text = format_args!("{host}:{port} is no longer the master: the Sentinels name {to}:{at}");
            return Err(StoreError::new(StoreErrorKind::Unreachable, text));
        }
        let reign = named.reign(Plant::NONE);
        let is_unconfirmed = reign == Reign::Unconfirmed;
        Ok((reign, is_unconfirmed.then(|| self.sentinels.too_few(&named))))
    }

    /// Resolves when the link to the master at `address` must end: the master has moved, another reign has begun there, or the
    /// Sentinels can confirm a link that they could not confirm.
    pub(super) async fn ended(mut self, address: Address, reign: Reign, warn: WarnSink) {
        let mut ticks = interval(ASK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let Ok(named) = self.find(Wait::ForAll).await else {
                continue;
            };
            if named.address != address || named.ends(reign, Plant::NONE) {
                return;
            }
            if reign == Reign::Unconfirmed && self.sentinels.may_warn() {
                warn(self.sentinels.too_few(&named));
            }
        }
    }

    async fn find(&mut self, wait: Wait) -> Result<NamedMaster<Address>, StoreError> {
        let (answers, failures) = self.ask(wait).await;
        let refusals = failures.iter();
        let refusals = refusals.filter(|failure| matches!(failure.kind, StoreErrorKind::Refused(_)));
        self.refusals = refusals.map(|failure| failure.text.clone()).collect();
        let listed = self.sentinels.clients.len();
        let decided = self.sentinels.known().decide(&answers, listed);
        decided.ok_or_else(|| self.sentinels.no_master(failures))
    }

    /// Returns the answers that arrive in time, and why the other Sentinels gave none, in the order of the list.
    async fn ask(&mut self, wait: Wait) -> (Vec<SentinelAnswer<Address>>, Vec<NoAddress>) {
        let mut asked = JoinSet::new();
        for (at, client) in self.sentinels.clients.iter().enumerate() {
            let (sentinels, client) = (self.sentinels.clone(), client.clone());
            let (connection, limit) = (self.connections[at].take(), self.timeout);
            asked.spawn(async move {
                let answer = timeout(limit, ask_one(&client, connection, &sentinels.name)).await;
                let answer = answer.unwrap_or_else(|_| {
                    let hint = tls::hint(address(&client), None);
                    let text = format!("the Sentinel at {} is silent{hint}", address(&client));
                    let kind = StoreErrorKind::Unreachable;
                    Err(NoAddress { kind, text })
                });
                (at, answer)
            });
        }
        let (mut answers, mut failures) = (Vec::new(), Vec::new());
        while let Some(answered) = asked.join_next().await {
            // A TLS provider may panic. Its Sentinel then has not answered.
            let Ok((at, answer)) = answered else { continue };
            match answer {
                Ok((connection, answer)) => {
                    self.connections[at] = Some(connection);
                    answers.push(answer);
                    if wait == Wait::ForMajority && has_majority(&answers, self.sentinels.clients.len()) {
                        break;
                    }
                }
                Err(failure) => failures.push((at, failure)),
            }
        }
        failures.sort_by_key(|(at, _)| *at);
        (
            answers,
            failures.into_iter().map(|(_, failure)| failure).collect(),
        )
    }
}

/// Asks a Sentinel on this connection, or on a new one. Returns the connection, for the next time.
async fn ask_one(
    client: &Client,
    connection: Option<MultiplexedConnection>,
    name: &str,
) -> Result<(MultiplexedConnection, SentinelAnswer<Address>), NoAddress> {
    let failed = |error| failure(client, &error);
    let mut connection = match connection {
        Some(connection) => connection,
        None => connect(client).await.map_err(failed)?,
    };
    let mut questions = redis::pipe();
    for question in ["MASTER", "GET-MASTER-ADDR-BY-NAME"] {
        questions.cmd("SENTINEL").arg(question).arg(name);
    }
    let answers = connection.send_packed_commands(&questions, 0, 2).await;
    let [fields, found] = <[Value; 2]>::try_from(answers.map_err(failed)?).unwrap_or_default();
    let found = decode::result(found).and_then(|value| Ok(from_redis_value::<Option<Address>>(value)?));
    let Some(address) = found.map_err(failed)? else {
        let at = address(client);
        let text = format!("the Sentinel at {at} knows no master `{name}`");
        let kind = StoreErrorKind::Refused(StoreRefusal::Other(text.clone()));
        return Err(NoAddress { kind, text });
    };
    let fields =
        decode::result(fields).and_then(|value| Ok(from_redis_value::<HashMap<String, String>>(value)?));
    let fields = fields.map_err(failed)?;
    let number = |name| {
        fields
            .get(name)
            .and_then(|text| text.parse::<u64>().ok())
            .unwrap_or(0)
    };
    let answer = SentinelAnswer {
        address,
        // Every Sentinel since Redis 2.8 gives the epoch.
        epoch: number("config-epoch"),
        others: number("num-other-sentinels") as usize,
    };
    Ok((connection, answer))
}

async fn connect(client: &Client) -> RedisResult<MultiplexedConnection> {
    tls::install_provider(address(client));
    // The caller limits the time.
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(None)
        .set_response_timeout(None);
    let opened = client.clone();
    let opening = async move { opened.get_multiplexed_async_connection_with_config(&config).await };
    tls::open(address(client), opening).await
}

fn address(client: &Client) -> &redis::ConnectionAddr {
    client.get_connection_info().addr()
}

/// Returns why a Sentinel gave no address.
fn failure(client: &Client, error: &RedisError) -> NoAddress {
    let at = address(client);
    let said = decode::error_text(error);
    let refusal = match &said {
        Some(said) if said.to_ascii_lowercase().contains("unknown command") => {
            let text = format!(
                "the server at {at} is no Sentinel: name Sentinels, or write `redis://…` for a server without Sentinels"
            );
            let kind = StoreErrorKind::Refused(StoreRefusal::Unsupported);
            return NoAddress { kind, text };
        }
        Some(said) => Some(decode::refusal(said)),
        None => (error.kind() == ErrorKind::AuthenticationFailed).then_some(StoreRefusal::WrongPassword),
    };
    match refusal {
        Some(refusal) => NoAddress {
            text: format!("the Sentinel at {at}: {refusal}"),
            kind: StoreErrorKind::Refused(refusal),
        },
        None => NoAddress {
            text: format!("the Sentinel at {at}: {error}{}", tls::hint(at, Some(error))),
            kind: StoreErrorKind::Unreachable,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn like() -> Client {
        Client::open("redis://one").unwrap()
    }

    #[test]
    fn a_sentinel_that_is_listed_twice_counts_once() {
        let urls = ["redis://one", "redis://:hunter2@one:26379", "redis://two"];
        assert_eq!(Sentinels::new("orders", urls, &like()).unwrap().clients.len(), 2);
    }

    #[test]
    fn an_empty_list_and_an_empty_name_are_refused() {
        let error = Sentinels::new::<&str>("orders", [], &like())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("list of Sentinels is empty"), "{error}");
        let error = Sentinels::new("", ["redis://one"], &like())
            .err()
            .unwrap()
            .to_string();
        assert!(error.contains("sentinel monitor"), "{error}");
    }

    #[test]
    fn the_name_in_errors_has_every_sentinel_and_no_password() {
        let urls = ["redis://:hunter2@one", "redis://two:7000"];
        let shown = Sentinels::new("orders", urls, &like()).unwrap().to_string();
        assert_eq!(
            shown,
            "the master `orders` of the Sentinels at one:26379, two:7000"
        );
    }
}
