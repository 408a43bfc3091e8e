//! What the page shows: a Redis, nodes with leases, a job, and the page itself.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tenure::{Guard, Locks, Tick};
use tenure_page::{Access, router};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio_cron_scheduler::{Job, JobScheduler};

use crate::browser::PATIENCE;
use crate::server::RedisServer;

/// A Redis with nodes, and the page in this process.
pub struct Stage {
    pub server: RedisServer,
    pub locks: Locks,
    pub url: String,
    page: JoinHandle<()>,
}

impl Stage {
    /// Starts the page for the operator Mia.
    pub async fn start() -> Stage {
        let server = RedisServer::start();
        let locks = node(&server, "web-1").await;
        let (url, page) = serve_as(&node(&server, "page").await, "mia").await;
        Stage {
            server,
            locks,
            url,
            page,
        }
    }

    pub fn at(&self, path: &str) -> String {
        format!("{}{path}", self.url)
    }

    /// Returns the address of a view of a key.
    pub fn view(&self, path: &str, key: impl AsRef<[u8]>) -> String {
        self.at(&format!("{path}?k={}", hex(key)))
    }
}

/// A key that one node holds and another one waits for.
pub struct Contested {
    pub stage: Stage,
    /// Held by `web-1`.
    pub guard: Guard,
    /// The waiter on `web-2`.
    pub next: JoinHandle<Guard>,
}

impl Contested {
    pub async fn start() -> Contested {
        let stage = Stage::start().await;
        let second = node(&stage.server, "web-2").await;
        let guard = stage.locks.mutex("account:42").lock().await.unwrap();
        let next = tokio::spawn(async move { second.mutex("account:42").lock().await.unwrap() });
        until_told(&stage.locks, 2).await;
        Contested { stage, guard, next }
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        self.page.abort();
    }
}

/// Returns the bytes as a link has them.
pub fn hex(bytes: impl AsRef<[u8]>) -> String {
    bytes.as_ref().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Longer than a busy machine keeps a process from its renewals, and shorter than the patience of a test.
pub const LEASE: Duration = Duration::from_secs(30);

/// Returns a node with this name.
pub async fn node(server: &RedisServer, name: &str) -> Locks {
    let builder = Locks::builder()
        .node_name(name)
        .service("billing")
        .lease(LEASE)
        .request_timeout(PATIENCE);
    builder.connect(&server.url()).await.unwrap()
}

/// Serves the page for this operator on a free port of this process.
pub async fn serve_as(locks: &Locks, operator: &str) -> (String, JoinHandle<()>) {
    let operator = operator.to_owned();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/", listener.local_addr().unwrap());
    let page = router(locks, move |_| Access::Operate(operator.clone()));
    let task = tokio::spawn(async move { axum::serve(listener, page).await.unwrap() });
    (url, task)
}

/// Polls until the condition holds.
pub async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let look = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let ended = tokio::time::timeout(PATIENCE, look).await;
    assert!(ended.is_ok(), "timed out waiting until {what}");
}

/// Waits until so many nodes have told of themselves. A node does when it first claims a lease.
pub async fn until_told(locks: &Locks, count: usize) {
    until("the nodes told of themselves", async || {
        locks.inspect().nodes().await.unwrap().len() >= count
    })
    .await;
}

/// A job that is due once a year, and so runs only when it is triggered.
pub struct Reconcile {
    _scheduler: JobScheduler,
    /// Whether runs may end.
    pub ends: watch::Sender<bool>,
    /// The error that runs end with.
    pub error: Arc<Mutex<Option<String>>>,
}

/// Adds the job with this name.
pub async fn job(locks: &Locks, name: &str) -> Reconcile {
    let scheduler = JobScheduler::new().await.unwrap();
    let (ends, ended) = watch::channel(true);
    let error = Arc::<Mutex<Option<String>>>::default();
    let of_job = error.clone();
    let work = move |_: Tick| {
        let (mut ended, error) = (ended.clone(), of_job.clone());
        async move {
            drop(ended.wait_for(|ended| *ended).await);
            let error = error.lock().unwrap().clone();
            error.map_or(Ok(()), Err)
        }
    };
    let of = locks.cron(name, "0 0 0 1 1 *").timezone("Europe/Berlin");
    let job: Job = of.run(work).unwrap();
    locks.add_job(&scheduler, job).await.unwrap();
    scheduler.start().await.unwrap();
    until("the store knows the job", async || {
        let job = locks.jobs().show(name).await.unwrap();
        job.is_some_and(|job| job.plan.is_some())
    })
    .await;
    Reconcile {
        _scheduler: scheduler,
        ends,
        error,
    }
}
