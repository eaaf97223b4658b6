//! Tokens, roles and certificates.

use std::path::Path;

use anyhow::Result;
use serde_json::{Value, json};

use super::Stage;
use crate::control::{self, Variant};
use crate::os;

/// Anyone's certificate will do; this is not about certificates.
fn trusting() -> Value {
    json!({ "insecure-skip-tls-verify": true })
}

/// The token file changes before the old token ends, and after.
pub fn token_replaced(stage: &mut Stage<'_>) -> Result<()> {
    let file = stage.folder.join("token");
    let admit = |stage: &mut Stage<'_>, token| {
        stage.lab.control.become_variant(Variant {
            guests: vec![(token, "system:masters")],
            roles: true,
            ..Variant::default()
        })
    };
    replace(&file, "guest-1")?;
    admit(stage, "guest-1")?;
    stage.write(&["a1"])?;
    stage.start_as(&trusting(), &json!({ "tokenFile": file }))?;
    stage.settle_patiently()?;
    stage.expect(&["a1"])?;

    replace(&file, "guest-2")?;
    admit(stage, "guest-2")?;
    stage.write(&["b1"])?;
    stage.settle_patiently()?;
    stage.expect(&["b1"])?;

    let mark = stage.mark();
    admit(stage, "guest-3")?;
    stage.write(&["a2"])?;
    mark.until_said(&["the credentials are not accepted", "services"])?;
    stage.expect(&["b1"])?;
    replace(&file, "guest-3")?;
    stage.settle_patiently()?;
    stage.expect(&["a2"])
}

/// As the kubelet does it: the file is there all the time, with one content or the other.
fn replace(file: &Path, token: &str) -> Result<()> {
    let next = file.with_extension("next");
    std::fs::write(&next, format!("{token}\n"))?;
    std::fs::rename(next, file)?;
    Ok(())
}

/// The role is missing at first.
pub fn not_allowed(stage: &mut Stage<'_>) -> Result<()> {
    stage.lab.control.become_variant(Variant {
        guests: vec![("guest", "guests")],
        roles: true,
        ..Variant::default()
    })?;
    stage.write(&["a1", "b2"])?;
    let mark = stage.mark();
    stage.start_as(&trusting(), &json!({ "token": "guest" }))?;
    mark.until_said(&[
        "403 Forbidden: services is forbidden",
        "bind the user to a ClusterRole that allows the verbs list and watch on services",
    ])?;
    mark.until_said(&["bind the user", "endpointslices", "discovery.k8s.io"])?;
    let objects = roles();
    for object in &objects {
        stage.lab.control.api.apply(object)?;
    }
    let allowed = stage.settle_patiently().and_then(|()| {
        mark.until_said(&["The API server answers again", "services"])?;
        stage.expect(&["a1", "b2"])
    });
    for object in &objects {
        stage.lab.control.api.delete(object)?;
    }
    allowed
}

fn roles() -> [Value; 2] {
    let version = "rbac.authorization.k8s.io/v1";
    let read = |group: &str, resources: &[&str]| json!({ "apiGroups": [group], "resources": resources, "verbs": ["get", "list", "watch"] });
    let role = json!({
        "apiVersion": version,
        "kind": "ClusterRole",
        "metadata": { "name": "guests" },
        "rules": [
            read("", &["services", "nodes"]),
            read("discovery.k8s.io", &["endpointslices"]),
            read("networking.k8s.io", &["servicecidrs"]),
        ],
    });
    let group = json!({
        "kind": "Group", "name": "guests", "apiGroup": "rbac.authorization.k8s.io",
    });
    let binding = json!({
        "apiVersion": version,
        "kind": "ClusterRoleBinding",
        "metadata": { "name": "guests" },
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "guests",
        },
        "subjects": [group],
    });
    [role, binding]
}

/// Certificates that are not what they should be, and one that is.
pub fn certificates(stage: &mut Stage<'_>) -> Result<()> {
    let user = json!({ "token": crate::api::TOKEN });
    let folder = stage.folder.join("expired");
    make_expired(&folder)?;
    let stranger = folder.join("own.crt");
    stage.write(&["b1"])?;

    let mark = stage.mark();
    stage.start_as(&json!({ "certificate-authority": stranger }), &user)?;
    mark.until_said(&["did not sign the API server's certificate"])?;

    // Proxies do not see what the lab keeps below /run.
    let known = stage.folder.join("known.crt");
    std::fs::copy(control::certificate(), &known)?;
    stage.start_as(&json!({ "certificate-authority": known }), &user)?;
    stage.settle_patiently()?;
    stage.expect(&["b1"])?;

    stage.lab.control.become_variant(Variant {
        flags: vec![
            format!("--tls-cert-file={}", stranger.display()),
            format!(
                "--tls-private-key-file={}",
                folder.join("own.key").display()
            ),
        ],
        ..Variant::default()
    })?;
    let mark = stage.mark();
    stage.start_as(&json!({ "certificate-authority": stranger }), &user)?;
    mark.until_said(&["certificate has expired"])
}

/// A certificate that signed itself for a day long ago.
fn make_expired(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let settings = "[ca]\ndefault_ca = own\n[own]\ndatabase = index\nserial = serial\n\
                    new_certs_dir = .\ndefault_md = sha256\npolicy = any\ncopy_extensions = copy\n\
                    [any]\ncommonName = supplied\n";
    for (name, text) in [("settings", settings), ("index", ""), ("serial", "01\n")] {
        std::fs::write(folder.join(name), text)?;
    }
    let openssl = |line: &str| {
        let mut command = os::command("openssl");
        os::output(command.args(line.split(' ')).current_dir(folder))
    };
    openssl(
        "req -newkey rsa:2048 -nodes -keyout own.key -out own.csr -subj /CN=lab \
         -addext subjectAltName=IP:172.31.0.1",
    )?;
    openssl(
        "ca -batch -config settings -selfsign -keyfile own.key -in own.csr -out own.crt -notext \
         -startdate 20200101000000Z -enddate 20200102000000Z",
    )?;
    Ok(())
}
