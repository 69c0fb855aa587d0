//! No god objects: how many methods a type may have, and that its `impl` blocks stay in its folder.

use std::collections::BTreeMap;

use quote::ToTokens;
use syn::visit::Visit;

use crate::Finding;
use crate::source::Source;

/// Most methods of a type, those of traits left out.
pub const METHODS_MAX: usize = 60;

/// Checks all sources of a crate.
pub fn check(krate: &str, sources: &[&Source]) -> Vec<Finding> {
    let mut count = Count { methods: BTreeMap::new() };
    for source in sources {
        count.visit_file(&source.file);
    }
    let large = count.methods.iter().filter(|(_, methods)| **methods > METHODS_MAX);
    large
        .map(|(name, methods)| {
            format!(
                "crates/{krate}: `{name}` has {methods} methods, at most {METHODS_MAX}: give parts of it an owner"
            )
        })
        .collect()
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
        assert!(check("kvdb", &[&half, &half]).is_empty());
        let findings = check("kvdb", &[&half, &more]);
        assert!(findings[0].contains("`Large` has 61 methods"), "{findings:?}");
    }
}
