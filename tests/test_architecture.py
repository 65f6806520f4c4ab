"""Properties of the repository as a whole."""

import ast
import graphlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "pamp_pipelines"
MODULES = sorted(PACKAGE.rglob("*.py"))
HEAVY = ("torch", "transformers", "megatron", "lm_eval", "datasets")


def loaded_by(code: str) -> tuple[set[str], float]:
    """Top-level modules that a fresh interpreter has after running ``code``, and the CPU seconds that it used."""
    program = f"{code}\nimport sys, time\nprint(time.process_time(), *sys.modules)"
    output = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=ROOT
    ).stdout
    seconds, *modules = output.split()
    return {module.partition(".")[0] for module in modules}, float(seconds)


def test_definitions_import_no_deep_learning_library() -> None:
    modules, seconds = loaded_by("import pamp_pipelines.definitions")
    assert modules.isdisjoint(HEAVY)
    assert seconds < 2.5


def test_the_command_line_starts_light() -> None:
    modules, seconds = loaded_by("import pamp_pipelines.cli")
    assert modules.isdisjoint({*HEAVY, "dagster", "pydantic", "yaml", "pandas", "pyarrow", "numpy", "rich"})
    assert seconds < 0.5


def test_only_the_orchestration_imports_dagster() -> None:
    allowed = {"orchestration", "definitions.py"}
    offenders = {
        str(file.relative_to(PACKAGE))
        for file in MODULES
        if file.relative_to(PACKAGE).parts[0] not in allowed
        and any(name.partition(".")[0] == "dagster" for name in imports(file))
    }
    assert offenders == set()


def parse(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def imports(file: Path) -> Iterator[str]:
    for node in ast.walk(parse(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_no_module_imports_itself_through_others() -> None:
    """Also inside functions, where a circle only shows later."""
    names = {".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): file for file in MODULES}
    graph: dict[str, set[str]] = {}
    for name, file in names.items():
        froms = [node for node in ast.walk(parse(file)) if isinstance(node, ast.ImportFrom) and node.module]
        full = {(node.module or "", f"{node.module}.{alias.name}") for node in froms for alias in node.names}
        graph[name] = {inner if inner in names else module for module, inner in full} & names.keys()
    graphlib.TopologicalSorter(graph).prepare()  # raises CycleError, which holds the circle


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(file.relative_to(PACKAGE)) for file in MODULES if not ast.get_docstring(parse(file))]
    assert silent == []


def test_no_foreign_code_runs() -> None:
    """No shell, no model's own Python, no bare unpickling."""
    unsafe = {"os.system", "os.popen", "eval", "exec", "pickle.load", "pickle.loads", "yaml.unsafe_load"}
    offenders = []
    for file in MODULES:
        for call in (node for node in ast.walk(parse(file)) if isinstance(node, ast.Call)):
            name = ast.unparse(call.func)
            given = {k.arg: k.value.value for k in call.keywords if isinstance(k.value, ast.Constant)}
            unpickles = name == "torch.load" and given.get("weights_only") is not True
            if name in unsafe or unpickles or given.get("shell") or given.get("trust_remote_code"):
                offenders.append(f"{file.relative_to(PACKAGE)}:{call.lineno}: {ast.unparse(call)}")
    assert offenders == []


def tracked(*patterns: str) -> list[Path]:
    names = subprocess.run(["git", "ls-files", "-z", *patterns], capture_output=True, text=True, check=True, cwd=ROOT)
    return [ROOT / name for name in names.stdout.split("\0") if name and (ROOT / name).is_file()]


def test_no_paths_of_one_machine() -> None:
    absolute = re.compile(r"(?<![\w.])/(home|Users|root|work|mnt)/\w")
    texts = tracked("*.py", "*.toml", "*.yaml", "*.yml", "*.md", "*.json", "*.cfg", "Makefile", ".ci/run", "*.ipynb")
    offenders = [
        f"{file.relative_to(ROOT)}:{number}"
        for file in texts
        if file != Path(__file__)
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1)
        if absolute.search(line)
    ]
    assert offenders == []


def test_locks_name_no_host() -> None:
    locks = tracked("*.lock")
    assert locks
    for lock in locks:
        assert "://" not in lock.read_text(encoding="utf-8"), f"{lock.name} names where packages were downloaded from"


def structure(markdown: str) -> tuple[list[int], list[str]]:
    """Levels of the headings, and the code blocks without comments, which are translated."""
    blocks = re.findall(r"^```.*?^```", markdown, re.MULTILINE | re.DOTALL)
    prose = re.sub(r"^```.*?^```", "", markdown, flags=re.MULTILINE | re.DOTALL)
    levels = [len(match[1]) for match in re.finditer(r"^(#+) ", prose, re.MULTILINE)]
    return levels, [re.sub(r"[ \t]+(#.*)?$", "", block, flags=re.MULTILINE) for block in blocks]


def test_both_readmes_have_the_same_headings_and_code() -> None:
    english = structure((ROOT / "README.md").read_text(encoding="utf-8"))
    chinese = structure((ROOT / "README.zh.md").read_text(encoding="utf-8"))
    assert english[0]
    assert english[1]
    assert chinese == english
