"""Fingerprints of similar texts: datatrove's MinHash, its bands hashed to equal sizes.

Two texts that share a band are similar (Broder 1997; locality-sensitive hashing as in Leskovec, Rajaraman, Ullman,
"Mining of Massive Datasets", chapter 3). Signatures are made where text is read, document by document, so that pieces
stay independent; ``duplicates.first_of_similar`` finds the clusters when the pieces are joined.
"""

import hashlib
from typing import Any

import numpy as np

from pamp_pipelines.declarations.corpus import MinHash
from pamp_pipelines.errors import InputError
from pamp_pipelines.tokenization.duplicates import DIGEST

_PERMUTED = 112 << 14
"""Hashes that are permuted at once, in 15 MB: of 16,384 runs of words for the usual 112 permutations."""


class MinHasher:
    """Makes the fingerprints of one corpus.

    Attributes:
        width: bytes of the fingerprint of a document.
    """

    def __init__(self, declared: MinHash) -> None:
        """
        Raises:
            InputError: a library that splits words of the language is absent, or the language is unknown.
        """
        from datatrove.pipeline.dedup.minhash import MinhashConfig, MinhashDedupSignature
        from datatrove.utils.hashing import HashConfig

        config = MinhashConfig(
            n_grams=declared.n_grams,
            num_buckets=declared.num_buckets,
            hashes_per_bucket=declared.hashes_per_bucket,
            seed=declared.seed,
            # not its default, xxhash: version 4 of that refuses text, which datatrove 0.10 gives it
            hash_config=HashConfig(hash_fc="sha1"),
        )
        self.width = declared.num_buckets * DIGEST
        self._at_once = max(1, _PERMUTED // (declared.num_buckets * declared.hashes_per_bucket))
        self._declared = declared
        try:
            # the folder is for its own executors; nothing is written
            self._block = MinhashDedupSignature("memory://unused", config, declared.language or _between_blanks())
        except Exception as error:  # it raises what it likes
            raise self._unusable(error) from error

    def fingerprint(self, text: str) -> bytes:
        """``DIGEST`` bytes for each band, equal where all hashes of the band are.

        Zeros for a text of fewer words than a run has: it is similar to nothing.
        """
        try:
            shingles = self._block.get_shingles(text)
        except Exception as error:
            raise self._unusable(error) from error
        if not len(shingles):
            return bytes(self.width)
        # the least over parts is the least over all
        bands = self._signature(shingles[: self._at_once])
        for start in range(self._at_once, len(shingles), self._at_once):
            np.minimum(bands, self._signature(shingles[start : start + self._at_once]), out=bands)
        return b"".join(hashlib.blake2b(band.tobytes(), digest_size=DIGEST).digest() for band in bands)

    def _signature(self, shingles: "np.ndarray[Any, np.dtype[np.uint64]]") -> "np.ndarray[Any, np.dtype[np.uint64]]":
        return np.array(self._block.get_signature(shingles), dtype="<u8")

    def _unusable(self, error: Exception) -> InputError:
        said = " ".join(str(error).split())[:500]
        return InputError(f"filters: minhash.language {self._declared.language!r}: {type(error).__name__}: {said}")


def _between_blanks() -> Any:
    """A word tokenizer of datatrove's kind that needs no other library: what stands between blanks."""
    from datatrove.utils.word_tokenizers import WordTokenizer

    class BetweenBlanks(WordTokenizer):  # type: ignore[misc]
        def word_tokenize(self, text: str) -> list[str]:
            return text.split()

        def sent_tokenize(self, text: str) -> list[str]:
            return [text]

        def span_tokenize(self, text: str) -> list[tuple[int, int]]:
            return [(0, len(text))]

    return BetweenBlanks()
