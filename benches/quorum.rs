//! What locks cost on a quorum of masters.
//!
//! `cargo bench --bench quorum -- trips`: round trips behind a wire of 0.25 ms each way. `bench-compare` prints them beside those of
//! rslock and node-redlock.
#![allow(clippy::type_complexity, clippy::disallowed_methods)]

mod support;

use support::{Report, masters, wire};

fn main() {
    wire::serve_if_asked();
    if !support::is_wanted() {
        return;
    }
    let mut report = Report::new("quorum");
    support::runtime().block_on(async {
        if support::asks_for("trips") {
            masters::tenure(&mut report).await;
        }
    });
    report.write(env!("CARGO_TARGET_TMPDIR"));
}
