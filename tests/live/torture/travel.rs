//! Transfers in the torture: a holder leaves the text of its lease in a directory, and the node that finds it continues the
//! work. Some texts are there twice, and only one of the two can be adopted.

use std::path::PathBuf;
use std::time::Duration;

use tenure::{Error, Guard, Transfer, TransferError};
use tokio::time::sleep;

use crate::torture::journal::now;
use crate::torture::orders::Orders;
use crate::torture::worker::{Held, Worker};

impl Orders {
    /// Returns the directory of the texts.
    fn travels(&self) -> PathBuf {
        self.journal.with_file_name("travels")
    }
}

impl Worker {
    /// Gives its lease up for a transfer, and writes the text.
    pub async fn send(&self, id: u64, guard: Guard, key: usize, reads: bool, rng: &mut fastrand::Rng) {
        let sent = now();
        self.ending(id, "transfer");
        let transfer = match guard.into_transfer(self.orders.lease).await {
            Ok(transfer) => transfer,
            // Other readers share the lease, or it is fixed and would last longer.
            Err(TransferError::Refused(guard, _)) => return drop(guard),
            Err(TransferError::Failed(error)) => return self.failed(key, &error),
            Err(error) => panic!("an error that this worker does not know: {error}"),
        };
        let copies = if rng.u32(..4) == 0 { 2 } else { 1 };
        let text = format!("{sent} {copies} {key} {reads} {transfer}");
        let travels = self.orders.travels();
        std::fs::create_dir_all(&travels).expect("a directory for what travels");
        for copy in 0..copies {
            let name = format!("{}-{id}-{copy}", self.node.node_id());
            // The file appears as a whole, or not at all.
            let written = travels.with_file_name(&name);
            let put =
                std::fs::write(&written, &text).and_then(|()| std::fs::rename(&written, travels.join(&name)));
            put.expect("what travels can be written");
        }
    }

    /// Adopts transfers of other tasks.
    pub async fn adopts(&self, rng: &mut fastrand::Rng) {
        let travels = self.orders.travels();
        while !*self.stop.borrow() {
            self.quiet.pass().await;
            let found = std::fs::read_dir(&travels).into_iter().flatten().flatten().next();
            // Several tasks may find a text, but only one can take it.
            let taken = travels.with_file_name(format!("taken-{}", self.node.node_id()));
            let taken = found.and_then(|found| {
                std::fs::rename(found.path(), &taken).ok()?;
                std::fs::read_to_string(&taken).ok()
            });
            match taken {
                Some(text) => self.adopt(&text, rng).await,
                None => sleep(Duration::from_millis(rng.u64(1..5))).await,
            }
        }
    }

    async fn adopt(&self, text: &str, rng: &mut fastrand::Rng) {
        let [sent, copies, key, reads, transfer] = text.splitn(5, ' ').collect::<Vec<_>>()[..] else {
            panic!("when, how often, a key, a mode and a transfer: {text}");
        };
        let sent: u64 = sent.parse().expect("a time");
        let (key, reads) = (key.parse().expect("a key"), reads == "true");
        let transfer: Transfer = transfer.parse().expect("its own text");
        match self.node.adopt(&transfer).await {
            Ok(guard) => {
                self.journal.write(now(), format_args!("event adopted"));
                let held = Held::Real(guard);
                let (id, _) = self.work_under(&held, key, reads, None, rng).await;
                self.end(id, held, rng).await;
            }
            // The other copy was adopted before, or the lease had expired.
            Err(Error::Gone { .. })
                if copies == "2" || Duration::from_nanos(now() - sent) >= self.orders.lease =>
            {
                self.journal.write(now(), format_args!("event gone"));
            }
            // Only a promotion explains that.
            Err(Error::Gone { .. }) => {
                self.journal.write(now(), format_args!("event gone_early {sent}"));
            }
            Err(error) => self.failed(key, &error),
        }
    }
}
