"""path.py <table> <checkout>: checks the table of features. Fails if a row or a file of src/ is missing.

path.py <table> <checkout> <n> <callgrind of none> <of n cycles> <of n locks>: lists functions entered once a cycle or more.
Only functions written in src/ count. A closure or a static within a function belongs to that function. All instances of a
generic function are one function. Derived functions and functions that the compiler generates do not count.
"""

import os
import re
import sys
from collections import Counter, defaultdict

FUNCTIONS, FILES = 60, 12
# The feature that the cycle uses.
MEASURED = "mutex"


def entries(path, source):
    """Returns how often each function of the crate was entered: {(file, function): calls}."""
    names = {"file": {}, "function": {}}

    def name(kind, text):
        # `(3) text` defines the number 3, `(3)` refers to it.
        number, said = re.fullmatch(r"\((\d+)\)(?: (.*))?", text).groups()
        if said is not None:
            names[kind][number] = said
        return names[kind][number]

    found, file, callee_file, callee = Counter(), None, None, None
    for line in open(path, errors="replace"):
        key, _, value = line.rstrip("\n").partition("=")
        if key == "fl":
            file = callee_file = name("file", value)
        elif key in ("fi", "fe"):
            name("file", value)
        elif key in ("cfi", "cfl"):
            callee_file = name("file", value)
        elif key == "fn":
            name("function", value)
            callee_file = file
        elif key == "cfn":
            callee = name("function", value)
        elif key == "calls":
            if callee_file.startswith(source):
                found[callee_file[len(source):], plain(callee)] += int(value.split()[0])
            # A callee without a file of its own is in the caller's file.
            callee_file = file
    return found


def plain(function):
    """Returns the name without hash, recursion level, closures and statics."""
    function = re.sub(r"'\d+$", "", function)
    function = re.sub(r"::h[0-9a-f]{16}$", "", function)
    function = re.sub(r"::\{\{?(?:closure|async)[^}]*\}\}?", "", function)
    return re.sub(r"::[A-Z][A-Z0-9_]*$", "", function)


def is_written(source, file, function):
    if not re.match(r"<*(tenure|impl )", function) and "tenure::" not in function:
        return False
    derived = re.match(r"<tenure::[\w:]*?(\w+)(?:<.*>)? as core::(?:clone|cmp|default|fmt|hash|marker)\S*?(\w+)>::", function)
    if not derived:
        return True
    of, trait = derived.groups()
    text = open(source + file).read()
    return re.search(rf"impl\b.*\b{trait}\b.* for {of}\b", text) is not None


def passed(source, times, before, after):
    """{file: [(function, calls per time)]}"""
    files = defaultdict(list)
    for (file, function), calls in after.items():
        more = calls - before[file, function]
        if more >= times and is_written(source, file, function):
            files[file].append((function, more / times))
    return files, sum(map(len, files.values()))


def bare(function):
    """Returns the name of a function without its path and its type arguments, which may contain paths, too."""
    while function != (function := re.sub(r"<[^<>]*>", "", function)):
        pass
    return function.rpartition("::")[2]


class Features:
    """The table of features."""

    def __init__(self, table):
        self.rows = {}
        for line in open(table):
            row, _, feature = line.partition("#")[0].strip().partition(" ")
            if row:
                path, _, words = row.partition("::")
                self.rows[path, words] = feature.strip()

    def of(self, file, function=""):
        """The feature of a function, or None if no row names its file or a folder of its file."""
        found = [
            (words != "", len(path), len(words), feature)
            for (path, words), feature in self.rows.items()
            if is_within(file, path) and (not words or has_words(function, words))
        ]
        return max(found)[3] if found else None

    def faults(self, source):
        """Yields what differs between the table and the files and functions of a checkout."""
        functions = {file: re.findall(r"\bfn (\w+)", open(source + file).read()) for file in files_of(source)}
        for file in functions:
            if self.of(file) is None:
                yield f"no row names src/{file}"
        for path, words in self.rows:
            within = [functions[file] for file in functions if is_within(file, path)]
            if not within:
                yield f"a row names src/{path}, which does not exist"
            elif words and not any(has_words(function, words) for function in sum(within, [])):
                yield f"a row names {path}::{words}, and no function there has these words"


def is_within(file, path):
    return f"{file}/".startswith(f"{path}/")


def has_words(function, words):
    return f"_{words}_" in f"_{bare(function)}_"


def files_of(source):
    """The Rust files of a checkout but its unit tests, by their paths below src/."""
    for folder, _, files in os.walk(source):
        for file in sorted(files):
            if file.endswith(".rs") and file != "tests.rs":
                yield os.path.relpath(os.path.join(folder, file), source)


def print_features(features, files):
    """Prints the functions that belong to another feature."""
    foreign = defaultdict(list)
    for file, found in sorted(files.items()):
        for function, _ in sorted(found):
            feature = features.of(file, function) or "unknown"
            if feature != MEASURED:
                foreign[feature].append(f"src/{file} {bare(function)}")
    print(f"\nfunctions of another feature than {MEASURED}")
    for feature, found in sorted(foreign.items()):
        for function in found:
            print(f"  {feature:10} {function}")
    number = sum(map(len, foreign.values()))
    print(f"  {number:3} functions  at most   0  {'MISSED' if number else 'met'}")


def check(features, source):
    """Ends the program if the table does not fit the checkout."""
    faults = sorted(features.faults(source))
    if faults:
        sys.exit("\n".join(faults))


def main():
    table, root, *rest = sys.argv[1:]
    features, source = Features(table), root.rstrip("/") + "/src/"
    if not rest:
        return check(features, source)
    times, runs = int(rest[0]), rest[1:]
    none, cycles, locks = (entries(run, source) for run in runs)
    files, functions = passed(source, times, none, cycles)
    if not functions:
        sys.exit("no function of the crate was seen: has the program debug information?")
    for file, found in sorted(files.items()):
        print(f"src/{file}: {len(found)}")
        for function, calls in sorted(found):
            print(f"  {calls:7.2f}  {function}")
    print("\none lock() and release() on Redis passes")
    for what, number, bound in (("functions", functions, FUNCTIONS), ("files", len(files), FILES)):
        print(f"  {number:3} {what:10} at most {bound:3}  {'met' if number <= bound else 'MISSED'}")
    of_locks, functions = passed(source, times, none, locks)
    print(f"of them lock() alone: {functions} in {len(of_locks)} files")
    print_features(features, files)


main()
