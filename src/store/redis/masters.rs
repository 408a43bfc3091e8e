//! The masters of a quorum: the list of them on which all clients agree, and which server is behind each address.
//!
//! Two clients with different lists could each have a majority at one time, and so could two clients with different longest
//! leases, after restarts. So each master keeps the list of the first client, and a client that one master refuses uses none. One
//! server behind two addresses would have two votes.

use std::hash::Hasher;
use std::time::Duration;

use redis::Client;
use siphasher::sip::SipHasher24;
use tokio::sync::watch;

use crate::error::{OptionsError, StoreError};
use crate::store::redis::names;
use crate::store::redis::run::RunPolicy;

/// The masters of a quorum.
#[derive(Debug)]
pub(super) struct Masters {
    /// A client for each master.
    pub(super) clients: Vec<Client>,
    /// The number of masters, and a fingerprint of their sorted addresses and databases.
    list: String,
    seen: watch::Sender<Vec<Seen>>,
}

/// What the latest connection to a master has shown.
#[derive(Debug, Clone, Default)]
struct Seen {
    run_id: Option<String>,
    /// What the master said about this client's list, while the connection lasts, or that it could not be asked.
    vote: Option<ListVote>,
}

#[derive(Debug, Clone)]
enum ListVote {
    /// The master keeps this list, or none.
    Agrees,
    Refuses(StoreError),
    Unreachable,
}

impl Masters {
    /// Creates the list.
    ///
    /// # Errors
    ///
    /// Returns an error if there are not 3, 5 or 7 masters, or if two of them have one address.
    pub(super) fn new(clients: Vec<Client>) -> Result<Self, OptionsError> {
        if !matches!(clients.len(), 3 | 5 | 7) {
            return Err(OptionsError(format!(
                "a quorum has 3, 5 or 7 masters, not {}: an even number tolerates no more failures than the odd one below",
                clients.len()
            )));
        }
        let mut addresses: Vec<_> = clients.iter().map(address).collect();
        addresses.sort();
        if let Some(twice) = addresses.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(OptionsError(format!(
                "the quorum has {} twice: each master must be a server of its own",
                twice[0]
            )));
        }
        let mut entries: Vec<_> = clients.iter().map(entry).collect();
        entries.sort();
        let mut hasher = SipHasher24::new();
        hasher.write(entries.join("\n").as_bytes());
        Ok(Masters {
            list: format!("{}:{:016x}", clients.len(), hasher.finish()),
            seen: watch::Sender::new(vec![Seen::default(); clients.len()]),
            clients,
        })
    }

    /// Returns the masters as a node knows them that has asked none of them yet.
    pub(super) fn unseen(&self) -> Self {
        Masters {
            clients: self.clients.clone(),
            list: self.list.clone(),
            seen: watch::Sender::new(vec![Seen::default(); self.clients.len()]),
        }
    }

    /// Returns the addresses, without users and passwords.
    pub(super) fn addresses(&self) -> String {
        let addresses: Vec<_> = self.clients.iter().map(address).collect();
        addresses.join(", ")
    }

    /// Returns what each master keeps: the list, and the contract about the longest lease and the length of a recovery.
    pub(super) fn contract(&self, policy: Option<RunPolicy>) -> String {
        let times = policy.map(RunPolicy::contract).unwrap_or_default();
        format!("{}:{times}", self.list)
    }

    /// Compares the contract of a master, if it keeps one, with this client's, and its run with those of the other masters.
    ///
    /// # Errors
    ///
    /// Returns an error if this master or another one keeps another contract, or if another address led to this server.
    pub(super) fn compare(
        &self,
        client: &Client,
        contract: &str,
        recorded: Option<&str>,
        run_id: Option<&str>,
    ) -> Result<(), StoreError> {
        let address = address(client);
        let Some(own) = self.position(client) else {
            return Ok(());
        };
        let refusal = recorded.filter(|recorded| *recorded != contract).map(|recorded| {
            StoreError::unsupported(format_args!(
                "{address} keeps another list of masters, or another longest lease, in its `{key}`: `{recorded}` there, \
                 `{contract}` here (the number of masters, a fingerprint of their addresses and databases, the longest lease \
                 and a recovery in ms). Use the same in all processes, or stop them for the longest lease, `DEL {key} {longest}` \
                 on each master, and start them with the new ones",
                key = names::MASTERS,
                longest = names::LONGEST,
            ))
        });
        let mut result = refusal.clone().map_or(Ok(()), Err);
        self.seen.send_modify(|seen| {
            seen[own].vote = Some(refusal.map_or(ListVote::Agrees, ListVote::Refuses));
            let is_same = |other: &usize| {
                *other != own && run_id.is_some() && seen[*other].run_id.as_deref() == run_id
            };
            if result.is_err() {
                return;
            }
            if let Some(other) = (0..seen.len()).find(is_same) {
                result = Err(StoreError::unsupported(format_args!(
                    "{address} and {} are one server: each master of a quorum must be a server of its own, correct the list",
                    self::address(&self.clients[other])
                )));
                return;
            }
            seen[own].run_id = run_id.map(str::to_owned);
            result = refusal_in(seen).map_or(Ok(()), Err);
        });
        result
    }

    /// Notes that no connection to a master was opened. A master that had agreed is asked again by the next one.
    pub(super) fn was_not_opened(&self, client: &Client) {
        self.change_vote(client, |vote| match vote {
            None => Some(ListVote::Unreachable),
            vote => vote.filter(|vote| !matches!(vote, ListVote::Agrees)),
        });
    }

    /// Notes that a connection to a master has ended. Its list may be another one by the next.
    pub(super) fn ended(&self, client: &Client) {
        self.change_vote(client, |vote| {
            vote.filter(|vote| !matches!(vote, ListVote::Agrees))
        });
    }

    fn change_vote(&self, client: &Client, change: fn(Option<ListVote>) -> Option<ListVote>) {
        if let Some(own) = self.position(client) {
            self.seen
                .send_modify(|seen| seen[own].vote = change(seen[own].vote.take()));
        }
    }

    fn position(&self, client: &Client) -> Option<usize> {
        let address = address(client);
        self.clients
            .iter()
            .position(|client| self::address(client) == address)
    }

    /// Resolves when all masters that can be asked agree, or when a majority agrees and the time is over. A client that is alone
    /// with its contract leaves it nowhere: a master that lost its data would then refuse all other clients.
    ///
    /// # Errors
    ///
    /// Returns an error if a master keeps another contract, or `Ok(false)` if fewer than a majority agree.
    pub(super) async fn agree_within(&self, time: Duration) -> Result<bool, StoreError> {
        // A master that was unreachable earlier may answer now.
        self.seen.send_modify(|seen| {
            for seen in seen {
                seen.vote.take_if(|vote| matches!(vote, ListVote::Unreachable));
            }
        });
        let mut seen = self.seen.subscribe();
        let decides = |seen: &Vec<Seen>| {
            let all_voted = seen.iter().all(|seen| seen.vote.is_some());
            all_voted && is_majority(seen) || refusal_in(seen).is_some()
        };
        let _ = tokio::time::timeout(time, seen.wait_for(decides)).await;
        let seen = seen.borrow();
        refusal_in(&seen).map_or(Ok(is_majority(&seen)), Err)
    }

    /// Resolves when a master refuses this client's list.
    pub(super) async fn refused(&self) {
        let mut seen = self.seen.subscribe();
        // The sender is part of `self`.
        let _ = seen.wait_for(|seen| refusal_in(seen).is_some()).await;
    }
}

fn is_majority(seen: &[Seen]) -> bool {
    let agrees = |seen: &&Seen| matches!(seen.vote, Some(ListVote::Agrees));
    seen.iter().filter(agrees).count() > seen.len() / 2
}

fn refusal_in(seen: &[Seen]) -> Option<StoreError> {
    seen.iter().find_map(|seen| match &seen.vote {
        Some(ListVote::Refuses(error)) => Some(error.clone()),
        _ => None,
    })
}

fn address(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}

/// Returns what the fingerprint contains of a master.
fn entry(client: &Client) -> String {
    let db = client.get_connection_info().redis_settings().db();
    format!("{}/{db}", address(client))
}
