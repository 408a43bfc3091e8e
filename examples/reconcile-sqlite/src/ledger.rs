//! A small ledger: the entries of a day, which of them are booked, and the progress of each tick.

use std::error::Error;
use std::fmt;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use tenure::Tick;

use crate::BoxError;

/// How many entries are booked in one transaction.
const BATCH: i64 = 20;

const TABLES: &str = "
    PRAGMA journal_mode = WAL;
    CREATE TABLE entries  (id INTEGER PRIMARY KEY, account INTEGER NOT NULL, cents INTEGER NOT NULL);
    -- Which run booked an entry. The primary key refuses a second booking.
    CREATE TABLE booked   (id INTEGER PRIMARY KEY, tick INTEGER NOT NULL, fence INTEGER NOT NULL);
    CREATE TABLE balances (account INTEGER PRIMARY KEY, cents INTEGER NOT NULL);
    -- The last entry that a tick has booked, and the fence of its latest run.
    CREATE TABLE progress (tick INTEGER PRIMARY KEY, fence INTEGER NOT NULL, upto INTEGER NOT NULL);
";

/// The error of a run that must not write any more: a later run of the tick has begun.
#[derive(Debug)]
pub(crate) struct Superseded;

impl fmt::Display for Superseded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a later run of this tick has begun, with a larger fence: this one writes no more")
    }
}

impl Error for Superseded {}

/// The database.
#[derive(Debug)]
pub(crate) struct Ledger(Connection);

impl Ledger {
    /// Creates a ledger with `entries` entries of the day.
    pub(crate) fn create(path: &str, entries: i64) -> Result<Ledger, BoxError> {
        let mut ledger = Ledger::open(path)?;
        ledger.0.execute_batch(TABLES)?;
        let all = ledger.0.transaction()?;
        for id in 1..=entries {
            let (account, cents) = (id % 7, (id * 7_919) % 10_000 - 5_000);
            all.execute(
                "INSERT INTO entries VALUES (?1, ?2, ?3)",
                params![id, account, cents],
            )?;
        }
        all.commit()?;
        Ok(ledger)
    }

    /// Opens an existing ledger.
    pub(crate) fn open(path: &str) -> Result<Ledger, BoxError> {
        let connection = Connection::open(path)?;
        connection.busy_timeout(Duration::from_secs(5))?;
        Ok(Ledger(connection))
    }

    /// Takes the tick over from its earlier runs, and returns the last entry that they booked. From now on the ledger refuses
    /// their writes, because their fence is smaller.
    pub(crate) fn resume(&mut self, tick: &Tick) -> Result<i64, BoxError> {
        let (at, fence) = (tick.nominal_unix().cast_signed(), tick.fence().as_i64());
        let upto = self.0.query_row(
            "INSERT INTO progress VALUES (?1, ?2, 0)
             ON CONFLICT (tick) DO UPDATE SET fence = excluded.fence WHERE fence < excluded.fence
             RETURNING upto",
            params![at, fence],
            |row| row.get(0),
        );
        Ok(upto.optional()?.ok_or(Superseded)?)
    }

    /// Books the next entries and stores the progress, in one transaction. Returns the last booked entry, or `None` if
    /// no entry is left.
    pub(crate) fn book_batch(&mut self, tick: &Tick) -> Result<Option<i64>, BoxError> {
        let (at, fence) = (tick.nominal_unix().cast_signed(), tick.fence().as_i64());
        let batch = self.0.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let from = batch.query_row(
            "SELECT upto FROM progress WHERE tick = ?1 AND fence = ?2",
            params![at, fence],
            |row| row.get::<_, i64>(0),
        );
        let from = from.optional()?.ok_or(Superseded)?;
        let upto: Option<i64> = batch.query_row(
            "SELECT max(id) FROM (SELECT id FROM entries WHERE id > ?1 ORDER BY id LIMIT ?2)",
            params![from, BATCH],
            |row| row.get(0),
        )?;
        let Some(upto) = upto else { return Ok(None) };
        batch.execute(
            "INSERT INTO booked SELECT id, ?3, ?4 FROM entries WHERE id > ?1 AND id <= ?2",
            params![from, upto, at, fence],
        )?;
        batch.execute(
            "INSERT INTO balances SELECT account, sum(cents) FROM entries WHERE id > ?1 AND id <= ?2 GROUP BY account
             ON CONFLICT (account) DO UPDATE SET cents = cents + excluded.cents",
            params![from, upto],
        )?;
        batch.execute("UPDATE progress SET upto = ?2 WHERE tick = ?1", params![at, upto])?;
        batch.commit()?;
        Ok(Some(upto))
    }

    /// Returns how many entries are booked.
    pub(crate) fn booked(&self) -> Result<i64, BoxError> {
        Ok(self
            .0
            .query_row("SELECT count(*) FROM booked", [], |row| row.get(0))?)
    }

    /// Returns how many accounts have a balance that is not the sum of their entries.
    pub(crate) fn wrong_balances(&self) -> Result<i64, BoxError> {
        Ok(self.0.query_row(
            "SELECT count(*) FROM (SELECT account, sum(cents) AS cents FROM entries GROUP BY account) AS true_ones
             WHERE cents IS NOT (SELECT cents FROM balances WHERE balances.account = true_ones.account)",
            [],
            |row| row.get(0),
        )?)
    }
}
