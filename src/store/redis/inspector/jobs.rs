//! What a server keeps of jobs, in pipelines of plain reads, and what operators do about them.

use std::collections::{BTreeSet, HashMap};

use redis::Value;

use crate::error::StoreError;
use crate::protocol::cluster::map::ANY;
use crate::protocol::job_act::{JobAct, JobActReply, JobActRequest};
use crate::protocol::message::{GrantNumber, Name};
use crate::protocol::view::{JobAnswer, JobQuery, JobView, Position};
use crate::store::ServerId;
use crate::store::redis::connection::{failure, read_time};
use crate::store::redis::decode::{malformed, result};
use crate::store::redis::format;
use crate::store::redis::inspector::answers::{has_other_type, is_refused_with, next, optional, read};
use crate::store::redis::inspector::keys::KeyReader;
use crate::store::redis::inspector::{Budget, Inner, ServerPart};
use crate::store::redis::script::JOB_ACT;
use crate::store::redis::{job_record, names};

/// The number of jobs that one pipeline reads. A job has about 15 kB of text, and with a checkpoint 80 kB.
const CHUNK: usize = 20;

/// How jobs are read.
#[derive(Clone, Copy, PartialEq, Eq)]
enum JobReading {
    /// One job, at its server.
    One,
    /// One job, at a server to which its slot may be on its way.
    Moving,
    /// Names that SCAN found. A key of another type is left out.
    Listed,
}

impl Inner {
    pub(super) async fn jobs(&self, query: JobQuery) -> Result<JobAnswer, StoreError> {
        match query {
            JobQuery::One(key) => self.job(Name::job(key)).await,
            JobQuery::Page(prefix, from) => self.page_of_jobs(&prefix, from).await,
        }
    }

    async fn job(&self, name: Name) -> Result<JobAnswer, StoreError> {
        let (cluster, slot) = (self.config.topology.cluster(), self.config.names.slot(&name));
        let at = match cluster {
            Some(cluster) => {
                // Without a map, another server is asked first, which may be away.
                if cluster.server(slot) == ANY {
                    cluster.read(&self.config).await?;
                }
                cluster.server(slot)
            }
            None => ServerId(0),
        };
        let (mut jobs, mut unread) = self
            .read_jobs(at, std::slice::from_ref(&name), JobReading::One)
            .await?;
        if cluster.is_some() && !unread.is_empty() {
            // Only the server that takes over its slot reads it.
            let others = self.servers().await?.into_iter();
            for server in others.filter(|server| *server != at) {
                if !unread.is_empty() {
                    (jobs, unread) = self.read_jobs(server, &unread, JobReading::Moving).await?;
                }
            }
        }
        match unread.first() {
            Some(name) => Err(self.changes(&name.key)),
            None => Ok(JobAnswer { jobs, next: None }),
        }
    }

    async fn page_of_jobs(&self, prefix: &[u8], from: Option<Position>) -> Result<JobAnswer, StoreError> {
        let page = |server, cursor, left| self.list_jobs(server, cursor, left, prefix);
        let page = self.page(from, page).await?;
        Ok(JobAnswer {
            jobs: page.views.into_iter().flatten().collect(),
            next: page.next,
        })
    }

    async fn list_jobs(
        &self,
        server: ServerId,
        cursor: u64,
        left: Budget,
        prefix: &[u8],
    ) -> Result<ServerPart<Vec<JobView>>, StoreError> {
        let names = &self.config.names;
        let mut pattern = names::MEMORIES_OF_JOBS.as_bytes().to_vec();
        format::escape_pattern(&[&*names.prefix, prefix].concat(), &mut pattern);
        pattern.push(b'*');
        let mut found = BTreeSet::new();
        let (cursor, left) = self
            .scan(server, cursor, left, &pattern, |key| {
                found.extend(names.job_of_memory(key));
                found.len()
            })
            .await?;
        let found: Vec<Name> = found.into_iter().collect();
        // A job whose slot leaves this server is listed by the other one.
        let (view, _) = self.read_jobs(server, &found, JobReading::Listed).await?;
        Ok(ServerPart { view, cursor, left })
    }

    /// Executes an act of an operator about a job. Returns the server's date in microseconds, too.
    pub(super) async fn act_on_job(&self, request: &JobActRequest) -> Result<(JobActReply, u64), StoreError> {
        let (names, stealer) = (&self.config.names, self.stealer());
        let server = stealer.server_of(names.slot(&request.name)).await?;
        self.connections.check_reign(server).await?;
        let (mut memory, mut record) = (Vec::new(), Vec::new());
        names.push_memory(&request.name, &mut memory);
        names.push_record(&request.name, &mut record);
        let (act, tick) = match request.act {
            JobAct::Pause => ("p", String::new()),
            JobAct::Resume { catch_up: false } => ("r", String::new()),
            JobAct::Resume { catch_up: true } => ("c", String::new()),
            JobAct::Trigger { for_tick } => ("t", for_tick.map_or_else(String::new, |tick| tick.to_string())),
            JobAct::Cancel { tick, since_ms: None } => ("x", tick.to_string()),
            JobAct::Cancel {
                tick,
                since_ms: Some(since_ms),
            } => ("x", format!("{tick} {since_ms}")),
        };
        let text = |text: &str| format::encoded_start(text.as_bytes());
        let mut call = redis::cmd("EVALSHA");
        call.arg(&*JOB_ACT.sha).arg(2).arg(memory).arg(record).arg(act);
        call.arg(format!("{} {}", text(&request.by), text(&request.why)));
        call.arg(tick);
        let (time, reply): (u64, String) = read(Ok(stealer.run(server, &JOB_ACT, call).await?))?;
        let reply = match &*reply {
            "0" => JobActReply::Done,
            "U" => JobActReply::Unknown,
            "N" => JobActReply::Unchanged,
            "O" => JobActReply::TickUnfinished,
            "F" => JobActReply::InFuture,
            "X" => JobActReply::OtherTick,
            _ => return Err(malformed("the script's answer to an act about a job").error),
        };
        Ok((reply, time))
    }

    /// Reads what a server keeps of these jobs. Also returns the jobs that another server has.
    async fn read_jobs(
        &self,
        server: ServerId,
        names: &[Name],
        reading: JobReading,
    ) -> Result<(Vec<JobView>, Vec<Name>), StoreError> {
        let reader = KeyReader {
            connections: &self.connections,
            server,
            is_asking: reading == JobReading::Moving,
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
                if has_other_type(&fields) && reading == JobReading::Listed {
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
