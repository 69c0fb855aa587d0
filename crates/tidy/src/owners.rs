//! No god objects: how many methods a type may have, and that its `impl` blocks stay in its folder.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::visit::Visit;

use crate::Finding;
use crate::source::Source;

/// Most methods of a type, those of traits left out.
pub const METHODS_MAX: usize = 60;

/// Types that are larger still: crate, type, methods. A number here may only fall.
pub const LARGER: &[(&str, &str, usize)] = &[("fs", "FileSystem", 86)];

/// Checks all sources of a crate.
pub fn check(krate: &str, sources: &[&Source]) -> Vec<Finding> {
    check_against(krate, sources, LARGER)
}

fn check_against(krate: &str, sources: &[&Source], larger: &[(&str, &str, usize)]) -> Vec<Finding> {
    let mut count = Count { methods: BTreeMap::new() };
    for source in sources {
        count.visit_file(&source.file);
    }
    let mut findings = Vec::new();
    for (name, methods) in &count.methods {
        let known = larger.iter().find(|(of, large, _)| *of == krate && large == name);
        let methods_max = known.map_or(METHODS_MAX, |(_, _, methods)| *methods);
        if *methods > methods_max {
            findings.push(format!(
                "crates/{krate}: `{name}` has {methods} methods, at most {methods_max}: give parts of it an owner"
            ));
        }
    }
    for (of, large, methods) in larger.iter().filter(|(of, ..)| *of == krate) {
        let now = count.methods.get(*large).copied().unwrap_or(0);
        if now < *methods {
            findings.push(format!(
                "crates/{of}: `{large}` has {now} methods only: lower its {methods} in `LARGER`"
            ));
        }
    }
    findings
}

struct Count {
    methods: BTreeMap<String, usize>,
}

impl<'a> Visit<'a> for Count {
    fn visit_item_impl(&mut self, item: &'a syn::ItemImpl) {
        if item.trait_.is_none()
            && let syn::Type::Path(path) = &*item.self_ty
            && let Some(name) = path.path.segments.last()
        {
            let is_method =
                |item: &&syn::ImplItem| matches!(item, syn::ImplItem::Fn(method) if !is_test(method));
            let methods = item.items.iter().filter(is_method).count();
            *self.methods.entry(name.ident.to_string()).or_default() += methods;
        }
        syn::visit::visit_item_impl(self, item);
    }
}

fn is_test(method: &syn::ImplItemFn) -> bool {
    method.attrs.iter().any(|attr| attr.to_token_stream().to_string().contains("cfg (test)"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(methods: usize) -> Source {
        let methods: Vec<_> = (0..methods).map(|n| format!("fn m{n}(&self) {{}}")).collect();
        let methods = methods.join(" ");
        let text = format!(
            "//! x\nimpl Large {{ {methods} #[cfg(test)] fn t(&self) {{}} }} impl Clone for Large {{ fn clone(&self) {{}} }}"
        );
        Source::parse("crates/kvdb/src/a.rs", &text).unwrap()
    }

    #[test]
    fn methods_of_a_type_are_counted_over_all_its_blocks() {
        let (half, more) = (source(METHODS_MAX / 2), source(METHODS_MAX / 2 + 1));
        assert!(check_against("kvdb", &[&half, &half], &[]).is_empty());
        let findings = check_against("kvdb", &[&half, &more], &[]);
        assert!(findings[0].contains("`Large` has 61 methods"), "{findings:?}");
    }

    #[test]
    fn number_of_a_larger_type_may_only_fall() {
        let source = source(70);
        let check = |methods| check_against("kvdb", &[&source], &[("kvdb", "Large", methods)]);
        assert!(check(70).is_empty());
        assert!(check(69)[0].contains("at most 69"));
        assert!(check(71)[0].contains("lower its 71"));
    }
}
