"""path.py <checkout> <n> <callgrind of none> <of n cycles> <of n locks>: functions entered once a cycle or more.

Counted is what somebody wrote in src/: a closure or a static within a function belongs to it, a generic function is one,
and neither what is derived nor what the compiler makes counts.
"""

import os
import re
import sys
from collections import Counter, defaultdict

FUNCTIONS, FILES = 60, 12
TABLE = os.path.join(os.path.dirname(__file__), "features")
# The feature that the cycle is of.
MEASURED = "mutex"


def entries(path, source):
    """How often each function of the crate was entered: {(file, function): calls}."""
    names = {"file": {}, "function": {}}

    def name(kind, text):
        # `(3) text` says what 3 stands for from here on, `(3)` uses it.
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
            # Without a word of its own a callee is in the caller's file.
            callee_file = file
    return found


def plain(function):
    """Without hash and recursion level, closures and statics."""
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
    """The name of a function without its path and its type arguments, which may contain paths, too."""
    while function != (function := re.sub(r"<[^<>]*>", "", function)):
        pass
    return function.rpartition("::")[2]


class Features:
    """The table of features."""

    def __init__(self, source):
        self.rows, self.stale = {}, []
        for line in open(TABLE):
            row, _, feature = line.partition("#")[0].strip().partition(" ")
            if not row:
                continue
            path, _, words = row.partition("::")
            self.rows[path, words] = feature.strip()
            if not os.path.exists(source + path):
                self.stale.append(row)

    def of(self, file, function):
        """The feature of a function, or None if no row names its file."""
        found = [
            (words != "", len(path), len(words), feature)
            for (path, words), feature in self.rows.items()
            if f"{file}/".startswith(f"{path}/") and (not words or f"_{words}_" in f"_{bare(function)}_")
        ]
        return max(found)[3] if found else None


def print_features(source, files):
    """Prints the functions that belong to another feature, and the rows of the table that are wrong."""
    features = Features(source)
    foreign, unknown = defaultdict(list), []
    for file, found in sorted(files.items()):
        for function, _ in sorted(found):
            feature = features.of(file, function)
            if feature is None:
                unknown.append(file)
            elif feature != MEASURED:
                foreign[feature].append(f"src/{file} {bare(function)}")
    print(f"\nfunctions of another feature than {MEASURED}, by {os.path.relpath(TABLE)}")
    for feature, found in sorted(foreign.items()):
        for function in found:
            print(f"  {feature:10} {function}")
    number = sum(map(len, foreign.values()))
    print(f"  {number:3} functions  at most   0  {'MISSED' if number or unknown else 'met'}")
    for file in sorted(set(unknown)):
        print(f"no row names src/{file}")
    for row in features.stale:
        print(f"a row names {row}, which does not exist")


def main():
    root, times, *runs = sys.argv[1:]
    source, times = root.rstrip("/") + "/src/", int(times)
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
    print_features(source, files)


main()
