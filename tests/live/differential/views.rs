//! What operators see of the server and of the ledger, after each step.

use std::collections::BTreeMap;
use std::sync::Arc;

use tenure::protocol::ledger::Ledger;
use tenure::protocol::message::Name;
use tenure::protocol::view::{InspectQuery, KeyView, RecordView};
use tenure::store::{Inspect, Store};

use super::{TOLERANCE_MS, wall_us};

/// Reads all that a server shows, and compares it with what the ledger shows.
pub struct Views(Arc<dyn Inspect>);

impl Views {
    pub fn of(store: &dyn Store) -> Self {
        Views(store.inspector().expect("Redis shows its keys"))
    }

    pub async fn compare(&self, ledger: &Ledger, step: u64) {
        let mut difference = self.difference(ledger).await;
        if difference.is_some() {
            // A waiter may have died between two pages of one reading.
            difference = self.difference(ledger).await;
        }
        assert_eq!(difference, None, "step {step}");
    }

    async fn difference(&self, ledger: &Ledger) -> Option<String> {
        let (mut real, mut now_us, mut from) = (BTreeMap::new(), 0, None);
        loop {
            let page = self
                .0
                .read(InspectQuery::List(Box::default(), from))
                .await
                .unwrap();
            for view in page.views {
                now_us = view.now_us;
                real.extend(view.keys.into_iter().map(|key| (key.name.clone(), key)));
            }
            from = page.next;
            if from.is_none() {
                break;
            }
        }
        // A server without keys was not asked for its time, and a ledger keeps what has ended.
        let now_us = if now_us == 0 { wall_us() } else { now_us };
        let model = ledger.names().filter_map(|name| ledger.view(name, now_us));
        let mut model: BTreeMap<Name, KeyView> = model.map(|key| (key.name.clone(), key)).collect();
        for view in model.values_mut() {
            // A queue expires with its last waiter, unless it knows when its key was left free.
            let shown = real.get(&view.name).map_or(0, |real| real.waiting);
            if shown == 0 && view.waiters.iter().all(|waiter| waiter.is_dead) {
                view.waiting = 0;
                view.waiters.clear();
            }
        }
        model.retain(|_, view| view.record != RecordView::Free || view.waiting > 0);
        let real: Vec<_> = real.into_values().map(rounded).collect();
        let model: Vec<_> = model.into_values().map(rounded).collect();
        let is_near = |(one, other): (&Option<u64>, &Option<u64>)| match (one, other) {
            (Some(one), Some(other)) => one.abs_diff(*other) <= TOLERANCE_MS,
            (one, other) => one == other,
        };
        let is_same = |((real, ends), (model, model_ends)): (&Rounded, &Rounded)| {
            real == model && ends.iter().zip(model_ends).all(is_near)
        };
        let differ = real.iter().zip(&model).find(|pair| !is_same(*pair));
        if let Some((real, model)) = differ {
            return Some(format!("server {real:?}\nledger {model:?}"));
        }
        let counts = (real.len(), model.len());
        (counts.0 != counts.1).then(|| format!("{counts:?}: server {real:?}\nledger {model:?}"))
    }
}

/// A view without its ends, and its ends.
type Rounded = (KeyView, Vec<Option<u64>>);

/// Returns a view without its ends, with its holders in the order of their grants, and its ends.
fn rounded(mut view: KeyView) -> Rounded {
    let mut ends = vec![view.left_ms.take()];
    match &mut view.record {
        RecordView::Owned(holder) => ends.push(holder.left_ms.take()),
        RecordView::Shared { holders, .. } => {
            holders.sort_by_key(|holder| holder.number);
            ends.extend(holders.iter_mut().map(|holder| holder.left_ms.take()));
        }
        // The ledger keeps no values of foreign clients.
        RecordView::Foreign { digest, .. } => *digest = None,
        RecordView::Free | RecordView::Latch { .. } => {}
    }
    (view, ends)
}
