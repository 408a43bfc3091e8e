//! What Prometheus reads: the series right after the start, odd names, and how many series there are at most.
//!
//! Each test has a process of its own, because the recorder and the series are those of the process.

use std::collections::{BTreeMap, BTreeSet};

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tenure::observe::{METRICS, Metric, MetricKind};
use tenure::{Key, Locks};

use crate::help::{block_on, ms, soon, until};
use crate::support::alone::alone;

/// The series that one process has at most, of the metrics with names: 100 jobs and `other`, 64 servers and `other`.
const JOBS: usize = 101;
const SERVERS: usize = 65;

/// All series that Prometheus stores, but those of `tenure_dry_run_total`, which has the routes of the service. A histogram has
/// one for each of its buckets, one without a bound, a sum and a count.
const MOST_SERIES: usize = 4_560;

/// Installs a recorder with the buckets of each histogram, as the guide shows it.
fn scraped() -> PrometheusHandle {
    let mut builder = PrometheusBuilder::new();
    for metric in METRICS.iter().filter(|metric| !metric.bounds.is_empty()) {
        let name = Matcher::Full(metric.name.to_owned());
        builder = builder.set_buckets_for_metric(name, metric.bounds).unwrap();
    }
    let recorder = builder.build_recorder();
    let handle = recorder.handle();
    ::metrics::set_global_recorder(recorder).unwrap();
    handle
}

/// A line of a scrape: a name, its labels, and its value.
type Samples = BTreeMap<(String, Vec<(String, String)>), f64>;

/// Reads a scrape by the rules of the text format.
fn read(handle: &PrometheusHandle) -> Samples {
    tenure::testing::flush_events();
    let text = handle.render();
    let mut samples = Samples::new();
    for line in text
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (series, value) = line.rsplit_once(' ').expect(line);
        let (name, labels) = series.split_once('{').unwrap_or((series, "}"));
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_';
        assert!(name.chars().all(is_name), "{line}");
        let labels = labels.strip_suffix('}').expect(line);
        let before = samples.insert((name.to_owned(), read_labels(labels)), value.parse().expect(line));
        assert_eq!(before, None, "{line} is there twice");
    }
    samples
}

fn read_labels(mut text: &str) -> Vec<(String, String)> {
    let mut labels = Vec::new();
    while !text.is_empty() {
        let (label, rest) = text.split_once("=\"").expect(text);
        let (mut value, mut chars) = (String::new(), rest.chars());
        loop {
            match chars.next().expect("the value ends") {
                '"' => break,
                '\\' => value.push(match chars.next() {
                    Some('n') => '\n',
                    Some(c @ ('\\' | '"')) => c,
                    other => panic!("\\{other:?} in {text}"),
                }),
                c => value.push(c),
            }
        }
        labels.push((label.to_owned(), value));
        text = chars.as_str();
        text = text.strip_prefix(',').unwrap_or(text);
    }
    labels
}

/// Returns every combination of the values of a metric's labels. A label without values has those that are given.
fn combinations(metric: &Metric, open: &[&str]) -> Vec<Vec<(String, String)>> {
    let mut rows = vec![Vec::new()];
    for (label, values) in metric.labels {
        let values = if values.is_empty() { open } else { values };
        let longer = |row: &Vec<_>, value: &&str| {
            let label = ((*label).to_owned(), (*value).to_owned());
            row.iter().cloned().chain([label]).collect()
        };
        rows = rows
            .iter()
            .flat_map(|row| values.iter().map(move |value| longer(row, value)))
            .collect();
    }
    rows
}

fn is_of_jobs(metric: &Metric) -> bool {
    metric.labels.iter().any(|(label, _)| *label == "job_name")
}

#[test]
fn each_counter_and_gauge_is_there_from_the_start() {
    alone(
        "metrics_scrape::each_counter_and_gauge_is_there_from_the_start",
        || {
            let handle = scraped();
            let locks = Locks::memory();
            let is_promised = |metric: &&&Metric| {
                metric.kind != MetricKind::Histogram
                    && !is_of_jobs(metric)
                    && !metric
                        .labels
                        .iter()
                        .any(|(label, _)| ["route", "server"].contains(label))
            };
            let mut promised = Samples::new();
            for metric in METRICS.iter().filter(is_promised) {
                let value = if metric.name == "tenure_build_info" {
                    1.0
                } else {
                    0.0
                };
                for labels in combinations(metric, &[env!("CARGO_PKG_VERSION")]) {
                    promised.insert((metric.name.to_owned(), labels), value);
                }
            }
            assert_eq!(read(&handle), promised);

            let _job = locks.cron("nightly", "0 0 2 * * *").run(|_| async {}).unwrap();
            for metric in METRICS
                .iter()
                .filter(|metric| is_of_jobs(metric) && metric.kind != MetricKind::Histogram)
            {
                for labels in combinations(metric, &["nightly"]) {
                    promised.insert((metric.name.to_owned(), labels), 0.0);
                }
            }
            // The timestamps are shown after the first look.
            promised.retain(|(name, _), _| !name.ends_with("_timestamp_seconds"));
            assert_eq!(read(&handle), promised);
        },
    );
}

#[test]
fn a_scrape_with_odd_names_can_be_read() {
    alone("metrics_scrape::a_scrape_with_odd_names_can_be_read", || {
        let handle = scraped();
        let locks = Locks::memory();
        let mut other_end = [b'x'; 512];
        other_end[511] = b'y';
        let names: [&[u8]; 14] = [
            b"\"quoted\"",
            b"two\nlines\r\n",
            b"nul\0",
            b"\xff\xfe not UTF-8",
            b"back\\slash\\n",
            // Others than these and those above, and different texts.
            b"two\\nlines\\r\\n",
            b"\\xff\\xfe not UTF-8",
            b"\xff\n",
            b"\xff\\n",
            &[b'x'; 512],
            &other_end,
            &[0xf0; 512],
            "Zürich {a=\"b\"} 🦀".as_bytes(),
            b"other",
        ];
        let jobs: Vec<_> = names
            .iter()
            .map(|name| {
                let job = locks.cron(Key::from(*name), "0 0 2 * * *").run(|_| async {});
                job.unwrap()
            })
            .collect();
        let found = read(&handle);
        let named = found.keys().filter(|(name, _)| name == "tenure_job_paused");
        let named: BTreeSet<&str> = named.map(|(_, labels)| &*labels[0].1).collect();
        assert_eq!(named.len(), names.len(), "{named:?}");
        assert!(
            named.contains("\"quoted\"") && named.contains("other") && named.contains(&*"x".repeat(512)),
            "{named:?}"
        );
        drop(jobs);
    });
}

#[test]
fn keys_jobs_and_servers_make_no_more_series_than_the_table_says() {
    alone(
        "metrics_scrape::keys_jobs_and_servers_make_no_more_series_than_the_table_says",
        || {
            block_on(many());
        },
    );
}

async fn many() {
    let handle = scraped();
    let locks = Locks::memory();
    for key in 0..100_000 {
        locks
            .mutex(format!("key:{key}"))
            .lock()
            .await
            .unwrap()
            .release()
            .await
            .unwrap();
    }
    let mut jobs = Vec::new();
    for job in 0..1_000 {
        jobs.push(
            locks
                .cron(format!("job:{job}"), "0 0 2 * * *")
                .run(|_| async {})
                .unwrap(),
        );
    }
    #[cfg(feature = "redis")]
    let mut nowhere = Vec::new();
    #[cfg(feature = "redis")]
    {
        for port in 1..=100 {
            let builder = Locks::builder().lazy().request_timeout(ms(200));
            let locks = builder
                .connect(&format!("redis://127.0.0.1:{port}/"))
                .await
                .unwrap();
            assert!(soon(locks.mutex("a").try_lock()).await.is_err());
            nowhere.push(locks);
        }
        let failing = |samples: &Samples| {
            let all = samples
                .iter()
                .filter(|((name, _), _)| name == "tenure_store_failing");
            all.map(|(_, value)| value).sum::<f64>()
        };
        until("all are in an outage", || failing(&read(&handle)) == 100.0).await;
        let of_other = (
            "tenure_store_failing".to_owned(),
            vec![("server".to_owned(), "other".to_owned())],
        );
        assert_eq!(read(&handle)[&of_other], 36.0);
        // One ends in order, the others are only dropped: no outage is left.
        nowhere.pop().unwrap().shutdown().await;
        until("one is over", || failing(&read(&handle)) == 99.0).await;
        nowhere.clear();
        until("no outage is left", || failing(&read(&handle)) == 0.0).await;
    }
    let mut series = BTreeMap::<String, BTreeSet<Vec<(String, String)>>>::new();
    for (name, mut labels) in read(&handle).into_keys() {
        let name = ["_bucket", "_sum", "_count"]
            .iter()
            .find_map(|end| name.strip_suffix(end))
            .unwrap_or(&name);
        labels.retain(|(label, _)| label != "le");
        series.entry(name.to_owned()).or_default().insert(labels);
    }
    let mut most = 0;
    for metric in METRICS {
        let of_this: usize = metric
            .labels
            .iter()
            .map(|(label, values)| match *label {
                "job_name" => JOBS,
                "server" => SERVERS,
                "route" => 0,
                "version" => 1,
                _ => values.len(),
            })
            .product();
        // Further jobs have no gauges.
        let is_gauge_of_jobs = is_of_jobs(metric) && metric.kind == MetricKind::Gauge;
        let of_this = of_this - usize::from(is_gauge_of_jobs);
        let found = series.get(metric.name).map_or(0, BTreeSet::len);
        assert!(found <= of_this, "{} has {found} series", metric.name);
        let stored = if metric.bounds.is_empty() {
            1
        } else {
            metric.bounds.len() + 3
        };
        most += of_this * stored;
    }
    assert_eq!(most, MOST_SERIES);
    drop(jobs);
}
