//! An account in a SQLite file. Its row stores the balance and the fence of the last write.

use rusqlite::{Connection, params};
use tenure::Fence;

use crate::BoxError;

/// The database.
#[derive(Debug)]
pub(crate) struct Ledger {
    connection: Connection,
    /// Whether a write with a fence smaller than that of the account is refused.
    is_fenced: bool,
}

impl Ledger {
    /// Creates a database with an empty account.
    pub(crate) fn create(path: &str, is_fenced: bool) -> Result<Ledger, BoxError> {
        let ledger = Ledger::open(path, is_fenced)?;
        ledger.connection.execute_batch(
            "CREATE TABLE accounts (id INTEGER PRIMARY KEY, cents INTEGER NOT NULL, fence INTEGER NOT NULL);
             INSERT INTO accounts VALUES (42, 0, 0);",
        )?;
        Ok(ledger)
    }

    /// Opens an existing database.
    pub(crate) fn open(path: &str, is_fenced: bool) -> Result<Ledger, BoxError> {
        let connection = Connection::open(path)?;
        Ok(Ledger {
            connection,
            is_fenced,
        })
    }

    pub(crate) fn balance(&self) -> Result<i64, BoxError> {
        let select = "SELECT cents FROM accounts WHERE id = 42";
        Ok(self.connection.query_row(select, [], |row| row.get(0))?)
    }

    /// Writes the balance and the fence. Returns `false`, and writes nothing, if the account has a larger fence.
    pub(crate) fn write(&self, cents: i64, fence: Fence) -> Result<bool, BoxError> {
        let update = if self.is_fenced {
            "UPDATE accounts SET cents = ?1, fence = ?2 WHERE id = 42 AND fence <= ?2"
        } else {
            "UPDATE accounts SET cents = ?1, fence = ?2 WHERE id = 42"
        };
        let changed = self.connection.execute(update, params![cents, fence.as_i64()])?;
        Ok(changed == 1)
    }
}
