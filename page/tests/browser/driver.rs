//! The processes of a browser: chromedriver, and the Chromium that it starts.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

/// A chromedriver on a free port. When it is dropped, its processes and its directory are gone.
pub struct Driver {
    child: Child,
    port: u16,
    profile: PathBuf,
}

impl Driver {
    pub fn start() -> Driver {
        static STARTED: AtomicU32 = AtomicU32::new(0);
        let n = STARTED.fetch_add(1, Ordering::Relaxed);
        let profile = std::env::temp_dir().join(format!("tenure-browser-{}-{n}", std::process::id()));
        fs::create_dir_all(&profile).expect("a directory for the browser");
        let mut child = Command::new("chromedriver")
            .args(["--port=0", "--log-level=SEVERE"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("apt-get install chromium-driver");
        let told = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let port = told
            .map_while(Result::ok)
            .find_map(|line| {
                let port = line.split("started successfully on port ").nth(1)?;
                port.trim_end_matches('.').parse().ok()
            })
            .expect("chromedriver tells its port");
        Driver { child, port, profile }
    }

    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Returns the directory of the browser, which no other browser has.
    pub fn profile(&self) -> &Path {
        &self.profile
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        // The browser is a process of its own, and a failed test does not close it. Its children end with it.
        for id in processes_with(&self.profile.display().to_string()) {
            let _ = Command::new("kill")
                .args(["-KILL", &id])
                .stderr(Stdio::null())
                .status();
        }
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// Returns the ids of the processes whose command line has this text.
fn processes_with(text: &str) -> Vec<String> {
    let ids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let ids = ids.filter_map(|entry| entry.file_name().into_string().ok());
    let ids = ids.filter(|id| id.bytes().all(|byte| byte.is_ascii_digit()));
    let has_text = |id: &String| {
        let line = fs::read(format!("/proc/{id}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).contains(text)
    };
    ids.filter(has_text).collect()
}
