//! Replicas that are processes: this program again, with other arguments.

use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::sync::mpsc;

use super::BoxError;

/// A line that a replica has printed, with the index of the replica.
pub(crate) type Line = (usize, String);

/// Starts the replica with this index. The lines that it prints go to `lines`.
pub(crate) fn spawn(
    index: usize,
    args: &[&str],
    lines: mpsc::UnboundedSender<Line>,
) -> Result<Child, BoxError> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(args)
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()?;
    let mut output = BufReader::new(child.stdout.take().ok_or("the child has no stdout")?).lines();
    tokio::spawn(async move {
        while let Ok(Some(line)) = output.next_line().await {
            let _ = lines.send((index, line));
        }
    });
    Ok(child)
}
