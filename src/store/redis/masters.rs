//! The masters of a quorum: the list of them on which all clients agree, and which server is behind each address.
//!
//! Two clients with different lists could each have a majority at one time, and so could two clients with different longest
//! leases, after restarts. So each master keeps the list of the first client, and a client that one master refuses uses none. One
//! server behind two addresses would have two votes.

use std::hash::Hasher;

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
    /// The master keeps this client's list, or none.
    agrees: bool,
    /// Why the master refuses this client's list.
    refusal: Option<StoreError>,
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
        let own = self
            .clients
            .iter()
            .position(|client| self::address(client) == address);
        let Some(own) = own else { return Ok(()) };
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
            (seen[own].agrees, seen[own].refusal) = (refusal.is_none(), refusal);
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
            result = seen
                .iter()
                .find_map(|seen| seen.refusal.clone())
                .map_or(Ok(()), Err);
        });
        result
    }

    /// Resolves when a majority of the masters agrees. A client that is alone with its contract leaves it nowhere: a master that
    /// lost its data would then refuse all other clients.
    ///
    /// # Errors
    ///
    /// Returns an error if a master keeps another contract.
    pub(super) async fn agreed(&self) -> Result<(), StoreError> {
        let mut seen = self.seen.subscribe();
        let decides = |seen: &Vec<Seen>| {
            let agree = seen.iter().filter(|seen| seen.agrees).count();
            agree > seen.len() / 2 || seen.iter().any(|seen| seen.refusal.is_some())
        };
        match seen.wait_for(decides).await {
            Ok(seen) => seen
                .iter()
                .find_map(|seen| seen.refusal.clone())
                .map_or(Ok(()), Err),
            // The sender is part of `self`.
            Err(_) => Ok(()),
        }
    }

    /// Resolves when a master refuses this client's list.
    pub(super) async fn refused(&self) {
        let mut seen = self.seen.subscribe();
        // The sender is part of `self`.
        let _ = seen
            .wait_for(|seen| seen.iter().any(|seen| seen.refusal.is_some()))
            .await;
    }
}

fn address(client: &Client) -> String {
    client.get_connection_info().addr().to_string()
}

/// Returns what the fingerprint contains of a master.
fn entry(client: &Client) -> String {
    let db = client.get_connection_info().redis_settings().db();
    format!("{}/{db}", address(client))
}
