//! What a server keeps of jobs, in pipelines of plain reads.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::error::StoreError;
use crate::protocol::message::{GrantNumber, Name};
use crate::protocol::view::{JobAnswer, JobQuery, JobView, PAGE, Position};
use crate::store::ServerId;
use crate::store::redis::connection::{failure, read_time};
use crate::store::redis::decode::result;
use crate::store::redis::format;
use crate::store::redis::inspector::Inner;
use crate::store::redis::inspector::answers::{has_other_type, is_refused_with, next, optional, read};
use crate::store::redis::inspector::keys::KeyReader;
use crate::store::redis::{job_record, names};

/// The number of jobs that one pipeline reads. A job has about 15 kB of text, and with a checkpoint 80 kB.
const CHUNK: usize = 20;

impl Inner {
    pub(super) async fn jobs(&self, query: JobQuery) -> Result<JobAnswer, StoreError> {
        match query {
            JobQuery::One(key) => self.job(Name::job(key)).await,
            JobQuery::Page(prefix, from) => self.page_of_jobs(&prefix, from).await,
        }
    }

    async fn job(&self, name: Name) -> Result<JobAnswer, StoreError> {
        let cluster = self.config.topology.cluster();
        let at = cluster.map_or(ServerId(0), |cluster| {
            cluster.server(self.config.names.slot(&name))
        });
        let (mut jobs, mut unread) = self.read_jobs(at, std::slice::from_ref(&name), false).await?;
        if cluster.is_some() && !unread.is_empty() {
            // Only the server that takes over its slot reads it.
            let others = self.servers().await?.into_iter();
            for server in others.filter(|server| *server != at) {
                if !unread.is_empty() {
                    (jobs, unread) = self.read_jobs(server, &unread, true).await?;
                }
            }
        }
        match unread.first() {
            Some(name) => Err(self.changes(&name.key)),
            None => Ok(JobAnswer { jobs, next: None }),
        }
    }

    /// Reads a page of the server at the position. The servers follow each other.
    async fn page_of_jobs(&self, prefix: &[u8], from: Option<Position>) -> Result<JobAnswer, StoreError> {
        let (at, cursor) = match from {
            Some(Position::Scan(at, cursor)) => (ServerId(at), cursor),
            _ => (ServerId(0), 0),
        };
        let mut servers = self.servers().await?.into_iter().filter(|server| *server >= at);
        // A cluster may have lost this server since the last page. New servers have higher ids.
        let Some(server) = servers.next() else {
            return Ok(JobAnswer::default());
        };
        let names = &self.config.names;
        let mut pattern = names::MEMORIES_OF_JOBS.as_bytes().to_vec();
        format::escape_pattern(&[&*names.prefix, prefix].concat(), &mut pattern);
        pattern.push(b'*');
        let mut found = BTreeSet::new();
        let cursor = if server == at { cursor } else { 0 };
        let cursor = self
            .scan(server, cursor, &pattern, |key| {
                found.extend(names.job_of_memory(key));
                found.len()
            })
            .await?;
        debug_assert!(found.len() <= 2 * PAGE);
        let found: Vec<Name> = found.into_iter().collect();
        // A job whose slot leaves this server is listed by the other one.
        let (jobs, _) = self.read_jobs(server, &found, false).await?;
        let next = match cursor {
            0 => servers.next().map(|next| Position::Scan(next.0, 0)),
            cursor => Some(Position::Scan(server.0, cursor)),
        };
        Ok(JobAnswer { jobs, next })
    }

    /// Reads what a server keeps of these jobs. Also returns the jobs that another server has.
    async fn read_jobs(
        &self,
        server: ServerId,
        names: &[Name],
        is_asking: bool,
    ) -> Result<(Vec<JobView>, Vec<Name>), StoreError> {
        let reader = KeyReader {
            connections: &self.connections,
            server,
            is_asking,
        };
        let (mut views, mut unread) = (Vec::new(), Vec::new());
        for names in names.chunks(CHUNK) {
            let mut pipe = redis::pipe();
            pipe.cmd("TIME");
            for name in names {
                let (mut record, mut memory) = (Vec::new(), Vec::new());
                self.config.names.push_record(name, &mut record);
                self.config.names.push_memory(name, &mut memory);
                // Redis may execute commands of others between these. A run that begins or ends meanwhile is in one of the two
                // records, unless it does both.
                pipe.cmd("GET").arg(&record);
                pipe.cmd("HGETALL").arg(memory);
                pipe.cmd("GET").arg(record);
            }
            let mut answers = reader.ask(&pipe).await?.into_iter();
            let time = read_time(result(next(&mut answers)?)).map_err(|error| failure(error).error)?;
            for name in names {
                let (before, fields, after) = (next(&mut answers)?, next(&mut answers)?, next(&mut answers)?);
                if is_refused_with(&fields, &["MOVED", "ASK", "TRYAGAIN"]) {
                    unread.push(name.clone());
                    continue;
                }
                if has_other_type(&fields) && names.len() > 1 {
                    // It is no job's. The others are listed.
                    continue;
                }
                let owners = [number(before)?, number(after)?];
                let fields: HashMap<Vec<u8>, Vec<u8>> = read(result(fields))?;
                if !fields.is_empty() {
                    views.push(JobView {
                        key: name.key.clone(),
                        record: job_record::read(fields),
                        owners: owners.into_iter().flatten().collect(),
                        now_ms: time / 1000,
                        now_us: time,
                    });
                }
            }
        }
        Ok((views, unread))
    }
}

/// Returns the number of the grant in a record, if there is a record and no other client wrote it.
fn number(record: Value) -> Result<Option<GrantNumber>, StoreError> {
    let record: Option<Vec<u8>> = optional(record)?;
    let record = record.unwrap_or_default();
    let value = record.strip_prefix(format::REVOKED).unwrap_or(&record);
    Ok(format::owner(value).map(|owner| owner.number))
}
