"""From declared sources to documents: finding, hashing, reading and describing the files of a corpus."""
