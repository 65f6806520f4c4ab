"""Are the fast encoders exact? Every document of given texts, encoded by the fast encoder and by the reference library.

    python benchmarks/tokenizer_families.py --text en=english.jsonl --text zh=chinese.jsonl NAME=tokenizer.json …

Prints a JSON line for each tokenizer and text: documents, tokens and the number of documents whose ids differ. The
adversarial text is made here: random runs of 25 Unicode blocks, mutated real documents, long repetitions and the
spelling of every added token, from another seed than the probe that the stage itself makes at its start.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np

from pamp_pipelines.tokenization import encoders
from pamp_pipelines.tokenization.encoders import choose_encoder, open_encoder
from pamp_pipelines.tokenization.engines import open_tokenizer


def adversarial(documents: list[str], tokens: list[str], count: int = 3000) -> list[str]:
    """Strings that break careless tokenizers."""
    choose = random.Random(7)
    texts = [f"{a}{token}{b}" for token in tokens for a, b in (("", ""), ("x", "y"), (" ", " "), ("\n", "中"))]
    for _ in range(count):
        parts = list(choose.choice(documents)[: choose.randint(1, 400)]) if documents else []
        for _ in range(choose.randint(1, 12)):
            first, last = choose.choice(encoders._BLOCKS)
            run = "".join(chr(choose.randrange(first, last)) for _ in range(choose.randint(1, 9)))
            parts.insert(choose.randint(0, len(parts)), run + choose.choice(("", *encoders._JOINTS)))
        texts.append("".join(parts))
    texts += [character * n for character in "a 0\n=é中😀\u0301" for n in (2, 7, 100, 5000)]
    texts += [text.upper() for text in choose.sample(documents, min(200, len(documents)))]
    return texts + [text[::-1] for text in choose.sample(documents, min(200, len(documents)))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", action="append", default=[], metavar="NAME=FILE", help="JSONL with a field text")
    parser.add_argument("--limit", type=int, default=3000, help="documents of each text")
    parser.add_argument("tokenizers", nargs="+", metavar="NAME=FILE")
    options = parser.parse_args()
    texts: dict[str, list[str]] = {}
    for entry in options.text:
        name, file = entry.split("=", 1)
        with Path(file).open("rb") as stream:
            texts[name] = [json.loads(line)["text"] for _, line in zip(range(options.limit), stream, strict=False)]
    everything = [document for documents in texts.values() for document in documents]
    for entry in options.tokenizers:
        name, file = entry.split("=", 1)
        reference = open_tokenizer(Path(file))
        chosen = choose_encoder(reference, lambda event: print(event.data["message"]))
        fast = open_encoder(reference.file, chosen, reference.sha256)
        for kind, documents in {**texts, "adversarial": adversarial(everything, list(reference.added_tokens))}.items():
            different = tokens = 0
            for start in range(0, len(documents), 500):
                batch = documents[start : start + 500]
                ids, lengths = reference.encode(batch)
                others, other_lengths = fast.encode(batch)
                tokens += len(ids)
                if np.array_equal(lengths, other_lengths) and np.array_equal(ids, others):
                    continue
                for text in batch:
                    if not np.array_equal(reference.encode([text])[0], fast.encode([text])[0]):
                        different += 1
            row = {"tokenizer": name, "encoder": fast.name, "reference": reference.name, "text": kind}
            print(json.dumps(row | {"documents": len(documents), "tokens": tokens, "different": different}), flush=True)


if __name__ == "__main__":
    main()
