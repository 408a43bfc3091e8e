//! An account in a SQLite file. Its row stores the balance and the fence of the last write.

use rusqlite::{Connection, params};
use tenure::Fence;

use crate::Trouble;

/// The database.
#[derive(Debug)]
pub(crate) struct Ledger(Connection);

impl Ledger {
    /// Creates a database with an empty account.
    pub(crate) fn create(path: &str) -> Result<Ledger, Trouble> {
        let ledger = Ledger::open(path)?;
        ledger.0.execute_batch(
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL, fence INTEGER NOT NULL);
             INSERT INTO accounts VALUES (42, 0, 0);",
        )?;
        Ok(ledger)
    }

    /// Opens an existing database.
    pub(crate) fn open(path: &str) -> Result<Ledger, Trouble> {
        Ok(Ledger(Connection::open(path)?))
    }

    pub(crate) fn balance(&self) -> Result<i64, Trouble> {
        let balance = self
            .0
            .query_row("SELECT cents FROM accounts WHERE id = 42", [], |row| row.get(0));
        Ok(balance?)
    }

    /// Writes the balance and the fence. Returns `false`, and writes nothing, if the account has a larger fence.
    pub(crate) fn write_fenced(&self, cents: i64, fence: Fence) -> Result<bool, Trouble> {
        let changed = self.0.execute(
            "UPDATE accounts SET cents = ?1, fence = ?2 WHERE id = 42 AND fence <= ?2",
            params![cents, fence.as_i64()],
        )?;
        Ok(changed == 1)
    }

    /// Writes the balance without a check of the fence.
    pub(crate) fn write(&self, cents: i64) -> Result<(), Trouble> {
        let changed = "UPDATE accounts SET cents = ?1 WHERE id = 42";
        self.0.execute(changed, params![cents])?;
        Ok(())
    }
}
