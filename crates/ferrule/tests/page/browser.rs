//! A headless Chromium, over the pipe on which it takes commands: JSON, and a zero byte after each message.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use ferrule_testbed::run;
use serde_json::{Value, json};

/// Far longer than anything takes; only a failing test waits so long.
pub const LONG: Duration = Duration::from_secs(90);

/// What the program is called.
const PROGRAM: &str = "chromium";

/// Whether there is one.
pub fn is_installed() -> bool {
    let version = Command::new(PROGRAM).arg("--version").output();
    version.is_ok_and(|output| output.status.success())
}

/// A browser with one page; ended when dropped.
pub struct Browser {
    child: Child,
    commands: File,
    messages: Receiver<Value>,
    last: u64,
    session: Option<String>,
    _folder: tempfile::TempDir,
}

impl Drop for Browser {
    fn drop(&mut self) {
        // It ends its children with it.
        _ = self.send("Browser.close", &json!({}));
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_secs(5) {
            if self.child.try_wait().is_ok_and(|ended| ended.is_some()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

impl Browser {
    /// Starts one in the network of the calling thread, with a page of this size.
    pub fn start(width: u32, height: u32) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (to, from) = (folder.path().join("to"), folder.path().join("from"));
        for pipe in [&to, &from] {
            run("mkfifo", &[pipe.to_str().unwrap()]);
        }
        // It reads commands from descriptor 3 and answers on 4.
        let script = "exec \"$0\" \"$@\" 3<\"$TO\" 4>\"$FROM\"";
        let child = Command::new("sh")
            .args(["-c", script, PROGRAM, "--headless", "--no-sandbox"])
            .args(["--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"])
            .args(["--disable-background-networking", "--remote-debugging-pipe"])
            .arg(format!("--window-size={width},{height}"))
            .arg(format!(
                "--user-data-dir={}",
                folder.path().join("data").display()
            ))
            .env("TO", &to)
            .env("FROM", &from)
            .env("HOME", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(fs::File::create(folder.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        // Both ways, so that opening does not wait for the other side.
        let both = |path| {
            OpenOptions::new()
                .read(true)
                .write(true)
                .open(path)
                .unwrap()
        };
        let (commands, answers) = (both(&to), both(&from));
        let (sender, messages) = channel();
        std::thread::spawn(move || {
            let mut answers = BufReader::new(answers);
            let mut message = Vec::new();
            while answers
                .read_until(0, &mut message)
                .is_ok_and(|length| length > 0)
            {
                message.pop();
                let Ok(value) = serde_json::from_slice(&message) else {
                    return;
                };
                if sender.send(value).is_err() {
                    return;
                }
                message.clear();
            }
        });
        let mut browser = Self {
            child,
            commands,
            messages,
            last: 0,
            session: None,
            _folder: folder,
        };
        let target = browser.call("Target.createTarget", &json!({"url": "about:blank"}));
        let attach = json!({"targetId": target["targetId"], "flatten": true});
        let attached = browser.call("Target.attachToTarget", &attach);
        browser.session = attached["sessionId"].as_str().map(str::to_owned);
        let size =
            json!({"width": width, "height": height, "deviceScaleFactor": 1, "mobile": false});
        browser.call("Emulation.setDeviceMetricsOverride", &size);
        browser.call("Runtime.enable", &json!({}));
        browser.call("Log.enable", &json!({}));
        browser
    }

    fn send(&mut self, method: &str, parameters: &Value) -> std::io::Result<u64> {
        self.last += 1;
        let mut command = json!({"id": self.last, "method": method, "params": parameters});
        if let Some(session) = &self.session {
            command["sessionId"] = session.as_str().into();
        }
        let mut bytes = command.to_string().into_bytes();
        bytes.push(0);
        self.commands.write_all(&bytes)?;
        Ok(self.last)
    }

    /// Commands, and waits for the answer. What goes wrong in the page meanwhile fails the test.
    pub fn call(&mut self, method: &str, parameters: &Value) -> Value {
        let id = self.send(method, parameters).unwrap();
        loop {
            let Ok(message) = self.messages.recv_timeout(LONG) else {
                panic!("no answer to {method}");
            };
            if message["id"] == id {
                assert!(message["error"].is_null(), "{method}: {message}");
                return message["result"].clone();
            }
            let is_fault = message["method"] == "Runtime.exceptionThrown"
                || message["params"]["entry"]["source"] == "security";
            assert!(!is_fault, "{message}");
        }
    }

    /// Opens a page and waits until a condition holds there.
    pub fn open(&mut self, url: &str, condition: &str) {
        // Only another page is loaded anew, not another place of the same one.
        self.call("Page.navigate", &json!({"url": "about:blank"}));
        self.call("Page.navigate", &json!({"url": url}));
        self.until(condition);
    }

    /// What an expression is in the page.
    pub fn get(&mut self, expression: &str) -> Value {
        let asked = json!({"expression": expression, "returnByValue": true});
        let answer = self.call("Runtime.evaluate", &asked);
        assert!(
            answer["exceptionDetails"].is_null(),
            "{expression}: {answer}"
        );
        answer["result"]["value"].clone()
    }

    /// Its text.
    pub fn text(&mut self, selector: &str) -> String {
        let element = json!(selector);
        let text = self.get(&format!("document.querySelector({element}).textContent"));
        text.as_str().unwrap().to_owned()
    }

    /// Waits until a condition holds in the page.
    pub fn until(&mut self, condition: &str) {
        let guarded =
            format!("(() => {{ try {{ return !!({condition}); }} catch {{ return false; }} }})()");
        let begun = Instant::now();
        while self.get(&guarded) != true {
            let page = self.get("document.documentElement.outerHTML");
            assert!(begun.elapsed() < LONG, "never: {condition}\n{page}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Presses a key: a character, or a name such as `ArrowDown`.
    pub fn press(&mut self, key: &str) {
        let code = match key {
            "Enter" => 13,
            "Tab" => 9,
            "Escape" => 27,
            "End" => 35,
            "ArrowRight" => 39,
            "ArrowDown" => 40,
            _ => 0,
        };
        let text = match key {
            "Enter" => "\r",
            key if key.chars().count() == 1 => key,
            _ => "",
        };
        for kind in ["keyDown", "keyUp"] {
            let mut event =
                json!({"type": kind, "key": key, "code": key, "windowsVirtualKeyCode": code});
            if kind == "keyDown" && !text.is_empty() {
                event["text"] = text.into();
            }
            self.call("Input.dispatchKeyEvent", &event);
        }
    }

    /// Writes text where the focus is.
    pub fn write(&mut self, text: &str) {
        self.call("Input.insertText", &json!({"text": text}));
    }

    /// Has pages believe that the user prefers dark or light ones.
    pub fn prefer(&mut self, scheme: &str) {
        let feature = json!([{"name": "prefers-color-scheme", "value": scheme}]);
        self.call("Emulation.setEmulatedMedia", &json!({"features": feature}));
    }

    /// The page as a PNG file.
    pub fn picture(&mut self) -> Vec<u8> {
        let picture = self.call("Page.captureScreenshot", &json!({"format": "png"}));
        decode(picture["data"].as_str().unwrap())
    }
}

/// Base64.
fn decode(text: &str) -> Vec<u8> {
    const LETTERS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut bytes = Vec::with_capacity(text.len() * 3 / 4);
    let (mut bits, mut held) = (0_u32, 0);
    for letter in text.bytes() {
        let Some(value) = LETTERS.iter().position(|other| *other == letter) else {
            break;
        };
        bits = bits << 6 | u32::try_from(value).unwrap();
        held += 6;
        if held >= 8 {
            held -= 8;
            bytes.push(u8::try_from(bits >> held & 0xff).unwrap());
        }
    }
    bytes
}
