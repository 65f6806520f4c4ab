"""Artifacts on storage: identity, manifest, atomic publish, lookup, events."""
