//! A browser, and what a test does in it and sees of it.

use std::time::Duration;

use fantoccini::actions::{InputSource, KeyAction, KeyActions};
use fantoccini::error::CmdError;
use fantoccini::wd::{WebDriverCompatibleCommand, WindowHandle};
use fantoccini::{Client, ClientBuilder, Locator};
use hyper_util::client::legacy::connect::HttpConnector;
use serde_json::{Value, json};

use crate::driver::Driver;

/// Longer than any step takes. Only a failed test waits for it.
pub const PATIENCE: Duration = Duration::from_secs(120);

const FLAGS: [&str; 10] = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--window-size=1280,900",
];

/// A browser with a window.
pub struct Browser {
    pub client: Client,
    _driver: Driver,
}

/// A command of chromedriver that is not one of the standard.
#[derive(Debug)]
struct Own(&'static str, Value);

impl WebDriverCompatibleCommand for Own {
    fn endpoint(&self, base: &url::Url, session: Option<&str>) -> Result<url::Url, url::ParseError> {
        base.join(&format!("session/{}/{}", session.unwrap_or_default(), self.0))
    }

    fn method_and_body(&self, _: &url::Url) -> (http::Method, Option<String>) {
        (http::Method::POST, Some(self.1.to_string()))
    }
}

impl Browser {
    pub async fn start() -> Browser {
        Browser::with_preferences(json!({})).await
    }

    /// Starts a browser that runs no script of a page.
    pub async fn without_scripts() -> Browser {
        Browser::with_preferences(json!({ "profile.managed_default_content_settings.javascript": 2 })).await
    }

    async fn with_preferences(preferences: Value) -> Browser {
        let driver = Driver::start();
        let mut flags: Vec<String> = FLAGS.map(str::to_owned).into();
        flags.push(format!("--user-data-dir={}", driver.profile().display()));
        let wanted = json!({
            "goog:chromeOptions": { "args": flags, "prefs": preferences },
            "goog:loggingPrefs": { "browser": "ALL" },
        });
        let mut builder = ClientBuilder::new(HttpConnector::new());
        builder.capabilities(wanted.as_object().expect("an object").clone());
        let client = builder
            .connect(&driver.url())
            .await
            .expect("apt-get install chromium");
        Browser {
            client,
            _driver: driver,
        }
    }

    pub async fn goto(&self, url: &str) {
        self.client.goto(url).await.unwrap();
    }

    /// Opens the address in another window, which becomes the present one.
    pub async fn open(&self, url: &str) -> WindowHandle {
        let window = self.client.new_window(false).await.unwrap().handle;
        self.client.switch_to_window(window.clone()).await.unwrap();
        self.goto(url).await;
        window
    }

    /// Runs a script of the test, and returns what it returns.
    pub async fn run(&self, script: &str) -> Value {
        self.client.execute(script, Vec::new()).await.unwrap()
    }

    /// Returns the text that a reader sees.
    pub async fn text(&self) -> String {
        self.text_of("body").await
    }

    /// Returns the text of the first element that the selector finds, or an empty one. A page may be on its way.
    pub async fn text_of(&self, selector: &str) -> String {
        match self.client.find(Locator::Css(selector)).await {
            Ok(element) => element.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }

    pub async fn until(&self, what: &str, mut holds: impl AsyncFnMut() -> bool) {
        let look = async {
            while !holds().await {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        };
        if tokio::time::timeout(PATIENCE, look).await.is_err() {
            self.shoot("failed").await;
            panic!("timed out waiting until {what}: {}", self.text().await);
        }
    }

    /// Waits until a reader sees the text.
    pub async fn until_text(&self, text: &str) {
        self.until(text, async || self.text().await.contains(text)).await;
    }

    /// Waits until the element that the selector finds has the text.
    pub async fn until_text_of(&self, selector: &str, text: &str) {
        let what = format!("{selector} has {text}");
        self.until(&what, async || self.text_of(selector).await.contains(text))
            .await;
    }

    /// Clicks what the selector finds. A row may be exchanged meanwhile, so it is found again.
    pub async fn click(&self, selector: &str) {
        let what = format!("{selector} is clicked");
        self.until(&what, async || self.try_click(selector).await.is_ok())
            .await;
    }

    async fn try_click(&self, selector: &str) -> Result<(), CmdError> {
        self.client.find(Locator::Css(selector)).await?.click().await
    }

    pub async fn fill(&self, selector: &str, text: &str) {
        let field = self.client.find(Locator::Css(selector)).await.unwrap();
        field.clear().await.unwrap();
        field.send_keys(text).await.unwrap();
    }

    /// Presses a key and leaves it.
    pub async fn press(&self, key: char) {
        let actions = KeyActions::new("keys".to_owned())
            .then(KeyAction::Down { value: key })
            .then(KeyAction::Up { value: key });
        self.client.perform_actions(actions).await.unwrap();
    }

    /// Sends a command of the Chrome DevTools Protocol.
    pub async fn devtools(&self, command: &str, parameters: Value) -> Value {
        let body = json!({ "cmd": command, "params": parameters });
        self.client
            .issue_cmd(Own("goog/cdp/execute", body))
            .await
            .unwrap()
    }

    pub async fn theme(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features }))
            .await;
    }

    /// Gives the page that width in CSS pixels. A zoom of 200 % is half of the width, and a scale of 2.
    pub async fn width(&self, width: u64, scale: u64) {
        self.size(width, 900, scale).await;
    }

    async fn size(&self, width: u64, height: u64, scale: u64) {
        let metrics =
            json!({ "width": width, "height": height, "deviceScaleFactor": scale, "mobile": false });
        self.devtools("Emulation.setDeviceMetricsOverride", metrics).await;
    }

    /// Checks that the page cannot be scrolled to the side.
    pub async fn has_no_sideways_scroll(&self, what: &str) {
        let widths = self
            .run("const d = document.documentElement; return [d.scrollWidth, d.clientWidth];")
            .await;
        assert!(
            widths[0].as_u64() <= widths[1].as_u64(),
            "{what} is {} wide in {}",
            widths[0],
            widths[1]
        );
    }

    /// Checks that axe-core finds no fault.
    pub async fn has_no_axe_violation(&self, what: &str) {
        let path = std::env::var("TENURE_AXE").expect("page/browser sets TENURE_AXE");
        let axe = std::fs::read_to_string(path).expect("page/browser downloads axe-core");
        self.run(&format!("if (!window.axe) {{ {axe} }}")).await;
        let script = "const done = arguments[0];
            axe.run(document, { resultTypes: ['violations'] }).then((found) => done(found.passes.length < 10
                ? ['axe-core checks nothing'] : found.violations.map((v) =>
                v.id + ': ' + v.help + ' ' + v.nodes.map((n) => n.html + ' ' + n.failureSummary).join('; '))),
                (error) => done([String(error)]));";
        let found = self.client.execute_async(script, Vec::new()).await.unwrap();
        assert_eq!(found, json!([]), "{what}");
    }

    /// Returns what the console got since the last call. Refusals of the policy (CSP) are among it.
    pub async fn console(&self) -> Vec<String> {
        let lines = self
            .client
            .issue_cmd(Own("se/log", json!({ "type": "browser" })))
            .await
            .unwrap();
        let lines = lines.as_array().into_iter().flatten();
        lines
            .map(|line| format!("{} {} {}", line["level"], line["source"], line["message"]))
            .collect()
    }

    /// Checks that the console is empty.
    pub async fn has_empty_console(&self, what: &str) {
        assert_eq!(self.console().await, [""; 0], "{what}");
    }

    /// Checks that the console has only requests that failed, as a test let them.
    pub async fn console_has_failed_requests_only(&self) {
        let mut lines = self.console().await;
        lines.retain(|line| !line.contains("\"network\""));
        assert_eq!(lines, [""; 0]);
    }

    /// Writes a screenshot of the whole page into the directory `TENURE_SHOTS`, if there is one.
    pub async fn shoot(&self, name: &str) {
        let Ok(directory) = std::env::var("TENURE_SHOTS") else {
            return;
        };
        let sizes = self
            .run("return [innerWidth, document.documentElement.scrollHeight, devicePixelRatio, innerHeight]")
            .await;
        let [width, height, scale, before] = [0, 1, 2, 3].map(|at| sizes[at].as_u64().unwrap_or(1));
        self.size(width, height.max(before), scale).await;
        let png = self.client.screenshot().await.unwrap();
        self.size(width, before, scale).await;
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(format!("{directory}/{name}.png"), png).unwrap();
    }
}
