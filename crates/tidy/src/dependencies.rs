//! What dependencies may be: the licences and sources that `deny.toml` allows, and no version left open.
//!
//! The rules are those of `cargo deny check bans licenses sources`, which takes minutes to compile; `make
//! advisories` runs it for what needs its database.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::Finding;

/// The one registry that dependencies come from.
const REGISTRY: &str = "registry+https://github.com/rust-lang/crates.io-index";

/// The licences that `deny.toml` allows.
pub struct Licences {
    all: Vec<String>,
    /// Crates that may have others.
    exceptions: BTreeMap<String, Vec<String>>,
}

impl Licences {
    /// # Errors
    /// A text that is not TOML, or without a list of licences.
    pub fn parse(deny: &str) -> Result<Self, String> {
        let deny: toml::Table = deny.parse().map_err(|e| format!("deny.toml: {e}"))?;
        let licences = deny.get("licenses").ok_or("deny.toml: no [licenses]")?;
        let list = |table: &toml::Value| -> Option<Vec<String>> {
            let names = table.get("allow")?.as_array()?.iter();
            names.map(|name| name.as_str().map(str::to_owned)).collect()
        };
        let all = list(licences).ok_or("deny.toml: no list of names `allow` in [licenses]")?;
        let mut exceptions = BTreeMap::new();
        for exception in licences.get("exceptions").and_then(toml::Value::as_array).into_iter().flatten() {
            let name = exception.get("crate").and_then(toml::Value::as_str);
            let name = name.ok_or("deny.toml: an exception names no crate")?;
            let allowed = list(exception).ok_or_else(|| format!("deny.toml: {name}: no list `allow`"))?;
            exceptions.insert(name.to_owned(), allowed);
        }
        Ok(Self { all, exceptions })
    }

    /// Whether all that `expression` (SPDX) demands is allowed for the crate `name`.
    fn allow(&self, name: &str, expression: &spdx::Expression) -> bool {
        let also = self.exceptions.get(name);
        expression.evaluate(|demand| {
            let demand = demand.to_string();
            self.all.iter().chain(also.into_iter().flatten()).any(|allowed| *allowed == demand)
        })
    }
}

/// Checks what `cargo metadata` tells of the packages that kvfs is built of, and is made of itself.
///
/// # Errors
/// A text that is not the answer of `cargo metadata`.
pub fn check(metadata: &str, licences: &Licences) -> Result<Vec<Finding>, String> {
    let metadata: Value = serde_json::from_str(metadata).map_err(|e| format!("cargo metadata: {e}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata: no packages")?;
    let mut findings = Vec::new();
    for package in packages {
        let text = |key: &str| package[key].as_str();
        let name = text("name").ok_or("cargo metadata: a package without a name")?;
        match text("source") {
            None => findings.extend(open_versions(name, package)),
            Some(REGISTRY) => {}
            Some(source) => findings.push(format!("{name}: comes from {source}, not from crates.io")),
        }
        findings.extend(licence_refused(name, text("license"), licences));
    }
    Ok(findings)
}

fn licence_refused(name: &str, licence: Option<&str>, licences: &Licences) -> Option<Finding> {
    let Some(licence) = licence else { return Some(format!("{name}: names no licence")) };
    // As `MIT/Apache-2.0`, too, which older crates say.
    match spdx::Expression::parse_mode(licence, spdx::ParseMode::LAX) {
        Ok(expression) if licences.allow(name, &expression) => None,
        Ok(_) => Some(format!("{name}: its licence, {licence}, is not on the list of deny.toml")),
        Err(error) => {
            Some(format!("{name}: its licence, {licence}, is no expression of SPDX: {}", error.reason))
        }
    }
}

/// Dependencies of a crate of ours that take any version, and are not in this repository.
fn open_versions<'a>(name: &'a str, package: &'a Value) -> impl Iterator<Item = Finding> + 'a {
    let dependencies = package["dependencies"].as_array().into_iter().flatten();
    dependencies
        .filter(|dependency| dependency["req"] == "*" && dependency["path"].is_null())
        .map(move |dependency| format!("{name}: takes any version of {}", dependency["name"]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const DENY: &str = r#"
        [licenses]
        allow = ["Apache-2.0", "Apache-2.0 WITH LLVM-exception", "MIT"]
        exceptions = [{ crate = "tool", allow = ["MPL-2.0"] }]
    "#;

    fn found(packages: &Value) -> Vec<Finding> {
        check(&json!({ "packages": packages }).to_string(), &Licences::parse(DENY).unwrap()).unwrap()
    }
    fn package(name: &str, licence: &str) -> Value {
        json!({ "name": name, "source": REGISTRY, "license": licence, "dependencies": [] })
    }

    #[test]
    fn licences_are_those_of_the_list() {
        let allowed =
            ["MIT", "MIT/Apache-2.0", "GPL-3.0-only OR MIT", "Apache-2.0 WITH LLVM-exception AND MIT"];
        let packages: Vec<_> = allowed.map(|licence| package("a", licence)).into();
        assert_eq!(found(&packages.into()), Vec::<Finding>::new());
        for refused in ["MPL-2.0", "GPL-3.0-only AND MIT", "MIT WITH LLVM-exception", "a licence"] {
            assert_eq!(found(&json!([package("a", refused)])).len(), 1, "{refused}");
        }
        assert_eq!(found(&json!([{ "name": "a", "source": REGISTRY, "dependencies": [] }])).len(), 1);
    }

    #[test]
    fn an_exception_is_for_one_crate() {
        assert!(found(&json!([package("tool", "MPL-2.0")])).is_empty());
        assert_eq!(found(&json!([package("tools", "MPL-2.0")])).len(), 1);
    }

    #[test]
    fn another_source_is_found() {
        let git = json!([{ "name": "a", "source": "git+https://x", "license": "MIT", "dependencies": [] }]);
        assert_eq!(found(&git).len(), 1);
    }

    #[test]
    fn an_open_version_is_found_in_crates_of_the_repository() {
        let used = |path: Value| json!({ "name": "b", "req": "*", "path": path });
        let ours = |used: Value| json!([{ "name": "a", "license": "MIT", "dependencies": [used] }]);
        assert_eq!(found(&ours(used(Value::Null))).len(), 1);
        assert!(found(&ours(used("b".into()))).is_empty());
    }
}
