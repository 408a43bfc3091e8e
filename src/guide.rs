//! The guides: a page for each job, from the choice of a primitive to a failover at night.
//!
//! | before you begin | |
//! |---|---|
//! | [`choosing`] | which primitive serves which need, what it costs, and which store serves it |
//! | [`guarantees`] | the conditions, what follows from them, and the limits |
//! | [`writes`] | how a write is refused once its lease is lost, and how to tell whether it was done |
//! | [`coming_from`] | the calls of Redisson, ShedLock, gocron, redsync, rslock and redis-py, side by side with these |
//!
//! | your store | |
//! |---|---|
//! | [`redis`](mod@redis) | version, settings, rights, TLS, pools, and what a restart may lose |
//! | [`sentinel`], [`cluster`], [`quorum`] | what a failover may lose, what is different, and what to set |
//! | [`other_clients`] | the same locks in other languages |
//!
//! | in production | |
//! |---|---|
//! | [`operations`] | start, probes, SIGTERM, deploys, logs and metrics |
//! | [`troubleshooting`] | what you see, its cause, and what to do |
//! | [`alerts`] | rules and a dashboard for Prometheus and Grafana, and what to do about each alert |
//! | [`jobs`] | did it run on Saturday, where, how long: history and alarms |
//! | [`command`] | look, steal, audit: a key is stuck at night |
//! | [`run`] | crontabs, CI and deploy scripts: a command that ends before its lease does |
//! | [`page`] | leases and jobs in a browser, in your service or on its own |
//! | [`how_it_works`] | claims, bursts, batches and renewals, and what they cost |
//!
//! The first lock, the layer and the first job are on the [front page](crate). The files are `docs/*.md` of the repository, and
//! their code is compiled with the documentation.

/// Makes a module for each guide. The names of links have their meaning in rustdoc from `links.md`, and on GitHub from the end
/// of each page: in Markdown the first definition of a name holds.
macro_rules! guides {
    ($($name:ident: $file:literal,)*) => {$(
        #[doc = include_str!("links.md")]
        #[doc = include_str!(concat!("../docs/", $file, ".md"))]
        pub mod $name {}
    )*};
}

guides! {
    alerts: "alerts",
    choosing: "choosing",
    cluster: "cluster",
    coming_from: "coming-from",
    command: "command",
    guarantees: "guarantees",
    how_it_works: "how-it-works",
    jobs: "jobs",
    operations: "operations",
    other_clients: "other-clients",
    page: "page",
    quorum: "quorum",
    redis: "redis",
    run: "run",
    sentinel: "sentinel",
    troubleshooting: "troubleshooting",
    writes: "writes",
}
