//! `tenure serve`: the page for the browser, on its own.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use tenure::Locks;
use tenure_page::{Access, loopback_only, router, with_token};
use tokio::net::TcpListener;
use tokio::sync::oneshot;

use crate::args::NameArgs;
use crate::failure::Failure;
use crate::terminal::tell;
use crate::text::shown;

/// The fewest characters of a token.
const MIN_TOKEN: usize = 16;
/// How long requests in flight have after the signal. A client that never sends the rest of its request must not keep the process.
const MAX_END: Duration = Duration::from_secs(5);

#[derive(clap::Args)]
pub(crate) struct ServeArgs {
    /// The address and port; 0 is any free port. One that is not loopback needs --token-file
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:7070")]
    listen: SocketAddr,
    /// Lets the reader act: take leases; pause, resume, trigger and cancel jobs
    #[arg(long = "operate")]
    is_operated: bool,
    /// A file with a token of 16 characters or more, which the browser asks for; programs send `Authorization: Bearer`
    #[arg(long, value_name = "FILE")]
    token_file: Option<PathBuf>,
    #[command(flatten)]
    name: NameArgs,
}

/// Serves the page until Ctrl-C or SIGTERM, and then for at most [`MAX_END`].
pub(crate) async fn run(locks: &Locks, wanted: &ServeArgs) -> Result<(), Failure> {
    let token = wanted.token_file.as_ref().map(read_token).transpose()?;
    let name = wanted.name.by();
    let is_operated = wanted.is_operated;
    let page = router(locks, move |_| match is_operated {
        true => Access::Operate(name.clone()),
        false => Access::Read,
    });
    let page = match token {
        Some(token) => with_token(page, &token),
        None if wanted.listen.ip().is_loopback() => loopback_only(page),
        None => {
            let text =
                "an address that is not loopback needs --token-file: the page would be open to the network";
            return Err(Failure::Usage(text.to_owned()));
        }
    };
    let refused = |error| Failure::Usage(format!("cannot listen on {}: {error}", wanted.listen));
    let listener = TcpListener::bind(wanted.listen).await.map_err(refused)?;
    tell(&format!("http://{}/\n", listener.local_addr()?));
    let stop = stop()?;
    let (tell_stop, stopped) = oneshot::channel();
    let signal = async move {
        stop.await;
        let _ = tell_stop.send(());
    };
    let is_overdue = async {
        let _ = stopped.await;
        tokio::time::sleep(MAX_END).await;
    };
    tokio::select! {
        served = axum::serve(listener, page).with_graceful_shutdown(signal).into_future() => Ok(served?),
        () = is_overdue => Ok(()),
    }
}

/// Returns what is over at Ctrl-C or SIGTERM.
fn stop() -> io::Result<impl Future<Output = ()>> {
    #[cfg(unix)]
    let mut terminate = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    Ok(async move {
        let interrupt = tokio::signal::ctrl_c();
        #[cfg(unix)]
        tokio::select! {
            _ = interrupt => {}
            _ = terminate.recv() => {}
        }
        #[cfg(not(unix))]
        let _ = interrupt.await;
    })
}

fn read_token(path: &PathBuf) -> Result<String, Failure> {
    let name = shown(path.as_os_str().as_encoded_bytes());
    let text = std::fs::read_to_string(path)
        .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}")))?;
    let token = text.trim().to_owned();
    if token.len() < MIN_TOKEN {
        return Err(Failure::Usage(format!(
            "the token in {name} is shorter than {MIN_TOKEN} characters"
        )));
    }
    Ok(token)
}
