//! What a server keeps of keys: records and first waiters, in pipelines of plain reads.

use redis::{Pipeline, Value};

use crate::error::StoreError;
use crate::protocol::message::{GrantNumber, Kind, Mode, Name};
use crate::protocol::view::{HolderView, KeyView, MAX_LISTED, RecordView, WaiterView};
use crate::store::ServerId;
use crate::store::redis::connection::{failure, read_time};
use crate::store::redis::decode::{result, text};
use crate::store::redis::format;
use crate::store::redis::inspector::answers::{
    checked, has_other_type, is_refused_with, next, optional, push, unreadable,
};
use crate::store::redis::inspector::connections::Connections;

/// The number of keys that one pipeline reads.
const CHUNK: usize = 100;
/// How often a name is read whose record changes its form meanwhile.
const MAX_READS: usize = 3;
/// The number of shares that one command reads.
const SHARES: usize = 400;
/// Above every place in a queue, and below every time.
const LAST_PLACE: &str = "99999999999";
/// Above every time, and below every grant number.
const LAST_TIME: &str = "100000000000000";

/// The last byte that is read of a value: 512 bytes, and the mark of a revoked one before them.
const LAST_BYTE: &str = "512";
/// A value that is no lock's.
const NO_LOCK: RecordView = RecordView::Foreign {
    digest: None,
    is_revoked: false,
};

/// Reads keys of one server.
pub(super) struct KeyReader<'a> {
    pub(super) connections: &'a Connections,
    pub(super) server: ServerId,
    /// Reads keys of slots that are on their way to this server, too.
    pub(super) is_asking: bool,
}

/// What was read of some names.
#[derive(Default)]
pub(super) struct KeysRead {
    pub(super) views: Vec<KeyView>,
    /// The names that could not be read: another server of the cluster has them, or their records change their form again and
    /// again.
    pub(super) unread: Vec<Name>,
    /// The server's clock in microseconds; 0 if no name was read.
    pub(super) now_us: u64,
}

/// What the first round shows of a name.
struct Outline<'a> {
    name: &'a Name,
    record: Vec<u8>,
    queue: Vec<u8>,
    form: Form,
    left_ms: Option<u64>,
    waiting: u64,
}

/// The form of a record, by its type.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Missing,
    Text,
    Shares,
    Latch,
    /// No value of this kind.
    Other,
    /// Another server of the cluster has the name.
    Elsewhere,
}

impl KeyReader<'_> {
    /// Reads what the server keeps of these names.
    pub(super) async fn read(&self, names: &[Name]) -> Result<KeysRead, StoreError> {
        let mut read = KeysRead::default();
        for chunk in names.chunks(CHUNK) {
            let mut chunk = chunk.to_vec();
            for _ in 0..MAX_READS {
                let (outlines, now_us) = self.outlines(&chunk).await?;
                read.now_us = now_us;
                chunk = self.fill(outlines, now_us / 1000, &mut read.views).await?;
                if chunk.is_empty() {
                    break;
                }
            }
            read.unread.extend(chunk);
        }
        Ok(read)
    }

    pub(super) async fn ask(&self, pipe: &Pipeline) -> Result<Vec<Value>, StoreError> {
        if !self.is_asking {
            return self.connections.ask(self.server, pipe).await;
        }
        let mut asking = redis::pipe();
        for command in pipe.cmd_iter() {
            asking.cmd("ASKING").add_command(command.clone());
        }
        let answers = self.connections.ask(self.server, &asking).await?;
        Ok(answers.into_iter().skip(1).step_by(2).collect())
    }

    async fn ask_one(&self, pipe: &Pipeline) -> Result<Value, StoreError> {
        let [answer] = self.ask(pipe).await?.try_into().map_err(unreadable)?;
        Ok(answer)
    }

    /// Reads the types of records, when they end, how many claims wait, and the server's clock in microseconds.
    async fn outlines<'a>(&self, names: &'a [Name]) -> Result<(Vec<Outline<'a>>, u64), StoreError> {
        let mut pipe = redis::pipe();
        pipe.cmd("TIME");
        let keys: Vec<_> = names.iter().map(|name| self.keys_of(name)).collect();
        for (record, queue) in &keys {
            pipe.cmd("TYPE").arg(record);
            pipe.cmd("PTTL").arg(record);
            pipe.cmd("ZCOUNT").arg(queue).arg("1").arg(LAST_PLACE);
        }
        let mut answers = self.ask(&pipe).await?.into_iter();
        let time = read_time(result(next(&mut answers)?)).map_err(|error| failure(error).error)?;
        let mut outlines = Vec::with_capacity(names.len());
        for (name, (record, queue)) in names.iter().zip(keys) {
            let form = next(&mut answers)?;
            let is_elsewhere = is_refused_with(&form, &["MOVED", "ASK", "TRYAGAIN"]);
            let form = checked(form)?.and_then(text);
            let left: Option<i64> = optional(next(&mut answers)?)?;
            let waiting: Option<u64> = optional(next(&mut answers)?)?;
            outlines.push(Outline {
                name,
                record,
                queue,
                form: if is_elsewhere {
                    Form::Elsewhere
                } else {
                    form_of(name.kind, form.as_deref())
                },
                left_ms: left.and_then(|left| u64::try_from(left).ok()),
                waiting: waiting.unwrap_or_default(),
            });
        }
        Ok((outlines, time))
    }

    fn keys_of(&self, name: &Name) -> (Vec<u8>, Vec<u8>) {
        let (mut record, mut queue) = (Vec::new(), Vec::new());
        self.connections.config.names.push_record(name, &mut record);
        self.connections.config.names.push_queue(name, &mut queue);
        (record, queue)
    }

    /// Reads the records and the first waiters. Returns the names whose records have another form by now.
    async fn fill(
        &self,
        outlines: Vec<Outline<'_>>,
        now: u64,
        views: &mut Vec<KeyView>,
    ) -> Result<Vec<Name>, StoreError> {
        let mut answers = self.ask(&questions(&outlines, now)).await?.into_iter();
        let mut changed = Vec::new();
        for of in outlines {
            let mut view = KeyView {
                name: of.name.clone(),
                record: RecordView::Free,
                left_ms: of.left_ms,
                waiting: of.waiting,
                waiters: Vec::new(),
            };
            let is_read = self.read_record((&of, now), &mut answers, &mut view).await?;
            if of.waiting > 0 {
                let entries: Option<Vec<Vec<u8>>> = optional(next(&mut answers)?)?;
                view.waiters = self.waiters(&of, now, entries.unwrap_or_default()).await?;
            }
            if view.record == RecordView::Free {
                view.left_ms = None;
            }
            if !is_read {
                changed.push(of.name.clone());
            } else if view.record != RecordView::Free || view.waiting > 0 {
                views.push(view);
            }
        }
        Ok(changed)
    }

    /// Reads the record from the answers to its questions. Returns whether it still has its form: a lock that readers share has another
    /// one than a lock that is written.
    async fn read_record(
        &self,
        (of, now): (&Outline<'_>, u64),
        answers: &mut impl Iterator<Item = Value>,
        view: &mut KeyView,
    ) -> Result<bool, StoreError> {
        match of.form {
            Form::Missing => {}
            Form::Elsewhere => return Ok(false),
            Form::Other => view.record = NO_LOCK,
            Form::Text => {
                let value = next(answers)?;
                if has_other_type(&value) {
                    return Ok(false);
                }
                let value: Vec<u8> = optional(value)?.unwrap_or_default();
                // A record that has ended since is read as an empty value, too.
                if !value.is_empty() || self.exists(&of.record).await? {
                    view.record = text_record(&value, of.left_ms);
                }
            }
            Form::Shares => {
                let first = next(answers)?;
                let page = optional(next(answers)?)?.unwrap_or_default();
                if has_other_type(&first) {
                    return Ok(false);
                }
                let first: Option<Vec<Vec<u8>>> = optional(first)?;
                let first = first.and_then(|first| first.into_iter().next());
                view.record = match first {
                    Some(first) if format::share(&first, of.name.kind).is_none() => NO_LOCK,
                    _ => self.shares(of, now, page).await?,
                };
            }
            Form::Latch => {
                let fields = next(answers)?;
                let watching: Option<u64> = optional(next(answers)?)?;
                let nodes: Option<Vec<Vec<u8>>> = optional(next(answers)?)?;
                if has_other_type(&fields) {
                    return Ok(false);
                }
                let fields: Option<Vec<Option<Vec<u8>>>> = optional(fields)?;
                let fields = fields.unwrap_or_default();
                // A latch that has ended since has no fields.
                let is_there = fields.iter().any(Option::is_some) || self.exists(&of.record).await?;
                view.record = match is_there {
                    true => latch(&fields),
                    false => RecordView::Free,
                };
                if matches!(view.record, RecordView::Latch { .. }) {
                    view.waiting = watching.unwrap_or_default();
                    let nodes = nodes.into_iter().flatten();
                    view.waiters = nodes.filter_map(|node| watcher(&node)).collect();
                }
            }
        }
        Ok(true)
    }

    async fn exists(&self, key: &[u8]) -> Result<bool, StoreError> {
        let mut pipe = redis::pipe();
        push(&mut pipe, "TYPE", key, &[]);
        let form = self.ask_one(&pipe).await?;
        let form: Option<String> = optional(form)?;
        Ok(form.is_some_and(|form| form != "none"))
    }

    /// Reads the numbers of the first shares, and counts all of them.
    async fn shares(
        &self,
        of: &Outline<'_>,
        now: u64,
        mut page: Vec<(Vec<u8>, f64)>,
    ) -> Result<RecordView, StoreError> {
        let (mut count, mut in_use, mut holders, mut from) = (0, 0, Vec::new(), 0);
        loop {
            let is_first = from == 0;
            from += page.len();
            let shares = page
                .iter()
                .filter_map(|(member, ends)| Some((format::share(member, of.name.kind)?, *ends as u64)));
            let shares: Vec<_> = shares.collect();
            count += shares.len() as u64;
            in_use += shares.iter().map(|(share, _)| share.mode.weight()).sum::<u64>();
            if is_first && !shares.is_empty() {
                let listed = &shares[..shares.len().min(MAX_LISTED)];
                let mut pipe = redis::pipe();
                let members = listed
                    .iter()
                    .flat_map(|(share, _)| [share.member.to_owned(), format!("n{}", share.holder)]);
                let members: Vec<_> = members.collect();
                let members: Vec<&str> = members.iter().map(String::as_str).collect();
                push(&mut pipe, "ZMSCORE", &of.record, &members);
                let scores = self.ask_one(&pipe).await?;
                let scores: Vec<Option<f64>> = optional(scores)?.unwrap_or_default();
                // A share that is not there any more has left since. One without a number is revoked.
                let views = listed.iter().zip(scores.chunks(2));
                let views = views.filter_map(|((share, ends), scores)| match scores {
                    [Some(_), number] => Some(HolderView {
                        node: share.node,
                        claim: share.claim,
                        mode: share.mode,
                        number: number.map(|number| GrantNumber(number as u64)),
                        left_ms: Some(ends.saturating_sub(now)),
                        is_revoked: number.is_none(),
                        may_keep: false,
                    }),
                    _ => None,
                });
                holders = views.collect();
            }
            if page.len() < SHARES {
                break;
            }
            let mut pipe = redis::pipe();
            push_shares(&mut pipe, &of.record, now, from);
            let rest = self.ask_one(&pipe).await?;
            page = optional(rest)?.unwrap_or_default();
        }
        Ok(match count {
            0 => RecordView::Free,
            count => RecordView::Shared {
                count,
                in_use,
                holders,
            },
        })
    }

    /// Reads which of the first waiters are alive.
    async fn waiters(
        &self,
        of: &Outline<'_>,
        now: u64,
        mut entries: Vec<Vec<u8>>,
    ) -> Result<Vec<WaiterView>, StoreError> {
        entries.retain(|entry| format::waiter(entry, of.name.kind).is_some());
        if entries.is_empty() {
            return Ok(Vec::new());
        }
        let mut pipe = redis::pipe();
        pipe.cmd("ZMSCORE").arg(&of.queue);
        for entry in &entries {
            pipe.arg([b"b", &entry[1..]].concat());
        }
        let ends = self.ask_one(&pipe).await?;
        let ends: Option<Vec<Option<f64>>> = optional(ends)?;
        let ends = ends
            .unwrap_or_default()
            .into_iter()
            .chain(std::iter::repeat(None));
        let waiters = entries.iter().zip(ends).filter_map(|(entry, dies)| {
            let entry = format::waiter(entry, of.name.kind)?;
            Some(WaiterView {
                node: entry.node,
                claim: Some(entry.claim),
                mode: entry.mode,
                is_dead: dies.is_none_or(|dies| dies < now as f64),
            })
        });
        Ok(waiters.collect())
    }
}

/// Returns the questions about records and first waiters.
fn questions(outlines: &[Outline<'_>], now: u64) -> Pipeline {
    let limit = MAX_LISTED.to_string();
    let mut pipe = redis::pipe();
    for of in outlines {
        match of.form {
            Form::Missing | Form::Other | Form::Elsewhere => {}
            Form::Text => push(&mut pipe, "GETRANGE", &of.record, &["0", LAST_BYTE]),
            Form::Shares => {
                push(&mut pipe, "ZRANGE", &of.record, &["0", "0"]);
                push_shares(&mut pipe, &of.record, now, 0);
            }
            Form::Latch => {
                push(&mut pipe, "HMGET", &of.record, &["gen", "left"]);
                let now = now.to_string();
                push(&mut pipe, "ZCOUNT", &of.queue, &[&now, "+inf"]);
                push(
                    &mut pipe,
                    "ZRANGEBYSCORE",
                    &of.queue,
                    &[&now, "+inf", "LIMIT", "0", &limit],
                );
            }
        }
        if of.waiting > 0 {
            push(
                &mut pipe,
                "ZRANGEBYSCORE",
                &of.queue,
                &["1", LAST_PLACE, "LIMIT", "0", &limit],
            );
        }
    }
    pipe
}

fn form_of(kind: Kind, form: Option<&str>) -> Form {
    match (form, kind) {
        (None | Some("none"), _) => Form::Missing,
        (Some("string"), _) if kind != Kind::Latch => Form::Text,
        (Some("zset"), Kind::Lock | Kind::Semaphore) => Form::Shares,
        (Some("hash"), Kind::Latch) => Form::Latch,
        _ => Form::Other,
    }
}

fn text_record(value: &[u8], left_ms: Option<u64>) -> RecordView {
    let revoked = value.strip_prefix(format::REVOKED);
    let (is_revoked, value) = (revoked.is_some(), revoked.unwrap_or(value));
    match format::owner(value) {
        Some(owner) => RecordView::Owned(HolderView {
            node: owner.node,
            claim: owner.claim,
            mode: Mode::Exclusive,
            number: Some(owner.number),
            left_ms,
            is_revoked,
            may_keep: owner.may_keep,
        }),
        None => RecordView::Foreign {
            digest: Some(format::digest(value)),
            is_revoked,
        },
    }
}

fn latch(fields: &[Option<Vec<u8>>]) -> RecordView {
    let number = |field: &Option<Vec<u8>>| std::str::from_utf8(field.as_deref()?).ok()?.parse::<u64>().ok();
    let left = match fields {
        [generation, left] => number(generation).and_then(|_| number(left)),
        _ => None,
    };
    match left.and_then(|left| u32::try_from(left).ok()) {
        Some(left) => RecordView::Latch { left },
        None => NO_LOCK,
    }
}

fn watcher(node: &[u8]) -> Option<WaiterView> {
    Some(WaiterView {
        node: std::str::from_utf8(node).ok()?.parse().ok()?,
        claim: None,
        mode: Mode::Exclusive,
        is_dead: false,
    })
}

fn push_shares(pipe: &mut Pipeline, record: &[u8], now: u64, from: usize) {
    let words = [
        &*now.to_string(),
        LAST_TIME,
        "WITHSCORES",
        "LIMIT",
        &from.to_string(),
        &SHARES.to_string(),
    ];
    push(pipe, "ZRANGEBYSCORE", record, &words);
}
