//! The Sentinels of a master: where the master is, and when it has moved.
//!
//! Each Sentinel is asked for the master's address, which counts under the epoch of the configuration that the Sentinel
//! has. The address is that of GET-MASTER-ADDR-BY-NAME: for seconds after a promotion, the MASTER of the leading
//! Sentinel has the old address under the new epoch. The Sentinels are asked again and again while a link is open,
//! because a message about a move could be missed, and would be missed for ever.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, ErrorKind, RedisError, RedisResult, Value, from_redis_value};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};

use crate::error::{OptionsError, StoreError, StoreErrorKind, StoreRefusal};
use crate::store::redis::{decode, tls, url};

/// How long the answers of the Sentinels are awaited.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(500);
/// How often the Sentinels are asked while a link is open.
const ASK_INTERVAL: Duration = Duration::from_secs(1);

/// Host and port of a master.
pub(super) type Address = (String, u16);

/// The Sentinels that know a master by a name. Their settings come from their URLs.
pub(super) struct Sentinels {
    name: String,
    clients: Vec<Client>,
    known: Mutex<KnownMaster>,
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

/// What a node knows of a master: the last decision, and what the next one depends on.
#[derive(Debug, Default)]
struct KnownMaster {
    /// Where the master is. `None` until a Sentinel has answered.
    address: Option<Address>,
    /// The highest epoch that a Sentinel has given.
    highest_epoch: u64,
    /// Where the last link leads.
    linked: Option<Address>,
}

/// The answer of a Sentinel.
#[derive(Debug, Clone, PartialEq, Eq)]
struct SentinelAnswer {
    address: Address,
    epoch: u64,
}

/// The reason why a Sentinel gave no address.
struct NoAddress {
    kind: StoreErrorKind,
    text: String,
}

impl KnownMaster {
    /// Decides where the master is. `listed` is the number of Sentinels, of which some may not have answered.
    ///
    /// The highest epoch wins. An epoch below the highest that was ever given counts only if a majority gives it with
    /// one address: a Sentinel begins at zero again after a RESET. At equal epochs more answers win, then an address
    /// other than that of the last link, which had a reason to end. Without an answer that counts, the master stays
    /// where it was.
    fn decide(&mut self, answers: &[SentinelAnswer], listed: usize) -> Option<&Address> {
        let votes = |answer| answers.iter().filter(|other| *other == answer).count();
        let counting = answers
            .iter()
            .filter(|answer| answer.epoch >= self.highest_epoch || 2 * votes(*answer) > listed);
        let decided = counting.max_by_key(|answer| {
            let is_other = self.linked.as_ref() != Some(&answer.address);
            (answer.epoch, votes(*answer), is_other, &answer.address)
        });
        if let Some(decided) = decided {
            self.highest_epoch = self.highest_epoch.max(decided.epoch);
            self.address = Some(decided.address.clone());
        }
        self.address.as_ref()
    }
}

impl Sentinels {
    /// Returns the Sentinels at these URLs, for the master that they know by this name.
    pub(super) fn new<U: AsRef<str>>(
        name: &str,
        urls: impl IntoIterator<Item = U>,
    ) -> Result<Self, OptionsError> {
        let refused = |why: &str| Err(OptionsError(why.to_owned()));
        if name.is_empty() {
            return refused(
                "a master behind Sentinels has a name: it is the one in `sentinel monitor <name> …`",
            );
        }
        let clients = urls.into_iter().map(|url| url::sentinel(url.as_ref()));
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
        })
    }

    /// Returns where the master was at the last decision. Asks the Sentinels if there is none.
    pub(super) async fn master(self: &Arc<Self>, limit: Duration) -> Result<Address, StoreError> {
        let known = self.known().address.clone();
        match known {
            Some(known) => Ok(known),
            None => self.watch(limit).find().await,
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

    fn known(&self) -> MutexGuard<'_, KnownMaster> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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
        let address = self.find().await?;
        self.sentinels.known().linked = Some(address.clone());
        Ok(address)
    }

    /// Resolves when the master is no longer at `address`.
    pub(super) async fn moved(mut self, address: Address) {
        let mut ticks = interval(ASK_INTERVAL);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            if self.find().await.is_ok_and(|found| found != address) {
                return;
            }
        }
    }

    async fn find(&mut self) -> Result<Address, StoreError> {
        let (answers, failures) = self.ask().await;
        let refusals = failures.iter();
        let refusals = refusals.filter(|failure| matches!(failure.kind, StoreErrorKind::Refused(_)));
        self.refusals = refusals.map(|failure| failure.text.clone()).collect();
        let listed = self.sentinels.clients.len();
        let decided = self.sentinels.known().decide(&answers, listed).cloned();
        decided.ok_or_else(|| self.sentinels.no_master(failures))
    }

    /// Returns the answers that arrive in time, and why the other Sentinels gave none, in the order of the list.
    async fn ask(&mut self) -> (Vec<SentinelAnswer>, Vec<NoAddress>) {
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
) -> Result<(MultiplexedConnection, SentinelAnswer), NoAddress> {
    let failed = |error| failure(client, &error);
    let mut connection = match connection {
        Some(connection) => connection,
        None => connect(client).await.map_err(failed)?,
    };
    let mut questions = redis::pipe();
    for question in ["GET-MASTER-ADDR-BY-NAME", "MASTER"] {
        questions.cmd("SENTINEL").arg(question).arg(name);
    }
    let answers = connection.send_packed_commands(&questions, 0, 2).await;
    let mut answers = answers.map_err(failed)?.into_iter().map(decode::result);
    let mut next = || answers.next().unwrap_or(Ok(Value::Nil));
    let found = next().and_then(|value| Ok(from_redis_value::<Option<Address>>(value)?));
    let Some(found) = found.map_err(failed)? else {
        let at = address(client);
        let text = format!("the Sentinel at {at} knows no master `{name}`");
        let kind = StoreErrorKind::Refused(StoreRefusal::Other(text.clone()));
        return Err(NoAddress { kind, text });
    };
    let fields = next().and_then(|value| Ok(from_redis_value::<HashMap<String, String>>(value)?));
    let epoch = fields
        .map_err(failed)?
        .get("config-epoch")
        .map(|epoch| epoch.parse());
    // Every Sentinel since Redis 2.8 gives the epoch.
    let epoch = epoch.and_then(Result::ok).unwrap_or(0);
    let address = found;
    Ok((connection, SentinelAnswer { address, epoch }))
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
                "the server at {at} is no Sentinel: give the URLs of Sentinels, or use `Locks::redis` for a server without \
                 Sentinels"
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

    fn answer((name, epoch): (&str, u64)) -> SentinelAnswer {
        let address = (name.to_owned(), 6379);
        SentinelAnswer { address, epoch }
    }

    /// Returns the decision of a node that knows a master at `a` under epoch 3, with a link there.
    fn decide<const N: usize>(answers: [(&str, u64); N], listed: usize) -> (String, u64) {
        let address = Some(("a".to_owned(), 6379));
        let mut known = KnownMaster {
            linked: address.clone(),
            address,
            highest_epoch: 3,
        };
        let decided = known.decide(&answers.map(answer), listed).unwrap().0.clone();
        (decided, known.highest_epoch)
    }

    #[test]
    fn a_higher_epoch_wins_against_more_answers() {
        assert_eq!(decide([("a", 3), ("a", 3), ("b", 4)], 3), ("b".into(), 4));
        assert_eq!(decide([("a", 4), ("b", 3), ("b", 3)], 3), ("a".into(), 4));
    }

    #[test]
    fn at_equal_epochs_more_answers_win_and_then_another_address_than_the_links() {
        assert_eq!(decide([("b", 3), ("a", 3), ("a", 3)], 3).0, "a");
        assert_eq!(decide([("a", 3), ("b", 3), ("b", 3)], 3).0, "b");
        assert_eq!(decide([("a", 3), ("b", 3)], 3).0, "b");
        assert_eq!(decide([("b", 3), ("a", 3)], 3).0, "b");
        assert_eq!(decide([("a", 4), ("b", 4)], 3).0, "b");
    }

    #[test]
    fn a_single_answer_under_the_same_epoch_counts() {
        assert_eq!(decide([("b", 3)], 3), ("b".into(), 3));
    }

    #[test]
    fn a_lower_epoch_counts_only_if_a_majority_of_the_list_gives_it() {
        // Of three Sentinels two were reset.
        assert_eq!(decide([("b", 0), ("b", 0)], 3), ("b".into(), 3));
        assert_eq!(decide([("b", 2)], 3), ("a".into(), 3));
        // Half of the list is no majority, and answers that differ make none.
        assert_eq!(decide([("b", 0), ("b", 0)], 4).0, "a");
        assert_eq!(decide([("b", 0), ("c", 0)], 3).0, "a");
        assert_eq!(decide([("b", 0), ("b", 1)], 3).0, "a");
        // A higher epoch wins against a majority under a lower one.
        assert_eq!(decide([("b", 2), ("b", 2), ("c", 3)], 3).0, "c");
    }

    #[test]
    fn without_an_answer_the_master_stays_where_it_was() {
        assert_eq!(decide([], 3), ("a".into(), 3));
        let mut known = KnownMaster::default();
        assert_eq!(known.decide(&[], 3), None);
        // Before the first answer every epoch counts.
        let found = known.decide(&[answer(("a", 0))], 3).cloned();
        assert_eq!(found, Some(("a".to_owned(), 6379)));
    }

    #[test]
    fn a_sentinel_that_is_listed_twice_counts_once() {
        let urls = ["redis://one", "redis://:hunter2@one:26379", "redis://two"];
        assert_eq!(Sentinels::new("orders", urls).unwrap().clients.len(), 2);
    }

    #[test]
    fn an_empty_list_and_an_empty_name_are_refused() {
        let error = Sentinels::new::<&str>("orders", []).err().unwrap().to_string();
        assert!(error.contains("list of Sentinels is empty"), "{error}");
        let error = Sentinels::new("", ["redis://one"]).err().unwrap().to_string();
        assert!(error.contains("sentinel monitor"), "{error}");
    }

    #[test]
    fn the_name_in_errors_has_every_sentinel_and_no_password() {
        let urls = ["redis://:hunter2@one", "redis://two:7000"];
        let shown = Sentinels::new("orders", urls).unwrap().to_string();
        assert_eq!(
            shown,
            "the master `orders` of the Sentinels at one:26379, two:7000"
        );
    }
}
