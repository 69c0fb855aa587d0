//! A project in C to be built: modules that include the system's headers, a library, a program that checks
//! itself.
//!
//! It is the same on every machine and needs no network. The kernel tree of the other steps would take an
//! hour to build.
//!
//! Thread safety: plain functions.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use anyhow::{Context, Result};

/// Makes the sources in `dir`, which is not there yet.
pub(crate) fn create(dir: &Path, modules: usize) -> Result<()> {
    fs::create_dir(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    let mut header = String::from("#pragma once\n");
    let mut main = String::from("#include \"parts.h\"\nint main(void) {\n\tlong sum = 0;\n");
    for number in 0..modules {
        // Writing to a string cannot fail.
        let _ = writeln!(header, "long part{number}(long x);");
        let _ = writeln!(main, "\tsum += part{number}({number});");
        fs::write(dir.join(format!("part{number}.c")), module(number))?;
    }
    let _ = writeln!(main, "\treturn sum == 0;\n}}");
    fs::write(dir.join("parts.h"), header)?;
    fs::write(dir.join("main.c"), main)?;
    let objects: Vec<String> = (0..modules).map(|number| format!("part{number}.o")).collect();
    let makefile = format!(
        "program: main.o libparts.a\n\tcc -o $@ main.o libparts.a\n\t./$@\n\
         libparts.a: {}\n\tar rc $@ $^\n%.o: %.c parts.h\n\tcc -O1 -g -c -o $@ $<\n",
        objects.join(" ")
    );
    fs::write(dir.join("Makefile"), makefile)?;
    Ok(())
}

/// Some functions with something to optimize.
fn module(number: usize) -> String {
    let mut text = String::from(
        "#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n#include <math.h>\n#include \"parts.h\"\n",
    );
    for function in 0..20 {
        let _ = writeln!(
            text,
            "static long step{function}(long x) {{\n\tchar text[64];\n\tlong sum = 1;\n\
             \tfor (long i = 0; i < x % 50; i++)\n\t\tsum += snprintf(text, sizeof text, \"%ld-%d\", i * x, {function});\n\
             \treturn sum + (long)strlen(text) * {number};\n}}"
        );
    }
    let _ = writeln!(text, "long part{number}(long x) {{\n\tlong sum = 0;");
    for function in 0..20 {
        let _ = writeln!(text, "\tsum += step{function}(x + {function} + 1);");
    }
    text.push_str("\treturn sum;\n}\n");
    text
}
