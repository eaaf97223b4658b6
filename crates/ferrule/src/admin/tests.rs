//! What the admin socket answers.

use std::io::{Read as _, Write as _};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use ferrule_core::desired::Totals;
use ferrule_core::issue::{ObjectKey, Severity};
use ferrule_dataplane::Applied;
use ferrule_testbed::cluster::*;
use serde_json::Value;

use super::*;
use crate::explain::answer::State as Verdict;
use crate::explain::ask::{AskError, ask};

/// Far longer than anything takes; only a failing test waits so long.
const LONG: Duration = Duration::from_secs(30);

fn asked(target: &str) -> Question {
    Question::new(target.parse().unwrap(), None).unwrap()
}

/// A page that the program makes.
fn pages() -> Vec<Page> {
    vec![Page {
        path: "config",
        content_type: JSON,
        text: Box::new(|| "{\"mode\":\"nftables\"}".to_owned()),
    }]
}

struct Admin {
    publisher: Publisher,
    questions: Questions,
    path: PathBuf,
    _folder: tempfile::TempDir,
}

fn admin() -> Admin {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run/proxy.sock");
    let about = About {
        node: "here".to_owned(),
        mode: "nftables",
        families: vec![Family::V4],
    };
    let opened = open(Some(path.clone()), about, Settings::default(), pages());
    let (publisher, questions) = opened.unwrap();
    let admin = Admin {
        publisher,
        questions,
        path,
        _folder: folder,
    };
    admin.connect();
    admin
}

#[expect(clippy::disallowed_methods, reason = "a test waits for a state")]
fn until<T>(mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < LONG, "never");
        thread::sleep(Duration::from_millis(5));
    }
}

impl Admin {
    fn connect(&self) -> UnixStream {
        let stream = until(|| UnixStream::connect(&self.path).ok());
        stream.set_read_timeout(Some(LONG)).unwrap();
        stream
    }

    fn get(&self, request: &str) -> String {
        let mut stream = self.connect();
        let rest = "HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
        write!(stream, "{request} {rest}").unwrap();
        let mut reply = String::new();
        stream.read_to_string(&mut reply).unwrap();
        reply
    }

    fn ask(&self, target: &str) -> Result<crate::explain::answer::Answer, AskError> {
        ask(&self.path, &asked(target))
    }

    /// Publishes a cluster with one Service that has an endpoint.
    fn publish(&self) {
        let mut cluster = Cluster::new();
        let service = service("shop/web");
        cluster.serving(&service, 8080, &[ep("10.1.0.1")]);
        let changes = cluster.take().unwrap();
        self.publisher.news(&cluster.tracker, &changes);
    }
}

#[test]
fn what_is_published_before_a_question_is_in_its_answer() {
    let admin = admin();
    let early = admin.ask("shop/web").unwrap_err();
    assert!(early.to_string().contains("not known yet"), "{early}");
    admin.publish();
    let answer = admin.ask("shop/web").unwrap();
    assert_eq!(answer.state, Verdict::Works);
    assert_eq!(answer.ports[0].endpoints[0].address, "10.1.0.1:8080");
    assert_eq!(admin.ask("shop/none").unwrap().state, Verdict::Missing);
}

#[test]
fn the_kernel_is_pending_then_programmed_then_failing_and_says_what_it_refuses() {
    let admin = admin();
    admin.publish();
    let key = http("shop/web");
    let change = Change {
        before: None,
        after: None,
    };
    let kernel = || {
        admin.ask("shop/web").unwrap().ports[0]
            .kernel
            .clone()
            .unwrap()
    };
    admin.publisher.programmed(Family::V4, &[]);
    assert_eq!(kernel(), "programmed");
    let changes = [(key.clone(), change)].into();
    admin.publisher.changed(Family::V4, &changes);
    assert_eq!(kernel(), "pending");
    let refusal = Refusal {
        key,
        message: "no room for it".to_owned(),
    };
    admin.publisher.programmed(Family::V4, &[refusal]);
    assert_eq!(kernel(), "refused");
    let answer = admin.ask("shop/web").unwrap();
    assert_eq!(answer.state, Verdict::Broken);
    assert!(answer.lines[0].contains("no room for it"), "{answer:?}");
    let error = ApplyError::Locked(std::io::ErrorKind::TimedOut.into());
    admin.publisher.programmed(Family::V4, &[]);
    admin.publisher.failed(Family::V4, &error);
    assert_eq!(kernel(), "failing");
    let answer = admin.ask("shop/web").unwrap();
    assert!(
        answer.lines[0].contains("the tables are locked"),
        "{answer:?}"
    );
}

#[test]
fn other_paths_methods_and_questions_are_refused() {
    let admin = admin();
    admin.publish();
    for (request, status) in [
        ("GET /v1/explain?target=shop/web", "200"),
        ("GET /v1/explain?target=shop/web&from=10.0.0.1", "200"),
        ("GET /v1/node", "200"),
        ("GET /v1/desired", "200"),
        ("GET /v1/config", "200"),
        ("GET /v1/log", "404"),
        ("GET /v1/explain", "400"),
        ("GET /v1/explain?target=nonsense", "400"),
        ("GET /v1/explain?target=%zz", "400"),
        ("GET /v1/explain?target=a/b&target=a/b", "400"),
        ("GET /v1/explain?target=shop/web&from=nowhere", "400"),
        ("GET /v1/explain?target=10.0.0.1:80&from=fd00::1", "400"),
        ("GET /v2/explain?target=shop/web", "404"),
        ("GET /", "404"),
        ("POST /v1/explain?target=shop/web", "405"),
    ] {
        let reply = admin.get(request);
        assert_eq!(reply.split(' ').nth(1), Some(status), "{request}: {reply}");
    }
    let long = format!("GET /v1/explain?target={}", "x".repeat(64 * 1024));
    let mut stream = admin.connect();
    // It may be cut before all of it is sent.
    _ = write!(stream, "{long} HTTP/1.1\r\n\r\n");
    let mut reply = String::new();
    _ = stream.read_to_string(&mut reply);
    assert!(!reply.contains("200 OK"), "{reply}");
    assert_eq!(admin.ask("shop/web").unwrap().state, Verdict::Works);
}

#[test]
fn more_connections_than_are_allowed_do_not_keep_a_question_out() {
    let admin = admin();
    admin.publish();
    let idle: Vec<_> = (0..100).map(|_| admin.connect()).collect();
    assert_eq!(admin.ask("shop/web").unwrap().state, Verdict::Works);
    drop(idle);
}

#[test]
fn a_dropped_publisher_closes_the_socket_and_another_can_have_it() {
    let Admin {
        publisher,
        questions,
        path,
        _folder: folder,
    } = admin();
    let about = About {
        node: "here".to_owned(),
        mode: "iptables",
        families: vec![Family::V4],
    };
    drop(publisher);
    until(|| UnixStream::connect(&path).err());
    until(|| matches!(questions.ask(Request::default()), Answer::Now(_)).then_some(()));
    let opened = open(Some(path.clone()), about, Settings::default(), pages());
    let (publisher, questions) = opened.unwrap();
    let next = Admin {
        publisher,
        questions,
        path,
        _folder: folder,
    };
    next.publish();
    until(|| next.ask("shop/web").ok());
    let reply = next.get("GET /v1/explain?target=shop/web");
    let body: Value = serde_json::from_str(reply.split("\r\n\r\n").nth(1).unwrap()).unwrap();
    assert_eq!(body["version"], VERSION);
    assert_eq!(body["state"], "works");
}

#[test]
fn whoever_is_no_proxy_is_not_believed() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("s");
    let absent = ask(&path, &asked("a/b")).unwrap_err();
    assert!(absent.to_string().contains("kubectl exec"), "{absent}");
    let replies = [
        "HTTP/1.1 200 OK\r\n\r\n{\"version\":\"v9\"}",
        "HTTP/1.1 404 Not Found\r\n\r\n",
        "nonsense",
        "",
    ];
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let server = thread::spawn(move || {
        for reply in replies {
            let (mut stream, _) = listener.accept().unwrap();
            _ = stream.read(&mut [0; 4096]).unwrap();
            stream.write_all(reply.as_bytes()).unwrap();
        }
    });
    for _ in replies {
        let error = ask(&path, &asked("a/b")).unwrap_err();
        assert!(matches!(error, AskError::OtherVersion(_)), "{error}");
    }
    server.join().unwrap();
    let stale = ask(&path, &asked("a/b")).unwrap_err();
    assert!(matches!(stale, AskError::Absent { .. }), "{stale}");
}

fn body(reply: &str) -> Value {
    serde_json::from_str(reply.split("\r\n\r\n").nth(1).unwrap()).unwrap()
}

#[test]
fn the_node_says_what_syncs_did_and_what_is_wrong() {
    let admin = admin();
    let early = body(&admin.get("GET /v1/node"));
    assert_eq!(early["begun"], false);
    assert_eq!(early["syncs"], serde_json::json!([]));
    admin.publish();
    let (fine, failed) = (
        Applied::steps(4),
        ApplyError::Locked(std::io::ErrorKind::TimedOut.into()),
    );
    let synced = |full, result| Synced {
        family: Family::V4,
        full,
        took: Duration::from_micros(1500),
        result,
        triggers: &[],
        totals: Totals::default(),
    };
    let at = "2026-11-20T00:00:00.123456Z".parse().unwrap();
    admin.publisher.ended(&synced(true, Ok(&fine)), at);
    let repair = Repair {
        steps: 4,
        process: None,
        contest: crate::sync::Contest::None,
    };
    admin.publisher.repaired(Family::V4, &repair);
    admin.publisher.ended(&synced(false, Err(&failed)), at);
    admin.publisher.failed(Family::V4, &failed);
    let issue = Issue {
        object: ObjectKey::Service(ServiceKey::new("shop", "web")),
        field: "spec.externalIPs".to_owned(),
        message: "is held by another".to_owned(),
        severity: Severity::Warning,
    };
    admin.publisher.issues(&vec![&issue; 700]);
    let node = body(&admin.get("GET /v1/node"));
    assert_eq!(
        (&node["node"], &node["services"]),
        (&"here".into(), &1.into())
    );
    assert_eq!(
        node["syncs"][0]["error"],
        "the tables are locked: timed out"
    );
    let first = &node["syncs"][1];
    assert_eq!(first["at"], "2026-11-20T00:00:00.123Z");
    assert_eq!(
        (&first["repair"], &first["changes"]),
        (&true.into(), &4.into())
    );
    let family = &node["families"][0];
    assert_eq!(family["audit"]["first"], true);
    assert!(family["error"].as_str().unwrap().contains("locked"));
    assert_eq!(node["issueCount"], 700);
    assert_eq!(node["issues"].as_array().unwrap().len(), 500);
    assert_eq!(node["issues"][0]["object"], "shop/web");
    assert!(node["generation"].as_u64() > early["generation"].as_u64());
    let desired = body(&admin.get("GET /v1/desired"));
    assert_eq!(desired[0]["endpoints"][0], "10.1.0.1:8080");
    assert_eq!(body(&admin.get("GET /v1/config"))["mode"], "nftables");
}

#[test]
fn questions_of_other_threads_have_the_same_answers_and_never_wait() {
    let admin = admin();
    admin.publish();
    let request = || Request {
        path: "/v1/explain".to_owned(),
        query: "target=shop/web".to_owned(),
        ..Request::default()
    };
    let Answer::Later(answer) = admin.questions.ask(request()) else {
        panic!("there is room for one");
    };
    let answer = answer.blocking_recv().unwrap();
    assert!(format!("{answer:?}").contains("works"), "{answer:?}");
    // However many: each is answered, or refused at once.
    let asked: Vec<_> = (0..1000).map(|_| admin.questions.ask(request())).collect();
    for answer in asked {
        if let Answer::Later(answer) = answer {
            answer.blocking_recv().unwrap();
        }
    }
    assert_eq!(admin.ask("shop/web").unwrap().state, Verdict::Works);
}
