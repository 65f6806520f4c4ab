import pytest

from pamp_pipelines.errors import InputError
from pamp_pipelines.evaluation.task_files import Function, read_task, resolve, shipped_tasks

TASK = "task: mine\noutput_type: generate_until\n"


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


@pytest.mark.parametrize("name", sorted(shipped_tasks()))
def test_shipped_tasks_are_named_as_their_files(name):
    assert read_task(shipped_tasks()[name]).name == name


def test_minerva_rows_keep_lm_evals_prompt_scorer_and_version():
    task = read_task(shipped_tasks()["minerva_math_rows"])
    assert task.config["num_fewshot"] == 4
    assert task.config["metadata"]["version"] >= 3
    assert task.config["dataset_path"] is None
    assert task.config["test_split"] == "test"
    assert {f.name for f in task.files} == {"minerva_math_rows.yaml", "minerva_math_algebra.yaml", "utils.py"}
    assert resolve(task.config["process_results"]).__module__ == "lm_eval.tasks.minerva_math.utils"


def test_include_is_merged_and_the_outer_file_wins(tmp_path):
    write(tmp_path / "base.yaml", TASK + "num_fewshot: 1\ndoc_to_text: a\n")
    file = write(tmp_path / "sub/top.yaml", "include: ../base.yaml\ntask: top\nnum_fewshot: 2\n")
    task = read_task(file)
    assert task.config == {"task": "top", "output_type": "generate_until", "num_fewshot": 2, "doc_to_text": "a"}


def test_hash_covers_includes_and_code_but_not_the_folder(tmp_path):
    for folder in ("a", "b"):
        write(tmp_path / folder / "base.yaml", TASK + "process_results: !function code.f\n")
        write(tmp_path / folder / "code.py", "def f(doc, results): return {}\n")
        write(tmp_path / folder / "top.yaml", "include: base.yaml\n")
    first, second = (read_task(tmp_path / folder / "top.yaml", [tmp_path]) for folder in "ab")
    assert first.sha256 == second.sha256
    write(tmp_path / "b/code.py", "def f(doc, results): return {'x': 1}\n")
    assert read_task(tmp_path / "b/top.yaml", [tmp_path]).sha256 != first.sha256


def test_code_runs_from_trusted_folders_only(tmp_path):
    file = write(tmp_path / "task.yaml", TASK + "process_results: !function code.f\n")
    write(tmp_path / "code.py", "raise SystemExit('ran')\n")
    with pytest.raises(InputError, match=r"task\.yaml:3: .*code\.f.* outside the project"):
        read_task(file)
    assert isinstance(read_task(file, [tmp_path]).config["process_results"], Function)


def test_code_elsewhere_is_refused_although_the_task_is_trusted(tmp_path):
    write(tmp_path / "elsewhere/code.py", "def f(doc, results): return {}\n")
    file = write(tmp_path / "project/task.yaml", TASK + "process_results: !function code.f\n")
    (tmp_path / "project/code.py").symlink_to(tmp_path / "elsewhere/code.py")
    outside = write(tmp_path / "project/outside.yaml", TASK + f"process_results: !function {_dotted(tmp_path)}.f\n")
    for foreign in (file, outside):
        with pytest.raises(InputError, match=r"outside the project \(.*elsewhere/code\.py\)"):
            read_task(foreign, [tmp_path / "project"])
        assert resolve(read_task(foreign, allow_code=True).config)["process_results"](None, None) == {}


def _dotted(root):
    """A reference that leads to an absolute path: dots become slashes."""
    return "." + ".".join((root / "elsewhere/code").parts[1:])


def test_an_included_file_with_code_is_refused_too(tmp_path):
    write(tmp_path / "evil/base.yaml", TASK + "process_results: !function os.system\n")
    file = write(tmp_path / "project/task.yaml", "include: ../evil/base.yaml\n")
    with pytest.raises(InputError, match="outside the project"):
        read_task(file, [tmp_path / "project"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("task: [a, b]\n", "must be the name of one task"),
        ("- a\n", "a task file is a mapping"),
        ("task: a\ninclude: nothing.yaml\n", "no such task file, included by"),
        ("task: a\ninclude: task.yaml\n", "includes itself"),
        ("task: a\nx: !!python/object/apply:os.getcwd []\n", "not a readable task file"),
        ("task: [a\n", "not a readable task file"),
    ],
)
def test_bad_files_are_named(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        read_task(write(tmp_path / "task.yaml", text))


def test_a_function_that_does_not_exist_is_named(tmp_path):
    write(tmp_path / "code.py", "")
    file = write(tmp_path / "task.yaml", TASK + "process_results: !function code.f\n")
    with pytest.raises(InputError, match=r"code\.f.* cannot be found"):
        resolve(read_task(file, [tmp_path]).config)
