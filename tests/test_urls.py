"""No URL that lets somebody in is accepted or shown."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from pamp_pipelines import cli
from pamp_pipelines.declarations.base import Declaration
from pamp_pipelines.declarations.catalog import load_catalog
from pamp_pipelines.errors import DeclarationError, InputError
from pamp_pipelines.lake.remote import RemoteStore
from pamp_pipelines.project import Project
from pamp_pipelines.urls import credentials_in, redacted, require_no_credentials, without_secrets

REPOSITORY = Path(__file__).parent.parent
TOKENIZER = REPOSITORY / "data/tokenizers/shakespeare-bpe-2k"
REFUSED = [
    "http://user:HUSH@host/x.jsonl",
    "https://HUSH@host/x.jsonl",
    "s3://KEY:HUSH@bucket/x.jsonl",
    "s3://KEY:HU/HUSH@bucket/x.jsonl",
    "s3://KEY:HU?HUSH@bucket/x.jsonl",
    "S3://KEY:HUSH@bucket/x.jsonl",
    "simplecache::s3://KEY:HUSH@bucket/x.jsonl",
    "zip://a.jsonl::https://user:HUSH@host/x.zip",
    "abfss://container:HUSH@account.net/x.jsonl",
    "https://host/x.jsonl?sig=HUSH",
    "https://host/x.jsonl?sv=1&X-Amz-Signature=HUSH",
    "https://host/x.jsonl?access_token=HUSH&page=2",
    "https://host/x.jsonl?api-key=HUSH",
    "https://host/x.jsonl?page=2;password=HUSH",
]
ACCEPTED = [
    "s3://bucket/x.jsonl?versionId=abc",
    "https://host:8443/x@y.jsonl?page=2",
    "https://[::1]:80/x.jsonl",
    "hf://datasets/owner/name@main/x.jsonl",
    "abfss://container@account.net/x.jsonl",
    "file:///data/x@y.jsonl",
    "data/user:name@host.jsonl",
]


@pytest.fixture(autouse=True)
def _plain_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PAMP_PROJECT", "PAMP_LAKE", "DAGSTER_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)


def pamp(*args: object) -> Result:
    return CliRunner().invoke(cli.pamp, [str(arg) for arg in args])


@pytest.mark.parametrize("url", REFUSED)
def test_what_lets_somebody_in_is_refused_and_never_shown(url: str) -> None:
    assert "HUSH" not in redacted(url)
    assert "HUSH" not in without_secrets(f"tried '{url}', then {url}")
    with pytest.raises(InputError, match=r"^source: .*….* holds a .*: leave it out") as caught:
        require_no_credentials(url, "source")
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize("url", ACCEPTED)
def test_other_urls_and_paths_are_accepted_and_shown(url: str) -> None:
    assert credentials_in(url) is None
    assert require_no_credentials(url, "source") == url
    assert without_secrets(f"tried {url!r}") == f"tried {url!r}"


def test_a_path_that_was_made_of_a_url_is_shown_without_its_secret() -> None:
    said = f"{Path('/here') / Path('http://user:HUSH@host/model')}: no such directory"
    assert without_secrets(said) == "/here/http:/…@host/model: no such directory"
    assert redacted("s3:KEY:HUSH@bucket") == "s3:…@bucket"


@pytest.mark.parametrize(
    ("file", "old", "new", "field"),
    [
        ("corpora/sonnets", "data/corpora/sonnets.jsonl", "{url}", "sources"),
        ("corpora/sonnets", "[data/corpora/sonnets.jsonl]", "{url}", "sources"),
        ("corpora/sonnets", "format: jsonl", "format: {url}", "format"),
        ("models/scratch", "data/tokenizer", "{url}", "from_scratch.tokenizer"),
        ("models/imported", "data/models/imported", "{url}", "hf.path"),
        ("evaluations/sums", "data/sums.jsonl", "{url}", "data"),
    ],
)
def test_no_declaration_holds_one(own_project: Project, file: str, old: str, new: str, field: str) -> None:
    path = own_project.assets / f"{file}.yaml"
    before = path.read_text()
    assert old in before
    path.write_text(before.replace(old, new.format(url='"http://user:HUSH@host/x.jsonl"'), 1))
    with pytest.raises(DeclarationError) as caught:
        load_catalog(own_project)
    assert f"{path.name}:" in str(caught.value)
    assert f" {field}" in str(caught.value)
    assert "http://…@host/x.jsonl" in str(caught.value)
    causes = [caught.value.__cause__, *(error for error in [caught.value.__context__] if error)]
    assert "HUSH" not in f"{caught.value} {causes}"
    result = pamp("check", "--project", own_project.root, "--json")
    assert result.exit_code == 1
    assert "HUSH" not in result.output


def test_arguments_of_a_backend_hold_none(own_project: Project) -> None:
    path = own_project.assets / "evaluations/sums.yaml"
    path.write_text(path.read_text() + "\nbackend_arguments: {base_url: 'https://host/v1?api_key=HUSH'}\n")
    with pytest.raises(DeclarationError, match=r"backend_arguments\.base_url: .*api_key=…") as caught:
        load_catalog(own_project)
    assert "HUSH" not in str(caught.value)


def test_pydantics_own_message_holds_no_input() -> None:
    class Tiny(Declaration):
        number: int

    with pytest.raises(ValueError, match="number") as caught:
        Tiny.model_validate({"number": "HUSH"})
    assert "HUSH" not in str(caught.value)


@pytest.mark.parametrize("url", REFUSED)
def test_plain_commands_refuse_it(tmp_path: Path, url: str) -> None:
    result = pamp("tokenize", "--input", url, "--tokenizer", TOKENIZER, "--output", "shards", "--json")
    assert result.exit_code == 1
    assert "…" in json.loads(result.stdout.splitlines()[-1])["error"]["message"]
    assert "HUSH" not in result.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "args",
    [
        ("import-hf", "{url}", "out"),
        ("export-hf", "{url}", "out"),
        ("verify-checkpoint", "{url}", "out"),
        ("compare", "{url}", "out"),
        ("inspect", "{url}"),
        ("tokenize", "--input", "a", "--tokenizer", "{url}", "--output", "b"),
        ("evaluate", "{url}", "--suite", "arithmetic", "--output", "out"),
    ],
    ids=lambda args: args[0],
)
def test_no_error_shows_it(args: tuple[str, ...]) -> None:
    result = pamp(*(arg.format(url="http://user:HUSH@host/x") for arg in args), "--json")
    assert result.exit_code == 1, result.output
    assert "HUSH" not in result.output


def test_neither_does_a_lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PAMP_LAKE", "s3://KEY:HUSH@bucket/lake")
    with pytest.raises(InputError, match=r"PAMP_LAKE: s3://…@bucket/lake holds a user name") as caught:
        _ = Project(tmp_path).lake
    assert "HUSH" not in str(caught.value)
    with pytest.raises(InputError) as caught:
        RemoteStore("https://host/lake?sig=HUSH")
    assert "HUSH" not in str(caught.value)


def test_a_url_of_the_web_with_a_query_is_no_pattern(tmp_path: Path) -> None:
    url = "http://127.0.0.1:9/x.jsonl?page=2"  # the port of discard, where nobody listens
    result = pamp("tokenize", "--input", url, "--tokenizer", TOKENIZER, "--output", "shards", "--json")
    assert result.exit_code == 1
    assert str(tmp_path) not in result.output
    assert "127.0.0.1:9" in result.output


def test_a_bucket_that_cannot_be_is_the_inputs_fault() -> None:
    code = (
        "from pamp_pipelines.corpus.sources import expand\nfrom pathlib import Path\n"
        "expand(['s3://no bucket!/x.jsonl'], Path())"
    )
    environment = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "PATH": "", "HOME": "/nowhere"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=60)
    assert "InputError" in done.stderr.splitlines()[-1], done.stderr
    assert "correct the URL" in done.stderr
