//! Kubeconfigs, pods, tokens, and the client made of them.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::super::access::{AccessError, Pod, Recipe};
use super::server::{Ask, Fault, SERVICES, Seen, Server};
use super::*;

/// No pod at all.
pub fn nowhere() -> Pod {
    Pod::default()
}

pub fn kubeconfig(server: &str, user: &str) -> String {
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
         contexts: [{{name: c, context: {{cluster: k, user: u}}}}]\n\
         clusters: [{{name: k, cluster: {{server: \"{server}\"}}}}]\n\
         users: [{{name: u, user: {user}}}]\n"
    )
}

/// Reads this kubeconfig with this master override.
fn read(content: &str, master: &str) -> Result<Recipe, AccessError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("kubeconfig");
    fs::write(&path, content).unwrap();
    access(&path, master).read(&nowhere())
}

fn access(path: &Path, master: &str) -> Access {
    Access {
        kubeconfig: path.to_str().unwrap().to_owned(),
        master: master.to_owned(),
    }
}

fn open(path: &Path) -> Api {
    Api::open_in(nowhere(), access(path, ""), Arc::new(())).unwrap()
}

/// A user with a password.
pub const BASIC: &str = "{username: me, password: secret}";

/// A user whose token comes from [`write_plugin`].
pub const PLUGIN: &str = "{exec: {apiVersion: client.authentication.k8s.io/v1, \
                          command: ./plugin, interactiveMode: Never}}";

/// Writes a credential plugin into a folder.
pub fn write_plugin(folder: &Path) {
    let plugin = folder.join("plugin");
    fs::write(
        &plugin,
        "#!/bin/sh\necho '{\"apiVersion\":\"client.authentication.k8s.io/v1\",\
         \"kind\":\"ExecCredential\",\"status\":{\"token\":\"from-plugin\"}}'\n",
    )
    .unwrap();
    fs::set_permissions(&plugin, fs::Permissions::from_mode(0o755)).unwrap();
}

/// The server as this user of a kubeconfig in this folder sees it.
pub fn api_of(folder: &Path, server: &Server, user: &str) -> Api {
    let path = folder.join("kubeconfig");
    fs::write(&path, kubeconfig(&server.url(), user)).unwrap();
    open(&path)
}

/// One request, as the server saw it.
async fn ask(api: &Api, server: &Server) -> Seen {
    let before = server.seen(SERVICES).len();
    _ = api.get(SERVICES, Format::Protobuf, LONG).await;
    server.seen(SERVICES).remove(before)
}

/// All that an error says.
fn chain(error: &AccessError) -> String {
    let mut text = error.to_string();
    let mut next = std::error::Error::source(error);
    while let Some(error) = next {
        text = format!("{text}: {error}");
        next = error.source();
    }
    text
}

/// A certificate authority nobody has the key of.
const AUTHORITY: &str = include_str!("ca.pem");

#[test]
fn core_034_without_kubeconfig_and_master_the_pods_account_is_used() {
    let account = tempfile::tempdir().unwrap();
    fs::write(account.path().join("token"), "t0ken").unwrap();
    fs::write(account.path().join("ca.crt"), AUTHORITY).unwrap();
    let pod = |host: &str, port: &str| Pod {
        host: host.to_owned(),
        port: port.to_owned(),
        account: account.path().to_owned(),
        ..Pod::default()
    };
    for (host, url) in [
        ("172.30.0.1", "https://172.30.0.1:443/"),
        ("fd00::1", "https://[fd00::1]:443/"),
    ] {
        let mut recipe = Access::default().read(&pod(host, "443")).unwrap();
        assert_eq!(recipe.config.cluster_url.to_string(), url);
        assert_eq!(
            recipe.token.as_mut().unwrap().header().unwrap(),
            "Bearer t0ken"
        );
        assert_eq!(
            recipe.config.root_cert_file,
            Some(account.path().join("ca.crt"))
        );
        assert_eq!(
            recipe
                .config
                .root_cert
                .map(|certificates| certificates.len()),
            Some(1)
        );
    }
    for (host, port) in [("", ""), ("172.30.0.1", ""), ("", "443")] {
        let error = Access::default().read(&pod(host, port)).unwrap_err();
        assert_eq!(
            error.to_string(),
            "unable to load in-cluster configuration, KUBERNETES_SERVICE_HOST and \
             KUBERNETES_SERVICE_PORT must be defined"
        );
    }
    // Either of the two is enough to look no further.
    let master = Access {
        master: "http://10.0.0.1:8080".to_owned(),
        ..Access::default()
    };
    let recipe = master.read(&pod("172.30.0.1", "443")).unwrap();
    assert_eq!(
        recipe.config.cluster_url.to_string(),
        "http://10.0.0.1:8080/"
    );
    assert!(recipe.token.is_none());
    fs::remove_file(account.path().join("token")).unwrap();
    let error = Access::default()
        .read(&pod("172.30.0.1", "443"))
        .unwrap_err();
    let path = account.path().join("token");
    assert_eq!(
        error.to_string(),
        format!("open {}: no such file or directory", path.display())
    );
}

#[test]
fn a_missing_kubeconfig_is_reported_in_the_words_of_the_reference() {
    let access = Access {
        kubeconfig: "/nowhere/kubeconfig".to_owned(),
        master: "http://10.0.0.1:8080".to_owned(),
    };
    assert_eq!(
        access.read(&nowhere()).unwrap_err().to_string(),
        "stat /nowhere/kubeconfig: no such file or directory"
    );
}

#[test]
fn what_is_wrong_with_a_kubeconfig_is_reported() {
    let wrong = |content: &str| chain(&read(content, "").unwrap_err());
    assert!(wrong("a: [").contains("not a usable kubeconfig"));
    assert!(wrong("apiVersion: v1\nkind: Config\n").contains("current context"));
    let proxied = kubeconfig("https://10.0.0.1", "{}").replace(
        "server:",
        "proxy-url: \"ftp://me:secret@10.0.0.9\", server:",
    );
    let message = wrong(&proxied);
    assert!(
        message.ends_with(
            ": invalid 'proxy-url' for cluster \"k\": unsupported scheme \"ftp\", must be http, \
             https, or socks5"
        ),
        "{message}"
    );
    assert!(!message.contains("secret"), "{message}");
    assert!(wrong(&kubeconfig("https://", "{}")).starts_with("\"https://\" is not the address"));
    let tokenless = kubeconfig("https://10.0.0.1", "{tokenFile: /nowhere/token}");
    assert_eq!(
        wrong(&tokenless),
        "open /nowhere/token: no such file or directory"
    );
}

#[test]
fn the_master_override_beats_the_kubeconfig() {
    let url = |content: &str, master: &str| read(content, master).unwrap().config.cluster_url;
    let plain = kubeconfig("https://10.0.0.1:6443", "{}");
    assert_eq!(url(&plain, ""), "https://10.0.0.1:6443");
    assert_eq!(url(&plain, "http://10.0.0.2:8080"), "http://10.0.0.2:8080");
    // People leave the scheme out; what else is there says which one they mean.
    assert_eq!(url(&plain, "10.0.0.2:8080"), "http://10.0.0.2:8080");
    let secure = plain.replace("server:", "insecure-skip-tls-verify: true, server:");
    assert_eq!(url(&secure, "10.0.0.2:8443"), "https://10.0.0.2:8443");
}

#[test]
fn we_go_by_the_name_of_the_reference() {
    run(async {
        let server = Server::start().await;
        let seen = ask(&api(&server), &server).await;
        let architecture = match std::env::consts::ARCH {
            "x86_64" => "amd64",
            "aarch64" => "arm64",
            other => other,
        };
        let own = env!("CARGO_PKG_VERSION");
        assert_eq!(
            seen.header("user-agent"),
            format!("kube-proxy/v1.36.4 (linux/{architecture}) ferrule/{own}")
        );
        assert_eq!(seen.header("authorization"), "");
    });
}

#[test]
fn a_token_file_is_read_for_every_request() {
    run(async {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let (path, token) = (
            folder.path().join("kubeconfig"),
            folder.path().join("token"),
        );
        // Relative to the kubeconfig, and with a line end, as people write such files.
        fs::write(&token, "one\n").unwrap();
        fs::write(&path, kubeconfig(&server.url(), "{tokenFile: token}")).unwrap();
        let api = open(&path);
        assert_eq!(
            ask(&api, &server).await.header("authorization"),
            "Bearer one"
        );
        fs::write(&token, "two").unwrap();
        assert_eq!(
            ask(&api, &server).await.header("authorization"),
            "Bearer two"
        );
        // While it is being replaced, the last one is better than none.
        fs::write(&token, "").unwrap();
        assert_eq!(
            ask(&api, &server).await.header("authorization"),
            "Bearer two"
        );
        fs::remove_file(&token).unwrap();
        assert_eq!(
            ask(&api, &server).await.header("authorization"),
            "Bearer two"
        );
        fs::write(&token, "three").unwrap();
        assert_eq!(
            ask(&api, &server).await.header("authorization"),
            "Bearer three"
        );
    });
}

#[test]
fn tokens_passwords_and_plugins_are_used() {
    run(async {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        write_plugin(folder.path());
        for (user, header) in [
            ("{token: inline}", "Bearer inline"),
            (BASIC, "Basic bWU6c2VjcmV0"),
            (PLUGIN, "Bearer from-plugin"),
        ] {
            let seen = ask(&api_of(folder.path(), &server, user), &server).await;
            assert_eq!(seen.header("authorization"), header);
            assert!(seen.header("user-agent").starts_with("kube-proxy/"));
        }
    });
}

#[test]
fn a_token_that_cannot_be_sent_is_named_as_the_reason() {
    run(async {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, kubeconfig("https://localhost", r#"{token: "a\nb"}"#)).unwrap();
        let error = Api::open_in(nowhere(), access(&path, ""), Arc::new(())).unwrap_err();
        assert!(chain(&error).contains("the user's token"), "{error}");
    });
}

#[test]
fn new_credentials_are_read_when_the_old_ones_are_refused() {
    run(async {
        let server = Server::start().await;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kubeconfig");
        fs::write(&path, kubeconfig(&server.url(), "{token: old}")).unwrap();
        let api = open(&path);
        let mut consumer = Consumer::with(&api, settings());
        consumer.until_same(&server).await;
        fs::write(&path, kubeconfig(&server.url(), "{token: new}")).unwrap();
        // Only the clock moves here; nothing else happens meanwhile.
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
        server.fail(SERVICES, Ask::Watch, Fault::Status(401, "Unauthorized"));
        server.cut();
        server.put(SERVICES, service("a", 80));
        consumer.until_same(&server).await;
        let last = server.seen(SERVICES).pop().unwrap();
        assert_eq!(last.header("authorization"), "Bearer new");
        // What makes no sense is not taken over.
        fs::write(&path, "a: [").unwrap();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(61)).await;
        tokio::time::resume();
        server.fail(SERVICES, Ask::Watch, Fault::Status(401, "Unauthorized"));
        server.cut();
        server.put(SERVICES, service("b", 80));
        consumer.until_same(&server).await;
        let last = server.seen(SERVICES).pop().unwrap();
        assert_eq!(last.header("authorization"), "Bearer new");
    });
}

#[test]
fn a_server_that_does_not_speak_tls_is_recognised() {
    run(async {
        let server = Server::start().await;
        let access = Access {
            master: format!("https://{}", server.address),
            ..Access::default()
        };
        let api = Api::open_in(nowhere(), access, Arc::new(())).unwrap();
        let failure = api.get(SERVICES, Format::Protobuf, LONG).await.unwrap_err();
        let advice = failure.advice(super::super::resource::Resource::of(Kind::Service), "h");
        assert!(
            advice
                .as_deref()
                .is_some_and(|text| text.contains("does not speak TLS")),
            "{advice:?} for {}",
            failure.whole()
        );
    });
}
